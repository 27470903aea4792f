"""Costs from a description of a device that is not here: work over speed, bytes over bandwidth."""

from __future__ import annotations

from math import prod
from pathlib import Path

from tightfit.schemas.costs import RANDOM_STATE_TARGET, REPEATED, ROOFLINE, Cost, Costs, op_key
from tightfit.schemas.costs import Device as CostDevice
from tightfit.schemas.dtypes import DTYPES
from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.graph import LOSS_TARGET, NONE, Graph, Op
from tightfit.schemas.machine import Device, read_machine
from tightfit.schemas.repeat import makes_of, reads_of
from tightfit.stages.profile.forms import RANDOM_STATE_KEY, distinct_forms
from tightfit.stages.profile.work import dtype_of, operations, temporaries

_NO_TRAFFIC = ("empty", "new_empty")
_GATHERS = ("embedding", "gather", "index", "index_select")


def roofline(graph: Graph, path: Path | str) -> Costs:
    """The costs of a graph on the one device of a `tightfit.machine/1`.

    An op takes the device's latency and the longer of its work (`operations`, at the speed of its
    dtype) and its traffic (the bytes it reads and makes), in seconds; a view launches nothing on
    CUDA and takes no time there. An op's peak is its outputs and its `temporaries`, in bytes, its
    spread 0. No op is run. A loss is one pass over what it reads
    and makes. Equal graphs and descriptions give equal costs. Raises ArtifactError or ConfigError
    where the description is amiss, or an op is given what its operator does not take.
    """
    machine = read_machine(path)
    device = machine.single(path)
    rows = [_priced(graph, op, value, device) for op, value in distinct_forms(graph).values()]
    rows.append(Cost(RANDOM_STATE_KEY, RANDOM_STATE_TARGET, NONE, device.latency, 0.0, 0, 0))
    return Costs(rows, CostDevice(device.kind, machine.name, "", 0, ROOFLINE, device.memory))


def _priced(graph: Graph, op: Op, in_place: int, device: Device) -> Cost:
    """The cost of a form of an op, whose arguments nobody has looked at."""
    try:
        return _cost(graph, op, in_place, device)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        said = f"op {op.id} ({op.target}) is given what its operator does not take"
        raise ArtifactError(said) from error


def _cost(graph: Graph, op: Op, in_place: int, device: Device) -> Cost:
    repeated = in_place == REPEATED
    reads, makes = reads_of(graph, op, repeated), makes_of(graph, op, repeated)
    read = {graph.values[value].storage for value in reads}
    made = {graph.values[value].storage for value in makes} - read
    net = sum(graph.storages[storage] for storage in made)
    if in_place not in (NONE, REPEATED):
        net -= graph.storages[graph.values[in_place].storage]
    peak = net + (temporaries(graph, op) if device.kind == "cuda" else 0)
    work = 0.0 if repeated else operations(graph, op)
    launched = device.kind == "cpu" or op.target == LOSS_TARGET or not graph.is_view(op)
    seconds = (device.latency if launched else 0.0) + max(
        work / device.speed(dtype_of(graph, op)),
        traffic(graph, op, reads, makes) / (device.bandwidth or 1.0),
    )
    position = in_place if in_place in (NONE, REPEATED) else op.inputs.index(in_place)
    return Cost(op_key(graph, op, in_place), op.target, position, seconds, 0.0, peak, net)


def traffic(graph: Graph, op: Op, reads: list[int], makes: list[int]) -> int:
    """The bytes that an op moves to and from memory: what it reads, makes and writes, each element
    once; of a table it reads what it takes from it, and a view moves nothing."""
    name = op.target.split(".")[1]
    if op.target != LOSS_TARGET and (graph.is_view(op) or name.startswith(_NO_TRAFFIC)):
        return 0
    made = sum(_bytes(graph, value) for value in (*makes, *op.writes))
    if name.endswith("_like"):
        return made
    read = [_bytes(graph, value) for value in reads]
    if name in _GATHERS and read:
        read[0] = min(read[0], made)
    return made + sum(read)


def _bytes(graph: Graph, value: int) -> int:
    """The bytes of a tensor on the device; elements that share memory count once."""
    tensor = graph.values[value]
    return min(prod(tensor.shape) * DTYPES[tensor.dtype], graph.storages[tensor.storage])
