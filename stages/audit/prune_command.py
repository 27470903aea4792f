"""`prune`: removes results of models, strategies and budgets that left the configuration."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    parser.add_argument(
        "--configuration", type=Path, default=Path("config.yaml"), help="what is still wanted"
    )
    parser.add_argument("--dry-run", action="store_true", help="tell it and remove nothing")


def run(options: argparse.Namespace) -> None:
    """Removes the folders, a line each. A folder that holds anything which no run wrote is kept.

    Raises ArtifactError where a folder is kept, after the others were removed.
    """
    from tightfit.schemas.config import read_config
    from tightfit.stages.audit.stale_results import find_stale_results, remove_results
    from tightfit.util.errors import ArtifactError

    config = read_config(options.configuration)
    folders = list(find_stale_results(config))
    kept = []
    for folder in folders:
        if options.dry_run:
            print(f"{folder}: is left over")
            continue
        try:
            remove_results(folder)
            print(f"{folder}: removed")
        except ArtifactError as error:
            kept.append(str(error))
    if not folders:
        print(f"{config.results}: nothing is left over")
    if kept:
        raise ArtifactError("; ".join(kept))
