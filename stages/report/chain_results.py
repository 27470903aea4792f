"""The plans of chains that a run left, as rows of the index and of the table in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from tightfit.schemas.config_chains import CHAINS_FOLDER
from tightfit.schemas.error_logs import latest_error
from tightfit.schemas.pipeline_plan import PipelinePlan, is_pipeline_plan, read_pipeline_plan
from tightfit.schemas.plan import Plan, read_plan
from tightfit.stages.report.index_page import IndexRow, format_budget_folder
from tightfit.stages.report.load import (
    MODEL_PAGE_FILE,
    NOT_PLANNED_YET,
)
from tightfit.stages.report.model_page import panel_id
from tightfit.stages.report.outcomes import DAMAGED, Severity, optimality_label
from tightfit.stages.report.tradeoff_plot import strategy_colors
from tightfit.util.budget import NO_BUDGET
from tightfit.util.errors import ArtifactError

NOT_RUN = "simulated, not run"
"""Why no plan of a chain is measured."""


@dataclass(frozen=True)
class ChainPlanResult:
    """One plan of a chain, in a folder `place`: its plan, None where there is none, and the
    sentence of what went wrong, "" where nothing did. A `damaged` one cannot be read."""

    place: Path
    plan: Plan | PipelinePlan | None
    error: str
    damaged: bool = False

    @classmethod
    def of(cls, place: Path, strict: bool = True) -> ChainPlanResult:
        """What a folder of a plan holds; raises ArtifactError where it is damaged, if `strict`."""
        path = place / "plan.json"
        plan: Plan | PipelinePlan | None = None
        try:
            if path.exists():
                plan = read_pipeline_plan(path) if is_pipeline_plan(path) else read_plan(path)
        except ArtifactError as damage:
            if strict:
                raise
            return cls(place, None, str(damage), True)
        error = latest_error(place)
        return cls(place, plan, error or ("" if plan is not None else NOT_PLANNED_YET))

    @property
    def chain(self) -> str:
        """The chain, as the folder of what is planned of it: "chains/resnet101"."""
        return f"{CHAINS_FOLDER}/{self.place.parts[-3]}"

    @property
    def strategy(self) -> str:
        """The name of the strategy."""
        return self.place.parts[-2]

    @property
    def folder(self) -> str:
        """Where the plan is below the chain's folder."""
        return f"{self.strategy}/{self.place.name}"

    @property
    def budget(self) -> str:
        """The budget as it was written, "" for none."""
        asked = self.plan.budget if isinstance(self.plan, Plan) else ""
        return format_budget_folder(self.place.name) if asked in ("", NO_BUDGET) else asked

    @property
    def outcome(self) -> tuple[Severity, str]:
        """How bad it is, and the word for it."""
        if self.error:
            missing = "not planned" if self.error == NOT_PLANNED_YET else "failed"
            return "bad", DAMAGED if self.damaged else missing
        assert self.plan is not None, "a plan that is not there has an error"
        return ("bad", "infeasible") if self.infeasible else ("warning", "should fit")

    @property
    def infeasible(self) -> bool:
        """Whether there is a plan that says that nothing fits."""
        return self.plan is not None and self.plan.status == "infeasible"

    @property
    def peak(self) -> int | None:
        """Bytes at most, of a pipeline those of the fullest device; None where there are none."""
        if isinstance(self.plan, PipelinePlan):
            return max((device.peak for device in self.plan.devices), default=None)
        return None if self.plan is None else self.plan.peak

    @property
    def allowed(self) -> int | None:
        """Bytes that there may be at most: the budget, or the memory of each device."""
        if isinstance(self.plan, PipelinePlan):
            return max((device.memory for device in self.plan.devices), default=None)
        return None if self.plan is None else self.plan.budget_total

    @property
    def ratio(self) -> float | None:
        """The time beside that of keeping everything, None where there is none; that of a pipeline
        is a period."""
        plan = self.plan
        if not isinstance(plan, Plan) or plan.time is None or plan.keep_all.time <= 0:
            return None
        return plan.time / plan.keep_all.time

    @property
    def period(self) -> float | None:
        """The seconds that a batch of a pipeline takes, None where there is none."""
        return self.plan.period if isinstance(self.plan, PipelinePlan) else None

    @property
    def gap(self) -> float | None:
        """The share of the time above its bound, None where there is none."""
        return None if self.plan is None or self.infeasible else self.plan.gap

    @property
    def message(self) -> str:
        """What is said of it in a table: what went wrong, or how good the plan is."""
        if self.error or self.plan is None:
            return self.error
        if isinstance(self.plan, PipelinePlan) or self.infeasible:
            return self.plan.message
        among = f" among {self.plan.optimal_in}" if self.plan.optimal_in else ""
        return f"{optimality_label(self.plan)}{among}; {NOT_RUN}"


def find_chain_plans(results: Path) -> list[Path]:
    """The plans of all chains of a run, in the order of their paths."""
    return sorted((results / CHAINS_FOLDER).glob("*/*/*/plan.json"))


def read_chain_results(
    results: Path, planned: Iterable[Path] | None = None, strict: bool = True
) -> list[ChainPlanResult]:
    """The plans of chains, by path: those `planned` (as the plan.json of each, there or not), or
    all of a run; raises ArtifactError where one is damaged, if `strict`."""
    places = {path.parent for path in (find_chain_plans(results) if planned is None else planned)}
    return [ChainPlanResult.of(place, strict) for place in sorted(places)]


def chain_index_rows(found: Sequence[ChainPlanResult]) -> list[IndexRow]:
    """The rows of the index: one for each plan, or for what went wrong."""
    colors = strategy_colors(sorted({result.strategy for result in found}))
    return [_index_row(result, colors[result.strategy]) for result in found]


def _index_row(result: ChainPlanResult, ink: int) -> IndexRow:
    state, word = result.outcome
    page = result.place.parents[1] / MODEL_PAGE_FILE
    link = f"{quote(result.chain)}/{MODEL_PAGE_FILE}#{quote(panel_id(result.folder))}"
    return IndexRow(
        model=result.chain,
        strategy=result.strategy,
        budget=result.budget,
        budget_bytes=result.allowed,
        link=link if page.exists() else "",
        ink=ink,
        state=state,
        word=word,
        predicted=result.peak,
        measured=None,
        resident=None,
        ratio=result.ratio,
        scattered=False,
        gap=result.gap,
        words=result.message,
        spark="",
        dot=None,
    )
