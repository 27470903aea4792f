"""What updates take on a machine that is described: by what they read and write."""

from __future__ import annotations

from tightfit.schemas.graph import Graph
from tightfit.schemas.machine import Device
from tightfit.schemas.updates import UpdateCost

STATES = {"sgd": 0, "momentum": 1, "adam": 2, "adamw": 2}
"""The optimisers of `torch.optim` that are known here, with the tensors that each keeps of a
parameter; "momentum" is SGD with momentum."""
PIECE = 16 << 20
"""Bytes of a parameter that are updated at a time: their states pass through one buffer."""


def described_costs(
    graph: Graph, device: Device, away_bandwidth: float | None, optimizer: str
) -> dict[int, UpdateCost]:
    """The cost of the update of each parameter that has a gradient.

    An update reads parameter, gradient and states and writes all but the gradient; it takes the
    time that these bytes take, of the device's memory or of the other one (`away_bandwidth`, None
    where nothing computes there), and two pieces of temporaries.
    """
    states, found = STATES[optimizer], {}
    for value in dict.fromkeys(gradient.value for gradient in graph.gradients):
        if graph.values[value].kind != "parameter":
            continue
        size = graph.storages[graph.values[value].storage]
        parts = [min(PIECE, size - begin) for begin in range(0, max(size, 1), PIECE)]
        traffic = size * (3 + 2 * states)
        assert device.bandwidth is not None
        found[value] = UpdateCost(
            path=graph.values[value].path,
            pieces=tuple(states * part for part in parts),
            seconds=traffic / device.bandwidth + device.latency * len(parts),
            peak=2 * max(parts),
            net=0,
            first=(2 * max(parts), 0),
            away_seconds=traffic / away_bandwidth if away_bandwidth else float("inf"),
            add_seconds=3 * size / away_bandwidth if away_bandwidth else float("inf"),
        )
    return found
