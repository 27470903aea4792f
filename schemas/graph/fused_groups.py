"""A group: several ATen calls that run as one op of a graph. The body of a group is data, never
code.

The op's target is `tightfit.group.d` and the digest of the body; its arguments are the values that
it reads, in the body's order, and the keyword `body`, the body's text.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tightfit.schemas.actions import Action, Compute, WriteBuffer
from tightfit.schemas.graph.op_arguments import iterate_argument_values, parse_arguments
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES, is_contiguous
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.util.errors import ArtifactError

GROUP_PREFIX = "tightfit.group.d"
GROUP_DIGEST_DIGITS = 12
"""Of a group's digest, in the name that people see."""

POINTWISE_OPS = frozenset(
    "abs add addcdiv addcmul bitwise_and bitwise_not bitwise_or ceil clamp clamp_max "
    "clamp_min clone cos div elu elu_backward eq erf exp expm1 fill floor ge gelu "
    "gelu_backward gt hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh "
    "hardtanh_backward le leaky_relu leaky_relu_backward log log1p logical_and logical_not "
    "logical_or lt masked_fill maximum minimum mul ne neg pow reciprocal relu rsqrt rsub "
    "sigmoid sigmoid_backward sign silu silu_backward sin softplus softplus_backward sqrt sub "
    "tanh tanh_backward threshold_backward where _to_copy".split()
)
NORMALIZATION_OPS = frozenset(
    "_log_softmax _log_softmax_backward_data _softmax _softmax_backward_data amax mean "
    "native_group_norm native_group_norm_backward native_layer_norm "
    "native_layer_norm_backward sum var var_mean".split()
)
VIEW_OPS = frozenset(
    "_unsafe_view alias diagonal expand permute select slice split split_with_sizes squeeze t "
    "transpose unbind unsqueeze view".split()
)
"""Operators of ATen that a body may name. None draws random numbers or writes."""


@dataclass(frozen=True)
class GroupTensor:
    """A tensor that a body reads: `strides` and `offset` count elements."""

    shape: list[int]
    strides: list[int]
    offset: int
    dtype: str


@dataclass(frozen=True)
class GroupCall:
    """One ATen call of a body: `arguments` and `outputs` name the body's own values."""

    target: str
    arguments: str
    outputs: list[int]


@dataclass(frozen=True)
class GroupBody:
    """The calls of a group in their order. The values 0, 1, ... are the `inputs`; `outputs` are the
    values that the group makes, in the order of the op's outputs, and `forms` what they are like:
    the calls alone may leave strides open."""

    inputs: list[GroupTensor]
    calls: list[GroupCall]
    outputs: list[int]
    forms: list[GroupTensor]

    def reads(self) -> tuple[tuple[int, ...], ...]:
        """For each output, the inputs that it depends on."""
        behind = {number: {number} for number in range(len(self.inputs))}
        for call in self.calls:
            read = set[int]().union(*(behind[value] for value in _call_values(call)))
            behind |= dict.fromkeys(call.outputs, read)
        return tuple(tuple(sorted(behind[value])) for value in self.outputs)

    def placed(self, position: int) -> int | None:
        """The number of the output that may lie in the memory of an input: the first one of its
        dtype that has the same shape and strides, or as many elements where both are contiguous.
        None where there is none."""
        given = self.inputs[position]
        for number, form in enumerate(self.forms):
            alike = (given.shape, given.strides) == (form.shape, form.strides)
            rows = all(is_contiguous(leaf.shape, leaf.strides) for leaf in (given, form))
            as_many = math.prod(given.shape) == math.prod(form.shape)
            if given.dtype == form.dtype and not given.offset and (alike or (rows and as_many)):
                return number
        return None


def is_group_operator(target: str) -> bool:
    """Whether a body may name an operator ("aten.add.Tensor") that makes new storages."""
    return _aten_name(target) in POINTWISE_OPS | NORMALIZATION_OPS


def is_pointwise(target: str) -> bool:
    """Whether an operator makes each element of a few of its arguments."""
    return _aten_name(target) in POINTWISE_OPS


def is_view_operator(target: str) -> bool:
    """Whether a body may name a view."""
    return _aten_name(target) in VIEW_OPS


def serialize_group_body(body: GroupBody) -> str:
    """The JSON text of a body."""
    return json.dumps(asdict(body), sort_keys=True, separators=(",", ":"))


def group_body_digest(written: str) -> str:
    """SHA-256 of a body's text, 64 hex digits."""
    return hashlib.sha256(written.encode()).hexdigest()


def is_fused_group(target: str) -> bool:
    """Whether an op's target says that it is a group."""
    return target.startswith(GROUP_PREFIX)


def fused_group_name(target: str) -> str:
    """The name of a group in a generated package."""
    return f"group_{target.removeprefix(GROUP_PREFIX)[:GROUP_DIGEST_DIGITS]}"


