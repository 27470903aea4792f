"""The command line: `tightfit STAGE ...`, or `python -m tightfit STAGE ...`.

Each stage has a module `command` with `add_arguments` and `run`; only the one that is called is
loaded. A stage that makes files says in `lineage_entries` what it made of what; a record of it is
kept beside them (see `schemas.lineage`). Exit codes: 0 done, 1 something outside tightfit is wrong
(one sentence on standard error), 2 wrong arguments, 130 interrupted."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import select
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tightfit import __version__
from tightfit.job_client import run_on_server
from tightfit.util.command_line import to_single_line
from tightfit.util.errors import ConfigError, TightfitError
from tightfit.util.processes import end_process, lock_file

if TYPE_CHECKING:
    from tightfit.util.command_line import LineageEntry

_STAGES = (
    ("trace", "trace.command", "capture the training step of a model as a graph"),
    ("fuse", "fuse.command", "make groups of small ops single ops, and compile them"),
    ("profile", "profile.command", "measure the ops of a graph on a device"),
    ("machine", "profile.machine_command", "measure the link of a device and describe the machine"),
    ("partition", "partition.command", "cut a graph into a sequence of blocks"),
    ("solve", "solve.command", "find the options of each distinct block"),
    ("combine", "combine.command", "make the plans of a strategy, from most to least memory"),
    ("select", "combine.select_command", "choose the plan of a strategy for a budget"),
    ("chain", "combine.chain.command", "plan a chain, or the branches of a join, from files"),
    (
        "join-table",
        "combine.join.table_command",
        "print the least times of a join of unit sizes by its memory",
    ),
    (
        "optimizer-offload",
        "combine.optimizer_offload.command",
        "plan a step with its optimizer, in two memories",
    ),
    (
        "batch-size",
        "combine.optimizer_offload.batch_size_command",
        "find the batch with which such a step trains the most samples a second",
    ),
    ("pipeline", "combine.pipeline.command", "split a step over the ranks of a pipeline"),
    ("generate", "generate.command", "write the module that runs a plan"),
    ("reference", "validate.reference_command", "run a model and measure its own step"),
    ("validate", "validate.command", "run a module against its model and compare"),
    ("report", "report.command", "write the page of a model, or the index of a run"),
    ("summary", "report.summary_command", "print a table of the plans of a run"),
    ("audit", "audit.command", "check all that a run left on disk"),
    ("prune", "audit.prune_command", "remove results that the configuration does not ask for"),
    ("show", "audit.show_command", "print a file of a run as a table"),
    ("lineage", "audit.lineage_command", "tell how a file of a run was made, and of what"),
)
STAGES = {
    "run": ("tightfit.run_command", "plan the models of a configuration, from any folder"),
    "fit": ("tightfit.fit_command", "tell on which cards a model trains, without a GPU"),
}
STAGES |= {name: (f"tightfit.stages.{module}", purpose) for name, module, purpose in _STAGES}
"""The module and the purpose of each stage, in the order the data flows, behind what runs all."""

WORKFLOW_PACKAGES = ("snakemake", "yaml")
"""Packages that an installation without the extra `workflow` may lack."""

CLOSED_PIPE_CODE = 141
"""The exit code where what reads the output has ended, as that of other programs in a shell."""

MAX_ERROR_CHARACTERS = 2000
"""Characters of the longest line of an error."""

HELP_OPTIONS, VERSION_OPTIONS = ("-h", "--help"), ("-V", "--version")
UNFINISHED_ERROR = (
    "came to no end: it was killed, as where memory runs out, or the model's code ended the process"
    " (os._exit), unless it still runs"
)
"""What the file for errors says while a stage runs, and after one that could say nothing."""
ERROR_READING_STAGES = ("report",)
"""Stages that read such files, their own among them."""

HELP_HEADER = "usage: tightfit STAGE [--debug] ...\n\nMakes PyTorch training fit a memory budget.\n"


class _StageParser(argparse.ArgumentParser):
    """One that keeps what is wrong with arguments in the file for errors, too."""

    words: Sequence[str] = ()

    def error(self, message: str) -> NoReturn:
        stage = self.prog.rpartition(" ")[2]
        _keep_error(_error_file(self.words), f"{stage}: wrong arguments: {message}")
        super().error(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one stage and returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] not in (*STAGES, *HELP_OPTIONS, *VERSION_OPTIONS):
        named = f"{words[0]!r} is no stage, use one of {', '.join(STAGES)}"
        print(f"tightfit: {named}", file=sys.stderr)
        return 2
    stage = words[0] if words else HELP_OPTIONS[0]
    try:
        if not words or words[0] in (*HELP_OPTIONS, *VERSION_OPTIONS):
            about = words and words[0] in VERSION_OPTIONS
            print(f"tightfit {__version__}" if about else help_text(), flush=True)
            return 0 if words else 2
        served = run_on_server(words) if arguments is None else None
        code = run_stage(stage, words[1:]) if served is None else _served_code(words, served)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _is_output_closed():
            raise
        return CLOSED_PIPE_CODE
    except ModuleNotFoundError as error:
        if error.name not in WORKFLOW_PACKAGES:
            raise
        needed = f"needs the package {error.name}: pip install 'tightfit[workflow]'"
        print(f"tightfit {stage}: {needed}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # while what the stage needs is imported
        print(f"tightfit {stage}: interrupted", file=sys.stderr)
        return 130


def _served_code(words: Sequence[str], code: int) -> int:
    """The exit code of a stage that ran on a server, 1 where its process ended ahead of the stage
    and with 0: the file for errors is gone after a stage that went well."""
    file = _error_file(words)
    if code or file is None or words[0] in ERROR_READING_STAGES or not file.exists():
        return code
    print(f"tightfit {words[0]}: {UNFINISHED_ERROR}", file=sys.stderr)
    return 1


def _error_file(words: Sequence[str]) -> Path | None:
    """The file for errors that a command line names."""
    file = dict(pairwise(words)).get("--error-file")
    return Path(file) if file else None


def _is_output_closed() -> bool:
    """Whether nobody reads the output any more, as behind `| head`; what is left of it is given up,
    since Python would try again to write it at its end."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)
    if not any(events & (select.POLLERR | select.POLLHUP) for _, events in poll.poll(0)):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return True


