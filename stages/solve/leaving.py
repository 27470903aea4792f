"""What the options of a block do with a link to another memory (Z 4.4): some of what they keep from
forward to backward may leave, and what takes less to make again than to send need not be kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tightfit.schemas.link import HostLink
from tightfit.schemas.problem import Problem
from tightfit.stages.replay.block import BlockRun
from tightfit.stages.replay.line import ended, forms
from tightfit.stages.solve.hand import drop, droppable

PART = 64
"""Storages of less than this part of the largest one that is kept stay."""


def recompute_quick(problem: Problem, link: HostLink) -> Iterator[tuple[str, BlockRun]]:
    """Runs that drop what takes less to make again than to send it and bring it back; none where
    nothing does."""
    quick = [
        storage
        for storage in droppable(problem)
        if _again(problem, storage) < 2 * link.seconds(problem.storages[storage].bytes)
    ]
    for each_time in (False, True) if quick else ():
        kept = ", drop again" if each_time else ""
        yield f"recompute what is quicker than the link{kept}", drop(problem, quick, each_time)


def leaving(problem: Problem, run: BlockRun) -> list[int]:
    """The storages of the forward that a run keeps for the backward or for the next block and that
    may leave in between, but for small ones: what takes the most a byte to make again first."""
    kept = [storage for storage in _kept(problem, run) if not problem.storages[storage].stays]
    sizes = {storage: problem.storages[storage].bytes for storage in kept}
    largest = max(sizes.values(), default=0)
    found = [storage for storage in kept if 0 < largest <= sizes[storage] * PART]
    return sorted(found, key=lambda s: (-_again(problem, s) / sizes[s], s))


def _kept(problem: Problem, run: BlockRun) -> Sequence[int]:
    """What the forward of a run makes and is there when it is through."""
    order = [*run.forward, problem.loss, *run.backward]
    stays = {index for index, storage in enumerate(problem.storages) if storage.stays}
    played = forms(problem, order)
    there: dict[int, None] = {}
    for form, gone in zip(played[: len(run.forward)], ended(played, stays), strict=False):
        there.update(dict.fromkeys(form.outputs))
        for storage in gone:
            there.pop(storage, None)
    return [*there]


def _again(problem: Problem, storage: int) -> float:
    """Seconds that the maker of a storage takes when it runs again, infinite where it must not."""
    node = problem.nodes[problem.storages[storage].producer]
    if not node.repeatable or storage not in node.form(True).outputs:
        return float("inf")
    return node.form(True).seconds
