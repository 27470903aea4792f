"""`tightfit.costs/1`: what each distinct op costs on one device.

Two ops are the same when their keys are equal: same target and arguments. A tensor stands in a key
as its shape, strides and dtype, with its device where that is not the graph's; a repeated tensor is
recognized.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import integer_field, number_field, text_field
from tightfit.schemas.chain import MAX_BYTES, are_valid_times
from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import (
    LOSS_SCALAR_BYTES,
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    Op,
)
from tightfit.util.errors import ArtifactError

RECOMPUTE_VARIANT = -2
"""Stands for the form in which an op runs again, where one that is overwritten is asked for."""

ROOFLINE_SOURCE = "roofline"
"""The source of costs that follow from the description of a device."""

PREEMPTION_THRESHOLD = 0.2
"""The part of a measurement from which on it is said that other work took it."""

RANDOM_STATE_TARGET = "tightfit.random_state"
"""Target of the one row that prices saving the generator's state: `net` is the state's size in
device memory, `seconds` one save and one restore."""


@dataclass(frozen=True)
class OpAllocations:
    """What one op asks of the allocator of a GPU.

    `moves` are its own, in their order: n > 0 takes n bytes, -k gives back what the k-th of them
    took that took any, the first being 1. `lasting` are the bytes that libraries take in its first
    run in a thread, and keep for all later ones in that thread; `lasting_backward` are those that
    the backward of a loss takes so in autograd's thread.
    """

    moves: list[int]
    lasting: list[int]
    lasting_backward: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Raises ArtifactError where what is given back was not taken, or a size is none."""
        self.staying()
        for sizes in (self.lasting, self.lasting_backward):
            if any(size <= 0 for size in sizes):
                raise ArtifactError(f"{sizes} are no sizes of lasting allocations")

    def staying(self) -> dict[int, int]:
        """The bytes that the moves leave taken, by the number of their move among those that
        take."""
        taken = 0
        staying: dict[int, int] = {}
        for move in self.moves:
            if move > 0:
                taken += 1
                staying[taken] = move
            elif staying.pop(-move, None) is None:
                raise ArtifactError(f"the allocations {self.moves} give back what they do not hold")
        return staying


@dataclass(frozen=True)
class OpCost:
    """The cost of one distinct op.

    `seconds` is a median and `spread` the interquartile range relative to it. `peak` is the most
    memory above what was allocated before the call, outputs included; `net` is what remains
    allocated after it, both in bytes. `in_place` is the position, among the op's inputs, of the
    tensor that an in-place form overwrites, NONE for the ordinary form, REPEATED for the shorter
    form of an op that runs again. `allocations` are known where it was measured on a GPU. `lost` is
    the part of the time of the measurement that other work on the machine took, which `seconds` is
    without; 0 where it is less than `PREEMPTION_THRESHOLD`.
    """

    key: str
    target: str
    in_place: int
    seconds: float
    spread: float
    peak: int
    net: int
    allocations: OpAllocations | None = None
    lost: float = 0.0


@dataclass(frozen=True)
class ProfileDevice:
    """What costs depend on beyond the op: device type and name, PyTorch build, threads, and the
    source of the numbers ("measured", "roofline" or "file"). `memory` is that of a described device
    in bytes, 0 where it is not said."""

    type: str
    name: str
    build: str
    threads: int
    source: str
    memory: int = 0

    @property
    def measured_threads(self) -> int | None:
        """The threads that measured costs of a CPU hold for, None for other costs."""
        return self.threads if self.type == "cpu" and self.source == "measured" else None

    @property
    def described(self) -> bool:
        """Whether the device need not be here: its costs are by roofline."""
        return self.source == ROOFLINE_SOURCE


COSTS = store.ArtifactType(
    "tightfit.costs",
    1,
    pa.schema(
        [
            text_field("key"),
            text_field("target"),
            integer_field("in_place"),
            number_field("seconds"),
            number_field("spread"),
            integer_field("peak"),
            integer_field("net"),
        ]
    ),
)


class Costs:
    """Costs by key, with the device they hold for."""

    def __init__(self, rows: Iterable[OpCost], device: ProfileDevice) -> None:
        self.rows = {row.key: row for row in rows}
        self.device = device
        self._keys: dict[tuple[int, int], tuple[Graph, Op, str]] = {}

    def of(self, graph: Graph, op: Op, in_place: int = NO_VALUE) -> OpCost:
        """The cost of an op, or of the form of it that overwrites the value `in_place` (REPEATED:
        of the form in which it runs again).

        Without a measured loss, the loss takes no time, makes the tangents, and takes the graph's
        `loss_room`. Raises ArtifactError when the op was not profiled.
        """
        key = self._key(graph, op, in_place)
        if key in self.rows:
            return self.rows[key]
        if op.target == LOSS_TARGET and not graph.has_loss:
            storages = {graph.values[value].storage for value in op.outputs}
            size = sum(graph.storages[storage] for storage in storages)
            room = graph.loss_room
            net = size + min(room, LOSS_SCALAR_BYTES)
            return OpCost(key, op.target, NO_VALUE, 0.0, 0.0, size + room, net)
        raise ArtifactError(f"the costs lack op {op.id} ({op.target}) of {graph.model}")

    def _key(self, graph: Graph, op: Op, in_place: int) -> str:
        """The key of an op's costs, found once for each op and form of a graph."""
        known = self._keys.get((op.id, in_place))
        if known is None or known[0] is not graph or known[1] is not op:
            known = self._keys[op.id, in_place] = (graph, op, op_cost_key(graph, op, in_place))
        return known[2]

    def lost(self, graph: Graph) -> float:
        """The part of the time of a graph's ops that is of measurements in which other work took
        some of the time (`OpCost.lost`)."""
        found = [self.of(graph, op) for op in graph.ops]
        seconds = sum(cost.seconds for cost in found)
        return sum(cost.seconds for cost in found if cost.lost) / seconds if seconds else 0.0

    def random_state(self) -> OpCost:
        """What saving the random state costs; zero where it was not measured."""
        for row in self.rows.values():
            if row.target == RANDOM_STATE_TARGET:
                return row
        return OpCost("", RANDOM_STATE_TARGET, NO_VALUE, 0.0, 0.0, 0, 0)


