"""Plans that are of no budget, each in a folder MODEL/KIND/STRATEGY of the results.

A kind of plans that a configuration can ask for has a line in `PLAN_KINDS`, and one in
`PLAN_READERS` of `stages/report/plan_readers.py`. Its rules write plan/plan.json and report.html
into the folder of each plan, and errors into logs/ beside these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tightfit.schemas.config import Config
from tightfit.schemas.config_pipeline import PIPELINE_FOLDER

PLAN_PATH = ("plan", "plan.json")
"""The plan in its folder."""


@dataclass(frozen=True)
class PlanFolder:
    """The folder of one plan: its `model`, the `kind` of plan, and the `strategy`; `target` says in
    a word what a configuration plans it for, "" if it is known from the plan alone."""

    model: str
    kind: str
    strategy: str
    target: str = field(default="", compare=False)

    @classmethod
    def of_plan(cls, path: Path) -> PlanFolder | None:
        """The folder that a plan.json is in; None for the plan of a budget."""
        if path.parts[-2:] != PLAN_PATH or len(path.parts) < 5 or path.parts[-4] not in PLAN_KINDS:
            return None
        return cls(*path.parts[-5:-2])

    def path(self, results: Path | str) -> Path:
        """The folder, in that of the results."""
        return Path(results) / self.model / self.kind / self.strategy


def _pipeline_folders(config: Config) -> Iterator[PlanFolder]:
    for name, model in config.models.items():
        if (pipeline := model.pipeline) is not None:
            for strategy in pipeline.strategies:
                yield PlanFolder(name, PIPELINE_FOLDER, strategy, pipeline.machine_name)


PLAN_KINDS: dict[str, Callable[[Config], Iterator[PlanFolder]]] = {
    PIPELINE_FOLDER: _pipeline_folders
}
"""By the name of the folder of a kind, in that of a model, those that a configuration asks for."""


def plan_folders(config: Config) -> list[PlanFolder]:
    """The folders of all plans of a configuration that are of no budget."""
    return [folder for find in PLAN_KINDS.values() for folder in find(config)]


def find_plan_folders(results: Path) -> list[PlanFolder]:
    """Those that are there, whatever is in them."""
    return [
        PlanFolder(*path.relative_to(results).parts)
        for kind in PLAN_KINDS
        for path in sorted(results.glob(f"*/{kind}/*"))
        if path.is_dir() and path.name not in ("logs", "lineage")
    ]
