"""The simulator of what a pipeline's ranks do: that together they do one training step, all of it.

Each unit runs once on each microbatch, in the order of these, on the rank of its stage; what it
takes is there; no two ranks wait for each other; and every gradient has all of its parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import LOSS_TARGET, Graph
from tightfit.schemas.pipeline import (
    BACKWARD,
    FORWARD,
    LOSS,
    SUM,
    PipelineSchedule,
    PipelineTransfer,
    RankAction,
    SharedGradient,
)
from tightfit.util.errors import ScheduleError

_UNIT_KINDS = (FORWARD, LOSS, BACKWARD, SUM)


def check_ranks(pipeline: PipelineSchedule, graph: Graph, graphs: Sequence[Graph]) -> None:
    """Raises ScheduleError, in a sentence, unless the ranks do a whole step of `graph`; `graphs`
    are those of the stages."""
    _check_stages(pipeline, graphs)
    _check_parcels(pipeline, graph, graphs)
    _check_shared(pipeline, graph, graphs)
    _check_counts(pipeline)
    _RankExecution(pipeline).run()


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ScheduleError(f"the pipeline is not one step of its model: {sentence}")


def _check_stages(pipeline: PipelineSchedule, graphs: Sequence[Graph]) -> None:
    last = 0
    for stage, own in zip(pipeline.stages, graphs, strict=True):
        _require(
            stage.first == last + 1 and stage.last >= stage.first,
            f"stage {stage.stage} does not begin where the one before it ends",
        )
        last = stage.last
        draws = any(op.random for op in own.ops)
        _require(draws == stage.draws, f"stage {stage.stage} draws random numbers or not")


def _check_parcels(pipeline: PipelineSchedule, graph: Graph, graphs: Sequence[Graph]) -> None:
    made = [{value for op in own.ops for value in op.outputs} for own in graphs]
    read = [
        {value for op in own.ops for value in op.inputs} | {each.value for each in own.outputs}
        for own in graphs
    ]
    losses = {value for op in graph.ops if op.target == LOSS_TARGET for value in op.outputs}
    values = [parcel.value for parcel in pipeline.parcels]
    _require(len(set(values)) == len(values), "two parcels are the same")
    for number, parcel in enumerate(pipeline.parcels):
        known = 0 <= parcel.value < len(graph.values)
        size = graph.storages[graph.values[parcel.value].storage] if known else -1
        _require(parcel.bytes == size, f"parcel {number} has other bytes than its storage")
        _require(bool(parcel.takers), f"nobody takes parcel {number}")
        maker = parcel.value in (losses if parcel.maker[1] == LOSS else made[parcel.maker[0] - 1])
        _require(maker, f"stage {parcel.maker[0]} does not make parcel {number}")
        for stage, phase in parcel.takers:
            reads = phase == SUM or parcel.value in read[stage - 1]
            _require(reads, f"stage {stage} does not read parcel {number}")


def _check_shared(pipeline: PipelineSchedule, graph: Graph, graphs: Sequence[Graph]) -> None:
    owned = [partial_gradients_by_owner(own) for own in graphs]
    shared = {one.value: one for one in pipeline.shared}
    _require(len(shared) == len(pipeline.shared), "a gradient is shared twice")
    parts = partial_gradients_by_owner(graph)
    _require(shared.keys() <= parts.keys(), "a shared gradient is none of the model's")
    for owner, values in parts.items():
        giving = [stage for stage, own in enumerate(owned, start=1) if owner in own]
        readers = {
            stage.rank
            for stage, own in zip(pipeline.stages, graphs, strict=True)
            if any(owner in op.inputs for op in own.ops)
        }
        one = shared.get(owner, SharedGradient(owner, (giving or [0])[0], [], []))
        if one.parts:
            whole = one.parts == values and not giving
        else:
            whole = giving == [one.root] and owned[one.root - 1][owner] == values
        name = graph.values[owner].path or str(owner)
        _require(whole, f"the gradient of {name} has not all of its parts, in their order")
        root = pipeline.rank_of(one.root)
        ranks = [root, *sorted(readers - {root})]
        _require(
            one.ranks == ranks or (not one.ranks and len(ranks) == 1),
            f"the gradient of {name} does not come to all ranks that read it",
        )


def _check_counts(pipeline: PipelineSchedule) -> None:
    """Every rank does what it has to, once."""
    drawing = any(stage.draws for stage in pipeline.stages)
    summing = {shared.root for shared in pipeline.shared if shared.parts}
    wanted: list[Counter[tuple[str, int, int, int]]] = [Counter() for _ in pipeline.actions]
    for rank, own in enumerate(wanted):
        if drawing:
            own["draw", 0, 0, 0] += 1
        for number, shared in enumerate(pipeline.shared):
            if rank in shared.ranks and len(shared.ranks) > 1:
                own["share", number, 0, 0] += 1
    for batch in range(pipeline.microbatches):
        for stage in pipeline.stages:
            kinds = [FORWARD, BACKWARD, *([SUM] if stage.stage in summing else [])]
            kinds += [LOSS] if stage.stage == len(pipeline.stages) else []
            for kind in kinds:
                wanted[stage.rank][kind, stage.stage, batch, 0] += 1
        for number, parcel in enumerate(pipeline.parcels):
            maker = pipeline.rank_of(parcel.maker[0])
            for peer in _receiving_ranks(pipeline, parcel):
                wanted[maker]["send", number, batch, peer] += 1
                wanted[maker]["wait", number, batch, peer] += 1
                wanted[peer]["receive", number, batch, maker] += 1
    for rank, own in enumerate(wanted):
        done = Counter(_action_key(action) for action in pipeline.actions[rank])
        for kind, subject, batch, _ in sorted((own - done) + (done - own)):
            _require(
                False, f"rank {rank} has not once the {kind} of {subject} on microbatch {batch}"
            )


def _receiving_ranks(pipeline: PipelineSchedule, parcel: PipelineTransfer) -> set[int]:
    ranks = {pipeline.rank_of(stage) for stage, _ in parcel.takers}
    return ranks - {pipeline.rank_of(parcel.maker[0])}


def _action_key(action: RankAction) -> tuple[str, int, int, int]:
    messages = action.kind in ("send", "wait", "receive")
    return action.kind, action.subject, action.microbatch, action.peer if messages else 0


class _RankExecution:
    """The ranks beside each other, each as far as it comes."""

    def __init__(self, pipeline: PipelineSchedule) -> None:
        self.pipeline = pipeline
        self.done: set[tuple[str, int, int]] = set()
        self.sent: set[tuple[int, int, int]] = set()
        self.there = [set[tuple[int, int]]() for _ in pipeline.actions]

    def run(self) -> None:
        """Raises ScheduleError where a rank waits for ever, or runs what it cannot."""
        places = [0] * self.pipeline.ranks
        moved = True
        while moved:
            moved = False
            for rank, actions in enumerate(self.pipeline.actions):
                while places[rank] < len(actions) and self.comes(rank, actions[places[rank]]):
                    self.check(rank, actions[places[rank]], places[rank])
                    places[rank] += 1
                    moved = True
        for rank, actions in enumerate(self.pipeline.actions):
            at = places[rank]
            _require(at == len(actions), f"rank {rank} waits for ever at its action {at}")

    def comes(self, rank: int, action: RankAction) -> bool:
        """Whether an action is not to wait for another rank."""
        subject, batch = action.subject, action.microbatch
        if action.kind == "receive":
            return (subject, batch, rank) in self.sent
        if action.kind == "wait":
            value = self.pipeline.parcels[subject].value
            return (value, batch) in self.there[action.peer]
        return True

    def check(self, rank: int, action: RankAction, place: int) -> None:
        """Does an action that has what it needs."""
        kind, subject, batch = action.kind, action.subject, action.microbatch
        what = f"the {kind} of {subject} on microbatch {batch}, action {place} of rank {rank},"
        if kind == "draw":
            _require(place == 0, f"{what} is not the first")
        elif kind == "send":
            value = self.pipeline.parcels[subject].value
            _require((value, batch) in self.there[rank], f"{what} has nothing to send")
            self.sent.add((subject, batch, action.peer))
        elif kind == "receive":
            self.there[rank].add((self.pipeline.parcels[subject].value, batch))
        elif kind == "share":
            units = [one for one in self.pipeline.actions[rank][place:] if one.kind in _UNIT_KINDS]
            _require(not units, f"{what} comes before the gradient is whole")
        elif kind != "wait":
            self.unit(rank, action, what)

    def unit(self, rank: int, action: RankAction, what: str) -> None:
        """Runs a unit: after what it needs, and after it ran on the microbatch before."""
        kind, stage, batch = action.kind, action.subject, action.microbatch
        ahead = {BACKWARD: FORWARD, LOSS: FORWARD, SUM: BACKWARD}.get(kind)
        _require(ahead is None or (ahead, stage, batch) in self.done, f"{what} comes too early")
        _require(not batch or (kind, stage, batch - 1) in self.done, f"{what} comes too early")
        for parcel in self.pipeline.parcels:
            if (stage, kind) in parcel.takers:
                found = (parcel.value, batch) in self.there[rank]
                _require(found, f"{what} lacks value {parcel.value}")
            if parcel.maker == (stage, kind):
                self.there[rank].add((parcel.value, batch))
        self.done.add((kind, stage, batch))
