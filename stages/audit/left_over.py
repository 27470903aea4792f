"""Results of models, strategies and budgets that a configuration does not name any more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

from tightfit.schemas.config import BESIDE, Config
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.lineage import FOLDER
from tightfit.schemas.module import MADE_FROM, read_made_from

LOGS = "logs"
FILES = {
    *(
        "graph.arrow",
        "eager.arrow",
        "costs.arrow",
        "reference.arrow",
        "blocks.arrow",
        "options.arrow",
        "linked_options.arrow",
        "hierarchy.arrow",
        "given.arrow",
        "frontier.arrow",
    ),
    *("sequence.arrow", "schedule.arrow", "line.arrow", "measurement.arrow"),
    *("plan.json", "trace.json", "report.html", "report.done"),
}
"""What a run writes about a model, beside modules, records and sentences of errors."""
SNAKEMAKES = ".snakemake_timestamp"
"""What Snakemake leaves in a folder that a step made."""


def left_over(config: Config) -> Iterator[Path]:
    """The folders below the results that were made for what the configuration does not ask for."""
    for model in _folders(Path(config.results)):
        if model.name not in config.models:
            if _of_a_run(model):
                yield model
            continue
        wanted = {(asked.strategy, asked.directory) for asked in config.requests(model.name)}
        beside = model / BESIDE if config.models[model.name].fused else None
        yield from _unwanted(model, wanted, beside)
        if beside is not None:
            yield from _unwanted(beside, wanted)


def _unwanted(
    model: Path, wanted: Collection[tuple[str, str]], beside: Path | None = None
) -> Iterator[Path]:
    """The folders of strategies and plans that are not wanted, but for one that is planned in
    beside."""
    for strategy in _folders(model):
        if strategy == beside:
            continue
        if strategy.name not in {name for name, _ in wanted}:
            if _of_a_run(strategy):
                yield strategy
            continue
        for plan in _folders(strategy):
            if (strategy.name, plan.name) not in wanted and _of_a_run(plan):
                yield plan


def strangers(folder: Path) -> Iterator[Path]:
    """What lies below a folder and no run wrote; links are strangers too."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        yield from (here / name for name in sorted(folders) if (here / name).is_symlink())
        known = _known(here)
        yield from (
            here / name
            for name in sorted(files)
            if (here / name).is_symlink() or not _is_known(here, name, known)
        )


def remove(folder: Path) -> None:
    """Removes a folder that holds nothing but what a run wrote. Raises ArtifactError where it holds
    anything else or cannot be removed."""
    stranger = next(strangers(folder), None)
    if stranger is not None:
        raise ArtifactError(f"{folder}: is kept, since {stranger} is not of a run")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be removed ({error.strerror})") from error


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder that may hold results, links left out."""
    if not folder.is_dir():
        return []
    apart = (FOLDER, LOGS)
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.is_symlink() and path.name not in apart
    ]


def _of_a_run(folder: Path) -> bool:
    """Whether a folder holds anything that a run wrote."""
    return any(
        name in FILES or (Path(place).name == LOGS and name.endswith(".txt"))
        for place, _, files in os.walk(folder)
        for name in files
    )


def _known(folder: Path) -> set[str]:
    """The files of a folder that are known by name."""
    if not (folder / MADE_FROM).is_file():
        return FILES
    try:
        return {MADE_FROM, *read_made_from(folder).files}
    except ArtifactError:
        return set()


def _is_known(folder: Path, name: str, known: set[str]) -> bool:
    if folder.name == FOLDER:
        return name.endswith(".json")
    if folder.name == LOGS:
        return name.endswith(".txt")
    if folder.name == "__pycache__":
        return name.endswith(".pyc") and (folder.parent / MADE_FROM).is_file()
    return name in known or name == SNAKEMAKES
