"""`plan.json`: one point of a frontier, chosen for a budget, for people and scripts to read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

from tightfit.schemas import store
from tightfit.schemas.dynamic_plan import DynamicPlan, parse_dynamic_plan
from tightfit.util.budget import Budget
from tightfit.util.errors import ArtifactError

_T = TypeVar("_T")
Status = Literal["optimal", "feasible", "infeasible"]
KernelKind = Literal["eager", "fused"]
OPTIONAL_KEYS = (
    *("gpu", "transfers", "kernels", "groups", "compiled", "competing_plan", "threads"),
    *("loss_room", "microbatches", "dynamic", "joint_samples", "overlap"),
)
"""Parts that not every plan has."""


@dataclass(frozen=True)
class PlanCost:
    """Seconds and peak bytes of a step, as the simulator says."""

    time: float
    peak: int


@dataclass(frozen=True)
class BaselineBytes:
    """Bytes that no plan changes: parameters, their gradients, buffers, inputs and outputs, and
    those of a `loss` outside of the plan, with the gradients that it makes, where there is room for
    one."""

    parameters: int
    gradients: int
    buffers: int
    inputs: int
    outputs: int
    loss: int = 0

    @property
    def bytes_before_step(self) -> int:
        """The bytes that are there before the step: parameters, buffers and inputs."""
        return self.parameters + self.buffers + self.inputs

    @property
    def floor(self) -> int:
        """The bytes that no plan goes below: what was there before, outputs, and gradients or the
        loss."""
        return self.bytes_before_step + self.outputs + max(self.gradients, self.loss)


@dataclass(frozen=True)
class GpuMemory:
    """The most bytes that a process takes of a GPU for a step, with all that was there before:
    `requested` of PyTorch's allocator, `allocated` in its blocks and `reserved` in the segments
    that these are cut from.

    `steady_reserved` is what is reserved where further steps each have inputs of their own, made
    while those of the step before are still there: a budget bounds it. `workspaces` are those of
    the requested bytes that libraries keep, `keep_all` what a budget of all counts. `arena` are the
    bytes that the module takes ahead of its first step, in one segment, for the allocator to serve
    the steps from; 0 for none. CUDA's context is in none of them."""

    requested: int
    allocated: int
    reserved: int
    steady_reserved: int
    workspaces: int
    keep_all: int
    arena: int


@dataclass(frozen=True)
class TransferTotals:
    """What goes over the link to the host: bytes that `offloaded_bytes` and that
    `prefetched_bytes`, the most that the host holds (`host_peak`), and the seconds that
    computations `wait_seconds` for transfers."""

    offloaded_bytes: int
    prefetched_bytes: int
    host_peak: int
    wait_seconds: float


STEP_OVERLAP_VERSION = 1


@dataclass(frozen=True)
class StepOverlap:
    """Steps that follow each other without a seam: transfers and updates of one end in the next.
    The peaks of the first step, of those that follow it, and of what ends the last one; `version`
    is that of what a schedule means by it."""

    version: int
    first_peak: int
    steady_peak: int
    closing_peak: int


@dataclass(frozen=True)
class CompetingPlan:
    """The plan of other `kernels` for the same bytes, which was made, too, and not taken: its
    seconds and its peak, None where none fits, and the smallest budget known to work for them.
    `keep_all_total` are the bytes in all of their step that keeps everything."""

    kernels: KernelKind
    time: float | None
    peak: int | None
    smallest_budget: int | None
    keep_all_total: int


