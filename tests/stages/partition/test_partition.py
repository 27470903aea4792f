from __future__ import annotations

import random
from collections import Counter
from itertools import chain as joined
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.partition.steps import random_steps, traced
from tightfit.schemas.blocks import Block, Blocks, read_blocks, write_blocks
from tightfit.schemas.costs import write_costs
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import write_graph
from tightfit.stages.partition.block_chain import partition_step
from tightfit.stages.partition.block_problem import describe_block, divide_into_blocks
from tightfit.stages.partition.cuts import find_forward_cuts, find_segments
from tightfit.stages.partition.gradient_flow import GradientFlow, analyze_gradient_flow
from tightfit.stages.simulate.block import BlockSchedule, check_execution_order, simulate_block
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.solve.heuristics import drop_storages, droppable_storages, keep_all_run

MODULES = "tests.stages.partition.modules"
SMALL = {"width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16}
RESNET = {"name": "resnet50", "batch": 2, "size": 64}


def chain_of(factory: str, **arguments: object) -> Blocks:
    return partition_step(*traced(factory, **arguments))


def whole_order(chain: Blocks) -> list[int]:
    """The op ids of the step in the order that the chain says: nothing recomputed."""
    forward = [*chain.prelude, *joined.from_iterable(block.forward for block in chain.blocks)]
    backward = joined.from_iterable(block.backward for block in reversed(chain.blocks))
    return [*forward, chain.loss, *backward]


def test_gpt2_of_six_layers_has_fourteen_blocks_of_four_kinds() -> None:
    chain = chain_of("data.models:gpt2", **SMALL)
    assert len(chain.blocks) == 14
    assert len(chain.distinct) == 4
    attention = {block.digest for block in chain.blocks[1:13:2]}
    perceptron = {block.digest for block in chain.blocks[2:13:2]}
    assert len(attention) == len(perceptron) == 1
    assert attention != perceptron
    assert not chain.prelude, "eager makes no mask"
    assert [block.label for block in chain.blocks][1] == "transformer.h.0.attn"


def test_a_mask_that_all_layers_share_comes_before_the_blocks() -> None:
    chain = chain_of(f"{MODULES}:masked_gpt2", **{**SMALL, "layers": 3})
    assert len(chain.blocks) == 8
    assert len(chain.distinct) == 4
    assert len({block.digest for block in chain.blocks[1:7:2]}) == 1
    assert chain.prelude


def test_dropout_does_not_glue_blocks_together() -> None:
    chain = chain_of("data.models:gpt2", **{**SMALL, "layers": 2, "dropout": 0.1})
    assert len(chain.blocks) == 6
    assert len(chain.distinct) == 4


def test_the_first_contribution_to_a_tied_weight_is_the_gradient_that_grows() -> None:
    graph, costs = traced("data.models:gpt2", **SMALL)
    chain = partition_step(graph, costs)
    tied = 4 * SMALL["vocabulary"] * SMALL["width"]
    norm = 2 * 4 * SMALL["width"]
    positions = 4 * SMALL["tokens"] * SMALL["width"]
    assert chain.blocks[-1].gradient_bytes == tied + norm, "made first, by the last block"
    assert chain.blocks[0].gradient_bytes == positions, "added to what is there"
    assert not any(block.carried_bytes for block in chain.blocks)
    owners = {gradient.value for gradient in graph.gradients}
    whole = sum(graph.storages[graph.values[owner].storage] for owner in owners)
    assert sum(block.gradient_bytes for block in chain.blocks) == whole


def test_contributions_to_a_cast_of_a_tied_weight_are_carried_to_the_first_block() -> None:
    chain = chain_of(f"{MODULES}:tied_cast")
    size = 2 * 8 * 8
    assert len(chain.blocks) > 1
    assert chain.blocks[-1].carried_bytes == size
    assert chain.blocks[0].carried_bytes == -size
    assert sum(block.carried_bytes for block in chain.blocks) == 0


def test_resnet_gives_its_bottlenecks() -> None:
    chain = chain_of("data.models:resnet", **RESNET)
    assert len(chain.blocks) == 18
    units = [block.label for block in chain.blocks][1:-1]
    assert all(".unit" in label for label in units)
    repeated = Counter(block.digest for block in chain.blocks[1:-1])
    assert sorted(repeated.values()) == [1, 1, 1, 1, 2, 2, 3, 5]


@pytest.mark.parametrize("factory", ["data.models:bert", "data.models:llama"])
def test_layers_alike_share_their_digests(factory: str) -> None:
    chain = chain_of(factory, layers=3)
    repeated = Counter(block.digest for block in chain.blocks)
    assert list(repeated.values()).count(3) == 2


@pytest.mark.parametrize(("table", "blocks"), [("none", 4), ("mask", 4), ("parameter", 2)])
def test_only_what_carries_a_gradient_glues(table: str, blocks: int) -> None:
    chain = chain_of(f"{MODULES}:layers", table=table)
    assert len(chain.blocks) == blocks
    assert bool(chain.prelude) == (table == "mask")


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        ("data.models:gpt2", {**SMALL, "layers": 2, "dropout": 0.1}),
        ("data.models:gpt2", SMALL),
        (f"{MODULES}:masked_gpt2", {**SMALL, "layers": 2}),
        ("data.models:bert", {"layers": 3}),
        ("data.models:llama", {"layers": 3}),
        ("data.models:resnet", RESNET),
        (f"{MODULES}:layers", {"table": "mask"}),
        (f"{MODULES}:layers", {"table": "parameter"}),
        (f"{MODULES}:ending", {}),
        (f"{MODULES}:ending_with_loss", {}),
    ],
)
def test_every_node_is_in_one_place_and_the_order_runs(
    factory: str, arguments: dict[str, object]
) -> None:
    graph, costs = traced(factory, **arguments)
    chain = partition_step(graph, costs)
    problem = build_planning_graph(graph, costs)
    order = whole_order(chain)
    assert sorted(order) == sorted(node.op for node in problem.nodes)
    position = {node.op: index for index, node in enumerate(problem.nodes)}
    check_execution_order(problem, [position[op] for op in order])
    check_sizes(problem, chain, random.Random(0))


