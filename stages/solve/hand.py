"""Options that need no solver: keep everything, save nothing, recompute what is cheap."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from tightfit.schemas.problem import Node, Problem, Repeat
from tightfit.stages.replay.block import BlockRun
from tightfit.stages.replay.line import forms
from tightfit.stages.replay.useless import without_useless

STEPS = 32
"""At most so many numbers of dropped storages are tried."""
LONGEST = 20_000
"""A backward of more nodes is no option of a block."""


def forward_nodes(problem: Problem) -> tuple[int, ...]:
    """The block's forward, each node once."""
    return tuple(range(problem.loss))


def backward_nodes(problem: Problem) -> tuple[int, ...]:
    """The block's backward, each node once."""
    return tuple(range(problem.loss + 1, len(problem.nodes)))


def droppable(problem: Problem) -> list[int]:
    """Storages that the forward makes, the backward reads, and that can be made again."""
    read = {s for position in backward_nodes(problem) for s in problem.nodes[position].inputs}
    return [
        storage
        for position in forward_nodes(problem)
        if problem.nodes[position].repeatable
        for storage in problem.nodes[position].form(True).outputs
        if storage in read and not problem.storages[storage].held
    ]


def keep_all(problem: Problem) -> BlockRun:
    """Every node once: what autograd does."""
    return BlockRun(forward_nodes(problem), backward_nodes(problem))


def drop(problem: Problem, dropped: Collection[int], each_time: bool = False) -> BlockRun:
    """The forward frees the storages `dropped`; each is recomputed right before it is needed.

    What a recomputation needs and is not there is recomputed too. A recomputed storage stays
    until the backward last reads it, or, with `each_time`, only for the node that needs it.
    """
    backward = _recomputing(problem, dropped, each_time)
    return needed_only(problem, BlockRun(forward_nodes(problem), tuple(backward)))


def _recomputing(problem: Problem, dropped: Collection[int], each_time: bool) -> Iterator[int]:
    """The backward of `drop`, node by node."""
    available = _surviving(problem) - set(dropped)
    for position in backward_nodes(problem):
        missing = _missing(problem, problem.nodes[position].inputs, available)
        yield from missing
        yield position
        available.update(problem.nodes[position].outputs)
        if not each_time:
            for producer in missing:
                available.update(problem.nodes[producer].form(True).outputs)


def _surviving(problem: Problem) -> set[int]:
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


def _missing(problem: Problem, wanted: Sequence[int], available: Collection[int]) -> list[int]:
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


def needed_only(problem: Problem, run: BlockRun) -> BlockRun:
    """A run without the recomputations of its backward whose results nothing reads before they are
    made again."""
    order, middle = [*run.forward, *run.backward], len(run.forward)
    kept = without_useless(problem, order, middle, range(problem.loss))
    return BlockRun(run.forward, tuple(kept[middle:]))


def output_only(problem: Problem, run: BlockRun) -> tuple[int, ...]:
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
    problem: Problem, run: BlockRun
) -> tuple[list[tuple[int, Node | Repeat]], list[tuple[int, Node | Repeat]]]:
    """The nodes of a run's forward and backward with the forms that they run in."""
    order = [*run.forward, *run.backward]
    pairs = list(zip(order, forms(problem, order), strict=True))
    return pairs[: len(run.forward)], pairs[len(run.forward) :]


def recompute_cheap(problem: Problem) -> Iterator[tuple[str, BlockRun]]:
    """Runs that drop the storages that are cheapest to make again, for the bytes they free.

    One run for each number of dropped storages, cheapest first (in a large block for `STEPS`
    numbers), and each once with recomputed storages kept and once dropped again after each use;
    the last run drops everything. Left out are those of more than `LONGEST` nodes, as where a long
    chain is dropped each time.
    """
    price = {
        storage: problem.nodes[problem.storages[storage].producer].form(True).seconds
        / max(problem.storages[storage].bytes, 1)
        for storage in droppable(problem)
    }
    ranked = sorted(price, key=lambda storage: (price[storage], storage))
    steps = min(STEPS, len(ranked))
    for count in sorted({-(-len(ranked) * step // steps) for step in range(1, steps + 1)}):
        for each_time in (False, True):
            what = "everything" if count == len(ranked) else f"the {count} cheapest"
            kept = ", drop again" if each_time else ""
            longer = islice(_recomputing(problem, set(ranked[:count]), each_time), LONGEST, None)
            if next(longer, None) is None:
                yield f"recompute {what}{kept}", drop(problem, set(ranked[:count]), each_time)
