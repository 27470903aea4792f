"""What is known of the allocators before they run, as `schemas/strategies.py` for strategies: an
allocator gives the layers of a chain to the devices of a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class AllocatorAbout:
    """What is known of an allocator before it runs.

    `summary` is a line for people. A `contiguous` one gives each device one stage, so that only
    neighbours need a link. One with `turns` makes k-periodic patterns and takes k. One with
    `inside` can compute again inside of stages. One that `solves` integer programs takes the
    engine that does. A `blind` one looks at memory afterwards, so that
    it may find nothing where something fits. `optimal_in` names the class that its plans are
    optimal in where its bound is reached.
    """

    name: str
    summary: str
    contiguous: bool = False
    turns: bool = False
    inside: bool = False
    solves: bool = False
    blind: bool = False
    optimal_in: str = ""


_ALL = [
    AllocatorAbout(
        "pipedream",
        "contiguous, with the least period where memory does not count; memory is looked at "
        "afterwards (a baseline)",
        contiguous=True,
        blind=True,
        optimal_in="contiguous allocations",
    ),
    AllocatorAbout(
        "one_f_one_b",
        "contiguous, with the least period at which 1F1B* fits the memory",
        contiguous=True,
        inside=True,
        optimal_in="contiguous allocations with 1-periodic patterns of whole stages",
    ),
    AllocatorAbout(
        "k_periodic",
        "contiguous, with 1F1B* or that with every (k+1)-th batch left out where memory binds",
        contiguous=True,
        turns=True,
        inside=True,
        optimal_in="contiguous allocations",
    ),
    AllocatorAbout(
        "pipeline_ilp",
        "any layers on any device, by integer programs for allocation and schedule; for short "
        "chains",
        solves=True,
        optimal_in="1-periodic patterns",
    ),
    AllocatorAbout(
        "madpipe",
        "one stage a device but for a special one, by a dynamic program, with the schedule by an "
        "integer program; never slower than `one_f_one_b`",
        inside=True,
        solves=True,
        optimal_in="all allocations",
    ),
]

ALLOCATORS: dict[str, AllocatorAbout] = {about.name: about for about in _ALL}
"""All by name: NAME is `ALLOCATOR` of `stages/combine/allocate/allocators/NAME.py`."""
