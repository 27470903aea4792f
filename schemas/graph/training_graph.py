"""`tightfit.graph/4`: the whole training step of a model as ops, values and storages.

The graph is the forward, the place of the loss, and the backward, in the order PyTorch runs them. A
graph is a program: this file, the model's parameters and buffers (found by their names) and the
inputs are all that rebuilding and running it needs. Aliasing, mutation and randomness are explicit,
so that planning needs no PyTorch.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, cast

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.chain import MAX_BYTES
from tightfit.schemas.graph.dynamic_shapes import (
    DynamicShapes,
    check_dynamic_shapes,
    dynamic_metadata,
    read_dynamic_shapes,
)
from tightfit.schemas.graph.file_format import (
    GRAPH_FIELDS,
    alternatives_metadata,
    check_alternatives,
    read_alternative_rows,
)
from tightfit.schemas.graph.op_arguments import (
    OpArguments,
    decode_arguments,
    iterate_argument_values,
    parse_arguments,
)
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.util.errors import ArtifactError

Phase = Literal["forward", "loss", "backward"]
ValueKind = Literal["parameter", "buffer", "input", "tangent", "constant", "intermediate"]

PHASES = ("forward", "loss", "backward")
VALUE_KINDS = ("parameter", "buffer", "input", "tangent", "constant", "intermediate")
BASELINE_KINDS = ("parameter", "buffer", "input", "constant")
"""Kinds of values that are there before the step begins and after it ends."""

LOSS_TARGET = "tightfit.loss"
LOSS_ROOM_ARGUMENT = "room"
"""The keyword of the loss op that has the bytes of a loss which is not traced."""
LOSS_SCALAR_BYTES = 16
"""Bytes of such a loss that stay to the end of the step: the scalar and its own gradient."""
NO_VALUE = -1
"""Stands for "no value" in lists of value ids."""


@dataclass(frozen=True)
class GraphValue:
    """One tensor: `strides` and `offset` count elements, `path` names a parameter, buffer or input.

    `aliases` holds the further names of a tied parameter. `data` holds the bytes of a constant,
    contiguous, in the machine's little-endian order. `device` is "" for a value in the memory of
    the graph's device, "cpu" for one of a GPU's step that lies in the host's memory, as the seeds
    of attention can.
    """

    id: int
    kind: ValueKind
    shape: list[int]
    strides: list[int]
    offset: int
    dtype: str
    storage: int
    path: str = ""
    aliases: list[str] = field(default_factory=list)
    requires_grad: bool = False
    data: bytes = b""
    device: str = ""


@dataclass(frozen=True)
class Op:
    """One ATen operator call, or the loss.

    `target` is the overload's full name ("aten.addmm.default"). `arguments` is JSON text as in
    `schemas.graph.op_arguments`. `inputs` are the distinct values it reads, `outputs` the values it
    makes in the operator's order with NONE for an output that is absent, `writes` the buffers it
    mutates (it then makes no outputs). A `random` op draws from the device's default generator. An
    op that is not `repeatable` must run exactly once: it writes, or reads what has been written.
    `in_place` lists the inputs that an in-place form of the operator may overwrite with its first
    output: same shape, strides and dtype, filling a storage of the same size. `module` is the path
    of the submodule it came from and `source` its "file:line"."""

    id: int
    target: str
    phase: Phase
    arguments: str
    inputs: list[int]
    outputs: list[int]
    writes: list[int]
    in_place: list[int]
    random: bool
    repeatable: bool
    module: str
    source: str


def create_loss_op(number: int, arguments: str, inputs: list[int], outputs: list[int]) -> Op:
    """The loss, as the op `number`, which reads outputs and makes their tangents."""
    return Op(
        id=number,
        target=LOSS_TARGET,
        phase="loss",
        arguments=arguments,
        inputs=inputs,
        outputs=outputs,
        writes=[],
        in_place=[],
        random=False,
        repeatable=False,
        module="",
        source="",
    )


@dataclass(frozen=True)
class OwnedGradient:
    """The value `gradient` is what autograd adds to `.grad` of the parameter or input `value`."""

    value: int
    gradient: int


@dataclass(frozen=True)
class GraphOutput:
    """One leaf of the model's output: a `value`, or NONE and the JSON text of a plain `constant`.

    `tangent` is the value of its incoming gradient, NONE where it receives none; `requires_grad`
    says whether the model's own output does.
    """

    value: int
    tangent: int
    constant: str
    requires_grad: bool = False


@dataclass(frozen=True)
class Graph:
    """A traced training step.

    `storages` are sizes in bytes on the graph's device, indexed by storage id, 0 for those that lie
    elsewhere; `values` and `ops` are indexed by id. `inputs` are the leaves of (args, kwargs): a
    value id, or NONE for a leaf that is no tensor, whose JSON text stands in `input_constants`.
    `input_tree` and `output_tree` are texts of `stages.runtime.pytree`. `gradients` may name one
    owner several times: what autograd adds up, in its order. `model` is the label from the
    configuration, `device` a device type. `guards` is JSON text of what the trace was specialized
    to beyond tensors: `{"eval_modules": [...], "autocast": {...}, "no_python_backward": true,
    "guards": {...}, "assigned_buffers": [...], "unused_inputs": [...]}`. A plain backward runs no
    Python. Assigned are the buffers that the forward puts another tensor in the place of. Unread
    are the plain leaves of (args, kwargs) that it does not look at. `has_loss` says whether a loss
    function stood between forward and backward.

    `alternatives` are ops that make again, in another way, some of what one of `ops` made, their
    origin, and that may run after it; their ids follow those of `ops`. `dynamic` says what differs
    where calls have other sizes; all numbers here are then those of the largest.
    """

    model: str
    device: str
    torch: str
    has_loss: bool
    ops: list[Op]
    values: list[GraphValue]
    storages: list[int]
    inputs: list[int]
    input_constants: list[str]
    outputs: list[GraphOutput]
    gradients: list[OwnedGradient]
    input_tree: str
    output_tree: str
    guards: str
    alternatives: list[Op] = field(default_factory=list)
    dynamic: DynamicShapes | None = None

    @cached_property
    def loss_room(self) -> int:
        """The bytes that a loss which is not traced takes beside the outputs and their gradients,
        while the gradients are made; `LOSS_SCALAR_BYTES` of them stay. 0 for none."""
        op = next(op for op in self.ops if op.target == LOSS_TARGET)
        return int(decode_arguments(op.arguments)[1].get(LOSS_ROOM_ARGUMENT, 0))

    @property
    def all_ops(self) -> list[Op]:
        """The ops and, behind them, their alternatives: by id."""
        return [*self.ops, *self.alternatives]

    def op(self, number: int) -> Op:
        """The op or the alternative of an id."""
        beyond = number - len(self.ops)
        return self.ops[number] if beyond < 0 else self.alternatives[beyond]

    @cached_property
    def alternative_origins(self) -> dict[int, int]:
        """By the id of each alternative that of its origin."""
        if not self.alternatives:
            return {}
        makers = self.makers()
        return {op.id: makers[op.outputs[0]].id for op in self.alternatives}

    def is_view(self, op: Op) -> bool:
        """True when the op makes no new storage: all its outputs share storages with its inputs."""
        if op.target == LOSS_TARGET or not op.outputs:
            return False
        read = {self.values[value].storage for value in op.inputs}
        return all(self.values[value].storage in read for value in op.outputs if value != NO_VALUE)

    def view_ops(self) -> frozenset[int]:
        """The ids of the ops that make no new storage."""
        return self._view_ops

    @cached_property
    def _view_ops(self) -> frozenset[int]:
        return frozenset(op.id for op in self.ops if self.is_view(op))

    def made_by(self, op: Op) -> list[int]:
        """The storages that an op makes, each once, in the order of its outputs."""
        read = {self.values[value].storage for value in op.inputs}
        made = [self.values[value].storage for value in op.outputs if value != NO_VALUE]
        return [storage for storage in dict.fromkeys(made) if storage not in read]

    def makers(self) -> dict[int, Op]:
        """The op that makes each value."""
        return {value: op for op in self.ops for value in op.outputs if value != NO_VALUE}

    def output_values(self) -> list[int]:
        """The values that the model gives back, in the order of its outputs."""
        return [output.value for output in self.outputs if output.value != NO_VALUE]

    def caller_owned_values(self) -> set[int]:
        """Values that the caller holds to the end of the step: the outputs, the tangents where no
        loss makes them, else those that are the gradient which the loss itself is given."""
        values = set(self.output_values())
        for op in self.ops:
            if op.target == LOSS_TARGET:
                places = (
                    decode_arguments(op.arguments)[1].get("held", []) if self.has_loss else None
                )
                values.update(op.outputs if places is None else [op.outputs[at] for at in places])
        return values - {NO_VALUE}

    def baseline_storages(self) -> set[int]:
        """Storages of parameters, buffers, inputs and constants: outside the step's own memory."""
        return {value.storage for value in self.values if value.kind in BASELINE_KINDS}


