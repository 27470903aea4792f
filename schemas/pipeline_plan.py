"""`plan.json` of a pipeline: what an allocator found for a chain and a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, cast, get_args

from tightfit.schemas import store
from tightfit.schemas.plan import Status
from tightfit.schemas.store import find_mistyped_field
from tightfit.util.errors import ArtifactError

_T = TypeVar("_T")


@dataclass(frozen=True)
class PlannedStage:
    """Positions first..last of the chain on a device, with the most batches in flight and the
    seconds that each batch computes `recompute_seconds`."""

    stage: int
    device: str
    first: int
    last: int
    in_flight: int
    recompute_seconds: float = 0.0


@dataclass(frozen=True)
class PlannedDevice:
    """The most bytes that a device takes, the bytes that it has, and the share of a period in which
    it works."""

    device: str
    peak: int
    memory: int
    busy: float


@dataclass(frozen=True)
class PipelinePlan:
    """A pipeline's figures. Times are seconds, sizes bytes.

    `period` is the time a batch once the pipeline is full; the pattern of `batches` batches takes
    so many times that. `status` "optimal" names its class in `optimal_in`; "feasible" comes with
    `lower_bound`, the least period of any plan of the allocator's class, and `gap`, the share of
    `period` above it. "infeasible" comes with what is known to work: `smallest_memory` bytes on
    each of these devices, `smallest_devices` of their memory, or `smallest_period` where one was
    asked for; None where nothing is known. `message` says it in words. `batch_periods` is the
    number of periods that a batch is under way. `weight_copies` times the parameters are stored,
    `buffers` says whether cuts have their own, and `stage_recompute` how stages compute again, ""
    where they do not. `timed_out` says that the clock ended a search."""

    strategy: str
    machine: str
    status: Status
    message: str
    period: float | None = field(default=None, kw_only=True)
    batches: int | None = field(default=None, kw_only=True)
    batch_periods: int | None = field(default=None, kw_only=True)
    lower_bound: float | None = field(default=None, kw_only=True)
    gap: float | None = field(default=None, kw_only=True)
    optimal_in: str = field(default="", kw_only=True)
    devices: list[PlannedDevice] = field(default_factory=list, kw_only=True)
    stages: list[PlannedStage] = field(default_factory=list, kw_only=True)
    smallest_memory: int | None = field(default=None, kw_only=True)
    smallest_devices: int | None = field(default=None, kw_only=True)
    smallest_period: float | None = field(default=None, kw_only=True)
    weight_copies: int = field(kw_only=True)
    buffers: bool = field(kw_only=True)
    stage_recompute: str = field(default="", kw_only=True)
    solver: str = field(kw_only=True)
    timed_out: bool = field(default=False, kw_only=True)


def write_pipeline_plan(path: Path | str, plan: PipelinePlan) -> None:
    """Writes the plan as JSON, keys in the order of the fields."""
    store.write_json(path, asdict(plan))


def is_pipeline_plan(path: Path | str) -> bool:
    """Whether a `plan.json` is that of a pipeline, sound or not, and not of a budget."""
    try:
        return "weight_copies" in store.read_json(path)
    except ArtifactError:
        return False


def read_pipeline_plan(path: Path | str) -> PipelinePlan:
    """Reads a plan; raises ArtifactError when a key is missing, unknown or of another type."""
    document = store.read_fields(path, PipelinePlan)
    number, whole = (int, float, type(None)), (int, type(None))
    for key in ("period", "lower_bound", "gap", "smallest_period"):
        _require(path, key, document[key], number)
    for key in ("batches", "batch_periods", "smallest_memory", "smallest_devices"):
        _require(path, key, document[key], whole)
    for key in ("strategy", "machine", "message", "optimal_in", "stage_recompute", "solver"):
        _require(path, key, document[key], (str,))
    _require(path, "weight_copies", document["weight_copies"], (int,))
    if document["status"] not in get_args(Status):
        raise ArtifactError(f"{path}: {document['status']!r} is no status")
    for key in ("buffers", "timed_out"):
        if not isinstance(document[key], bool):
            raise ArtifactError(f"{path}: {key} is {document[key]!r}, not a truth")
    document["devices"] = _rows(path, "devices", PlannedDevice, document["devices"])
    document["stages"] = _rows(path, "stages", PlannedStage, document["stages"])
    plan = PipelinePlan(**document)
    _check_stages(path, plan)
    return plan


def _check_stages(path: Path | str, plan: PipelinePlan) -> None:
    """Stages are in order, one behind the other, on devices of the plan."""
    devices = [device.device for device in plan.devices]
    if len(set(devices)) != len(devices):
        raise ArtifactError(f"{path}: two devices have one name")
    before = 0
    for number, stage in enumerate(plan.stages, start=1):
        begins = (stage.stage, stage.first) == (number, before + 1)
        if not begins or stage.last < stage.first or stage.device not in devices:
            raise ArtifactError(f"{path}: stage {number} is out of its place or on no device")
        before = stage.last


def _require(path: Path | str, key: str, value: Any, types: tuple[type, ...]) -> None:
    if not isinstance(value, types) or isinstance(value, bool):
        raise ArtifactError(f"{path}: {key} is {value!r}, which a plan cannot have")


def _rows(path: Path | str, key: str, kind: type[_T], given: Any) -> list[_T]:
    names = {part.name: part for part in fields(cast(Any, kind))}
    if not isinstance(given, list):
        raise ArtifactError(f"{path}: {key} is no list")
    for row in given:
        if not isinstance(row, Mapping) or row.keys() != names.keys():
            raise ArtifactError(f"{path}: {key} does not hold {', '.join(names)}")
        if name := find_mistyped_field(kind, row):
            raise ArtifactError(f"{path}: {key}.{name} is {row[name]!r}, which a plan cannot have")
    return [kind(**row) for row in given]