def help_text() -> str:
    """The help text: every stage with its purpose."""
    width = max(map(len, STAGES))
    lines = [f"  {stage:<{width}}  {purpose}" for stage, (_, purpose) in STAGES.items()]
    return "\n".join(
        [
            HELP_HEADER,
            "stages:",
            *lines,
            "",
            "tightfit STAGE --help tells more, tightfit --version the version.",
        ]
    )


def run_stage(stage: str, arguments: Sequence[str]) -> int:
    """Parses a stage's arguments and runs it, telling its errors in one sentence; returns the exit
    code, which a stage may give where what it made is to be seen as failed."""
    module_name, purpose = STAGES[stage]
    module = import_module(module_name)
    parser = _StageParser(prog=f"tightfit {stage}", description=purpose.capitalize())
    parser.words = arguments
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    parser.add_argument(
        "--error-file", type=Path, help="a file to keep the sentence of an error in"
    )
    module.add_arguments(parser)
    try:
        options = _parse_words(parser, _join_negative_values(arguments))
    except TightfitError as error:
        parser.error(str(error))
    if stage not in ERROR_READING_STAGES:
        # Where this cannot be kept, neither can an error, and that is told.
        with contextlib.suppress(TightfitError):
            _write(options.error_file, f"{stage}: {UNFINISHED_ERROR}")
    runs = lock_file(None if stage in ERROR_READING_STAGES else options.error_file)
    try:
        code: int | None = module.run(options)
        if hasattr(module, "lineage_entries"):
            write_stage_lineage(stage, module.lineage_entries(options))
    except TightfitError as error:
        sentence = _error_line(error)
        if not options.debug:
            print(_with_details(f"tightfit {stage}: {sentence}", error, "\n"), file=sys.stderr)
        _keep_error(options.error_file, _with_details(f"{stage}: {sentence}", error, "\n\n"))
        if options.debug:
            raise
        return 1
    except KeyboardInterrupt:
        if options.error_file is not None:
            options.error_file.unlink(missing_ok=True)
        print(f"tightfit {stage}: interrupted", file=sys.stderr)
        return 130
    except Exception as error:
        _keep_error(options.error_file, f"{stage}: broke with {type(error).__name__}: {error}")
        raise
    finally:
        runs.close()
    if options.error_file is not None:
        options.error_file.unlink(missing_ok=True)
    return code or 0


def _parse_words(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """The options of a command line. A stage that calls Snakemake takes what stands behind `--` as
    options of it."""
    if "--" not in words or parser.get_default("snakemake_options") is None:
        return parser.parse_args(words)
    own = words.index("--")
    options = parser.parse_args(words[:own])
    options.snakemake_options = words[own + 1 :]
    return options


def _join_negative_values(words: Sequence[str]) -> list[str]:
    """The words of a command line, of which one that begins as a number below zero is the value of
    the option ahead of it: the parser would take `-5%` for an option of its own."""
    found: list[str] = []
    for word in words:
        if found and re.fullmatch("--[a-z-]+", found[-1]) and re.match(r"-\.?[0-9]", word):
            found[-1] += f"={word}"
        else:
            found.append(word)
    return found


def _error_line(error: TightfitError) -> str:
    """What an error says, on one line whatever texts of files it quotes (those of a configuration
    have a line each), and each line of a length that a person reads."""
    kept = "\n" if isinstance(error, ConfigError) else ""
    lines = to_single_line(str(error), kept).split("\n")
    half = MAX_ERROR_CHARACTERS // 2
    return "\n".join(
        line if len(line) <= 2 * half else f"{line[:half]} ... {line[-half:]}" for line in lines
    )


def _with_details(sentence: str, error: TightfitError, between: str) -> str:
    details = to_single_line(error.details, "\n")
    return f"{sentence}{between}{details}" if details else sentence


def write_stage_lineage(stage: str, derived: Iterable[LineageEntry]) -> None:
    """Keeps records of what a stage made, by the room that its code is in."""
    from tightfit.schemas.lineage import write_lineage

    room = STAGES[stage][0].split(".")[2]
    for entry in derived:
        write_lineage(room, entry)


def _keep_error(error_file: Path | None, sentence: str) -> None:
    """Keeps the sentence of an error; where that fails too, as on a full disk, says so."""
    try:
        _write(error_file, sentence)
    except TightfitError as error:
        print(f"tightfit: {error}", file=sys.stderr)


def _write(error_file: Path | None, sentence: str) -> None:
    from tightfit.schemas.store import write_bytes

    if error_file is not None:
        write_bytes(error_file, f"{sentence}\n".encode())


if __name__ == "__main__":
    end_process(main())