GRAPH = store.ArtifactType("tightfit.graph", 4, pa.schema(GRAPH_FIELDS))


def write_graph(path: Path | str, graph: Graph, fused: bool = False) -> str:
    """Checks the graph, writes it and returns its digest; one of fused kernels says so.
    Alternatives and dynamic shapes stand in the metadata, where there are any."""
    check_graph(graph, str(path))
    row = asdict(replace(graph, dynamic=None))
    alternatives = row.pop("alternatives")
    del row["dynamic"]
    about = ({"kernels": "fused"} if fused else {}) | alternatives_metadata(alternatives)
    about |= dynamic_metadata(graph.dynamic)
    return store.write(path, GRAPH, [row], about)


def has_fused_kernels(path: Path | str) -> bool:
    """Whether a file's graph is one of fused kernels."""
    return store.read_header(path).metadata.get("kernels") == "fused"


def read_graph(path: Path | str) -> Graph:
    """Reads a graph and checks it; raises ArtifactError naming the file and the fault."""
    artifact = store.read(path, GRAPH)
    if len(artifact.rows) != 1:
        raise ArtifactError(f"{path}: holds {len(artifact.rows)} graphs instead of one")
    row = artifact.rows[0]
    graph = Graph(
        **{
            **row,
            "ops": [Op(**op) for op in row["ops"]],
            "values": [GraphValue(**value) for value in row["values"]],
            "outputs": [GraphOutput(**output) for output in row["outputs"]],
            "gradients": [OwnedGradient(**gradient) for gradient in row["gradients"]],
            "alternatives": [
                Op(**op) for op in read_alternative_rows(artifact.metadata, str(path))
            ],
            "dynamic": read_dynamic_shapes(artifact.metadata, str(path)),
        }
    )
    check_graph(graph, str(path))
    return graph