@pytest.mark.parametrize("factory", ["ending", "ending_with_loss"])
def test_an_output_in_the_middle_is_held_and_no_blocks_own(factory: str) -> None:
    chain = chain_of(f"{MODULES}:{factory}")
    assert len(chain.blocks) == 2
    assert chain.blocks[0].output_bytes == 0
    assert chain.blocks[0].outputs == chain.blocks[1].inputs != []
    assert len(chain.blocks[0].once) == 1
    assert chain.held_bytes >= 2 * 4 * 64


def test_partition_is_deterministic(tmp_path: Path) -> None:
    graph, costs = traced("data.models:bert", layers=3)
    first = write_blocks(tmp_path / "a", partition_step(graph, costs))
    second = write_blocks(tmp_path / "b", partition_step(graph, costs))
    assert first == second


def test_command_writes_what_partition_gives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import argparse

    from tightfit.stages.partition.command import add_arguments, run

    graph, costs = traced("data.models:bert", layers=3)
    write_graph(tmp_path / "graph", graph)
    write_costs(tmp_path / "costs", costs)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    files = ["--graph", "graph", "--costs", "costs", "--out", "blocks"]
    run(parser.parse_args([str(tmp_path / f) if f[0] != "-" else f for f in files]))
    assert read_blocks(tmp_path / "blocks") == partition_step(graph, costs)
    assert "9 blocks, 5 distinct" in capsys.readouterr().out
    # In a run, which has told of the blocks, the chain of them says nothing.
    words = [*files[:4], "--chain", "chain"]
    options = parser.parse_args([str(tmp_path / f) if f[0] != "-" else f for f in words])
    options.error_file = tmp_path / "chain.txt"
    run(options)
    assert (tmp_path / "chain").exists() and capsys.readouterr().out == ""


@settings(deadline=None, max_examples=150)
@given(random_steps(), st.randoms(use_true_random=False))
def test_random_chains(facts: GradientFlow, chance: random.Random) -> None:
    segments = find_segments(facts)
    division = divide_into_blocks(facts, segments)
    described = [describe_block(division, index) for index in range(len(division.blocks))]
    loss = facts.problem.nodes[facts.problem.loss]
    chain = Blocks(
        model="random",
        prelude=[],
        prelude_seconds=0.0,
        held_bytes=sum(facts.problem.storages[s].bytes for s in division.always_resident),
        loss=loss.op,
        loss_seconds=loss.seconds,
        loss_peak=loss.peak
        - sum(
            facts.problem.storages[s].bytes for s in loss.outputs if s in division.always_resident
        ),
        blocks=[block for block, _ in described],
        distinct={block.digest: problem for block, problem in described},
    )
    order = whole_order(chain)
    assert sorted(order) == list(range(len(facts.problem.nodes)))
    check_execution_order(facts.problem, order)
    check_sizes(facts.problem, chain, chance)


