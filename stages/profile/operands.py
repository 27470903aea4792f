"""Fresh operands for timing one op: the shapes, strides and dtypes of the graph, valid contents.

Contents matter where they decide what an op does (indices, masks, statistics that are divided by)
or how fast it is (NaN and denormal numbers). What a backward op reads of its forward (the
positions of a maximum, the log-sum-exp of attention) is made by running that forward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tightfit.schemas.graph.op_arguments import decode_arguments, iterate_argument_values
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, GraphValue, Op
from tightfit.stages.torch_utils.operators import decode_argument, resolve

FillFunction = Callable[[Tensor], None]
"""Writes contents into a flat tensor."""

_TILE = 65521
"""Random numbers made anew; longer tensors repeat them. A prime, so that rows differ."""

_POSITIVE_ARGUMENTS = frozenset("running_var save_invstd save_var rstd var invstd bag_size".split())
"""Of bags the sizes: what an empty one takes part in takes other memory."""
_POSITIVE_OPS = frozenset("log log2 log10 log1p sqrt rsqrt pow reciprocal div".split())
_DIVISIONS = frozenset("div floor_divide remainder fmod".split())

_FORWARDS: dict[str, tuple[str, dict[str, int]]] = {
    "max_pool2d_with_indices_backward": ("max_pool2d_with_indices", {"indices": 1}),
    "max_pool3d_with_indices_backward": ("max_pool3d_with_indices", {"indices": 1}),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (
        "_scaled_dot_product_flash_attention_for_cpu",
        {"out": 0, "logsumexp": 1},
    ),
    "_scaled_dot_product_flash_attention_backward": (
        "_scaled_dot_product_flash_attention",
        {"out": 0, "logsumexp": 1, "philox_seed": 6, "philox_offset": 7},
    ),
    "_scaled_dot_product_efficient_attention_backward": (
        "_scaled_dot_product_efficient_attention",
        {"out": 0, "logsumexp": 1, "philox_seed": 2, "philox_offset": 3},
    ),
    "_scaled_dot_product_cudnn_attention_backward": (
        "_scaled_dot_product_cudnn_attention",
        {"out": 0, "logsumexp": 1, "philox_seed": 6, "philox_offset": 7},
    ),
}
"""Backward op: the forward that makes some of its arguments, and which of its outputs they are."""


def make_operands(
    graph: Graph,
    op: Op,
    overload: OpOverload,
    device: torch.device,
    ordinary: FillFunction | None = None,
) -> dict[int, Tensor]:
    """Tensors for all values that an op reads, by value id, each in a storage of its own.

    `ordinary` fills what needs no particular contents: `normal` unless given.
    """
    named = _named_arguments(op, overload)
    name = op_name(overload)
    fills = _operand_fills(graph, name, named)
    operands: dict[int, Tensor] = {}

    def make(values: Iterator[int]) -> None:
        for value in values:
            if value not in operands:
                fill = fills.get(value, ordinary or fill_normal)
                operands[value] = make_tensor(graph.values[value], fill, device)

    if name in _FORWARDS:
        forward_name, saved = _FORWARDS[name]
        forward = getattr(torch.ops.aten, forward_name).default
        call = {
            argument.name: named[argument.name]
            for argument in forward._schema.arguments
            if argument.name in named
        }
        make(iterate_argument_values(list(call.values())))
        if any(argument.name == "compute_log_sumexp" for argument in forward._schema.arguments):
            call["compute_log_sumexp"] = True
        outputs = forward(**{key: decode_argument(value, operands) for key, value in call.items()})
        for argument, position in saved.items():
            for value in iterate_argument_values(named.get(argument)):
                operands[value] = _match_layout(outputs[position], graph.values[value])
        del outputs
    make(iterate_argument_values(list(named.values())))
    return operands


def make_tensor(value: GraphValue, fill: FillFunction, device: torch.device) -> Tensor:
    """A tensor with a value's shape, strides and dtype, in a storage of its own, on a device or
    where the value says that it lies."""
    place = torch.device(value.device) if value.device else device
    base = torch.empty(storage_extent(value), dtype=getattr(torch, value.dtype), device=place)
    fill(base)
    return base.as_strided(value.shape, value.strides)


def fill_operand(tensor: Tensor, value: GraphValue, fill: FillFunction) -> None:
    """Writes new contents into a tensor that `make_tensor` made."""
    fill(tensor.as_strided((storage_extent(value),), (1,)))


def storage_extent(value: GraphValue) -> int:
    """How many elements of a storage a value spans."""
    if 0 in value.shape:
        return 0
    pairs = zip(value.shape, value.strides, strict=True)
    return 1 + sum(stride * (size - 1) for size, stride in pairs)


def op_name(overload: OpOverload) -> str:
    """The operator's name without namespace and overload."""
    return overload._schema.name.split("::")[-1]


