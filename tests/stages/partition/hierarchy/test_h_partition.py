"""What every hierarchy is, compared with slow definitions."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.partition.hierarchy.brute_force import (
    clusters,
    edges,
    has_cycle,
    is_convex,
    portrait,
    reached,
)
from tests.stages.partition.hierarchy.flows import (
    FAMILIES,
    Node,
    flow_of,
    layered,
    random_flows,
    relabeled,
    transformer,
)
from tightfit.stages.partition.hierarchy import h_partition as module
from tightfit.stages.partition.hierarchy.arrays import (
    ClusterLevel,
    ClusterTree,
    ForwardGraph,
    HierarchyLimits,
)
from tightfit.stages.partition.hierarchy.h_partition import check_hierarchy, h_partition
from tightfit.util.errors import ArtifactError, ConfigError


@st.composite
def limits(draw: st.DrawFn) -> HierarchyLimits:
    members = draw(st.integers(2, 5))
    top = draw(st.integers(members, 6))
    return HierarchyLimits(draw(st.integers(2, 6)), members, top, draw(st.integers(6, 9)))


def same(first: ClusterTree, second: ClusterTree) -> bool:
    return shape(first) == shape(second) and first.order.tolist() == second.order.tolist()


def shape(tree: ClusterTree) -> object:
    levels = [(level.sizes.tolist(), level.digests.tolist()) for level in tree.levels]
    return tree.digest, levels


@given(random_flows(), limits(), st.sampled_from([0.0, 0.5, 1.0]))
@settings(max_examples=150, deadline=None)
def test_clusters_are_convex_and_make_no_cycle_at_any_level(
    flow: ForwardGraph, limits: HierarchyLimits, alpha: float
) -> None:
    tree = h_partition(flow, limits, alpha)
    after = reached(edges(flow), flow.count)
    for level in clusters(tree):
        assert sorted(chain.from_iterable(level)) == list(range(flow.count)), (
            "each node in one cluster"
        )
        assert all(is_convex(set(cluster), after) for cluster in level)
        assert not has_cycle(edges(flow), {n: c for c, part in enumerate(level) for n in part})


@given(random_flows(), limits())
@settings(max_examples=100, deadline=None)
def test_sizes_keep_their_limits(flow: ForwardGraph, limits: HierarchyLimits) -> None:
    tree = h_partition(flow, limits)
    count = flow.count
    for number, level in enumerate(tree.levels):
        assert level.sizes.min() >= 1
        assert level.sizes.max() <= (limits.clusters if number else limits.nodes)
        count = len(level.sizes)
    assert count <= limits.top
    assert len(tree.levels) <= limits.levels
    assert flow.count > limits.top or not tree.levels


@given(random_flows(), limits())
@settings(max_examples=100, deadline=None)
def test_clusters_of_one_digest_are_isomorphic_node_by_node(
    flow: ForwardGraph, limits: HierarchyLimits
) -> None:
    tree = h_partition(flow, limits)
    seen: dict[bytes, object] = {}
    for level, found in zip(tree.levels, clusters(tree), strict=True):
        for digest, cluster in zip(level.digests, found, strict=True):
            picture = portrait(flow, cluster)
            assert seen.setdefault(digest.tobytes(), picture) == picture


@given(random_flows(), limits())
@settings(max_examples=50, deadline=None)
def test_the_same_forward_gives_the_same_hierarchy(
    flow: ForwardGraph, limits: HierarchyLimits
) -> None:
    assert same(h_partition(flow, limits), h_partition(flow, limits))


@given(random_flows(distinct=True), limits(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_numbers_of_nodes_do_not_matter(
    flow: ForwardGraph, limits: HierarchyLimits, draw: object
) -> None:
    order = np.array(draw.sample(range(flow.count), flow.count))  # type: ignore[attr-defined]
    tree, other = h_partition(flow, limits), h_partition(relabeled(flow, order), limits)
    assert same(tree, replace(other, order=order[other.order]))


@pytest.mark.parametrize("family", FAMILIES)
def test_numbers_do_not_matter_where_parts_are_equal(family: str) -> None:
    flow = FAMILIES[family](700)
    order = np.random.default_rng(0).permutation(flow.count)
    tree, other = h_partition(flow), h_partition(relabeled(flow, order))
    assert shape(tree) == shape(other)


def test_equal_layers_are_equal_clusters() -> None:
    tree = h_partition(transformer(16 * 60))
    lowest = [digest.tobytes() for digest in tree.levels[0].digests]
    assert max(lowest.count(digest) for digest in lowest) >= len(lowest) - 3
    assert len(set(lowest)) <= 4


@pytest.mark.parametrize("nodes", [5, 7, 12, 20, 30])
def test_equal_layers_are_equal_whatever_fits_a_cluster(nodes: int) -> None:
    """Away from both ends, one layer is cut like the next."""
    tree = h_partition(transformer(16 * 60), HierarchyLimits(nodes=nodes))
    assert len({digest.tobytes() for digest in tree.levels[0].digests}) <= 16


def test_clusters_do_not_depend_on_what_surrounds_them() -> None:
    """A digest is of the cluster alone: the same layers in a longer model have it too."""
    short, long = (h_partition(transformer(16 * layers)) for layers in (50, 90))
    common = {d.tobytes() for d in short.levels[0].digests}
    assert common & {d.tobytes() for d in long.levels[0].digests}


def test_a_digest_depends_on_kinds_sizes_wires_and_results() -> None:
    first: Node = ("a", [0], [4, 4])
    flows = [
        flow_of([first, ("b", [1], [4])], [8]),
        flow_of([("c", [0], [4, 4]), ("b", [1], [4])], [8]),
        flow_of([("a", [0], [4, 5]), ("b", [1], [4])], [8]),
        flow_of([first, ("b", [1], [4])], [9]),
        flow_of([first, ("b", [2], [4])], [8]),
        flow_of([first, ("b", [1, 1], [4])], [8]),
        flow_of([first, ("b", [1, 0], [4])], [8]),
        flow_of([first, ("b", [1], [4])], [8], [1]),
        flow_of([first, ("b", [1], [4])], [8], [3]),
    ]
    assert len({h_partition(flow).digest for flow in flows}) == len(flows)
    assert h_partition(flows[0]).digest == h_partition(replace(flows[0])).digest


def test_a_digest_tells_results_from_what_others_read() -> None:
    chain: list[Node] = [("abcd"[i], [i], [1 if i == 1 else 4]) for i in range(4)]
    limits = HierarchyLimits(nodes=2, clusters=2, top=2)
    plain, kept = (h_partition(flow_of(chain, [4], found), limits) for found in ([4], [2, 4]))
    assert plain.levels[0].sizes.tolist() == kept.levels[0].sizes.tolist() == [2, 2]
    assert plain.levels[0].digests[0].tolist() != kept.levels[0].digests[0].tolist()
    assert plain.levels[0].digests[1].tolist() == kept.levels[0].digests[1].tolist()


def test_few_levels_are_kept_by_full_clusters() -> None:
    flow = layered(160)
    tree = h_partition(flow, HierarchyLimits(nodes=4, clusters=4, top=10, levels=2))
    assert [len(level.sizes) for level in tree.levels] == [40, 10]
    with pytest.raises(ConfigError, match="161 nodes do not fit a hierarchy of 2 levels, 160"):
        h_partition(layered(161), HierarchyLimits(nodes=4, clusters=4, top=10, levels=2))


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (HierarchyLimits(nodes=1), "the limits are 1 nodes, .* two members at least"),
        (HierarchyLimits(nodes=2**63), "a limit of 9223372036854775808 members is above"),
        (HierarchyLimits(clusters=1), "two members at least"),
        (HierarchyLimits(levels=0), "one level"),
        (
            HierarchyLimits(top=10),
            "room for 10 members, less than a cluster, which has room for 20",
        ),
    ],
)
def test_limits_that_cannot_be_kept_are_refused(limits: HierarchyLimits, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        h_partition(layered(100), limits)


@pytest.mark.parametrize("alpha", [-0.5, 11.0, float("nan")])
def test_a_score_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="exponent of the score"):
        h_partition(layered(100), alpha=alpha)


def test_limits_may_be_larger_than_anything() -> None:
    tree = h_partition(layered(100), HierarchyLimits(10**12, 10**12, 10**12, 10**9))
    assert not tree.levels
    [level] = h_partition(layered(100), HierarchyLimits(nodes=10**12)).levels
    assert len(level.sizes) <= 40


def test_a_forward_without_nodes_and_one_of_a_single_node() -> None:
    nothing = h_partition(flow_of([]))
    assert not nothing.levels and not len(nothing.order)
    single = h_partition(flow_of([("a", [], [])]))
    assert not single.levels and single.order.tolist() == [0]
    assert nothing.digest != single.digest


def test_a_forward_with_a_cycle_is_refused() -> None:
    with pytest.raises(ArtifactError, match="cycle"):
        h_partition(flow_of([("a", [1], [4]), ("b", [0], [4])]))
    with pytest.raises(ArtifactError, match="cycle"):
        h_partition(flow_of([("a", [0], [4])]))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"input_item": [9]}, "not there"),
        ({"input_item": [-1]}, "not there"),
        ({"input_start": [0, 0]}, "other nodes"),
        ({"input_start": [0, 0, 2]}, "no node lists"),
        ({"output_start": [0, 2, 1], "output_item": [0]}, "ends early"),
        ({"output_item": [0, 0]}, "makes a value twice"),
        ({"kind": [0, 7]}, "kind that is not there"),
        ({"bytes": [4, -4]}, "negative size"),
        ({"result": [True]}, "whether they are results"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes: dict[str, list[int]], words: str) -> None:
    flow = flow_of([("a", [], [4]), ("b", [0], [4])])
    arrays = {name: np.array(found) for name, found in changes.items()}
    wrong = replace(flow, **arrays)  # type: ignore[arg-type]
    with pytest.raises(ArtifactError, match=words):
        h_partition(wrong)


def tree_of(order: list[int], *sizes: list[int]) -> ClusterTree:
    levels = [ClusterLevel(np.array(part), np.zeros((len(part), 32), np.uint8)) for part in sizes]
    return ClusterTree(np.array(order), levels, b"")


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (tree_of([0, 1, 2, 2]), "lost or doubled a node"),
        (tree_of([1, 0, 2, 3]), "an order with a cycle"),
        (tree_of([0, 1, 2, 3], [2, 1]), "lost or doubled a cluster"),
        (tree_of([0, 1, 2, 3], [3, 1]), "a cluster too large"),
        (tree_of([0, 1, 2, 3], [4, 0]), "a cluster too large"),
        (tree_of([0, 1, 2, 3], [2, 2], [2], [1]), "too many levels"),
        (tree_of([0, 1, 2, 3]), "too many clusters at the top"),
    ],
)
def test_what_is_no_hierarchy_does_not_pass_the_check(tree: ClusterTree, words: str) -> None:
    chain = flow_of([("a", [], [1]), ("a", [0], [1]), ("a", [1], [1]), ("a", [2], [1])])
    with pytest.raises(RuntimeError, match=words):
        check_hierarchy(chain, tree, HierarchyLimits(nodes=2, clusters=2, top=2, levels=2))


def test_a_cycle_after_a_merge_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were the order wrong, clusters would read what later ones make."""
    monkeypatch.setattr(
        module, "canonical_order", lambda items, cluster: np.arange(items.count)[::-1]
    )
    with pytest.raises(RuntimeError, match="with a cycle"):
        h_partition(layered(100))
