"""`audit`: checks every file of a run."""

from __future__ import annotations

import argparse
import math
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("folder", type=Path, help="the results of a run, or those of one model")
    parser.add_argument(
        "--configuration", type=Path, help="what it was run with: the rest is told as left over"
    )


def _format_gap(gap: float) -> str:
    """A share of a plan's time, rounded up, so that the sentence about it holds."""
    return f"{math.ceil(1000 * gap) / 1000:.1%} of its time, by its bound"


def run(options: argparse.Namespace) -> None:
    """Prints what is wrong, one line each, or how much was found to be right, and which plans
    failed by their measurement.

    Raises ArtifactError where anything is wrong or nothing is there, and where a plan failed,
    unless `fail_on` of the configuration leaves that out.
    """
    from tightfit.schemas.config import read_config
    from tightfit.schemas.measurement import FAILED_STATUS
    from tightfit.stages.audit.audit import audit
    from tightfit.stages.audit.stale_results import find_stale_results
    from tightfit.util.command_line import format_count
    from tightfit.util.errors import ArtifactError

    left: list[Path] = []
    fail_on: tuple[str, ...] = (FAILED_STATUS,)
    if options.configuration is not None:
        config = read_config(options.configuration)
        left, fail_on = list(find_stale_results(config)), config.fail_on
    found = audit(options.folder, left)
    for folder in left:
        print(f"{folder}: is left over, the configuration does not ask for it")
    for sentence in (*found.complaints, *found.failed):
        print(sentence)
    if found.complaints:
        things = "thing is" if len(found.complaints) == 1 else "things are"
        raise ArtifactError(f"{options.folder}: {len(found.complaints)} {things} wrong")
    failed = f"{len(found.failed)} of its plans failed"
    if found.failed and FAILED_STATUS in fail_on:
        raise ArtifactError(f"{options.folder}: {failed}")
    counts = ", ".join(format_count(count, what) for what, count in found.counts.items())
    gaps = "" if found.gap is None else f"; no plan could save more than {_format_gap(found.gap)}"
    unfit = f"; {found.infeasible} of the plans are infeasible" if found.infeasible else ""
    well = f"all files are right, and {failed}" if found.failed else "all is well"
    print(f"{options.folder}: {well} with {counts}{unfit}{gaps}")
