"""OPPORTUNIST: the link is kept busy, and what it has no time for runs again (S 4.3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tightfit.schemas.link import HostLink
from tightfit.schemas.sequence import ChainOperation, StoredItem
from tightfit.stages.combine.chain.dp_table import ChainTable, checkpoint_operations, segment_row
from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain_offload.placement import (
    ComputeSequence,
    IdleInterval,
    analyze_compute_sequence,
)
from tightfit.stages.combine.chain_offload.planner import ChainOffloadProblem, intervals_around_loss
from tightfit.stages.combine.chain_offload.planners.autocapper import build_rotor_table
from tightfit.util.strategies import OFFLOADERS


class Opportunist:
    """Groups of positions: the first keeps all and sends its input and that, the others are passed
    until the link is idle; the last group keeps all, once it fits."""

    about = OFFLOADERS["opportunist"]
    reorders = True

    def sequences(
        self, instance: ChainOffloadProblem
    ) -> Iterator[tuple[ComputeSequence, Sequence[IdleInterval]]]:
        """The one sequence, where there is one."""
        ways = instance.ways
        table = build_rotor_table(ways, analyze_compute_sequence(ways, keep_all_sequence(ways)))
        yield from opportunist_sequences(ways, instance.link, table, instance.budget)


def opportunist_sequences(
    ways: ChainProblem, link: HostLink, table: ChainTable, budget: int
) -> Iterator[tuple[ComputeSequence, Sequence[IdleInterval]]]:
    """The sequence of the groups; none where one of them has no room to run again."""
    heads, rest = _groups(ways, link, budget)
    ahead: list[ChainOperation] = []
    after: list[ChainOperation] = []
    leaves: set[StoredItem] = set()
    for head, end in zip(heads, [*heads, rest][1:], strict=True):
        ahead.append(ChainOperation("F_all", head))
        behind: list[ChainOperation] = []
        if head + 1 < end:
            ahead += checkpoint_operations(head + 1, end - 1)
            room = table.times.slots.room(budget - ways.at(head).ways[0].save)
            if room < 0 or not np.isfinite(
                table.cost[segment_row(len(ways), head + 1, end - 1), room]
            ):
                return
            behind = table.segment(head + 1, end - 1, room)
        after = [*behind, ChainOperation("B", head), *after]
        leaves |= {(True, head - 1) if head - 1 in heads else (False, head - 1), (True, head)}
    ahead += [ChainOperation("F_all", position) for position in range(rest, len(ways) + 1)]
    ahead += [ChainOperation("B", position) for position in range(len(ways), rest - 1, -1)]
    computed = analyze_compute_sequence(ways, [*ahead, *after])
    yield computed, intervals_around_loss(computed, leaves)


def _groups(ways: ChainProblem, link: HostLink, budget: int) -> tuple[list[int], int]:
    """The first positions of the groups that send, and of the one that keeps all."""
    heads: list[int] = []
    time = busy = 0.0
    for position in range(1, len(ways) + 1):
        way = ways.at(position).ways[0]
        if time >= busy:
            if position == len(ways) or _fits(ways, position, budget):
                return heads, position
            source = ways.at(position - 1).output if position > 1 else ways.always_resident
            sent = way.save if position - 1 in heads else way.save + source
            heads.append(position)
            time += way.forward_seconds
            busy = max(busy, time) + link.seconds(sent)
        else:
            time += ways.at(position).pass_seconds
    return heads, len(ways)


def _fits(ways: ChainProblem, first: int, budget: int) -> bool:
    """Whether all from a position on can be kept beside its input."""
    stored = ways.at(first - 1).output if first > 1 else ways.always_resident
    end = ways.at(len(ways)).delta
    grown = sum(ways.at(position).gradient for position in range(first, len(ways) + 1))
    for position in range(first, len(ways) + 1):
        way = ways.at(position).ways[0]
        grown -= ways.at(position).gradient
        if stored + max(way.forward_peak + end, way.backward_peak + grown) > budget:
            return False
        stored += way.save
    return True


STRATEGY = Opportunist()
