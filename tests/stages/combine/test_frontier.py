"""What a frontier says of the strategy that it is of."""

from __future__ import annotations

from dataclasses import replace

from tests.stages.combine.test_refine import COSTS, GRAPH, PROBLEM
from tightfit.stages.combine.frontier import Subject, frontier
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.strategies.registry import strategy
from tightfit.stages.combine.strategies.strategy import Candidate


def test_plans_are_optimal_in_a_class_where_all_candidates_are() -> None:
    about = strategy("rotor").about
    captured = Candidate(runs(PROBLEM, [node.op for node in PROBLEM.nodes]), [], "plain")
    best = replace(captured, optimal=True)
    for candidates, said in (
        ([best], about.optimal_in),
        ([best, captured], ""),
        ([captured], ""),
        ([], ""),
    ):
        made = frontier(Subject(GRAPH, "digest", COSTS, PROBLEM), about, candidates, captured)
        assert made.optimal_in == said
