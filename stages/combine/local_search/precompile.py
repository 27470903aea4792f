"""`python -m tightfit.stages.combine.local_search.precompile`: compiles the search, for all later
runs to load."""

from __future__ import annotations

from collections.abc import Callable

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.activation_offload.placement import TransferPlacer
from tightfit.stages.combine.activation_offload.timed_search import TimedTransferSearch
from tightfit.stages.combine.local_search.anneal import anneal_epoch
from tightfit.stages.combine.local_search.search import LocalSearch
from tightfit.util.code_cache import is_cached, note_compilation
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


def compile_search(note: Callable[[str], None], transfers: bool = False) -> None:
    """Compiles the local search, with that of `transfers` too if they are planned, unless the code
    of an earlier run is there; `note` is told so first. Called before searches are counted, it
    keeps the time that they take free of this."""
    if is_cached(anneal_epoch) and not transfers:
        return
    note_compilation(anneal_epoch, note)
    _search_smallest_problem()
    if transfers:
        step = _smallest_problem()
        placer = TransferPlacer(step, HostLink(1.0, device="cpu"), {0: 0})
        TimedTransferSearch(step, placer).moved(range(4), 3, 1, 0)


def load_compiled_search() -> None:
    """Loads the code of the local search, if an earlier run has compiled it."""
    if is_cached(anneal_epoch):
        _search_smallest_problem()


def _search_smallest_problem() -> None:
    search = LocalSearch(_smallest_problem())
    for budget in (3, 4):
        search.improve({}, budget)


if __name__ == "__main__":
    compile_search(ProgressPrinter().note, transfers=True)
