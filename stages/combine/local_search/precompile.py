"""`python -m tightfit.stages.combine.local_search.precompile`: compiles the search, for all later
runs to load."""

from __future__ import annotations

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.activation_offload.placement import TransferPlacer
from tightfit.stages.combine.activation_offload.timed_search import TimedTransferSearch
from tightfit.stages.combine.local_search.anneal import anneal_epoch
from tightfit.stages.combine.local_search.search import LocalSearch
from tightfit.util.code_cache import note_compilation
from tightfit.util.progress import ProgressPrinter


def _smallest_problem() -> PlanningGraph:
    """A forward, the loss, and a backward that reads what the forward made."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 1, [], [0], [], False, True),
        PlanningNode(1, "forward", 1.0, 1, [0], [1], [], False, True),
        PlanningNode(2, "loss", 0.0, 1, [1], [2], [], False, False),
        PlanningNode(3, "backward", 1.0, 1, [0, 2], [3], [], False, True),
    ]
    storages = [PlanningStorage(1, index, index in (1, 2), index == 3) for index in range(4)]
    return PlanningGraph(nodes, storages, state_bytes=0)


if __name__ == "__main__":
    note_compilation(anneal_epoch, ProgressPrinter().note)
    step = _smallest_problem()
    polisher = LocalSearch(step)
    for budget in (3, 4):
        polisher.improve({}, budget)
    TimedTransferSearch(step, TransferPlacer(step, HostLink(1.0, device="cpu"), {0: 0})).moved(
        range(4), 3, 1, 0
    )
