"""What an op computes, and what it takes while it runs, as its shapes tell."""

from __future__ import annotations

from math import prod
from typing import Any

from tightfit.schemas.graph import LOSS_TARGET, NONE, Graph, Op, Value, decode_arguments

_PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "mv": 0,
    "dot": 0,
    "addmm": 1,
    "baddbmm": 1,
    "addbmm": 1,
    "addmv": 1,
}
"""Products of matrices, and the argument that is their left factor."""
_ATTENTION = "_scaled_dot_product_"
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_HALVES = ("float16", "bfloat16")
_ROWS = 128
"""Rows of queries that the backward of flash attention works on at a time."""


def operations(graph: Graph, op: Op) -> float:
    """Operations on numbers of products of matrices, convolutions and attention; 0 for all else.

    A multiplication with an addition counts as two, as four times that for complex numbers. Causal
    attention computes half of the products.
    """
    if op.target == LOSS_TARGET:
        return 0.0
    name = op.target.split(".")[1]
    values = _arguments(graph, op)
    if name in _PRODUCTS:
        left = values[_PRODUCTS[name]]
        batches = left.shape[0] if name == "addbmm" else 1
        work = 2.0 * batches * prod(_output(graph, op).shape) * left.shape[-1]
    elif name in ("convolution", "convolution_backward"):
        work = _convolution(graph, op, name.endswith("backward"))
    elif name.startswith(_ATTENTION):
        work = _attention(op, values, "backward" in name)
    else:
        return 0.0
    return work * (4.0 if any(value.dtype in _PARTS for value in values.values()) else 1.0)


def dtype_of(graph: Graph, op: Op) -> str:
    """The dtype that an op computes in, that of its first tensor; of complex numbers that of their
    parts. "float32" where it takes none."""
    dtypes = [value.dtype for value in _arguments(graph, op).values()]
    return _PARTS.get(dtypes[0], dtypes[0]) if dtypes else "float32"


def temporaries(graph: Graph, op: Op) -> int:
    """Bytes that an op is known to take on CUDA beside its outputs.

    Known are those of the backward of flash attention, which runs for half precision: the gradient
    of the queries in float32, a number a query, and gradients of keys and values for each head of
    the queries where these have more heads. The source is `mha_bwd` in PyTorch's
    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp. Workspaces of cuBLAS and cuDNN
    are not known.
    """
    name = op.target.split(".")[1]
    if not (name.startswith(_ATTENTION) and "backward" in name):
        return 0
    values = _arguments(graph, op)
    query, key = values[1], values[2]
    if query.dtype not in _HALVES or len(query.shape) != 4:
        return 0
    batch, heads, length, width = query.shape
    rows = -(-length // _ROWS) * _ROWS
    columns = -(-width // 32) * 32
    expanded = 2 * 2 * batch * key.shape[2] * heads * width if key.shape[1] != heads else 0
    return 4 * batch * heads * rows * (columns + 1) + expanded


def _arguments(graph: Graph, op: Op) -> dict[int, Value]:
    """The tensors among an op's positional arguments, by position, those in lists left out."""
    args, _ = decode_arguments(op.arguments)
    return {
        index: graph.values[argument["value"]]
        for index, argument in enumerate(args)
        if isinstance(argument, dict) and set(argument) == {"value"}
    }


def _output(graph: Graph, op: Op) -> Value:
    return graph.values[next(value for value in op.outputs if value != NONE)]


def _convolution(graph: Graph, op: Op, backward: bool) -> float:
    """Each element of the weight meets each place of the output once in each product; those of a
    transposed one each place of the input."""
    values, (args, _) = _arguments(graph, op), decode_arguments(op.arguments)
    weight = values[2 if backward else 1]
    transposed = args[7 if backward else 6] is True
    if transposed:
        places = values[1 if backward else 0]
    else:
        places = values[0] if backward else _output(graph, op)
    products = sum(value != NONE for value in op.outputs[:2]) if backward else 1
    return 2.0 * products * prod(places.shape) * prod(weight.shape[1:])


def _attention(op: Op, values: dict[int, Value], backward: bool) -> float:
    """Two products of queries with keys and values forward, five backward."""
    query, key = (values[1], values[2]) if backward else (values[0], values[1])
    args, kwargs = decode_arguments(op.arguments)
    work = (10.0 if backward else 4.0) * prod(query.shape) * key.shape[-2]
    return work / 2 if _is_causal(op.target, args, kwargs) else work


_CAUSAL = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": 4,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 7,
    "aten._scaled_dot_product_flash_attention.default": 4,
    "aten._scaled_dot_product_flash_attention_backward.default": 11,
    "aten._scaled_dot_product_efficient_attention.default": 6,
    "aten._scaled_dot_product_efficient_attention_backward.default": 11,
}
"""Where an operator's arguments say that a query looks at no later key."""


def _is_causal(target: str, args: list[Any], kwargs: dict[str, Any]) -> bool:
    place = _CAUSAL.get(target)
    return place is not None and len(args) > place and args[place] is True
