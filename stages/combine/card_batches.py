"""The largest batch that fits on a card, from a step with a batch and the same with twice as many
samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tightfit.schemas.costs import RECOMPUTE_VARIANT, Costs, OpCost
from tightfit.schemas.graph.loss_room import with_loss_room
from tightfit.schemas.graph.recompute_variants import find_recompute_values
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, GraphValue, Op
from tightfit.stages.combine.card_fit import CardStep, StepPlan

MAX_BATCH = 1 << 20
"""The largest batch that is looked for."""
GUESSES = 3
"""How often the largest batch is guessed, by how many bytes too many the last guess reserves; after
that it is found by halves."""


def doubles_sizes(one: Graph, two: Graph) -> bool:
    """Whether two graphs, of a step and of one with twice the samples, run the same ops, and each
    tensor has the same shape in both, or one dimension that is twice as long: sizes at any batch
    are then on straight lines."""
    ops = len(one.ops) == len(two.ops) and all(
        _op_form(a) == _op_form(b) for a, b in zip(one.ops, two.ops, strict=True)
    )
    return (
        ops
        and len(one.values) == len(two.values)
        and all(_doubles_one_dimension(a, b) for a, b in zip(one.values, two.values, strict=True))
    )


def _op_form(op: Op) -> tuple[object, ...]:
    return op.target, op.phase, op.inputs, op.outputs, op.writes, op.in_place


def _doubles_one_dimension(one: GraphValue, two: GraphValue) -> bool:
    alike = (one.kind, one.dtype, one.storage, len(one.shape)) == (
        *(two.kind, two.dtype, two.storage, len(two.shape)),
    )
    grown = [pair for pair in zip(one.shape, two.shape, strict=False) if pair[0] != pair[1]]
    return alike and len(grown) <= 1 and all(b == 2 * a for a, b in grown)


@dataclass(frozen=True)
class BatchLine:
    """A step on a card with a `batch`, and the `double` with twice as many samples: sizes at other
    batches are on the straight lines through both (`doubles_sizes`)."""

    step: CardStep
    double: CardStep
    batch: int

    def largest(self, plans: Sequence[StepPlan], room: int) -> int:
        """The most samples with which the plan that requests the fewest bytes reserves no more than
        some, as far as is known; 0 if one is too many."""
        found = [(self.step.requests(plan), self.double.requests(plan), plan) for plan in plans]

        def guess(one: Sequence[int], two: Sequence[int], limit: int) -> int:
            return largest_batch(one, two, self.batch, limit)

        one, two, plan = max(found, key=lambda each: guess(each[0], each[1], room))
        steps, limit, low = self.step.schedule(plan), room, 0
        high = guess(one, two, limit) + 1
        for _ in range(GUESSES):
            batch = min(guess(one, two, limit), high - 1)
            if batch < 1:
                break
            taken = self.at(batch).reserved_by(steps)
            if taken <= room:
                low = batch
                break
            high, limit = batch, limit - (taken - room)
        while high - low > 1:
            middle = (low + high) // 2
            fits = self.at(middle).reserved_by(steps) <= room
            low, high = (middle, high) if fits else (low, middle)
        return low

    def at(self, batch: int) -> CardStep:
        """The step at a batch, by its storages and costs; the shapes of its values are those of
        the step."""
        one, two = self.step.graph, self.double.graph
        sizes = [self._line(*pair, batch) for pair in zip(one.storages, two.storages, strict=True)]
        graph = replace(one, storages=sizes)
        if one.loss_room:
            graph = with_loss_room(graph, self._line(one.loss_room, two.loss_room, batch))
        rows = [self._cost(*pair, batch) for pair in self._costs]
        known = [*self.step.costs.rows.values(), *rows]
        return replace(self.step, graph=graph, costs=Costs(known, self.step.costs.device))

    def _line(self, one: int, two: int, batch: int) -> int:
        return one + (batch - self.batch) * (two - one) // self.batch

    def _cost(self, one: OpCost, two: OpCost, batch: int) -> OpCost:
        peak, net = (
            self._line(*pair, batch) for pair in ((one.peak, two.peak), (one.net, two.net))
        )
        return replace(one, peak=peak, net=net)

    @cached_property
    def _costs(self) -> list[tuple[OpCost, OpCost]]:
        """The costs of each distinct op in both steps; of ops that only the double tells apart
        those that grow most."""
        found: dict[str, tuple[OpCost, OpCost]] = {}
        for one, two in self._pairs():
            if one.key not in found or two.peak > found[one.key][1].peak:
                found[one.key] = (one, two)
        return list(found.values())

    def _pairs(self) -> Iterator[tuple[OpCost, OpCost]]:
        one, two = self.step, self.double
        for first, second in zip(one.graph.ops, two.graph.ops, strict=True):
            if first.target == LOSS_TARGET and not one.graph.has_loss:
                continue
            repeated = find_recompute_values(one.graph, first) is not None
            for form in (NO_VALUE, *[RECOMPUTE_VARIANT] * repeated, *first.in_place):
                yield (
                    one.costs.of(one.graph, first, form),
                    two.costs.of(two.graph, second, form),
                )


def largest_batch(first: Sequence[int], second: Sequence[int], batch: int, room: int) -> int:
    """The most samples with which no run of a plan requests more than some bytes.

    Args:
        first: What each run requests with a batch, in bytes.
        second: What each requests with twice as many samples.
        batch: The samples of the first.
        room: The bytes.

    Returns:
        The samples, by straight lines through both, at most `MAX_BATCH`; 0 if one is too many.

    Example:
        >>> largest_batch([10, 30], [14, 40], batch=2, room=100)
        16
    """
    found = MAX_BATCH
    for one, two in zip(first, second, strict=True):
        if two > one:
            found = min(found, batch + (room - one) * batch // (two - one))
        elif one > room:
            return 0
    return max(found, 0)
