"""Options that need no solver: keep everything, save nothing, recompute what is cheap."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, RecomputeVariant
from tightfit.schemas.link import HostLink
from tightfit.stages.simulate.block import BlockSchedule
from tightfit.stages.simulate.liveness import (
    drop_unused_recomputes,
    ending_storages,
    execution_forms,
)

MAX_DROP_COUNTS = 32
"""At most so many numbers of dropped storages are tried."""
MAX_BACKWARD_NODES = 20_000
"""A backward of more nodes is no option of a block."""


def forward_nodes(problem: PlanningGraph) -> tuple[int, ...]:
    """The block's forward, each node once."""
    return tuple(range(problem.loss))


def backward_nodes(problem: PlanningGraph) -> tuple[int, ...]:
    """The block's backward, each node once."""
    return tuple(range(problem.loss + 1, len(problem.nodes)))


def droppable_storages(problem: PlanningGraph) -> list[int]:
    """Storages that the forward makes, the backward reads, and that can be made again."""
    read = {s for position in backward_nodes(problem) for s in problem.nodes[position].inputs}
    return [
        storage
        for position in forward_nodes(problem)
        if problem.nodes[position].repeatable
        for storage in problem.nodes[position].form(True).outputs
        if storage in read and not problem.storages[storage].held
    ]


def keep_all_run(problem: PlanningGraph) -> BlockSchedule:
    """Every node once: what autograd does."""
    return BlockSchedule(forward_nodes(problem), backward_nodes(problem))


def drop_storages(
    problem: PlanningGraph, dropped: Collection[int], each_time: bool = False
) -> BlockSchedule:
    """The forward frees the storages `dropped`; each is recomputed right before it is needed.

    What a recomputation needs and is not there is recomputed too. A recomputed storage stays
    until the backward last reads it, or, with `each_time`, only for the node that needs it.
    """
    backward = _recompute_backward(problem, dropped, each_time)
    return remove_unneeded_recomputes(
        problem, BlockSchedule(forward_nodes(problem), tuple(backward))
    )


def _recompute_backward(
    problem: PlanningGraph, dropped: Collection[int], each_time: bool
) -> Iterator[int]:
    """The backward of `drop`, node by node."""
    available = _surviving_storages(problem) - set(dropped)
    for position in backward_nodes(problem):
        missing = _missing_producers(problem, problem.nodes[position].inputs, available)
        yield from missing
        yield position
        available.update(problem.nodes[position].outputs)
        if not each_time:
            for producer in missing:
                available.update(problem.nodes[producer].form(True).outputs)


def _surviving_storages(problem: PlanningGraph) -> set[int]:
    """Forward storages that are there in the backward without being made again: the backward
    reads them, or they cannot be made again."""
    read = {s for position in backward_nodes(problem) for s in problem.nodes[position].inputs}
    return {
        storage
        for position in forward_nodes(problem)
        for storage in problem.nodes[position].outputs
        if storage in read
        or problem.storages[storage].held
        or not problem.nodes[position].repeatable
    }


def _missing_producers(
    problem: PlanningGraph, wanted: Sequence[int], available: Collection[int]
) -> list[int]:
    """The forward nodes, in order, that make those of the wanted storages that are not there."""
    missing: set[int] = set()
    stack = list(wanted)
    while stack:
        storage = stack.pop()
        producer = problem.storages[storage].producer
        if storage in available or producer < 0 or producer >= problem.loss or producer in missing:
            continue
        missing.add(producer)
        stack.extend(problem.nodes[producer].form(True).inputs)
    return sorted(missing)


def remove_unneeded_recomputes(problem: PlanningGraph, run: BlockSchedule) -> BlockSchedule:
    """A run without the recomputations of its backward whose results nothing reads before they are
    made again."""
    order, middle = [*run.forward, *run.backward], len(run.forward)
    kept = drop_unused_recomputes(problem, order, middle, range(problem.loss))
    return BlockSchedule(run.forward, tuple(kept[middle:]))


def output_only_nodes(problem: PlanningGraph, run: BlockSchedule) -> tuple[int, ...]:
    """The nodes of the forward that a run can do without when nobody needs the block's output."""
    forward, backward = _with_forms(problem, run)
    needed: set[int] = set()
    for _, form in reversed(backward):
        needed.difference_update(form.outputs)
        needed.update(form.inputs)
    spare = []
    for position, form in reversed(forward):
        if not problem.nodes[position].repeatable or not needed.isdisjoint(form.outputs):
            needed.update(form.inputs)
        else:
            spare.append(position)
    return tuple(reversed(spare))


