"""`python -m tightfit.stages.combine.compiled`: compiles the search, for all later runs to load."""

from __future__ import annotations

from tightfit.schemas.compiled import tell_compiling
from tightfit.schemas.link import HostLink
from tightfit.schemas.problem import Node, Problem, Storage
from tightfit.stages.combine.polish.anneal import cool
from tightfit.stages.combine.polish.polisher import Polisher
from tightfit.stages.combine.transfers.moving import Mover
from tightfit.stages.combine.transfers.placing import Placer


def _smallest_step() -> Problem:
    """A forward, the loss, and a backward that reads what the forward made."""
    nodes = [
        Node(0, "forward", 1.0, 1, [], [0], [], False, True),
        Node(1, "forward", 1.0, 1, [0], [1], [], False, True),
        Node(2, "loss", 0.0, 1, [1], [2], [], False, False),
        Node(3, "backward", 1.0, 1, [0, 2], [3], [], False, True),
    ]
    storages = [Storage(1, index, index in (1, 2), index == 3) for index in range(4)]
    return Problem(nodes, storages, state_bytes=0)


if __name__ == "__main__":
    tell_compiling(cool)
    step = _smallest_step()
    polisher = Polisher(step)
    for budget in (3, 4):
        polisher.polish({}, budget)
    Mover(step, Placer(step, HostLink(1.0, device="cpu"), {0: 0})).moved(range(4), 3, 1, 0)
