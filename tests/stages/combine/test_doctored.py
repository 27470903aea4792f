"""A frontier that does not say what its plans cost is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from schemas.errors import ArtifactError, ScheduleError
from schemas.frontier import Frontier, read_frontier, write_frontier
from schemas.graph import check_graph
from schemas.options import read_options, write_options
from schemas.plan import read_plan
from schemas.words import told
from stages.__main__ import main
from stages.combine.schedule.opening import Opener
from stages.replay.condense import condense
from tests.stages.audit.towers import solve_tower
from tests.stages.combine.problems import two_layers
from tests.stages.replay.graphs import graph_of

FILES = ("--graph", "graph.arrow", "--costs", "costs.arrow")


@pytest.fixture
def frontier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Frontier:
    monkeypatch.chdir(tmp_path)
    solve_tower(Path(), Path("store"))
    blocks = ("--blocks", "blocks.arrow", "--options", "options.arrow")
    words = ("combine", *FILES, *blocks, "--strategy", "rotor", "--out", "frontier.arrow")
    assert main(words) == 0
    return read_frontier("frontier.arrow")


def chosen(frontier: Frontier, budget: str) -> int:
    write_frontier("other.arrow", frontier)
    return main(["choose", *FILES, "--frontier", "other.arrow", "--budget", budget, "--out", "p"])


def test_figures_are_replayed(frontier: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    first, *middle, last = frontier.points
    small = replace(last, peak=last.peak - 1)
    quick = replace(first, seconds=first.seconds / 2)
    doctored = (
        replace(frontier, points=[first, *middle, small]),
        replace(frontier, points=[quick, *middle, last]),
        replace(frontier, keep_all_peak=frontier.keep_all_peak * 2),
        replace(frontier, keep_all_seconds=frontier.keep_all_seconds / 2),
    )
    assert chosen(frontier, "none") == 0
    for other in doctored:
        capsys.readouterr()
        assert chosen(other, "none") == 1
        assert "which replays to" in capsys.readouterr().err


def test_the_verdict_is_printed_by_hand_alone(
    frontier: Frontier, capsys: pytest.CaptureFixture[str]
) -> None:
    for budget in ("1B", "none"):
        capsys.readouterr()
        assert chosen(frontier, budget) == 0
        plan = read_plan("p/plan.json")
        assert (plan.verdict == "infeasible") == (budget == "1B")
        assert capsys.readouterr().out.splitlines()[-1] == told(plan.verdict, plan.sentence)
    words = ("--frontier", "other.arrow", "--budget", "none", "--out", "p")
    assert main(["choose", *FILES, *words, "--error-file", "errors.txt"]) == 0
    assert plan.sentence not in capsys.readouterr().out


def test_times_are_numbers(frontier: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = frontier.points
    for time in (float("inf"), float("nan")):
        points = [replace(first, before_seconds=time), *others]
        assert chosen(replace(frontier, points=points), "none") == 1
        assert "a time that is no number" in capsys.readouterr().err


def test_a_sequence_that_frees_what_it_has_not_made_is_refused() -> None:
    graph, costs = graph_of(two_layers(), False)
    problem = condense(graph, costs)
    order = [node.op for node in problem.nodes]
    with pytest.raises(ScheduleError, match="which it has not made"):
        Opener(graph, problem).schedule(order[-1:], in_place=False)


def test_options_of_nodes_that_the_block_lacks_are_refused(
    frontier: Frontier, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("combine", *FILES, "--blocks", "blocks.arrow", "--options", "more.arrow")
    groups = read_options("options.arrow")
    first, *others = [option for group in groups.values() for option in group]
    write_options("more.arrow", [replace(first, forward=[*first.forward, 2**62]), *others])
    assert main([*words, "--strategy", "rotor", "--out", "g.arrow"]) == 1
    assert f"runs node {2**62}, the block has" in capsys.readouterr().err


def test_sizes_that_no_memory_has_are_refused() -> None:
    graph, _ = graph_of(two_layers(), False)
    for sizes in ([2**60], [2**59, 2**59]):
        large = [*sizes, *graph.storages[len(sizes) :]]
        with pytest.raises(ArtifactError, match="more bytes than there are"):
            check_graph(replace(graph, storages=large), "large")