def operand_fill(graph: Graph, op: Op, overload: OpOverload, value: int) -> FillFunction:
    """What fills the operand `value` of an op."""
    return _operand_fills(graph, op_name(overload), _named_arguments(op, overload)).get(
        value, fill_normal
    )


def fill_normal(base: Tensor) -> None:
    """Normally distributed numbers, masks that are mostly true, integers that are zero."""
    count = min(base.numel(), _TILE)
    if base.dtype.is_complex:
        _fill_tiled(base, torch.randn(count, dtype=torch.complex64))
    elif base.dtype == torch.float4_e2m1fn_x2:
        _fill_tiled(base.view(torch.uint8), torch.randint(256, (count,)))
    elif base.dtype.is_floating_point:
        _fill_tiled(base, torch.randn(count))
    elif base.dtype == torch.bool:
        _fill_tiled(base, torch.rand(count) < 0.9)
    else:
        base.zero_()


def fill_positive(base: Tensor) -> None:
    """Numbers between 0.5 and 1.5, integers that are one."""
    if base.dtype == torch.bool or base.dtype.is_complex or base.dtype == torch.float4_e2m1fn_x2:
        fill_normal(base)
    elif base.dtype.is_floating_point:
        _fill_tiled(base, torch.rand(min(base.numel(), _TILE)) + 0.5)
    else:
        base.fill_(1)


def fill_unit_interval(base: Tensor) -> None:
    """Numbers in the unit interval, masks and integers as in `normal`."""
    if base.dtype.is_floating_point and base.dtype != torch.float4_e2m1fn_x2:
        _fill_tiled(base, torch.rand(min(base.numel(), _TILE)) * 0.98 + 0.01)
    else:
        fill_normal(base)


def fill_indices_below(bound: int) -> FillFunction:
    """Indices below a bound; masks that are mostly true."""

    def fill(base: Tensor) -> None:
        if base.dtype == torch.bool:
            fill_normal(base)
        else:
            _fill_tiled(base, torch.randint(max(bound, 1), (min(base.numel(), _TILE),)))

    return fill


def _fill_tiled(base: Tensor, numbers: Tensor) -> None:
    """Fills a flat tensor with repetitions of some numbers, without a second copy of it."""
    done = numbers.numel()
    base[:done].copy_(numbers)
    while done < base.numel():
        more = min(done, base.numel() - done)
        base[done : done + more].copy_(base[:more])
        done += more


def _match_layout(operand: Tensor, value: GraphValue) -> Tensor:
    """A forward's output with the shape and strides that the graph gives it."""
    if list(operand.shape) == value.shape and list(operand.stride()) == value.strides:
        return operand
    tensor = make_tensor(value, fill_normal, operand.device)
    tensor.copy_(operand.reshape(value.shape))
    return tensor


def _operand_fills(graph: Graph, name: str, named: Mapping[str, Any]) -> dict[int, FillFunction]:
    """The contents of the values that need other contents than `normal`."""
    fills: dict[int, FillFunction] = {}
    for argument, encoded in named.items():
        if argument in _POSITIVE_ARGUMENTS or name in _POSITIVE_OPS | _DIVISIONS:
            fills |= dict.fromkeys(iterate_argument_values(encoded), fill_positive)
    for value, bound in _index_bounds(graph, name, named):
        fills[value] = fill_indices_below(bound)
    return fills


def _named_arguments(op: Op, overload: OpOverload) -> dict[str, Any]:
    args, kwargs = decode_arguments(op.arguments)
    names = [argument.name for argument in overload._schema.arguments]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _index_bounds(graph: Graph, name: str, named: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """The values that hold indices, each with the bound that its contents stay below."""

    def shape(argument: str) -> list[int]:
        return graph.values[named[argument]["value"]].shape

    def bound(argument: str, limit: int) -> Iterator[tuple[int, int]]:
        return ((value, limit) for value in iterate_argument_values(named.get(argument)))

    if name == "embedding" or name == "_embedding_bag":
        yield from bound("indices", shape("weight")[0])
    elif name in ("embedding_dense_backward", "_embedding_bag_backward"):
        yield from bound("indices", named["num_weights"])
    elif name.startswith("nll_loss"):
        classes = shape("self")
        yield from bound("target", classes[min(1, len(classes) - 1)])
    elif isinstance(named.get("indices"), list) and "self" in named:
        for size, encoded in zip(shape("self"), named["indices"], strict=False):
            yield from ((value, size) for value in iterate_argument_values(encoded))
    elif "index" in named and "dim" in named and "self" in named:
        yield from bound("index", (shape("self") or [1])[named["dim"]])


OperandAttempt = Callable[[], dict[int, Tensor]]
"""Makes the operands of an op, by value id."""

OP_ERRORS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
"""What an op raises that does not take its operands."""

MAX_PRODUCER_DEPTH = 8
"""How far back the ops that make operands are followed."""

MIN_OPERAND_BYTES = 64 << 20
"""Bytes that the operands of ops that make operands may always take together."""


def operand_attempts(
    graph: Graph, op: Op, overload: OpOverload, device: torch.device, room: int
) -> Iterator[OperandAttempt]:
    """Ways to make the operands of an op, the ordinary one first.

    Plain fills: normal, from the unit interval, positive definite. Then what the ops give that
    make the operands, run on each of these fills, with at most `room` bytes at a time.
    """
    fills: tuple[FillFunction | None, ...] = (None, fill_unit_interval, fill_positive)
    for fill in fills:
        yield lambda fill=fill: make_operands(graph, op, overload, device, fill)  # type: ignore[misc]
    yield lambda: _definite_operands(graph, op, overload, device)
    for fill in fills:
        origins = _OperandProducer(graph, device, fill or fill_normal, max(room, MIN_OPERAND_BYTES))
        yield lambda origins=origins: origins.operands(op)  # type: ignore[misc]


def _make_positive_definite(tensor: Tensor) -> None:
    """Makes the matrices in a tensor symmetric and positive definite, where they are square."""
    square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2]
    if not square or not (tensor.is_floating_point() or tensor.is_complex()):
        return
    size = tensor.shape[-1]
    eye = torch.eye(size, dtype=tensor.dtype, device=tensor.device)
    tensor.copy_((tensor + tensor.mH) / (4 * size) + eye)


