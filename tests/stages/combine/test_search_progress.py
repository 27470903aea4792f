"""Searches tell how far they are, now and then."""

from __future__ import annotations

import pytest

from tests.stages.combine.local_search.test_optimum import chain
from tests.stages.simulate.problem_graphs import graph_of
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.activation_offload.search import FULL_EFFORT
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.local_search.search import MAX_SEARCHES
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.select_plan import select_plan
from tightfit.stages.combine.strategies.strategy import Candidate, load_strategy
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util import progress
from tightfit.util.progress import (
    LabeledProgressCounter,
    ProgressCounter,
    ProgressPrinter,
    TwoPhaseProgress,
)

Told = list[tuple[int, int]]


def test_lines_come_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 3.0, 6.0, 6.0, 9.0, 12.0, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    printing = ProgressPrinter("tower: rockmate", "budgets")
    for done in (1, 2, 3, 4):
        printing.report(done, 9)
    assert capsys.readouterr().out.splitlines() == [
        "tower: rockmate at 2 of 9 budgets",
        "tower: rockmate at 4 of 9 budgets",
    ]


def test_what_is_being_done_is_told_of_each_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "PRINT_INTERVAL", 0.0)
    told = LabeledProgressCounter(ProgressPrinter("tower: running", "steps").report, 2)
    for what in ("a step", "another one", "timing"):
        told(what)
    assert capsys.readouterr().out.splitlines() == [
        "tower: running at 0 of 2 steps: a step",
        "tower: running at 1 of 2 steps: another one",
        "tower: running at 2 of 2 steps: timing",
    ]


def test_a_tally_never_tells_more_than_there_is() -> None:
    told: Told = []
    tally = ProgressCounter(lambda done, most, _: told.append((done, most)), 2)
    for _ in range(3):
        tally()
    assert told == [(1, 2), (2, 2), (2, 2)]


def test_two_parts_are_told_as_one() -> None:
    told: Told = []
    parts = TwoPhaseProgress(lambda done, most, _: told.append((done, most)), 0.25)
    parts.first(3, 8)
    parts.second(1, 3)
    assert told == [(3, 10), (9, 11)]


@pytest.mark.parametrize(
    ("link", "most"),
    [(None, 1 + MAX_SEARCHES), (HostLink(2.0, device="cpu"), 1 + MAX_SEARCHES + FULL_EFFORT.most)],
    ids=["without a link", "with a link"],
)
def test_frontier_and_choice_tell_each_search(link: HostLink | None, most: int) -> None:
    graph, costs = graph_of(chain([6, 3, 3, 2, 2], [1, 3, 5, 4, 5]), False)
    problem = build_planning_graph(graph, costs)
    captured = Candidate(run_actions(problem, [node.op for node in problem.nodes]), [], "plain")
    told: Told = []

    def report(done: int, of: int, doing: str) -> None:
        told.append((done, of))

    subject = FrontierProblem(graph, "digest", costs, problem, link)
    made = build_frontier(subject, load_strategy("rockmate").about, [], captured, report=report)
    assert told and told == sorted(told)
    told.clear()
    select_plan(graph, costs, problem, made, "80%", report=report)
    assert told == [(count, most) for count in range(1, len(told) + 1)]
    assert (len(told) > 1 + MAX_SEARCHES) == (link is not None)
