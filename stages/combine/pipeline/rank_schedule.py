"""What each rank of a pipeline does, in order: units, and the messages between them.

A message is taken right before the first unit that reads it, and sent right after the unit that
made it. What was sent is held until a `wait`, which stands before the first unit of the sender that
comes behind the taker in the order of all units. As every rank keeps to that order, no two of them
wait for each other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tightfit.schemas.pipeline import (
    BACKWARD,
    FORWARD,
    LOSS,
    SUM,
    PipelineTransfer,
    PipelineUnit,
    RankAction,
    SharedGradient,
)
from tightfit.schemas.pipeline_pattern import PipelinePattern
from tightfit.stages.simulate.pipeline_pattern import issue_order

MicrobatchUnit = tuple[int, str, int]
"""A unit on a microbatch."""


@dataclass
class _RankState:
    actions: list[RankAction] = field(default_factory=list)
    there: set[tuple[int, int]] = field(default_factory=set)
    sent: list[tuple[int, int, int, int]] = field(default_factory=list)
    """Place of the taker in the order of units, parcel, microbatch, peer."""


def rank_actions(
    pattern: PipelinePattern,
    microbatches: int,
    rank_of: Sequence[int],
    parcels: Sequence[PipelineTransfer],
    shared: Sequence[SharedGradient],
) -> list[list[RankAction]]:
    """The actions of each rank; `rank_of` gives the rank of stages 1, 2, ..."""
    return _RankScheduler(pattern, microbatches, rank_of, parcels, shared).actions()


class _RankScheduler:
    def __init__(
        self,
        pattern: PipelinePattern,
        microbatches: int,
        rank_of: Sequence[int],
        parcels: Sequence[PipelineTransfer],
        shared: Sequence[SharedGradient],
    ) -> None:
        self.rank_of, self.parcels, self.shared = rank_of, parcels, shared
        self.units = _units(pattern, microbatches, len(rank_of))
        self.place = {unit: place for place, unit in enumerate(self.units)}
        self.ranks = [_RankState() for _ in range(max(rank_of) + 1)]
        self.taken: dict[PipelineUnit, list[int]] = defaultdict(list)
        self.made: dict[PipelineUnit, list[int]] = defaultdict(list)
        for number, parcel in enumerate(parcels):
            self.made[parcel.maker].append(number)
            for taker in parcel.takers:
                self.taken[taker].append(number)

    def rank(self, stage: int) -> int:
        """The rank of a stage."""
        return self.rank_of[stage - 1]

    def actions(self) -> list[list[RankAction]]:
        """The actions of each rank."""
        for place, unit in enumerate(self.units):
            self.run(place, unit)
        for number, rank in enumerate(self.ranks):
            self.wait(rank, len(self.units))
            rank.actions += [
                RankAction("share", index, 0)
                for index, shared in enumerate(self.shared)
                if number in shared.ranks and len(shared.ranks) > 1
            ]
        return [rank.actions for rank in self.ranks]

    def run(self, place: int, unit: MicrobatchUnit) -> None:
        """One unit on a microbatch, with the messages around it."""
        stage, phase, batch = unit
        number = self.rank(stage)
        rank = self.ranks[number]
        self.wait(rank, place)
        for parcel in self.taken[stage, phase]:
            peer = self.rank(self.parcels[parcel].maker[0])
            if peer != number and (parcel, batch) not in rank.there:
                rank.there.add((parcel, batch))
                rank.actions.append(RankAction("receive", parcel, batch, peer))
        if phase != SUM or self.taken[stage, SUM]:
            rank.actions.append(RankAction(phase, stage, batch))  # type: ignore[arg-type]
        for parcel in self.made[stage, phase]:
            for peer, first in self.peers(parcel, batch).items():
                if peer != number:
                    rank.actions.append(RankAction("send", parcel, batch, peer))
                    rank.sent.append((first, parcel, batch, peer))

    def peers(self, parcel: int, batch: int) -> dict[int, int]:
        """The ranks that take a parcel, each with the place of its first unit that does."""
        found: dict[int, int] = {}
        for stage, phase in self.parcels[parcel].takers:
            place, peer = self.place[stage, phase, batch], self.rank(stage)
            found[peer] = min(found.get(peer, place), place)
        return found

    def wait(self, rank: _RankState, place: int) -> None:
        """Waits for all that was sent to units before a place."""
        over = sorted(sent for sent in rank.sent if sent[0] < place)
        rank.sent = [sent for sent in rank.sent if sent[0] >= place]
        rank.actions += [RankAction("wait", *sent[1:]) for sent in over]


def _units(pattern: PipelinePattern, microbatches: int, last: int) -> list[MicrobatchUnit]:
    """All units in the order in which they begin: the loss ahead of the last backward, sums behind
    each backward."""
    found: list[MicrobatchUnit] = []
    for kind, stage, batch in issue_order(pattern, microbatches):
        if kind == FORWARD:
            found.append((stage, FORWARD, batch))
            continue
        if stage == last:
            found.append((stage, LOSS, batch))
        found += [(stage, BACKWARD, batch), (stage, SUM, batch)]
    return found
