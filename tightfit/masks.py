"""Plans for masks of nothing but ones and for others, where the forward looks at that."""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.schemas.errors import ModelError
from tightfit.several import likeness

if TYPE_CHECKING:
    from tightfit.route import Route
    from tightfit.schemas.graph import Graph
    from tightfit.stages.device.factory import Built, Sample

_EACH = 2
"""With more masks than that, not every choice of those that are ones has a plan."""
Traced = tuple["Built", Path]
"""Samples with the path of their graph."""


def by_masks(route: Route, given: Sequence[Built]) -> list[Traced]:
    """The samples with their graphs: where the forward asks whether masks are all ones, and goes
    another way for those, samples of either kind, made of the given ones where none is.

    `given` has samples of one shape together, and apart where not the same inputs are ones. Raises
    ModelError where the model cannot be captured.
    """
    shapes: dict[Hashable, list[Built]] = {}
    for built in given:
        shapes.setdefault(likeness(*built.samples[0]), []).append(built)
    return [traced for alike in shapes.values() for traced in _kinds(route, alike)]


def _kinds(route: Route, alike: Sequence[Built]) -> list[Traced]:
    """The same for the samples of one shape."""
    from tightfit.stages.device.masks import leaves_of_ones
    from tightfit.stages.generate.check import masks as masks_of

    together = [sample for built in alike for sample in built.samples]
    general = replace(alike[0], samples=together, ones=False)
    try:
        graph = route.traced(general)
    except ModelError:
        if not any(map(leaves_of_ones, alike)):
            raise
        return [(built, route.trace(built)) for built in alike]
    masks = masks_of(graph)
    if not masks:
        return [(general, route.filed(graph))]
    found: list[Traced] = []
    for built, ones in _by_ones(alike, masks):
        if not ones:
            found.append((built, route.filed(_guarded(graph, masks))))
            continue
        try:
            shorter = route.traced(built)
        except ModelError:
            return [(general, route.filed(graph))]
        if replace(shorter, guards=graph.guards) == graph:
            return [(general, route.filed(graph))]
        found.append((built, route.filed(shorter)))
    return found


def _by_ones(
    alike: Sequence[Built], masks: Sequence[int]
) -> Iterator[tuple[Built, tuple[int, ...]]]:
    """The samples by the masks among their leaves that are ones, the given ones first, then those
    that are made of the first one."""
    from tightfit.stages.device.masks import leaves_of_ones, with_masks

    groups: dict[tuple[int, ...], list[Sample]] = {}
    for built in alike:
        own = set(leaves_of_ones(built))
        ones = tuple(leaf for leaf in masks if leaf in own)
        groups.setdefault(ones, []).extend(built.samples)
    counts = range(len(masks), -1, -1) if len(masks) <= _EACH else (len(masks), 0)
    for ones in (ones for count in counts for ones in itertools.combinations(masks, count)):
        groups.setdefault(ones, [with_masks(alike[0].samples[0], masks, ones)])
    for ones, samples in groups.items():
        mixed = tuple(leaf for leaf in masks if leaf not in ones)
        yield replace(alike[0], samples=samples, ones=True, mixed=mixed), ones


def _guarded(graph: Graph, masks: Sequence[int]) -> Graph:
    """A graph for masks of any contents as one for those that are not all ones."""
    guards = json.loads(graph.guards) | {"wished": [], "mixed": list(masks)}
    return replace(graph, guards=json.dumps(guards))