@settings(deadline=None, max_examples=150)
@given(random_steps())
def test_forward_cuts_are_where_one_storage_passes(facts: GradientFlow) -> None:
    problem = facts.problem
    cuts = find_forward_cuts(facts)
    seen: set[int] = set()
    for place in range(1, problem.loss):
        crossing = {
            storage
            for node in problem.nodes[place : problem.loss]
            for storage in node.inputs
            if problem.storages[storage].producer < place
        }
        if len(crossing) == 1 and not crossing <= seen:
            assert {cuts[place]} == crossing
            seen |= crossing
        else:
            assert place not in cuts


def test_gradient_flow_of_a_trace() -> None:
    graph, costs = traced("data.models:gpt2", **{**SMALL, "layers": 2, "dropout": 0.1})
    problem = build_planning_graph(graph, costs)
    facts = analyze_gradient_flow(graph, problem)
    drawn = [p for p, node in enumerate(problem.nodes[: problem.loss]) if node.random]
    assert drawn and not facts.pure.intersection(drawn)
    assert facts.pure
    [parts] = [parts for parts in partial_gradients_by_owner(graph).values() if len(parts) > 1]
    head, embedding = [facts.parameter_uses[graph.values[part].storage] for part in parts]
    assert len(head) == len(embedding) == 1 and embedding < head
    assert not facts.partial, "autograd adds up the gradient of the tied embedding"


def test_what_the_graph_adds_up_to_a_gradient_is_partial() -> None:
    graph, costs = traced(f"{MODULES}:tied_cast")
    facts = analyze_gradient_flow(graph, build_planning_graph(graph, costs))
    [weight] = [g.gradient for g in graph.gradients if graph.values[g.value].path == "weight"]
    made = {value: op for op in graph.ops for value in op.outputs}
    cast = made[weight]
    total = made[cast.inputs[0]]
    assert (cast.target, total.target) == ("aten._to_copy.default", "aten.add.Tensor")
    contributions = {graph.values[value].storage for value in total.inputs}
    assert len(contributions) == 2
    assert facts.partial >= contributions


def check_sizes(whole: PlanningGraph, chain: Blocks, chance: random.Random) -> None:
    """What blocks say about themselves adds up to no less than what the whole step needs, however
    each block is run; and to exactly the live bytes between forward and backward, apart from
    what is held for the whole time."""
    runs = [_some_run(chain.distinct[block.digest], chance) for block in chain.blocks]
    figures = [
        simulate_block(chain.distinct[block.digest], run)
        for block, run in zip(chain.blocks, runs, strict=True)
    ]
    position = {node.op: index for index, node in enumerate(whole.nodes)}
    forward = [position[op] for op in chain.prelude]
    backward: list[int] = []
    peak = 0
    saved = 0
    for block, run, figure in zip(chain.blocks, runs, figures, strict=True):
        forward += [position[op] for op in block.ops(list(run.forward))]
        peak = max(peak, saved + figure.forward_peak)
        saved += figure.save
    peak = max(peak, saved + chain.loss_peak)
    grown = 0
    for block, run, figure in reversed(list(zip(chain.blocks, runs, figures, strict=True))):
        backward += [position[op] for op in block.ops(list(run.backward))]
        saved -= figure.save
        peak = max(peak, saved + grown + figure.backward_peak)
        grown += block.gradient_bytes
    true = simulate_block(whole, BlockSchedule(tuple(forward), tuple(backward)))
    loss = whole.nodes[whole.loss].peak
    prelude = _prelude_peak(whole, [position[op] for op in chain.prelude])
    assert max(true.peak, true.save + loss) <= max(chain.held_bytes + peak, prelude)
    gradients = sum(storage.bytes for storage in whole.storages if storage.gradient)
    assert grown == gradients
    _check_borders(chain)


def _prelude_peak(whole: PlanningGraph, prelude: list[int]) -> int:
    live = 0
    peak = 0
    for position in prelude:
        peak = max(peak, live + whole.nodes[position].peak)
        live += sum(whole.storages[s].bytes for s in whole.nodes[position].outputs)
    return peak


def _check_borders(chain: Blocks) -> None:
    before: Block | None = None
    for block in chain.blocks:
        if before is not None:
            assert before.outputs == block.inputs
            assert before.incoming == block.outgoing
            assert before.incoming_bytes == block.outgoing_bytes
        before = block


def _some_run(problem: PlanningGraph, chance: random.Random) -> BlockSchedule:
    storages = droppable_storages(problem)
    if not storages or chance.random() < 0.3:
        return keep_all_run(problem)
    dropped = {storage for storage in storages if chance.random() < 0.5}
    return drop_storages(problem, dropped, each_time=chance.random() < 0.5)