def _definite_operands(
    graph: Graph, op: Op, overload: OpOverload, device: torch.device
) -> dict[int, Tensor]:
    operands = make_operands(graph, op, overload, device, fill_unit_interval)
    for operand in operands.values():
        _make_positive_definite(operand)
    return operands


class _OperandProducer:
    """Makes values by running the ops that make them, from fills where these are not followed."""

    def __init__(self, graph: Graph, device: torch.device, fill: FillFunction, room: int) -> None:
        self.graph = graph
        self.device = device
        self.fill = fill
        self.room = room
        self.makers = {
            value: op
            for op in graph.ops
            for value in op.outputs
            if value != NO_VALUE and op.target != LOSS_TARGET and not op.writes
        }
        self.made: dict[int, Tensor] = {}

    def operands(self, op: Op) -> dict[int, Tensor]:
        """The operands of an op, each in a storage of its own."""
        for value in op.inputs:
            self.make(value, MAX_PRODUCER_DEPTH)
        return {
            value: copy_with_layout(self.made[value], self.graph.values[value], self.device)
            for value in op.inputs
        }

    def make(self, number: int, levels: int) -> None:
        """Makes a value and, where it is made by an op, what that reads."""
        if number in self.made:
            return
        value, maker = self.graph.values[number], self.makers.get(number)
        if value.kind == "constant":
            self.made[number] = make_constant(value, self.device)
        elif (
            maker is None or levels == 0 or self.taken() + _op_bytes(self.graph, maker) > self.room
        ):
            self.made[number] = self.plain(value)
        else:
            for operand in maker.inputs:
                self.make(operand, levels - 1)
            self.run(maker)
            if number not in self.made:
                self.made[number] = self.plain(value)

    def plain(self, value: GraphValue) -> Tensor:
        return make_tensor(value, self.fill, self.device)

    def run(self, maker: Op) -> None:
        """Keeps what an op gives; nothing where it does not take its operands."""
        args, kwargs = decode_arguments(maker.arguments)
        try:
            results = resolve(maker.target)(
                *[decode_argument(argument, self.made) for argument in args],
                **{name: decode_argument(argument, self.made) for name, argument in kwargs.items()},
            )
        except OP_ERRORS:
            return
        leaves = pytree.tree_leaves(results)
        for number, result in zip(maker.outputs, leaves, strict=True):
            if number != NO_VALUE and isinstance(result, Tensor):
                self.made.setdefault(number, result)

    def taken(self) -> int:
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in self.made.values()}
        return sum(storage.nbytes() for storage in storages.values())


def make_constant(value: GraphValue, device: torch.device) -> Tensor:
    """The tensor that a constant of the graph holds."""
    dtype = getattr(torch, value.dtype)
    data = bytearray(value.data)
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(value.shape).to(device)


def copy_with_layout(operand: Tensor, value: GraphValue, device: torch.device) -> Tensor:
    """A copy of a tensor in a storage of its own, with the shape and strides of a value."""
    tensor = make_tensor(value, fill_normal, device)
    target, source = tensor, operand.reshape(value.shape)
    for dimension, stride in enumerate(value.strides):
        if stride == 0 and value.shape[dimension] > 1:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    target.copy_(source)
    return tensor


def _op_bytes(graph: Graph, op: Op) -> int:
    """Bytes of what an op reads and makes."""
    values = [graph.values[value] for value in {*op.inputs, *op.outputs} - {NO_VALUE}]
    return sum(storage_extent(value) * getattr(torch, value.dtype).itemsize for value in values)
