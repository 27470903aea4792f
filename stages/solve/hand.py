"""Options that need no solver: keep everything, save nothing, recompute what is cheap."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from schemas.problem import Problem
from stages.solve.simulate import Run

STEPS = 32
"""At most so many numbers of dropped storages are tried."""


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
        for storage in problem.nodes[position].outputs
        if storage in read and not problem.storages[storage].held
    ]


def keep_all(problem: Problem) -> Run:
    """Every node once: what autograd does."""
    return Run(forward_nodes(problem), backward_nodes(problem))


def drop(problem: Problem, dropped: Collection[int], again: bool = False) -> Run:
    """The forward frees the storages `dropped`; each is recomputed right before it is needed.

    What a recomputation needs and is not there is recomputed too. A recomputed storage stays
    until the backward last reads it, or, with `again`, only for the node that needs it.
    """
    available = _surviving(problem) - set(dropped)
    order: list[int] = []
    for position in backward_nodes(problem):
        present = set(available)
        order += _ensure(problem, problem.nodes[position].inputs, present)
        order.append(position)
        present.update(problem.nodes[position].outputs)
        if again:
            available.update(problem.nodes[position].outputs)
        else:
            available = present
    return Run(forward_nodes(problem), without_useless(problem, tuple(order)))


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


def _ensure(problem: Problem, wanted: Sequence[int], present: set[int]) -> list[int]:
    """The forward nodes, in order, that make those of the wanted storages that are not present;
    adds what they make to `present`."""
    missing: set[int] = set()
    stack = list(wanted)
    while stack:
        storage = stack.pop()
        producer = problem.storages[storage].producer
        if storage in present or producer < 0 or producer >= problem.loss or producer in missing:
            continue
        missing.add(producer)
        stack.extend(problem.nodes[producer].inputs)
    for producer in missing:
        present.update(problem.nodes[producer].outputs)
    return sorted(missing)


def without_useless(problem: Problem, backward: tuple[int, ...]) -> tuple[int, ...]:
    """A backward without the recomputations whose results nothing reads before they are made
    again."""
    kept: list[int] = []
    read: set[int] = set()
    for position in reversed(backward):
        node = problem.nodes[position]
        if position < problem.loss and read.isdisjoint(node.outputs):
            continue
        kept.append(position)
        read.difference_update(node.outputs)
        read.update(node.inputs)
    return tuple(reversed(kept))


def output_only(problem: Problem, run: Run) -> tuple[int, ...]:
    """The nodes of the forward that a run can do without when nobody needs the block's output."""
    needed: set[int] = set()
    for position in reversed(run.backward):
        node = problem.nodes[position]
        needed.difference_update(node.outputs)
        needed.update(node.inputs)
    spare = []
    for position in reversed(run.forward):
        node = problem.nodes[position]
        if not node.repeatable or not needed.isdisjoint(node.outputs):
            needed.update(node.inputs)
        else:
            spare.append(position)
    return tuple(reversed(spare))


def recompute_cheap(problem: Problem) -> Iterator[tuple[str, Run]]:
    """Runs that drop the storages that are cheapest to make again, for the bytes they free.

    One run for each number of dropped storages, cheapest first (in a large block for `STEPS`
    numbers), and each once with recomputed storages kept and once dropped again after each use;
    the last run drops everything.
    """
    price = {
        storage: problem.nodes[problem.storages[storage].producer].seconds
        / max(problem.storages[storage].bytes, 1)
        for storage in droppable(problem)
    }
    ranked = sorted(price, key=lambda storage: (price[storage], storage))
    steps = min(STEPS, len(ranked))
    for count in sorted({-(-len(ranked) * step // steps) for step in range(1, steps + 1)}):
        for again in (False, True):
            what = "everything" if count == len(ranked) else f"the {count} cheapest"
            kept = ", drop again" if again else ""
            yield f"recompute {what}{kept}", drop(problem, set(ranked[:count]), again)
