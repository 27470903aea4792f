"""Strategies from a step's blocks to the ops that run, against a plain reading of the result."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from tests.stages.combine.problems import plain_line
from tests.stages.partition.steps import random_steps, traced
from tests.stages.solve.blocks import solve_block
from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.options import build_model_chain_problem, keep_all_option
from tightfit.stages.combine.chain.simulate import simulate_chain
from tightfit.stages.combine.lowering.blocks import lower_to_executions
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem, load_strategy
from tightfit.stages.partition.block_chain import partition_step
from tightfit.stages.partition.block_problem import describe_block, divide_into_blocks
from tightfit.stages.partition.cuts import find_segments
from tightfit.stages.partition.gradient_flow import GradientFlow
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.solve.search import OptionGrid
from tightfit.util.errors import ArtifactError, ConfigError

NO_SOLVER = OptionGrid(largest=0)


def blocks_of(facts: GradientFlow) -> Blocks:
    division = divide_into_blocks(facts, find_segments(facts))
    described = [describe_block(division, index) for index in range(len(division.blocks))]
    problem = facts.problem
    loss = problem.nodes[problem.loss]
    held_by_loss = sum(
        problem.storages[s].bytes for s in loss.outputs if s in division.always_resident
    )
    return Blocks(
        model="random",
        prelude=[],
        prelude_seconds=0.0,
        held_bytes=sum(problem.storages[s].bytes for s in division.always_resident),
        loss=loss.op,
        loss_seconds=loss.seconds,
        loss_peak=loss.peak - held_by_loss,
        blocks=[block for block, _ in described],
        distinct={block.digest: local for block, local in described},
    )


def options_of(blocks: Blocks) -> dict[str, list[BlockOption]]:
    """Every block's options that need no solver."""
    return {
        digest: solve_block(digest, problem, "highs", NO_SOLVER)
        for digest, problem in blocks.distinct.items()
    }


def check_candidate(problem: PlanningGraph, candidate: Candidate) -> tuple[int, float]:
    """The candidate runs every op, and what cannot be repeated once; returns peak and seconds."""
    nodes = problem.nodes
    assert set(candidate.executions) == {node.op for node in nodes}
    for node in nodes:
        assert node.repeatable or candidate.executions.count(node.op) == 1
    line, seconds = plain_line(
        problem, candidate.executions, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
    )
    return max(line), seconds


@settings(deadline=None, max_examples=60)
@given(random_steps())
def test_what_the_dynamic_program_predicts_holds_for_the_ops(facts: GradientFlow) -> None:
    blocks, problem = blocks_of(facts), facts.problem
    options = options_of(blocks)
    for name in ("rotor", "rockmate"):
        ways = build_model_chain_problem(blocks, options, keep_all_only=name == "rotor")
        candidates = load_strategy(name).candidates(PlanningProblem(problem, blocks, options))
        assert candidates
        for candidate in candidates:
            peak, seconds = check_candidate(problem, candidate)
            predicted = simulate_chain(ways, candidate.sequence)
            assert peak <= predicted.peak
            assert seconds == pytest.approx(predicted.seconds)


@settings(deadline=None, max_examples=60)
@given(random_steps())
def test_baselines(facts: GradientFlow) -> None:
    blocks, problem = blocks_of(facts), facts.problem
    options = options_of(blocks)
    [kept] = load_strategy("keep_all").candidates(PlanningProblem(problem, blocks, options))
    [checkpoint] = load_strategy("checkpoint_all").candidates(
        PlanningProblem(problem, blocks, options)
    )
    assert kept.executions == [node.op for node in problem.nodes]
    check_candidate(problem, checkpoint)
    assert checkpoint.sequence[0] == ChainOperation("F_ck", 1)
    assert checkpoint.sequence[-1] == ChainOperation("B", 1)
    first_runs = list(dict.fromkeys(checkpoint.executions))
    forward = [node.op for node in problem.nodes if node.phase == "forward"]
    assert sorted(first_runs[: len(forward)]) == sorted(forward)
    for index, block in enumerate(blocks.blocks):
        again = [op for op in block.forward if checkpoint.executions.count(op) > 1]
        held = {op for op in block.forward if _held(problem, op)}
        spared = keep_all_option(options[block.digest]).output_only
        expected = set(block.forward) - held - set(block.ops(spared)) - set(block.once)
        assert set(again) == expected, index


def _held(problem: PlanningGraph, op: int) -> bool:
    outputs = problem.nodes[op].outputs
    return bool(outputs) and all(problem.storages[storage].held for storage in outputs)


@settings(deadline=None, max_examples=30)
@given(random_steps())
def test_ops_that_run_once_are_not_run_again(facts: GradientFlow) -> None:
    blocks, problem = blocks_of(facts), facts.problem
    options = options_of(blocks)
    first = blocks.blocks[0]
    blocks.blocks[0] = type(first)(**{**vars(first), "once": first.forward[-1:]})
    last = len(blocks.blocks) + 1
    sequence = [ChainOperation("F_ck", position) for position in range(1, last)]
    sequence.append(ChainOperation("loss", last))
    for position in range(last - 1, 0, -1):
        sequence += [ChainOperation("F_all", position), ChainOperation("B", position)]
    executions = lower_to_executions(problem, blocks, options, sequence)
    assert executions.count(first.forward[-1]) == 1


def test_an_unknown_strategy_is_named() -> None:
    with pytest.raises(ConfigError, match="'magic' is not known, expected one of keep_all"):
        load_strategy("magic")


@settings(deadline=None, max_examples=5)
@given(random_steps())
def test_missing_options_are_named(facts: GradientFlow) -> None:
    blocks = blocks_of(facts)
    with pytest.raises(ArtifactError, match=f"lack the block {blocks.blocks[0].digest[:12]}"):
        load_strategy("rotor").candidates(PlanningProblem(facts.problem, blocks, {}))


def test_a_second_run_of_a_batch_norm_costs_what_it_takes() -> None:
    graph, costs = traced("data.models:resnet", name="resnet18", batch=2, size=64)
    problem, blocks = build_planning_graph(graph, costs), partition_step(graph, costs)
    shorter = [node for block in blocks.distinct.values() for node in block.nodes if node.repeat]
    assert any(node.form(True).seconds != node.seconds for node in shorter)
    options = options_of(blocks)
    ways = build_model_chain_problem(blocks, options, keep_all_only=True)
    position = {node.op: index for index, node in enumerate(problem.nodes)}
    candidates = load_strategy("rotor").candidates(PlanningProblem(problem, blocks, options))
    assert max(len(candidate.executions) for candidate in candidates) > len(problem.nodes)
    for candidate in candidates:
        sequence = [position[op] for op in candidate.executions]
        line, seconds = plain_line(
            problem, sequence, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
        )
        predicted = simulate_chain(ways, candidate.sequence)
        assert seconds <= predicted.seconds + 1e-12
        assert max(line) <= predicted.peak
