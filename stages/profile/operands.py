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

from tightfit.schemas.arguments import argument_values, decode_arguments
from tightfit.schemas.graph import Graph, Op, Value
from tightfit.stages.device.operators import decode

Fill = Callable[[Tensor], None]
"""Writes contents into a flat tensor."""

_TILE = 65521
"""Random numbers made anew; longer tensors repeat them. A prime, so that rows differ."""

_POSITIVE_ARGUMENTS = frozenset("running_var save_invstd save_var rstd var invstd".split())
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
    graph: Graph, op: Op, overload: OpOverload, device: torch.device, ordinary: Fill | None = None
) -> dict[int, Tensor]:
    """Tensors for all values that an op reads, by value id, each in a storage of its own.

    `ordinary` fills what needs no particular contents: `normal` unless given.
    """
    named = _named_arguments(op, overload)
    name = op_name(overload)
    fills = _fills(graph, name, named)
    operands: dict[int, Tensor] = {}

    def make(values: Iterator[int]) -> None:
        for value in values:
            if value not in operands:
                fill = fills.get(value, ordinary or normal)
                operands[value] = make_tensor(graph.values[value], fill, device)

    if name in _FORWARDS:
        forward_name, saved = _FORWARDS[name]
        forward = getattr(torch.ops.aten, forward_name).default
        call = {
            argument.name: named[argument.name]
            for argument in forward._schema.arguments
            if argument.name in named
        }
        make(argument_values(list(call.values())))
        if any(argument.name == "compute_log_sumexp" for argument in forward._schema.arguments):
            call["compute_log_sumexp"] = True
        outputs = forward(**{key: decode(value, operands) for key, value in call.items()})
        for argument, position in saved.items():
            for value in argument_values(named.get(argument)):
                operands[value] = _laid_out(outputs[position], graph.values[value])
        del outputs
    make(argument_values(list(named.values())))
    return operands


def make_tensor(value: Value, fill: Fill, device: torch.device) -> Tensor:
    """A tensor with a value's shape, strides and dtype, in a storage of its own, on a device or
    where the value says that it lies."""
    place = torch.device(value.device) if value.device else device
    base = torch.empty(extent(value), dtype=getattr(torch, value.dtype), device=place)
    fill(base)
    return base.as_strided(value.shape, value.strides)


def refill(tensor: Tensor, value: Value, fill: Fill) -> None:
    """Writes new contents into a tensor that `make_tensor` made."""
    fill(tensor.as_strided((extent(value),), (1,)))


def extent(value: Value) -> int:
    """How many elements of a storage a value spans."""
    if 0 in value.shape:
        return 0
    pairs = zip(value.shape, value.strides, strict=True)
    return 1 + sum(stride * (size - 1) for size, stride in pairs)


def op_name(overload: OpOverload) -> str:
    """The operator's name without namespace and overload."""
    return overload._schema.name.split("::")[-1]


def contents_of(graph: Graph, op: Op, overload: OpOverload, value: int) -> Fill:
    """What fills the operand `value` of an op."""
    return _fills(graph, op_name(overload), _named_arguments(op, overload)).get(value, normal)


def normal(base: Tensor) -> None:
    """Normally distributed numbers, masks that are mostly true, integers that are zero."""
    count = min(base.numel(), _TILE)
    if base.dtype.is_complex:
        _tile(base, torch.randn(count, dtype=torch.complex64))
    elif base.dtype == torch.float4_e2m1fn_x2:
        _tile(base.view(torch.uint8), torch.randint(256, (count,)))
    elif base.dtype.is_floating_point:
        _tile(base, torch.randn(count))
    elif base.dtype == torch.bool:
        _tile(base, torch.rand(count) < 0.9)
    else:
        base.zero_()


def positive(base: Tensor) -> None:
    """Numbers between 0.5 and 1.5, integers that are one."""
    if base.dtype == torch.bool or base.dtype.is_complex or base.dtype == torch.float4_e2m1fn_x2:
        normal(base)
    elif base.dtype.is_floating_point:
        _tile(base, torch.rand(min(base.numel(), _TILE)) + 0.5)
    else:
        base.fill_(1)


def unit(base: Tensor) -> None:
    """Numbers in the unit interval, masks and integers as in `normal`."""
    if base.dtype.is_floating_point and base.dtype != torch.float4_e2m1fn_x2:
        _tile(base, torch.rand(min(base.numel(), _TILE)) * 0.98 + 0.01)
    else:
        normal(base)


def below(bound: int) -> Fill:
    """Indices below a bound; masks that are mostly true."""

    def fill(base: Tensor) -> None:
        if base.dtype == torch.bool:
            normal(base)
        else:
            _tile(base, torch.randint(max(bound, 1), (min(base.numel(), _TILE),)))

    return fill


def _tile(base: Tensor, numbers: Tensor) -> None:
    """Fills a flat tensor with repetitions of some numbers, without a second copy of it."""
    done = numbers.numel()
    base[:done].copy_(numbers)
    while done < base.numel():
        more = min(done, base.numel() - done)
        base[done : done + more].copy_(base[:more])
        done += more


def _laid_out(operand: Tensor, value: Value) -> Tensor:
    """A forward's output with the shape and strides that the graph gives it."""
    if list(operand.shape) == value.shape and list(operand.stride()) == value.strides:
        return operand
    tensor = make_tensor(value, normal, operand.device)
    tensor.copy_(operand.reshape(value.shape))
    return tensor


def _fills(graph: Graph, name: str, named: Mapping[str, Any]) -> dict[int, Fill]:
    """The contents of the values that need other contents than `normal`."""
    fills: dict[int, Fill] = {}
    for argument, encoded in named.items():
        if argument in _POSITIVE_ARGUMENTS or name in _POSITIVE_OPS | _DIVISIONS:
            fills |= dict.fromkeys(argument_values(encoded), positive)
    for value, bound in _index_bounds(graph, name, named):
        fills[value] = below(bound)
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
        return ((value, limit) for value in argument_values(named.get(argument)))

    if name == "embedding":
        yield from bound("indices", shape("weight")[0])
    elif name == "embedding_dense_backward":
        yield from bound("indices", named["num_weights"])
    elif name.startswith("nll_loss"):
        classes = shape("self")
        yield from bound("target", classes[min(1, len(classes) - 1)])
    elif isinstance(named.get("indices"), list) and "self" in named:
        for size, encoded in zip(shape("self"), named["indices"], strict=False):
            yield from ((value, size) for value in argument_values(encoded))
    elif "index" in named and "dim" in named and "self" in named:
        yield from bound("index", (shape("self") or [1])[named["dim"]])
