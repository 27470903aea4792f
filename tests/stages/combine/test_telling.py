"""Searches tell how far they are, now and then."""

from __future__ import annotations

import pytest

from tests.stages.combine.polish.test_optimum import chain
from tests.stages.replay.graphs import graph_of
from tightfit.schemas import telling
from tightfit.schemas.link import HostLink
from tightfit.schemas.telling import Doing, Printing, Tally, TwoParts
from tightfit.stages.combine.choose import choose
from tightfit.stages.combine.frontier import Subject, frontier
from tightfit.stages.combine.polish.refining import MOST
from tightfit.stages.combine.schedule.executions import runs
from tightfit.stages.combine.strategies.registry import strategy
from tightfit.stages.combine.strategies.strategy import Candidate
from tightfit.stages.combine.transfers.search import ASKED
from tightfit.stages.replay.condense import condense

Told = list[tuple[int, int]]


def test_lines_come_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 3.0, 6.0, 6.0, 9.0, 12.0, 12.0])
    monkeypatch.setattr(telling.time, "monotonic", lambda: next(clock))
    printing = Printing("tower: rockmate", "budgets")
    for done in (1, 2, 3, 4):
        printing(done, 9)
    assert capsys.readouterr().out.splitlines() == [
        "tower: rockmate at 2 of 9 budgets",
        "tower: rockmate at 4 of 9 budgets",
    ]


def test_what_is_being_done_is_told_of_each_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(telling, "PAUSE", 0.0)
    told = Doing(Printing("tower: running", "steps"), 2)
    for what in ("a step", "another one", "timing"):
        told(what)
    assert capsys.readouterr().out.splitlines() == [
        "tower: running at 0 of 2 steps: a step",
        "tower: running at 1 of 2 steps: another one",
        "tower: running at 2 of 2 steps: timing",
    ]


def test_a_tally_never_tells_more_than_there_is() -> None:
    told: Told = []
    tally = Tally(lambda done, most: told.append((done, most)), 2)
    for _ in range(3):
        tally()
    assert told == [(1, 2), (2, 2), (2, 2)]


def test_two_parts_are_told_as_one() -> None:
    told: Told = []
    parts = TwoParts(lambda done, most: told.append((done, most)), 0.25)
    parts.first(3, 8)
    parts.second(1, 3)
    assert told == [(3, 10), (9, 11)]


@pytest.mark.parametrize(
    ("link", "most"),
    [(None, 1 + MOST), (HostLink(2.0, device="cpu"), 1 + MOST + ASKED.most)],
    ids=["without a link", "with a link"],
)
def test_frontier_and_choice_tell_each_search(link: HostLink | None, most: int) -> None:
    graph, costs = graph_of(chain([6, 3, 3, 2, 2], [1, 3, 5, 4, 5]), False)
    problem = condense(graph, costs)
    captured = Candidate(runs(problem, [node.op for node in problem.nodes]), [], "plain")
    told: Told = []

    def report(done: int, of: int) -> None:
        told.append((done, of))

    subject = Subject(graph, "digest", costs, problem, link)
    made = frontier(subject, strategy("rockmate").about, [], captured, report=report)
    assert told and told == sorted(told)
    told.clear()
    choose(graph, costs, problem, made, "80%", report=report)
    assert told == [(count, most) for count in range(1, len(told) + 1)]
    assert (len(told) > 1 + MOST) == (link is not None)
