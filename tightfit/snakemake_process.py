"""`python -P tightfit/snakemake_process.py OPTIONS`: Snakemake with less to load and to look at.

Snakemake loads each plugin for a cluster that is installed, also if jobs run on this machine, which
takes a second. It asks for the parameters of the functions in rules tens of thousands of times, and
the garbage collector walks through the graph of jobs as often as that grows.
"""

from __future__ import annotations

import functools
import gc
import itertools
import pkgutil
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

PLUGIN_PREFIX = "snakemake_executor_plugin_"
DEFAULT_WORKFLOW_PROFILE = Path("profiles", "default")
"""The folder of a profile that Snakemake takes unasked, in that of the run."""
GC_THRESHOLDS = (50_000, 50, 100)
"""Objects and collections until the garbage collector looks at younger and older objects."""


def unused_plugins(words: Sequence[str], installed: Sequence[str]) -> set[str]:
    """The modules of executors, among those that are installed, which Snakemake can do without: all
    unless the arguments or the profile that these name has the name of one.

    Example:
        >>> unused_plugins(["--cores", "all"], ["snakemake_executor_plugin_slurm"])
        {'snakemake_executor_plugin_slurm'}
    """
    plugins = {name for name in installed if name.startswith(PLUGIN_PREFIX)}
    texts = [*words]
    profiles = [*map(Path, _option_values(words, "--profile")), DEFAULT_WORKFLOW_PROFILE]
    for folder in profiles:
        texts += [path.read_text(errors="replace") for path in folder.glob("*.yaml")]
    names = {name.removeprefix(PLUGIN_PREFIX).replace("_", "-") for name in plugins}
    named = any(name in text for name in names for text in texts)
    return set() if named or any("workflow-profile" in word for word in words) else plugins


def _option_values(words: Sequence[str], option: str) -> list[str]:
    """What stands behind an option."""
    return [value for word, value in itertools.pairwise(words) if word == option]


def _hide_modules(hidden: set[str]) -> None:
    """Has nobody find these modules who looks for all that there are."""
    iter_modules = pkgutil.iter_modules

    def iter_others(path: Sequence[str] | None = None, prefix: str = "") -> Iterator[object]:
        return (found for found in iter_modules(path, prefix) if found.name not in hidden)

    pkgutil.iter_modules = iter_others  # type: ignore[assignment]


def _exit_of_interrupt(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Shows no traceback of an interrupt: who calls this process says so."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)


def main() -> None:
    """Runs Snakemake with the arguments of this process."""
    gc.set_threshold(*GC_THRESHOLDS)
    sys.excepthook = _exit_of_interrupt
    _hide_modules(unused_plugins(sys.argv[1:], [found.name for found in pkgutil.iter_modules()]))
    # An interrupt waits until all is loaded: libraries take one for an error of theirs and go on.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    import snakemake.common

    snakemake.common.get_function_params = functools.cache(snakemake.common.get_function_params)
    from snakemake.cli import main as run_snakemake

    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
    run_snakemake()


if __name__ == "__main__":
    main()
