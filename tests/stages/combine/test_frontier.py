"""What a frontier says of the strategy that it is of."""

from __future__ import annotations

from dataclasses import replace

from tests.stages.combine.test_refine_plan import COSTS, GRAPH, PROBLEM
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.strategies.strategy import Candidate, load_strategy


def test_plans_are_optimal_in_a_class_where_all_candidates_are() -> None:
    about = load_strategy("rotor").about
    captured = Candidate(run_actions(PROBLEM, [node.op for node in PROBLEM.nodes]), [], "plain")
    best = replace(captured, optimal=True)
    for candidates, said in (
        ([best], about.optimal_in),
        ([best, captured], ""),
        ([captured], ""),
        ([], ""),
    ):
        made = build_frontier(
            FrontierProblem(GRAPH, "digest", COSTS, PROBLEM), about, candidates, captured
        )
        assert made.optimal_in == said
