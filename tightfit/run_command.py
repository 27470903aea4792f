"""`run`: plans the models of a configuration with the workflow that comes with tightfit."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tightfit.job_client import offer_job_servers
from tightfit.util.command_line import parse_count
from tightfit.util.errors import ConfigError
from tightfit.util.paths import INSTALL_ROOT
from tightfit.util.process_group import is_interrupted, run_process_group

PACKAGE = INSTALL_ROOT / "tightfit"
SNAKEFILE = PACKAGE / "Snakefile"
SNAKEMAKE_PROGRAM = PACKAGE / "snakemake_process.py"
PROFILES = PACKAGE / "workflow" / "profiles"
DEFAULT_PROFILE = "default"
LOGGER_FOLDER = PACKAGE / "workflow" / "progress"
"""The folder of the module that tells the progress of a run."""

LOCK_FILE = Path(".snakemake", "plan.lock")
"""The lock of a folder in which a run is. Unlike Snakemake's own, which --nolock leaves out, it
ends with its processes: a run that was killed does not stop the next one."""
MEASURING_RULES = ("profile", "profile_updates", "link", "offload_link", "reference")
REMEASURE_VARIABLE = "TIGHTFIT_REMEASURE"
STANDARD_ERROR = 2
"""The descriptor of the file."""
TODO_MARK = "To do: "
RETRACE_MARK = ", up to "
"""What a dry run says of models that are traced again, which may leave the graph as it was."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    profiles = ", ".join(profile_names())
    parser.add_argument("configuration", type=Path, help="the configuration, a YAML file")
    parser.add_argument(
        "--cores", type=parse_cores, help="use at most so many cores (default: all)"
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="say what is to be done and why, and do nothing"
    )
    parser.add_argument(
        "--remeasure",
        action="store_true",
        help="measure costs and links again, also those that are in the store",
    )
    parser.add_argument(
        "--profile",
        default=DEFAULT_PROFILE,
        help=f"where and how jobs run: {profiles}, or the folder of a Snakemake profile",
    )
    parser.epilog = "Behind -- stand further options of Snakemake."
    parser.set_defaults(snakemake_options=[])


def parse_cores(text: str) -> str:
    """A number of cores, or "all"; raises ArgumentTypeError for any other text."""
    return text if text == "all" else str(parse_count(text))


def run(options: argparse.Namespace) -> int:
    """Says what is to be done and why, does it, and prints the table of plans.

    Raises ConfigError for a wrong configuration, before anything else is done. Returns the exit
    code: that of Snakemake, 1 if a plan is one that the configuration fails on, or 128 and the
    number of the signal that ended the run.
    """
    from tightfit.schemas.config import read_config, require_disks, require_folders
    from tightfit.schemas.results_claim import claim_results

    _require_snakemake()
    here = options.profile == DEFAULT_PROFILE  # disks and modules of a cluster are its nodes' own
    config = read_config(options.configuration, factories=here)
    require_folders(config, str(options.configuration), not options.dry_run)
    if here:
        require_disks(config, str(options.configuration))
    folder = options.configuration.absolute().parent
    with (
        lock_run_folder(folder, not options.dry_run) as lock,
        offer_job_servers() as (variables, pipe),
    ):
        claim_results(Path(config.results), folder, options.dry_run)
        workflow = _build_workflow_run(options, variables, [lock, pipe])
        todo, code = workflow.explain(None if options.dry_run else _load_summary)
        if is_interrupted(code):
            return _report_interrupt(code)
        if code or options.dry_run:
            print(todo, end="", file=sys.stderr if code else sys.stdout)
            return code
        print(todo, end="", flush=True)
        if TODO_MARK not in todo:
            return _print_summary(options.configuration)
        # Graphs are traced again in a run of their own: Snakemake then sees which of them changed.
        if RETRACE_MARK in todo and is_interrupted(code := workflow.run("traced_again")):
            return _report_interrupt(code)
        code = workflow.run()
        if is_interrupted(code):
            return _report_interrupt(code)
        return _print_summary(options.configuration) or code


def _report_interrupt(code: int) -> int:
    """Says that the run was interrupted, and returns its exit code."""
    print("tightfit run: interrupted", file=sys.stderr)
    return code