@dataclass(frozen=True)
class Plan:
    """A plan's figures, as `plan.json` has them. Times are seconds, sizes bytes.

    Attributes:
        strategy: Name of the strategy.
        budget: Budget as written, "none" for a baseline.
        budget_total: Bytes that it allows the whole step, None without a budget.
        budget_bytes: Bytes that it leaves to the step beyond parameters, buffers and inputs.
        status: "optimal" in the class `optimal_in`, "feasible", or "infeasible".
        message: The status in one sentence.
        time: Predicted seconds of a step, None if infeasible.
        peak: Predicted bytes of the step beyond parameters, buffers and inputs, with the
            `loss_room`.
        lower_bound: Least seconds of any plan within the budget.
        gap: Share of `time` above the lower bound, from 0 to 1.
        optimal_in: Class of plans in which none is faster, "" if none is known.
        smallest_budget: Smallest `budget_total` known to work, if infeasible.
        before_local_search: The strategy's own plan, before local search.
        keep_all: The step without recomputation.
        baseline: Bytes that no plan changes.
        recomputed: Number of ops that run again.
        recomputed_time: Seconds that these take.
        solver: What made the plan.
        gpu: Bytes that the step takes of a GPU, where the budget bounds the reserved ones; None on
            the CPU, where it bounds the requested ones. If infeasible, those of the plan that takes
            the least.
        transfers: What the step sends to an offload target, None if nothing.
        kernels: Kernels that the plan runs, "eager" or "fused"; None for plans of chains.
        groups: Number of groups of its graph that run as one kernel, each counted once.
        compiled: Number of distinct compiled kernels, in-place ones included.
        competing_plan: Plan of the other kernels for the same bytes, if one was made.
        threads: CPU threads that its costs were measured with, and hold for.
        loss_room: Bytes that `peak` and budgets leave to a loss outside of the plan, None for none.
        microbatches: Number of samples of a whole step with its optimizer, None for other plans.
        dynamic: Dimensions whose sizes differ from call to call, None if there are none. All other
            figures are those of the largest sizes.
        joint_samples: Number of samples that share the bytes of the budget, None if it is that of
            this one alone.
        overlap: How steps follow each other without a seam, None if each ends before the next
            begins. `time` is that from one step to the next.

    Example:
        >>> plan = read_plan("results/gpt2/auto/196MB/plan.json")
        >>> print(plan.time, plan.peak, plan.gap)
    """

    strategy: str
    budget: str
    budget_total: int | None
    budget_bytes: int | None
    status: Status
    message: str
    time: float | None = field(default=None, kw_only=True)
    peak: int | None = field(default=None, kw_only=True)
    lower_bound: float | None = field(default=None, kw_only=True)
    gap: float | None = field(default=None, kw_only=True)
    optimal_in: str = field(default="", kw_only=True)
    smallest_budget: int | None = field(default=None, kw_only=True)
    before_local_search: PlanCost | None = field(default=None, kw_only=True)
    keep_all: PlanCost = field(kw_only=True)
    baseline: BaselineBytes = field(kw_only=True)
    recomputed: int = field(default=0, kw_only=True)
    recomputed_time: float = field(default=0.0, kw_only=True)
    solver: str = field(kw_only=True)
    gpu: GpuMemory | None = field(default=None, kw_only=True)
    transfers: TransferTotals | None = field(default=None, kw_only=True)
    kernels: KernelKind | None = field(default=None, kw_only=True)
    groups: int | None = field(default=None, kw_only=True)
    compiled: int | None = field(default=None, kw_only=True)
    competing_plan: CompetingPlan | None = field(default=None, kw_only=True)
    threads: int | None = field(default=None, kw_only=True)
    loss_room: int | None = field(default=None, kw_only=True)
    microbatches: int | None = field(default=None, kw_only=True)
    dynamic: DynamicPlan | None = field(default=None, kw_only=True)
    joint_samples: int | None = field(default=None, kw_only=True)
    overlap: StepOverlap | None = field(default=None, kw_only=True)

    @property
    def budget_label(self) -> str:
        """The budget as reports name it."""
        return label_budget(self.budget, self.joint_samples is not None)

    @property
    def keep_all_total(self) -> int:
        """The bytes of the step without recomputation, in all."""
        if self.gpu is not None:
            return self.gpu.keep_all
        return self.baseline.bytes_before_step + self.keep_all.peak

    @property
    def full_budget_bytes(self) -> int:
        """What a budget of 100% counts: the step without recomputation, in all, that runs fused
        kernels where these were asked for, also if the plan that is taken is one of eager's."""
        if self.competing_plan is not None and self.competing_plan.kernels == "fused":
            return self.competing_plan.keep_all_total
        return self.keep_all_total

    @property
    def feasible(self) -> bool:
        """True when there is a schedule to run."""
        return self.status != "infeasible"


def label_budget(budget: str, joint: bool) -> str:
    """A budget as written, with the word for one that several samples share."""
    return f"{budget} joint" if joint else budget


def joint_budget_total(budget: Budget, plans: Iterable[Plan]) -> int:
    """The bytes of a budget that the samples of these plans share: a share of what is not fixed is
    that of the sample for which it is the most."""
    return max(budget.total(plan.baseline.floor, plan.full_budget_bytes) for plan in plans)


def optimality_gap(time: float, lower_bound: float) -> float:
    """The share of `time` that no plan can save more of: 1 - lower_bound / time, at least 0."""
    return max(1.0 - lower_bound / time, 0.0) if time > 0 else 0.0


