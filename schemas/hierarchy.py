"""`tightfit.hierarchy/2`: a training step as clusters of clusters (Z 3.3).

The ops of `forward` are in an order in which they can run. Each lowest cluster is a row of them,
each further one a row of clusters of the level below, and what is left at the top is a row of
clusters of the last level; without levels, of ops. So no value leaves a cluster and comes back.

An op of the backward belongs where the op stands that it is the backward of, or ahead of that: what
it reads of the backward belongs there or later. So a cluster has a backward, and backwards in the
reverse order of the forwards read what was made.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import accumulate, pairwise
from pathlib import Path

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import (
    integer_field,
    integer_list_field,
    number_field,
    record_list_field,
    text_field,
    text_list_field,
)
from tightfit.util.errors import ArtifactError

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class HierarchyLevel:
    """The clusters of one level in order: how many members each has, and its digest.

    Clusters of one digest, at one level or several, have equal ops, costs and sizes of values,
    wired alike, and list their members in the same order.
    """

    sizes: list[int]
    digests: list[str]


@dataclass(frozen=True)
class Hierarchy:
    """The clusters of a model's forward.

    `prelude` are ops that run once, ahead of all clusters; `forward` are the others, ids of the
    graph. `backward` are the ops of the backward as they were captured, and `places` says for each
    at which place of `forward` it belongs. `nodes`, `clusters` and `top` are the most members of a
    lowest cluster, of any other one, and of the whole; `alpha` is the exponent of Z eq. 3.1.
    `digest` is that of the whole. `levels` are from the lowest on.
    """

    model: str
    prelude: list[int]
    forward: list[int]
    backward: list[int]
    places: list[int]
    nodes: int
    clusters: int
    top: int
    alpha: float
    digest: str
    levels: list[HierarchyLevel]

    def spans(self, level: int) -> list[range]:
        """For each cluster of a level the places of its ops in `forward`."""
        bounds = list(range(len(self.forward) + 1))
        for tier in self.levels[: level + 1]:
            bounds = [bounds[place] for place in accumulate(tier.sizes, initial=0)]
        return [range(*pair) for pair in pairwise(bounds)]


HIERARCHY = store.ArtifactType(
    "tightfit.hierarchy",
    2,
    pa.schema(
        [
            text_field("model"),
            integer_list_field("prelude"),
            integer_list_field("forward"),
            integer_list_field("backward"),
            integer_list_field("places"),
            integer_field("nodes"),
            integer_field("clusters"),
            integer_field("top"),
            number_field("alpha"),
            text_field("digest"),
            record_list_field("levels", integer_list_field("sizes"), text_list_field("digests")),
        ]
    ),
)


def write_hierarchy(
    path: Path | str, hierarchy: Hierarchy, metadata: Mapping[str, str] | None = None
) -> str:
    """Checks the hierarchy, writes it and returns the digest of the file."""
    _check(hierarchy, str(path))
    return store.write(path, HIERARCHY, [asdict(hierarchy)], metadata)


def read_hierarchy(path: Path | str) -> Hierarchy:
    """Reads a hierarchy; raises ArtifactError when its levels do not fit together."""
    rows = store.read(path, HIERARCHY).rows
    if len(rows) != 1:
        raise ArtifactError(f"{path}: holds {len(rows)} hierarchies instead of one")
    levels = [HierarchyLevel(**tier) for tier in rows[0]["levels"]]
    hierarchy = Hierarchy(**{**rows[0], "levels": levels})
    _check(hierarchy, str(path))
    return hierarchy


def _check(hierarchy: Hierarchy, where: str) -> None:
    def require(condition: bool, sentence: str) -> None:
        if not condition:
            raise ArtifactError(f"{where}: {sentence}")

    ops = [*hierarchy.prelude, *hierarchy.forward, *hierarchy.backward]
    require(len(set(ops)) == len(ops), "an op is in two places of the hierarchy")
    require(min(ops, default=0) >= 0, "the hierarchy has an op of negative id")
    places = hierarchy.places
    require(len(places) == len(hierarchy.backward), "the backward has not one place for each op")
    require(
        all(0 <= place < max(len(hierarchy.forward), 1) for place in places),
        "an op of the backward belongs to no place of the forward",
    )
    limits = (hierarchy.nodes, hierarchy.clusters, hierarchy.top)
    require(min(limits) >= 2, f"the hierarchy has limits of less than two members: {limits}")
    require(
        math.isfinite(hierarchy.alpha) and hierarchy.alpha >= 0,
        f"the exponent of the score is {hierarchy.alpha}, not zero or more",
    )
    require(bool(_DIGEST.fullmatch(hierarchy.digest)), "the hierarchy's digest is none")
    count = len(hierarchy.forward)
    below: list[str] = []
    made_of: dict[str, object] = {}
    for index, tier in enumerate(hierarchy.levels):
        what = f"level {index} of the hierarchy"
        most = hierarchy.clusters if index else hierarchy.nodes
        require(sum(tier.sizes) == count, f"{what} does not hold all of the level below")
        require(
            all(1 <= size <= most for size in tier.sizes),
            f"{what} has a cluster of less than one member or more than {most}",
        )
        count = len(tier.sizes)
        require(len(tier.digests) == count, f"{what} has not one digest for each cluster")
        starts = accumulate(tier.sizes, initial=0)
        for digest, size, start in zip(tier.digests, tier.sizes, starts, strict=False):
            require(bool(_DIGEST.fullmatch(digest)), f"{what} has a digest that is none")
            members = (index, size, *below[start : start + size])
            same = made_of.setdefault(digest, members) == members
            require(same, f"{what} has one digest for different clusters: {digest[:12]}")
        below = tier.digests
    require(count <= hierarchy.top, f"the top of the hierarchy has {count} members, too many")
