"""Costs from a description of a device that is not here: work over speed, bytes over bandwidth."""

from __future__ import annotations

from math import prod
from pathlib import Path

from schemas import store
from schemas.costs import RANDOM_STATE_TARGET, REPEATED, Cost, Costs, Device, op_key
from schemas.dtypes import DTYPES
from schemas.errors import ConfigError
from schemas.graph import LOSS_TARGET, NONE, Graph, Op
from schemas.repeat import makes_of, reads_of
from stages.profile.forms import RANDOM_STATE_KEY, distinct_forms

_NUMBERS = ("flops", "bandwidth", "latency", "state_bytes")


def roofline(graph: Graph, description: Path | str) -> Costs:
    """The costs of a graph on a device that a JSON file describes.

    The file has `name`, `type`, `flops` (per second), `bandwidth` (bytes per second), and may have
    `latency` (seconds a call) and `state_bytes` (size of the random state in device memory). An op
    takes its latency and the longer of its work and its traffic; its peak is its outputs, since
    workspaces are not known; its spread is 0. Raises ConfigError when the description is wrong.
    """
    given = {"latency": 0.0, "state_bytes": 0, **store.read_json(description)}
    for key in _NUMBERS:
        if not isinstance(given.get(key), int | float) or given[key] < 0:
            raise ConfigError(f"{description}: {key!r} is not a number from 0 up")
    if not (given["flops"] and given["bandwidth"]):
        raise ConfigError(f"{description}: 'flops' and 'bandwidth' must be more than 0")
    rows = [
        _cost(graph, op, value, given["flops"], given["bandwidth"], given["latency"])
        for op, value in distinct_forms(graph).values()
    ]
    size, seconds = int(given["state_bytes"]), float(given["latency"])
    rows.append(Cost(RANDOM_STATE_KEY, RANDOM_STATE_TARGET, NONE, seconds, 0.0, size, size))
    device = Device(
        str(given.get("type", graph.device)), str(given.get("name", description)), "", 0, "roofline"
    )
    return Costs(rows, device)


def _cost(
    graph: Graph, op: Op, in_place: int, flops: float, bandwidth: float, latency: float
) -> Cost:
    reads, makes = (
        reads_of(graph, op, in_place == REPEATED),
        makes_of(graph, op, in_place == REPEATED),
    )
    read = {graph.values[value].storage for value in reads}
    made = {graph.values[value].storage for value in makes} - read
    net = sum(graph.storages[storage] for storage in made)
    if in_place not in (NONE, REPEATED):
        net -= graph.storages[graph.values[op.outputs[0]].storage]
    traffic = 0
    if not graph.is_view(op):
        touched = [*reads, *makes, *op.writes]
        traffic = sum(_bytes(graph, value) for value in touched)
    seconds = latency + max(operations(graph, op) / flops, traffic / bandwidth)
    position = in_place if in_place in (NONE, REPEATED) else op.inputs.index(in_place)
    return Cost(op_key(graph, op, in_place), op.target, position, seconds, 0.0, net, net)


def operations(graph: Graph, op: Op) -> float:
    """Floating-point operations of matrix products, convolutions and attention; 0 for the rest."""
    if op.target == LOSS_TARGET:
        return 0.0
    name = op.target.split(".")[1]
    shapes = [graph.values[value].shape for value in op.inputs]
    outputs = [graph.values[value].shape for value in op.outputs if value != NONE]
    if name in ("mm", "bmm"):
        return 2.0 * prod(outputs[0]) * shapes[0][-1]
    if name in ("addmm", "baddbmm"):
        return 2.0 * prod(outputs[0]) * shapes[1][-1]
    if name == "convolution":
        return 2.0 * prod(outputs[0]) * prod(shapes[1][1:])
    if name == "convolution_backward":
        products = sum(value != NONE for value in op.outputs[:2])
        return 2.0 * products * prod(shapes[0]) * prod(shapes[2][1:])
    if name.startswith("_scaled_dot_product_"):
        backward = "backward" in name
        query, key = shapes[1:3] if backward else shapes[:2]
        return (10.0 if backward else 4.0) * prod(query) * key[-2]
    return 0.0


def _bytes(graph: Graph, value: int) -> int:
    return prod(graph.values[value].shape) * DTYPES[graph.values[value].dtype]