def _with_forms(
    problem: PlanningGraph, run: BlockSchedule
) -> tuple[
    list[tuple[int, PlanningNode | RecomputeVariant]],
    list[tuple[int, PlanningNode | RecomputeVariant]],
]:
    """The nodes of a run's forward and backward with the forms that they run in."""
    order = [*run.forward, *run.backward]
    pairs = list(zip(order, execution_forms(problem, order), strict=True))
    return pairs[: len(run.forward)], pairs[len(run.forward) :]


def cheap_recompute_runs(problem: PlanningGraph) -> Iterator[tuple[str, BlockSchedule]]:
    """Runs that drop the storages that are cheapest to make again, for the bytes they free.

    One run for each number of dropped storages, cheapest first (in a large block for `STEPS`
    numbers), and each once with recomputed storages kept and once dropped again after each use;
    the last run drops everything. Left out are those of more than `LONGEST` nodes, as where a long
    chain is dropped each time.
    """
    price = {
        storage: problem.nodes[problem.storages[storage].producer].form(True).seconds
        / max(problem.storages[storage].bytes, 1)
        for storage in droppable_storages(problem)
    }
    ranked = sorted(price, key=lambda storage: (price[storage], storage))
    steps = min(MAX_DROP_COUNTS, len(ranked))
    for count in sorted({-(-len(ranked) * step // steps) for step in range(1, steps + 1)}):
        for each_time in (False, True):
            what = "everything" if count == len(ranked) else f"the {count} cheapest"
            kept = ", drop again" if each_time else ""
            longer = islice(
                _recompute_backward(problem, set(ranked[:count]), each_time),
                MAX_BACKWARD_NODES,
                None,
            )
            if next(longer, None) is None:
                yield (
                    f"recompute {what}{kept}",
                    drop_storages(problem, set(ranked[:count]), each_time),
                )


SMALL_STORAGE_DIVISOR = 64
"""Storages of less than this part of the largest one that is kept stay."""


def quick_recompute_runs(
    problem: PlanningGraph, link: HostLink
) -> Iterator[tuple[str, BlockSchedule]]:
    """Runs that drop what takes less to make again than to send it and bring it back; none where
    nothing does."""
    quick = [
        storage
        for storage in droppable_storages(problem)
        if _recompute_seconds(problem, storage) < 2 * link.seconds(problem.storages[storage].bytes)
    ]
    for each_time in (False, True) if quick else ():
        kept = ", drop again" if each_time else ""
        yield (
            f"recompute what is quicker than the link{kept}",
            drop_storages(problem, quick, each_time),
        )


def offloadable_storages(problem: PlanningGraph, run: BlockSchedule) -> list[int]:
    """The storages of the forward that a run keeps for the backward or for the next block and that
    may leave in between, but for small ones: what takes the most a byte to make again first."""
    kept = [
        storage for storage in _kept_storages(problem, run) if not problem.storages[storage].stays
    ]
    sizes = {storage: problem.storages[storage].bytes for storage in kept}
    largest = max(sizes.values(), default=0)
    found = [storage for storage in kept if 0 < largest <= sizes[storage] * SMALL_STORAGE_DIVISOR]
    return sorted(found, key=lambda s: (-_recompute_seconds(problem, s) / sizes[s], s))


def _kept_storages(problem: PlanningGraph, run: BlockSchedule) -> Sequence[int]:
    """What the forward of a run makes and is there when it is through."""
    order = [*run.forward, problem.loss, *run.backward]
    stays = {index for index, storage in enumerate(problem.storages) if storage.stays}
    played = execution_forms(problem, order)
    there: dict[int, None] = {}
    for form, gone in zip(played[: len(run.forward)], ending_storages(played, stays), strict=False):
        there.update(dict.fromkeys(form.outputs))
        for storage in gone:
            there.pop(storage, None)
    return [*there]


def _recompute_seconds(problem: PlanningGraph, storage: int) -> float:
    """Seconds that the maker of a storage takes when it runs again, infinite where it must not."""
    node = problem.nodes[problem.storages[storage].producer]
    if not node.repeatable or storage not in node.form(True).outputs:
        return float("inf")
    return node.form(True).seconds
