"""Results of models, strategies and budgets that a configuration does not name any more."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path, PurePosixPath

from tightfit.schemas.config import EAGER_FOLDER, Config
from tightfit.schemas.config_chains import CHAINS_FOLDER
from tightfit.schemas.lineage import LINEAGE_FOLDER
from tightfit.schemas.optimizer_plan import MICROBATCH_SCHEDULE
from tightfit.schemas.package_manifest import MANIFEST_NAME, read_manifest
from tightfit.schemas.plan_folders import plan_folders
from tightfit.util.errors import ArtifactError

LOGS_FOLDER = "logs"
RESULT_FILES = {
    *(
        "graph.arrow",
        "eager.arrow",
        "costs.arrow",
        "reference.arrow",
        "blocks.arrow",
        "options.arrow",
        "linked_options.arrow",
        "hierarchy.arrow",
        "candidates.arrow",
        "frontier.arrow",
    ),
    *("sequence.arrow", "schedule.arrow", "memory_timeline.arrow", "measurement.arrow"),
    *("chain.arrow", "streams.arrow", "pattern.arrow"),
    *("plan.json", "trace.json", "report.html", "report.done"),
    *("chain.arrow", "pattern.arrow", "pipeline.json", "measurement.json"),
    *("updates.json", "machine.json", MICROBATCH_SCHEDULE),
}
"""What a run writes about a model, beside modules, records and sentences of errors."""
SNAKEMAKE_TIMESTAMP = ".snakemake_timestamp"
"""What Snakemake leaves in a folder that a step made."""


def find_stale_results(config: Config) -> Iterator[Path]:
    """The folders below the results that were made for what the configuration does not ask for."""
    folders = plan_folders(config)
    for model in _result_folders(Path(config.results)):
        if model.name == CHAINS_FOLDER and config.chains:
            yield from _find_stale_chains(model, config)
            continue
        if model.name not in config.models:
            if _has_run_files(model):
                yield model
            continue
        wanted = {(asked.strategy, asked.directory) for asked in config.requests(model.name)}
        wanted |= {(asked.kind, asked.strategy) for asked in folders if asked.model == model.name}
        chosen = config.models[model.name]
        step = chosen.optimizer_step
        beside = [EAGER_FOLDER] if chosen.fused else []
        yield from _find_stale_plans(model, wanted, [*beside, *(step.samples if step else ())])
        for name in beside:
            yield from _find_stale_plans(model / name, wanted)


def _find_stale_chains(folder: Path, config: Config) -> Iterator[Path]:
    """The folders of chains, and of plans of theirs, that are not wanted."""
    for chain in _result_folders(folder):
        if chain.name in config.chains:
            asked = config.chains[chain.name].requests()
            wanted = {(request.strategy, request.directory) for request in asked}
            yield from _find_stale_plans(chain, wanted)
        elif _has_run_files(chain):
            yield chain


def _find_stale_plans(
    model: Path, wanted: Collection[tuple[str, str]], beside: Collection[str] = ()
) -> Iterator[Path]:
    """The folders of strategies and plans that are not wanted, but for those `beside`: of what is
    planned with eager's kernels, and of further samples."""
    for strategy in _result_folders(model):
        if strategy.name in beside:
            continue
        if strategy.name not in {name for name, _ in wanted}:
            if _has_run_files(strategy):
                yield strategy
            continue
        for plan in _result_folders(strategy):
            if (strategy.name, plan.name) not in wanted and _has_run_files(plan):
                yield plan


def find_foreign_files(folder: Path) -> Iterator[Path]:
    """What lies below a folder and no run wrote; links are strangers too."""
    for place, folders, files in os.walk(folder):
        here = Path(place)
        yield from (here / name for name in sorted(folders) if (here / name).is_symlink())
        known = _known_files(here)
        yield from (
            here / name
            for name in sorted(files)
            if (here / name).is_symlink() or not _is_known_file(here, name, known)
        )


def remove_results(folder: Path) -> None:
    """Removes a folder that holds nothing but what a run wrote. Raises ArtifactError where it holds
    anything else or cannot be removed."""
    stranger = next(find_foreign_files(folder), None)
    if stranger is not None:
        raise ArtifactError(f"{folder}: is kept, since {stranger} is not of a run")
    try:
        shutil.rmtree(folder)
    except OSError as error:
        raise ArtifactError(f"{folder}: cannot be removed ({error.strerror})") from error


def _result_folders(folder: Path) -> list[Path]:
    """The folders in a folder that may hold results, links left out."""
    if not folder.is_dir():
        return []
    apart = (LINEAGE_FOLDER, LOGS_FOLDER)
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir() and not path.is_symlink() and path.name not in apart
    ]


def _has_run_files(folder: Path) -> bool:
    """Whether a folder holds anything that a run wrote."""
    return any(
        name in RESULT_FILES or (Path(place).name == LOGS_FOLDER and name.endswith(".txt"))
        for place, _, files in os.walk(folder)
        for name in files
    )


def _known_files(folder: Path) -> set[str]:
    """The files of a folder that are known by name: those of a package for its folders, too."""
    package = _package_of(folder)
    if package is None:
        return RESULT_FILES
    try:
        names = map(PurePosixPath, (MANIFEST_NAME, *read_manifest(package).files))
    except ArtifactError:
        return set()
    within = PurePosixPath(folder.relative_to(package).as_posix())
    return {name.name for name in names if name.parent == within}


def _package_of(folder: Path) -> Path | None:
    """The package that a folder is, or is in."""
    around = (folder, *folder.parents[:2])
    return next((path for path in around if (path / MANIFEST_NAME).is_file()), None)


def _is_known_file(folder: Path, name: str, known: set[str]) -> bool:
    if folder.name == LINEAGE_FOLDER:
        return name.endswith(".json")
    if folder.name == LOGS_FOLDER:
        return name.endswith(".txt")
    if folder.name == "__pycache__":
        return name.endswith(".pyc") and _package_of(folder.parent) is not None
    return name in known or name == SNAKEMAKE_TIMESTAMP
