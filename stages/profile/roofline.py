"""Costs from a description of a device that is not here: work over speed, bytes over bandwidth."""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

from tightfit.schemas.costs import (
    RANDOM_STATE_TARGET,
    RECOMPUTE_VARIANT,
    ROOFLINE_SOURCE,
    Costs,
    OpCost,
    op_cost_key,
)
from tightfit.schemas.costs import ProfileDevice as CostDevice
from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.recompute_variants import execution_inputs, execution_outputs
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.schemas.graph.training_graph import (
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    GraphValue,
    Op,
    decode_arguments,
)
from tightfit.schemas.machine import MachineDevice, read_machine
from tightfit.stages.profile.cost_library import RANDOM_STATE_KEY, distinct_op_variants
from tightfit.util.errors import ArtifactError

_MATRIX_PRODUCTS = {
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
_ATTENTION_PREFIX = "_scaled_dot_product_"
_COMPLEX_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
_HALF_DTYPES = ("float16", "bfloat16")
_FLASH_BLOCK_ROWS = 128
"""Rows of queries that the backward of flash attention works on at a time."""


def count_flops(graph: Graph, op: Op) -> float:
    """Operations on numbers of products of matrices, convolutions and attention; 0 for all else.

    A multiplication with an addition counts as two, as four times that for complex numbers. Causal
    attention computes half of the products.
    """
    if op.target == LOSS_TARGET:
        return 0.0
    name = op.target.split(".")[1]
    values = _tensor_arguments(graph, op)
    if name in _MATRIX_PRODUCTS:
        left = values[_MATRIX_PRODUCTS[name]]
        batches = left.shape[0] if name == "addbmm" else 1
        work = 2.0 * batches * prod(_first_output(graph, op).shape) * left.shape[-1]
    elif "grouped_mm" in name:
        work = _grouped_flops(values[0].shape, values[1].shape)
        work *= 2.0 if name.endswith("backward") else 1.0
    elif name in ("convolution", "convolution_backward"):
        work = _convolution_flops(graph, op, name.endswith("backward"))
    elif name.startswith(_ATTENTION_PREFIX):
        work = _attention_flops(op, values, "backward" in name)
    else:
        return 0.0
    return work * (4.0 if any(value.dtype in _COMPLEX_PARTS for value in values.values()) else 1.0)


def _grouped_flops(left: list[int], right: list[int]) -> float:
    """Operations of a product whose rows, or whose sums, are those of groups one after the other:
    each row of one factor meets one matrix of the other."""
    groups = left[0] if len(left) == len(right) == 3 else 1
    return 2.0 * groups * prod(left[-2:]) * right[-1]


def compute_dtype(graph: Graph, op: Op) -> str:
    """The dtype that an op computes in, that of its first tensor; of complex numbers that of their
    parts. "float32" where it takes none."""
    dtypes = [value.dtype for value in _tensor_arguments(graph, op).values()]
    return _COMPLEX_PARTS.get(dtypes[0], dtypes[0]) if dtypes else "float32"


def temporary_bytes(graph: Graph, op: Op) -> int:
    """Bytes that an op is known to take on CUDA beside its outputs.

    Known are those of the backward of flash attention, which runs for half precision: the gradient
    of the queries in float32, a number a query, and gradients of keys and values for each head of
    the queries where these have more heads. The source is `mha_bwd` in PyTorch's
    aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp. Workspaces of cuBLAS and cuDNN
    are not known.
    """
    name = op.target.split(".")[1]
    if not (name.startswith(_ATTENTION_PREFIX) and "backward" in name):
        return 0
    values = _tensor_arguments(graph, op)
    query, key = values[1], values[2]
    if query.dtype not in _HALF_DTYPES or len(query.shape) != 4:
        return 0
    batch, heads, length, width = query.shape
    rows = -(-length // _FLASH_BLOCK_ROWS) * _FLASH_BLOCK_ROWS
    columns = -(-width // 32) * 32
    expanded = 2 * 2 * batch * key.shape[2] * heads * width if key.shape[1] != heads else 0
    return 4 * batch * heads * rows * (columns + 1) + expanded


def _tensor_arguments(graph: Graph, op: Op) -> dict[int, GraphValue]:
    """The tensors among an op's positional arguments, by position, those in lists left out."""
    args, _ = decode_arguments(op.arguments)
    return {
        index: graph.values[argument["value"]]
        for index, argument in enumerate(args)
        if isinstance(argument, dict) and set(argument) == {"value"}
    }


def _first_output(graph: Graph, op: Op) -> GraphValue:
    return graph.values[next(value for value in op.outputs if value != NO_VALUE)]


def _convolution_flops(graph: Graph, op: Op, backward: bool) -> float:
    """Each element of the weight meets each place of the output once in each product; those of a
    transposed one each place of the input."""
    values, (args, _) = _tensor_arguments(graph, op), decode_arguments(op.arguments)
    weight = values[2 if backward else 1]
    transposed = args[7 if backward else 6] is True
    if transposed:
        places = values[1 if backward else 0]
    else:
        places = values[0] if backward else _first_output(graph, op)
    products = sum(value != NO_VALUE for value in op.outputs[:2]) if backward else 1
    return 2.0 * products * prod(places.shape) * prod(weight.shape[1:])


def _attention_flops(op: Op, values: dict[int, GraphValue], backward: bool) -> float:
    """Two products of queries with keys and values forward, five backward."""
    query, key = (values[1], values[2]) if backward else (values[0], values[1])
    args, kwargs = decode_arguments(op.arguments)
    work = (10.0 if backward else 4.0) * prod(query.shape) * key.shape[-2]
    return work / 2 if _is_causal(op.target, args, kwargs) else work


_CAUSAL_ARGUMENT = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": 4,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": 7,
    "aten._scaled_dot_product_flash_attention.default": 4,
    "aten._scaled_dot_product_flash_attention_backward.default": 11,
    "aten._scaled_dot_product_efficient_attention.default": 6,
    "aten._scaled_dot_product_efficient_attention_backward.default": 11,
}
"""Where an operator's arguments say that a query looks at no later key."""


def _is_causal(target: str, args: list[Any], kwargs: dict[str, Any]) -> bool:
    place = _CAUSAL_ARGUMENT.get(target)
    return place is not None and len(args) > place and args[place] is True


_NO_TRAFFIC = ("empty", "new_empty")
_GATHERS = ("embedding", "gather", "index", "index_select")


def roofline(graph: Graph, path: Path | str) -> Costs:
    """The costs of a graph on the one device of a `tightfit.machine/1`.

    An op takes the device's latency and the longer of its work (`operations`, at the speed of its
    dtype) and its traffic (the bytes it reads and makes), in seconds; a view launches nothing on
    CUDA and takes no time there. An op's peak is its outputs and its `temporary_bytes`, in bytes,
    its spread 0. No op is run. A loss is one pass over what it reads and makes. Equal graphs and
    descriptions give equal costs. Raises ArtifactError or ConfigError where the description is
    amiss, or an op is given what its operator does not take."""
    machine = read_machine(path)
    device = machine.single_device(path)
    small = None if graph.dynamic is None else graph.dynamic.small_sizes
    rows = [
        _cost_or_error(own, op, value, device)
        for own in ([graph_at(graph, small)] if small else []) + [graph]
        for op, value in distinct_op_variants(own).values()
    ]
    rows.append(OpCost(RANDOM_STATE_KEY, RANDOM_STATE_TARGET, NO_VALUE, device.latency, 0.0, 0, 0))
    return Costs(rows, CostDevice(device.kind, machine.name, "", 0, ROOFLINE_SOURCE, device.memory))


def _cost_or_error(graph: Graph, op: Op, in_place: int, device: MachineDevice) -> OpCost:
    """The cost of a form of an op, whose arguments nobody has looked at."""
    try:
        return _cost(graph, op, in_place, device)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        said = f"op {op.id} ({op.target}) is given what its operator does not take"
        raise ArtifactError(said) from error


def _cost(graph: Graph, op: Op, in_place: int, device: MachineDevice) -> OpCost:
    repeated = in_place == RECOMPUTE_VARIANT
    reads, makes = execution_inputs(graph, op, repeated), execution_outputs(graph, op, repeated)
    read = {graph.values[value].storage for value in reads}
    made = {graph.values[value].storage for value in makes} - read
    net = sum(graph.storages[storage] for storage in made)
    if in_place not in (NO_VALUE, RECOMPUTE_VARIANT):
        net -= graph.storages[graph.values[in_place].storage]
    peak = net + (temporary_bytes(graph, op) if device.kind == "cuda" else 0)
    work = 0.0 if repeated else count_flops(graph, op)
    launched = device.kind == "cpu" or op.target == LOSS_TARGET or not graph.is_view(op)
    seconds = (device.latency if launched else 0.0) + max(
        work / device.speed(compute_dtype(graph, op)),
        memory_traffic(graph, op, reads, makes) / (device.bandwidth or 1.0),
    )
    position = in_place if in_place in (NO_VALUE, RECOMPUTE_VARIANT) else op.inputs.index(in_place)
    return OpCost(op_cost_key(graph, op, in_place), op.target, position, seconds, 0.0, peak, net)


def memory_traffic(graph: Graph, op: Op, reads: list[int], makes: list[int]) -> int:
    """The bytes that an op moves to and from memory: what it reads, makes and writes, each element
    once; of a table it reads what it takes from it, and a view moves nothing."""
    name = op.target.split(".")[1]
    if op.target != LOSS_TARGET and (graph.is_view(op) or name.startswith(_NO_TRAFFIC)):
        return 0
    made = sum(_tensor_bytes(graph, value) for value in (*makes, *op.writes))
    if name.endswith("_like"):
        return made
    read = [_tensor_bytes(graph, value) for value in reads]
    if name in _GATHERS and read:
        read[0] = min(read[0], made)
    return made + sum(read)


def _tensor_bytes(graph: Graph, value: int) -> int:
    """The bytes of a tensor on the device; elements that share memory count once."""
    tensor = graph.values[value]
    return min(prod(tensor.shape) * DTYPE_BYTES[tensor.dtype], graph.storages[tensor.storage])