def check_graph(graph: Graph, where: str) -> None:
    """Raises ArtifactError unless ids are in range, every value is made before it is read and at
    most once, enumerations hold known words, and the texts are JSON of the right shape. What an
    alternative makes is all that its origin made in some storages, and what it reads is there when
    that has run."""
    checks = _GraphValidator(graph, where)
    checks.values()
    checks.ops()
    checks.interface()
    for op in graph.alternatives:
        what = f"op {op.id} ({op.target})"
        checks.require(op.target != LOSS_TARGET, f"{what} is in the wrong phase")
        checks.arguments(op, what)
    check_alternatives(graph, where)
    check_dynamic_shapes(graph, where)


class _GraphValidator:
    def __init__(self, graph: Graph, where: str) -> None:
        self.graph = graph
        self.where = where
        self.known = {value.id for value in graph.values if value.kind in BASELINE_KINDS}

    def require(self, condition: bool, sentence: str) -> None:
        if not condition:
            raise ArtifactError(f"{self.where}: {sentence}")

    def value_id(self, value: int, what: str, absent: bool = False) -> None:
        if not (absent and value == NO_VALUE):
            self.require(0 <= value < len(self.graph.values), f"{what} names no value: {value}")

    def values(self) -> None:
        self.require(
            all(size >= 0 for size in self.graph.storages), "a storage has a negative size"
        )
        self.require(
            sum(self.graph.storages) < MAX_BYTES, "the storages take more bytes than there are"
        )
        for index, value in enumerate(self.graph.values):
            what = f"value {index}"
            self.require(value.id == index, f"{what} has the id {value.id}")
            self.require(value.kind in VALUE_KINDS, f"{what} is of unknown kind {value.kind!r}")
            self.require(
                value.dtype in DTYPE_BYTES, f"{what} has the unknown dtype {value.dtype!r}"
            )
            self.require(
                0 <= value.storage < len(self.graph.storages),
                f"{what} lies in no storage: {value.storage}",
            )
            self.require(
                len(value.shape) == len(value.strides)
                and min([value.offset, *value.shape, *value.strides], default=0) >= 0,
                f"{what} has shape {value.shape} and strides {value.strides} that do not fit",
            )
            self.memory(value, what)

    def memory(self, value: GraphValue, what: str) -> None:
        """A value lies on the graph's device, or is an intermediate one on the host of a GPU."""
        hosted = value.device == "cpu" != self.graph.device and value.kind == "intermediate"
        said = f"{what} of kind {value.kind} cannot lie on {value.device!r}"
        self.require(not value.device or hosted, said)
        self.require(
            not value.device or not self.graph.storages[value.storage],
            f"{what} lies elsewhere and takes bytes of {self.graph.device}",
        )

    def ops(self) -> None:
        phase = 0
        for index, op in enumerate(self.graph.ops):
            what = f"op {index} ({op.target})"
            self.require(op.id == index, f"{what} has the id {op.id}")
            self.require(op.phase in PHASES, f"{what} has the unknown phase {op.phase!r}")
            self.require(PHASES.index(op.phase) >= phase, f"{what} goes back to {op.phase}")
            phase = PHASES.index(op.phase)
            self.require(
                (op.target == LOSS_TARGET) == (op.phase == "loss"), f"{what} is in the wrong phase"
            )
            self.arguments(op, what)
            for value in op.inputs:
                self.value_id(value, what)
                self.require(value in self.known, f"{what} reads value {value} before it is made")
            for value in op.outputs:
                self.value_id(value, what, absent=True)
                self.require(value not in self.known, f"{what} makes value {value} again")
                self.known.update({value} - {NO_VALUE})
            self.require(
                set(op.in_place) <= set(op.inputs), f"{what} overwrites what it does not read"
            )
            for value in op.writes:
                self.value_id(value, what)
                written = self.graph.values[value]
                own = written.kind in ("buffer", "parameter") and not written.requires_grad
                self.require(own, f"{what} writes no buffer and no frozen parameter")
        losses = [op for op in self.graph.ops if op.phase == "loss"]
        self.require(len(losses) == 1, "there is not exactly one loss")
        room = decode_arguments(losses[0].arguments)[1].get(LOSS_ROOM_ARGUMENT, 0)
        self.require(
            type(room) is int and 0 <= room < (1 if self.graph.has_loss else MAX_BYTES),
            f"the loss has no such room: {room!r}",
        )

    def arguments(self, op: Op, what: str) -> None:
        self.require(all(op.target.partition(".")), f"{what} names no operator")
        call = parse_arguments(op.arguments)
        self.require(call is not None, f"{what} has arguments that are not JSON of args and kwargs")
        args, kwargs = cast(OpArguments, call)
        named = list(iterate_argument_values([args, list(kwargs.values())]))
        self.require(
            all(type(value) is int for value in named), f"{what} names a value by no integer"
        )
        self.require(
            sorted(set(named)) == sorted(op.inputs),
            f"{what} has inputs that differ from its arguments",
        )

    def interface(self) -> None:
        for value in self.graph.inputs:
            self.value_id(value, "an input", absent=True)
        self.require(
            len(self.graph.inputs) == len(self.graph.input_constants),
            "inputs and input constants differ in number",
        )
        for output in self.graph.outputs:
            for value in (output.value, output.tangent):
                self.value_id(value, "an output", absent=True)
                self.require(value in self.known | {NO_VALUE}, f"the output {value} is never made")
        for gradient in self.graph.gradients:
            self.value_id(gradient.value, "a gradient")
            self.value_id(gradient.gradient, "a gradient")
            self.require(
                gradient.gradient in self.known, f"the gradient {gradient.gradient} is never made"
            )