def in_place_group_name(group: str, position: int) -> str:
    """The name in a package of a group that writes over its input at a position."""
    return f"{group}_over_{position}"


def read_group_body(op: Op) -> GroupBody:
    """The body of a group; raises ArtifactError where its digest is not the one that the target
    names, where it is no body, or where it names an operator that no group may."""
    what = f"op {op.id}, a group,"
    call = parse_arguments(op.arguments)
    written = None if call is None else call[1].get("body")
    if not is_fused_group(op.target) or not isinstance(written, str):
        raise ArtifactError(f"{what} has no body")
    if op.target != GROUP_PREFIX + group_body_digest(written):
        raise ArtifactError(f"{what} has a body of another digest than its target names")
    body = parse_group_body(written)
    if (
        call is None
        or [*iterate_argument_values(call[0])] != op.inputs
        or len(op.inputs) != len(body.inputs)
    ):
        raise ArtifactError(f"{what} is given other values than its body reads")
    if len(op.outputs) != len(body.outputs):
        raise ArtifactError(
            f"{what} has {len(op.outputs)} outputs and its body {len(body.outputs)}"
        )
    return body


def count_executed_groups(graph: Graph, actions: Iterable[Action]) -> tuple[int, int]:
    """How many groups of a graph some actions run, each counted once, and how many distinct kernels
    these are: one that writes over an input is a kernel of its own, and so is an alternative."""
    groups: set[int] = set()
    kernels: set[tuple[str, int]] = set()
    for action in actions:
        if not isinstance(action, Compute | WriteBuffer):
            continue
        op, over = graph.op(action.op), action.in_place
        if is_fused_group(op.target):
            groups.add(op.id)
            kernels.add((op.target, NO_VALUE if over == NO_VALUE else op.inputs.index(over)))
    return len(groups - {op.id for op in graph.alternatives}), len(kernels)


def in_place_output(graph: Graph, op: Op, value: int) -> int | None:
    """The number of the output of a group that may lie in the memory of the input `value`, None
    where none may: the value fills a storage of the step, of which the group reads nothing else."""
    at = graph.values[value]
    others = {graph.values[other].storage for other in op.inputs if other != value}
    if at.storage in others | graph.baseline_storages() or op.inputs.count(value) > 1:
        return None
    number = read_group_body(op).placed(op.inputs.index(value))
    if number is None:
        return None
    made = graph.storages[graph.values[op.outputs[number]].storage]
    return number if graph.storages[at.storage] == made else None


def parse_group_body(written: str) -> GroupBody:
    """The body in a text that `serialize_group_body` wrote; raises ArtifactError where it is
    none."""
    try:
        row = json.loads(written)
        body = GroupBody(
            [GroupTensor(**leaf) for leaf in row["inputs"]],
            [GroupCall(**call) for call in row["calls"]],
            row["outputs"],
            [GroupTensor(**leaf) for leaf in row["forms"]],
        )
        _check(body)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise ArtifactError(f"a group has a text that is no body: {error}") from error
    return body


def _check(body: GroupBody) -> None:
    for leaf in (*body.inputs, *body.forms):
        if leaf.dtype not in DTYPE_BYTES or len(leaf.shape) != len(leaf.strides):
            raise ArtifactError("a group has a tensor of no known form")
        numbers = [*leaf.shape, *leaf.strides, leaf.offset]
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ArtifactError("a group has a tensor of no known form")
    known = set(range(len(body.inputs)))
    for call in body.calls:
        if not (is_group_operator(call.target) or is_view_operator(call.target)):
            raise ArtifactError(f"a group names {call.target}, which no group may run")
        _require_known(_call_values(call), known)
        made = set(call.outputs) - {NO_VALUE}
        if made & known or any(type(value) is not int for value in call.outputs):
            raise ArtifactError("a group makes a value twice")
        known |= made
    if len(body.forms) != len(body.outputs) or any(leaf.offset for leaf in body.forms):
        raise ArtifactError("a group has other forms than outputs")
    if not body.outputs or len(set(body.outputs)) != len(body.outputs):
        raise ArtifactError("a group makes nothing, or a value twice")
    _require_known(body.outputs, known - set(range(len(body.inputs))))


def _require_known(values: Iterable[Any], known: set[int]) -> None:
    for value in values:
        if type(value) is not int or value not in known:
            raise ArtifactError(f"a group reads the value {value!r} before it is made")


def _call_values(call: GroupCall) -> list[int]:
    arguments = parse_arguments(call.arguments)
    if arguments is None:
        raise ArtifactError(f"{call.target} of a group has arguments that are not JSON")
    return [*iterate_argument_values([arguments[0], list(arguments[1].values())])]


def _aten_name(target: str) -> str:
    namespace, _, rest = target.partition(".")
    return rest.split(".")[0] if namespace == "aten" else ""
