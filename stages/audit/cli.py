"""`audit`: checks every file of a run."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument("folder", type=Path, help="the results of a run, or those of one model")


def run(options: argparse.Namespace) -> None:
    """Prints what is wrong, one line each, or how much was found to be right.

    Raises ArtifactError where anything is wrong or nothing is there.
    """
    from schemas.errors import ArtifactError
    from stages.audit.folder import audit

    found = audit(options.folder)
    for sentence in found.complaints:
        print(sentence)
    if found.complaints:
        things = "thing is" if len(found.complaints) == 1 else "things are"
        raise ArtifactError(f"{options.folder}: {len(found.complaints)} {things} wrong")
    counts = ", ".join(f"{count} {what}" for what, count in found.counts.items())
    print(f"{options.folder}: all is well with {counts}")