@contextlib.contextmanager
def lock_run_folder(folder: Path, wait: bool = True) -> Iterator[int]:
    """Within it this run is the only one in a folder; yields the descriptor of the locked file.

    Waits for the end of another run, and says so. Raises ConfigError if the folder cannot be
    written to, or if another run is there and this one is not to `wait`.
    """
    path = folder / LOCK_FILE
    try:
        path.parent.mkdir(exist_ok=True)
        file = path.open("w")
    except OSError as error:
        raise ConfigError(
            f"{folder}: cannot be written to ({error.strerror}): a run keeps its records in the"
            " folder of the configuration"
        ) from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if not wait:
                raise ConfigError(
                    f"{folder}: another run is at work there; ask for --dry-run when it has ended"
                ) from error
            print("Waiting for another run in this folder to end ...", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


@dataclass(frozen=True)
class WorkflowRun:
    """Calls of Snakemake in the folder of a configuration.

    `options` are those of every call, `inherited` are descriptors of files that the calls keep
    open: that of the folder's lock, and that of the pipe that job servers end with.
    """

    options: list[str]
    folder: Path
    environment: dict[str, str]
    inherited: Sequence[int]

    def run(self, *words: str) -> int:
        """Calls Snakemake with more words; returns the exit code. What it and its jobs print is
        progress and goes to standard error, so that no job fails where nobody reads the output."""
        with open(STANDARD_ERROR, "wb", buffering=0, closefd=False) as progress:
            return self._call(words, progress)

    def explain(self, meanwhile: Callable[[], object] | None) -> tuple[str, int]:
        """What there is to do and why, as text, and the exit code of the dry run, during which this
        process does other work."""
        with tempfile.TemporaryFile() as output:
            code = self._call(["--dry-run", "--logger-tightfit-why"], output, meanwhile)
            output.seek(0)
            text = output.read().decode(errors="replace")
        return re.sub(r"^Using profile .*\n", "", text, flags=re.MULTILINE), code

    def _call(
        self,
        words: Sequence[str],
        output: IO[bytes] | None = None,
        meanwhile: Callable[[], object] | None = None,
    ) -> int:
        # -P: a module in the folder of the configuration must not stand in for one of Snakemake's.
        return run_process_group(
            [sys.executable, "-P", str(SNAKEMAKE_PROGRAM), *words, *self.options],
            folder=self.folder,
            environment=self.environment,
            output=output,
            inherited=self.inherited,
            meanwhile=meanwhile,
        )


def _build_workflow_run(
    options: argparse.Namespace, variables: Mapping[str, str], inherited: Sequence[int]
) -> WorkflowRun:
    """The calls of Snakemake for the options of a command line."""
    given = options.configuration
    words = ["--forcerun", *MEASURING_RULES] if options.remeasure else []
    words += ["--envvars", REMEASURE_VARIABLE] if options.remeasure else []
    words += ["--snakefile", str(SNAKEFILE), "--profile", str(_find_profile(options.profile))]
    words += ["--configfile", str(given.absolute()), "--nolock", "--logger", "tightfit"]
    words += ["--logger-tightfit-folder", str(given.parent)] if given.parent != Path() else []
    words += ["--cores", options.cores] if options.cores else []
    return WorkflowRun(
        [*words, *options.snakemake_options],
        given.absolute().parent,
        {**_workflow_environment(options.remeasure), **variables},
        inherited,
    )


def _find_profile(name: str) -> Path:
    """The folder of a profile that comes with tightfit, or another one; raises ConfigError if there
    is none."""
    for folder in (PROFILES / name, Path(name).absolute()):
        if folder.is_dir():
            return folder
    raise ConfigError(
        f"--profile: there is no profile {name!r}, expected {', '.join(profile_names())} or the"
        " folder of a Snakemake profile"
    )


def profile_names() -> list[str]:
    """The profiles that come with tightfit."""
    return sorted(path.name for path in PROFILES.iterdir() if path.is_dir())


def _workflow_environment(remeasure: bool) -> dict[str, str]:
    """The environment variables of Snakemake and of its jobs."""
    environment = dict(os.environ)
    # What a run imports is compiled once, not at each start.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.pop(REMEASURE_VARIABLE, None)
    if remeasure:
        environment[REMEASURE_VARIABLE] = "1"
    path = [str(LOGGER_FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment["PYTHONPATH"] = os.pathsep.join(path)
    return environment


def _require_snakemake() -> None:
    if importlib.util.find_spec("snakemake") is None:
        raise ModuleNotFoundError("No module named 'snakemake'", name="snakemake")


def _load_summary() -> None:
    """Loads what prints the table."""
    import tightfit.stages.report.summary_command  # noqa: F401


def _print_summary(configuration: Path) -> int:
    """Prints the table of plans; returns the exit code that these ask for."""
    from tightfit.__main__ import run_stage

    return run_stage("summary", ["--configuration", str(configuration)])