def write_plan(path: Path | str, plan: Plan) -> None:
    """Writes the plan as JSON, keys in the order of the fields; `OPTIONAL_KEYS` ones only where
    there is one."""
    document = asdict(plan)
    for key in OPTIONAL_KEYS:
        if document[key] is None:
            del document[key]
    if not plan.baseline.loss:
        del document["baseline"]["loss"]
    store.write_json(path, document)


def plan_digest(path: Path | str) -> str:
    """The SHA-256 of a plan's file; raises ArtifactError when it cannot be read."""
    return store.file_digest(path)


def read_plan(path: Path | str) -> Plan:
    """Reads a plan; raises ArtifactError when a key is missing, unknown or of another type."""
    document = store.read_fields(path, Plan, optional=OPTIONAL_KEYS)
    for key in ("budget_total", "budget_bytes", "peak", "smallest_budget"):
        _require(path, key, document[key], (int, type(None)))
    for key in ("time", "lower_bound", "gap"):
        _require(path, key, document[key], (float, int, type(None)))
    for key in ("strategy", "budget", "message", "optimal_in", "solver"):
        _require(path, key, document[key], (str,))
    for key in ("recomputed", "recomputed_time"):
        _require(path, key, document[key], (float, int))
    for key in ("groups", "compiled", "threads", "loss_room", "microbatches", "joint_samples"):
        _require(path, key, document.get(key), (int, type(None)))
    if document["status"] not in get_args(Status):
        raise ArtifactError(f"{path}: {document['status']!r} is no status")
    _require_kernels(path, "kernels", document.get("kernels"), (None,))
    before, gpu = document["before_local_search"], document.get("gpu")
    moved, other = document.get("transfers"), document.get("competing_plan")
    dynamic, overlap = document.get("dynamic"), document.get("overlap")
    return Plan(
        **{
            **document,
            "before_local_search": None
            if before is None
            else _part(path, "before_local_search", PlanCost, before),
            "keep_all": _part(path, "keep_all", PlanCost, document["keep_all"]),
            "baseline": _read_baseline(path, document["baseline"]),
            "gpu": None if gpu is None else _part(path, "gpu", GpuMemory, gpu),
            "transfers": None if moved is None else _part(path, "transfers", TransferTotals, moved),
            "competing_plan": None if other is None else _competing_plan(path, other),
            "overlap": None if overlap is None else _step_overlap(path, overlap),
            "dynamic": None if dynamic is None else parse_dynamic_plan(dynamic, str(path)),
        }
    )


def _step_overlap(path: Path | str, value: Any) -> StepOverlap:
    found = _part(path, "overlap", StepOverlap, value)
    if found.version != STEP_OVERLAP_VERSION:
        raise ArtifactError(
            f"{path}: overlap has version {found.version}, expected {STEP_OVERLAP_VERSION}"
        )
    return found


def _read_baseline(path: Path | str, value: Any) -> BaselineBytes:
    filled = {"loss": 0, **value} if isinstance(value, Mapping) else value
    return _part(path, "baseline", BaselineBytes, filled)


def _competing_plan(path: Path | str, value: Any) -> CompetingPlan:
    names = [part.name for part in fields(CompetingPlan)]
    if not isinstance(value, Mapping) or sorted(value) != sorted(names):
        raise ArtifactError(f"{path}: competing_plan does not hold {', '.join(names)}")
    _require_kernels(path, "competing_plan.kernels", value["kernels"])
    _require(path, "competing_plan.time", value["time"], (float, int, type(None)))
    for name in ("peak", "smallest_budget"):
        _require(path, f"competing_plan.{name}", value[name], (int, type(None)))
    _require(path, "competing_plan.keep_all_total", value["keep_all_total"], (int,))
    return CompetingPlan(**value)


def _require_kernels(path: Path | str, key: str, value: Any, more: tuple[None, ...] = ()) -> None:
    if value not in (*get_args(KernelKind), *more):
        raise ArtifactError(f"{path}: {key} is {value!r}, which no plan runs")


def _require(path: Path | str, key: str, value: Any, types: tuple[type, ...]) -> None:
    large = isinstance(value, int) and abs(value) >= 2**63
    if not isinstance(value, types) or isinstance(value, bool) or large:
        raise ArtifactError(f"{path}: {key} is {value!r}, which a plan cannot have")


def _part(path: Path | str, key: str, kind: type[_T], value: Any) -> _T:
    names = [part.name for part in fields(cast(Any, kind))]
    if not isinstance(value, Mapping) or sorted(value) != sorted(names):
        raise ArtifactError(f"{path}: {key} does not hold {', '.join(names)}")
    for name in names:
        _require(path, f"{key}.{name}", value[name], (int, float))
    return kind(**value)
