"""The simulator beside the graphs that PyTorch's partitioner makes of random saved sets, and the
search beside all sets of small graphs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch._functorch import partitioners
from torch._functorch.compile_utils import raise_getitems
from torch.utils import _pytree as pytree

from tightfit.stages.compile.joint_graph import JointNodes
from tightfit.stages.compile.partition_memory import simulate_partition
from tightfit.stages.compile.saved_set_search import search_saved_sets, simulate_set

BACKEND = "aot_eager_decomp_partition"


class Mixed(nn.Module):
    """Views, tuples, a random operator, a value of two readers, and an output that is an input of
    the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a, b, c = self.up(x).tanh().chunk(3, -1)
        y = nn.functional.dropout(a.exp() * b.sigmoid(), 0.5) + c
        values, _ = self.down(y).sort(-1)
        return values.sin() + x, y.t().exp()


class Small(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(8, 8)) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = x + (x @ weight).tanh()
        return x


@contextmanager
def joint_graphs() -> Iterator[list[tuple[JointNodes, Any, fx.Graph, list[fx.Node]]]]:
    """Collects the joint graphs that are partitioned, with the compiler's own saved set."""
    found: list[Any] = []
    original = partitioners.choose_saved_values_set

    def collect(graph: fx.Graph, node_info: Any, memory_budget: float = 1) -> list[fx.Node]:
        usual = original(graph, node_info, memory_budget)
        found.append((JointNodes(graph, node_info, False), node_info, graph, usual))
        return usual

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partitioners, "choose_saved_values_set", collect)
        torch._dynamo.reset()
        yield found


def collect_joint_graph(model: nn.Module) -> tuple[JointNodes, Any, fx.Graph, list[fx.Node]]:
    with joint_graphs() as found:
        torch.compile(model, backend=BACKEND)(torch.randn(16, 8, requires_grad=True))
    [graph] = found
    return graph


def storages_of(node: fx.Node) -> set[int]:
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return {each.untyped_storage()._cdata for each in leaves if isinstance(each, Tensor)}


def liveness(graph: fx.Graph, live: dict[int, int], stay: set[int], external: set[int]) -> int:
    """The peak of a graph whose storages `live` are there before, and those of `stay` after it."""
    nodes = [node for node in graph.nodes if node.op != "output"]
    last: dict[int, int] = {}
    for turn, node in enumerate(nodes):
        for each in (node, *node.all_input_nodes):
            for storage in storages_of(each):
                last[storage] = turn
    peak = sum(live.values())
    for turn, node in enumerate(nodes):
        if node.op == "call_function":
            for leaf in pytree.tree_leaves(node.meta.get("val")):
                if isinstance(leaf, Tensor):
                    made = leaf.untyped_storage()
                    if made._cdata not in external:
                        live.setdefault(made._cdata, made.nbytes())
        peak = max(peak, sum(live.values()))
        for storage in [each for each in live if last.get(each) == turn and each not in stay]:
            del live[storage]
    return peak


def peak_by_pytorch(
    joint: JointNodes, node_info: Any, graph: fx.Graph, saved: list[fx.Node], tangents_stay: bool
) -> int:
    """The peak by the modules that PyTorch extracts, reorders, and runs, of values alone."""
    module: Any = graph.owning_module
    forward, backward = partitioners._extract_fwd_bwd_modules(
        module, [*node_info.inputs, *saved], [], num_fwd_outputs=len(joint.forward_outputs)
    )
    backward = raise_getitems(partitioners.reordering_to_mimic_autograd_engine(backward))
    forward = raise_getitems(forward)
    external = {key for node in node_info.inputs for key in storages_of(node)}
    returned = {key for node in joint.forward_outputs for key in storages_of(node)} - external
    [output] = forward.graph.find_nodes(op="output")
    kept = {key for node in output.all_input_nodes for key in storages_of(node)} - external
    sizes = {
        leaf.untyped_storage()._cdata: leaf.untyped_storage().nbytes()
        for node in graph.nodes
        for leaf in pytree.tree_leaves(node.meta.get("val"))
        if isinstance(leaf, Tensor)
    }
    peak = liveness(forward.graph, {}, kept, external)
    tangents = {key for node in joint.tangents for key in storages_of(node)}
    live = {key: sizes[key] for key in kept | tangents}
    [output] = backward.graph.find_nodes(op="output")
    gradients = {key for node in output.all_input_nodes for key in storages_of(node)}
    stay = returned | gradients | (tangents if tangents_stay else set())
    return max(peak, liveness(backward.graph, live, stay, external))


@pytest.mark.parametrize("tangents_stay", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_peaks_are_those_of_the_graphs_that_pytorch_makes(seed: int, tangents_stay: bool) -> None:
    joint, node_info, graph, usual = collect_joint_graph(Mixed())
    arrays = joint.arrays._replace(
        tangents_stay=tangents_stay, workspace=np.zeros_like(joint.arrays.workspace)
    )
    draw = np.random.default_rng(seed)
    mask = np.zeros(len(joint.nodes), np.bool_)
    mask[joint.candidates] = draw.random(len(joint.candidates)) < draw.random()
    outputs = joint.arrays.forward_outputs
    mask[outputs] = joint.is_forward[outputs]
    for number, node in enumerate(joint.nodes):
        if joint.arrays.never_again[number] and joint.is_forward[number]:
            mask[[number, *(joint.index[user] for user in node.users)]] = True
            mask &= joint.is_forward
    peak, _, _, _, wrong = simulate_partition(arrays, mask, 0)
    assert not wrong
    saved = [joint.nodes[at] for at in np.flatnonzero(mask)]
    assert peak == peak_by_pytorch(joint, node_info, graph, saved, tangents_stay)
    first = simulate_set(joint.arrays, joint.mask_of(usual), 0)
    assert first.end_bytes > 0


@pytest.mark.parametrize("layers", [2, 3, 4])
def test_the_search_finds_the_least_peak_and_the_fastest_sets_of_small_graphs(layers: int) -> None:
    joint, _, _, usual = collect_joint_graph(Small(layers))
    mask = joint.mask_of(usual)
    found = search_saved_sets(joint.arrays, joint.candidates, mask, 0)
    points = []
    for chosen in itertools.product([False, True], repeat=len(joint.candidates)):
        saved = np.zeros(len(joint.nodes), np.bool_)
        saved[joint.candidates] = chosen
        each = simulate_set(joint.arrays, saved, 0)
        points.append((each.peak, each.seconds))
    assert found[0].peak == min(peak for peak, _ in points)
    for each in found:
        fastest = min(seconds for peak, seconds in points if peak <= each.peak)
        assert each.seconds == pytest.approx(fastest)
    assert [each.peak for each in found] == sorted({each.peak for each in found})
    assert [each.seconds for each in found] == sorted((e.seconds for e in found), reverse=True)


def test_random_operators_are_not_run_again() -> None:
    joint, *_, usual = collect_joint_graph(Mixed())
    nothing = np.zeros(len(joint.nodes), np.bool_)
    assert simulate_partition(joint.arrays, nothing, 0)[4] == 1
    for each in search_saved_sets(joint.arrays, joint.candidates, joint.mask_of(usual), 0):
        assert simulate_partition(joint.arrays, each.saved, 0)[4] == 0
