"""The forward of traced models, and the command that writes their hierarchy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.partition.hierarchy.brute_force import edges, node_outputs, node_reads
from tests.stages.partition.steps import traced
from tightfit.__main__ import main
from tightfit.schemas.costs import write_costs
from tightfit.schemas.graph.training_graph import Graph, write_graph
from tightfit.schemas.hierarchy import Hierarchy, read_hierarchy
from tightfit.stages.audit.audit import audit
from tightfit.stages.partition.gradient_flow import analyze_gradient_flow
from tightfit.stages.partition.hierarchy.arrays import HierarchyLimits
from tightfit.stages.partition.hierarchy.build import (
    StepForward,
    build_hierarchy,
    build_step_forward,
)
from tightfit.stages.partition.task import HIERARCHY_LIMITS
from tightfit.stages.simulate.planning_graph import build_planning_graph

HERE = "tests.stages.partition.hierarchy.modules"
MODULES = "tests.stages.partition.modules"
SMALL = {"width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16}
FEW = HierarchyLimits(nodes=2, clusters=2, top=2)

BAD = (
    *("outputs_that_are_inputs", "unused_parameters", "one_output_of_several", "scalars"),
    *("empty_tensors", "a_single_node", "drops"),
)


def forward_of_factory(factory: str, **arguments: object) -> tuple[Graph, StepForward]:
    graph, costs = traced(factory, **arguments)
    return graph, build_step_forward(
        graph, analyze_gradient_flow(graph, build_planning_graph(graph, costs, ordered=False))
    )


def can_run(graph: Graph, hierarchy: Hierarchy) -> bool:
    """Whether prelude and forward, in their order, read only what is there, the forward being
    all ops of it that are no views, each once."""
    order = [*hierarchy.prelude, *hierarchy.forward]
    ops = [op for op in graph.ops if op.phase == "forward" and not graph.is_view(op)]
    there = {value.storage for value in graph.values} - {
        graph.values[value].storage for op in ops for value in op.outputs if value >= 0
    }
    for op in (graph.ops[index] for index in order):
        if not there >= {graph.values[value].storage for value in op.inputs}:
            return False
        there |= {graph.values[value].storage for value in op.outputs if value >= 0}
    return sorted(order) == [op.id for op in ops]


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("limits", [FEW, HierarchyLimits()], ids=["few", "many"])
def test_whatever_a_forward_has_it_can_run_in_the_order_of_its_clusters(
    name: str, limits: HierarchyLimits
) -> None:
    graph, costs = traced(f"{HERE}:{name}")
    assert can_run(graph, build_hierarchy(graph, costs, limits))


def test_a_step_without_a_backward_has_a_hierarchy() -> None:
    graph, costs = traced(f"{HERE}:unused_parameters")
    ops = [op for op in graph.ops if op.phase != "backward"]
    alone = replace(graph, ops=ops, gradients=[])
    assert can_run(alone, build_hierarchy(alone, costs, FEW))


@pytest.mark.parametrize("model", ["gpt2", "resnet50"])
def test_models_can_run_in_the_order_of_their_clusters(model: str) -> None:
    arguments = SMALL if model == "gpt2" else {"batch": 2, "size": 64}
    graph, costs = traced(f"data.models:{model}", **arguments)
    assert can_run(graph, build_hierarchy(graph, costs))


def test_equal_layers_of_a_model_are_equal_clusters() -> None:
    graph, costs = traced("data.models:gpt2", **{**SMALL, "layers": 12})
    [level] = build_hierarchy(graph, costs, HierarchyLimits(top=20)).levels
    assert max(level.digests.count(digest) for digest in level.digests) >= 10


def test_a_table_with_a_gradient_leaves_layers_equal() -> None:
    """Such a table makes one block of all layers (T5's position bias); clusters stay small."""
    graph, costs = traced(f"{MODULES}:layers", table="parameter")
    levels = build_hierarchy(graph, costs, HierarchyLimits(nodes=6, clusters=4, top=5)).levels
    assert max(levels[0].digests.count(digest) for digest in levels[0].digests) >= 2


def test_a_mask_that_all_layers_share_is_no_node() -> None:
    _, forward = forward_of_factory(f"{MODULES}:layers", table="mask")
    assert forward.prelude
    given = set(range(len(forward.flow.bytes))) - set(forward.flow.output_item.tolist())
    assert given and not forward.flow.bytes[sorted(given)].any()


def test_random_ops_and_writes_keep_their_turn() -> None:
    graph, forward = forward_of_factory(f"{HERE}:drops")
    ops = [graph.ops[op] for op in forward.ops]
    drawn = [node for node, op in enumerate(ops) if op.random]
    assert len(drawn) == 2
    assert tuple(drawn) in edges(forward.flow)
    [write] = [node for node, op in enumerate(ops) if op.writes]
    buffer = {graph.values[value].storage for value in ops[write].writes}
    users = [
        node
        for node, op in enumerate(ops)
        if node != write and buffer & {graph.values[value].storage for value in op.inputs}
    ]
    assert users
    for user in users:
        assert tuple(sorted((user, write))) in edges(forward.flow)


def test_what_the_loss_reads_is_a_result() -> None:
    _, forward = forward_of_factory(f"{MODULES}:ending")
    results = set(forward.flow.result.nonzero()[0].tolist())
    makers = {n for n in range(forward.flow.count) if results & set(node_outputs(forward.flow, n))}
    assert len(results) == len(makers) == 2
    assert any(results & set(node_reads(forward.flow, n)) for n in range(forward.flow.count))


def test_the_command_writes_a_hierarchy_beside_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    graph, costs = traced(f"{MODULES}:layers")
    write_graph("graph.arrow", graph)
    write_costs("costs.arrow", costs)
    files = ["partition", "--graph", "graph.arrow", "--costs", "costs.arrow"]
    limits = ["--nodes", "3", "--clusters", "3", "--top", "3", "--alpha", "1"]
    assert main([*files, "--out", "alone.arrow"]) == 0
    assert main([*files, "--out", "blocks.arrow", "--hierarchy", "h.arrow", *limits]) == 0
    assert Path("alone.arrow").read_bytes() == Path("blocks.arrow").read_bytes()
    found = read_hierarchy("h.arrow")
    assert (found.nodes, found.clusters, found.top, found.alpha) == (3, 3, 3, 1.0)
    assert found.levels and len(found.spans(len(found.levels) - 1)) <= 3
    assert "distinct" in capsys.readouterr().out
    before = Path("h.arrow").read_bytes()
    assert main([*files, "--hierarchy", "h.arrow", *limits]) == 0
    assert Path("h.arrow").read_bytes() == before
    complaints = audit(Path()).complaints
    assert not [said for said in complaints if said.startswith("h.arrow")]
    Path("h.arrow").write_bytes(before[:-8])
    assert any(said.startswith("h.arrow") for said in audit(Path()).complaints)


def test_the_command_has_the_limits_of_the_algorithm() -> None:
    assert HierarchyLimits() == HierarchyLimits(
        **{name: most for name, (most, _) in HIERARCHY_LIMITS.items()}
    )


def test_the_command_refuses_what_it_cannot_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, costs = traced(f"{MODULES}:layers")
    write_graph(tmp_path / "graph", graph)
    write_costs(tmp_path / "costs", costs)
    files = ["partition", "--graph", str(tmp_path / "graph"), "--costs", str(tmp_path / "costs")]
    assert main(files) == 1
    assert "nothing to write" in capsys.readouterr().err
    few = ["--nodes", "2", "--clusters", "2", "--top", "2", "--levels", "1"]
    assert main([*files, "--hierarchy", str(tmp_path / "h"), *few]) == 1
    assert "do not fit a hierarchy of 1 levels" in capsys.readouterr().err
    assert not (tmp_path / "h").exists()