def write_costs(path: Path | str, costs: Costs) -> str:
    """Writes the costs, ordered by key, and returns the digest. Allocations, and what other work
    took, stand in the metadata, where there are any."""
    rows = [asdict(costs.rows[key]) for key in sorted(costs.rows)]
    known = {row["key"]: counts for row in rows if (counts := row.pop("allocations")) is not None}
    lost = {row["key"]: share for row in rows if (share := row.pop("lost"))}
    about = {f"device_{key}": str(value) for key, value in asdict(costs.device).items()}
    for name, found in (("allocations", known), ("lost", lost)):
        if found:
            about[name] = json.dumps(found, separators=(",", ":"))
    return store.write(path, COSTS, rows, about)


def read_costs(path: Path | str) -> Costs:
    """Reads costs; raises ArtifactError when they are damaged, or nothing could take them."""
    artifact = store.read(path, COSTS)
    known = _allocations(path, artifact.metadata.get("allocations", "{}"))
    lost = _preempted_fractions(path, artifact.metadata.get("lost", "{}"))
    rows = [
        OpCost(**row, allocations=known.get(row["key"]), lost=lost.get(row["key"], 0.0))
        for row in artifact.rows
    ]
    for row in rows:
        if not (row.seconds >= 0 and row.peak >= row.net >= 0):
            raise ArtifactError(f"{path}: the cost of {row.target} is negative or exceeds its peak")
        if not are_valid_times([row.seconds]) or row.peak >= MAX_BYTES:
            raise ArtifactError(f"{path}: the cost of {row.target} is more than anything takes")
    return Costs(rows, _device(path, artifact.metadata))


def read_profile_device(path: Path | str) -> ProfileDevice:
    """The device that costs hold for; raises ArtifactError when they are damaged."""
    found = store.read_header(path)
    if found.name != COSTS.name:
        raise ArtifactError(f"{path}: is a {found.name}, {COSTS} was expected")
    return _device(path, found.metadata)


def _device(path: Path | str, metadata: Mapping[str, str]) -> ProfileDevice:
    try:
        found = {
            key.removeprefix("device_"): value
            for key, value in metadata.items()
            if key not in ("allocations", "lost")
        }
        numbers = {"threads": int(found["threads"]), "memory": int(found.get("memory", 0))}
        return ProfileDevice(**{**found, **numbers})  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: the metadata does not name a device") from error


def _allocations(path: Path | str, written: str) -> dict[str, OpAllocations]:
    """The allocations of ops by their keys."""
    try:
        return {key: OpAllocations(**counts) for key, counts in json.loads(written).items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: the metadata does not hold allocations") from error


def _preempted_fractions(path: Path | str, written: str) -> dict[str, float]:
    """What other work took of measurements, by the keys of ops."""
    try:
        found = json.loads(written)
        plain = isinstance(found, dict) and all(type(share) is float for share in found.values())
    except (ValueError, RecursionError):
        plain = False
    if not plain or not all(0.0 < share <= 1.0 for share in found.values()):
        raise ArtifactError(f"{path}: the metadata does not say what other work took")
    return dict(found)


def op_cost_key(graph: Graph, op: Op, in_place: int = NO_VALUE) -> str:
    """The key of an op's costs: 64 hex digits. `in_place` is the value that is overwritten, NONE
    or REPEATED."""
    order: dict[int, int] = {}

    def describe(argument: Any) -> Any:
        if isinstance(argument, list):
            return [describe(item) for item in argument]
        if isinstance(argument, dict) and set(argument) == {"value"}:
            value = graph.values[argument["value"]]
            repeated = order.setdefault(value.id, len(order))
            tensor = [repeated, value.shape, value.strides, value.dtype]
            return {"tensor": [*tensor, value.device] if value.device else tensor}
        return argument

    args, kwargs = decode_arguments(op.arguments)
    described: dict[str, Any] = {
        "target": op.target,
        "args": describe(args),
        "kwargs": {name: describe(kwargs[name]) for name in sorted(kwargs)},
        "in_place": in_place if in_place in (NO_VALUE, RECOMPUTE_VARIANT) else order[in_place],
    }
    if op.target == LOSS_TARGET:
        described["model"] = graph.model
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()
