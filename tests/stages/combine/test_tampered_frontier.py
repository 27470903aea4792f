"""A frontier that does not say what its plans cost is refused."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.audit.towers import solve_tower
from tests.stages.combine.problems import two_layers
from tests.stages.simulate.problem_graphs import graph_of
from tightfit.__main__ import main
from tightfit.schemas.block_options import BlockOption, read_block_options, write_block_options
from tightfit.schemas.costs import Costs, read_costs, write_costs
from tightfit.schemas.frontier import Frontier, read_frontier, write_frontier
from tightfit.schemas.graph.training_graph import check_graph
from tightfit.schemas.plan import read_plan
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.command_line import format_status
from tightfit.util.errors import ArtifactError, ScheduleError

FILES = ("--graph", "graph.arrow", "--costs", "costs.arrow")


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a frontier and what it was made of."""
    folder = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        solve_tower(Path(), Path("store"))
        blocks = ("--blocks", "blocks.arrow", "--options", "options.arrow")
        words = ("combine", *FILES, *blocks, "--strategy", "rotor", "--out", "frontier.arrow")
        assert main(words) == 0
    return folder


@pytest.fixture
def frontier(planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Frontier:
    """The frontier in a copy of that folder, which is the current one."""
    monkeypatch.chdir(shutil.copytree(planned, tmp_path / "run"))
    return read_frontier("frontier.arrow")


def chosen(frontier: Frontier, budget: str) -> int:
    write_frontier("other.arrow", frontier)
    return main(["select", *FILES, "--frontier", "other.arrow", "--budget", budget, "--out", "p"])


def test_figures_are_simulated(frontier: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    first, *middle, last = frontier.points
    small = replace(last, peak=last.peak - 1, local_search=True)
    quick = replace(first, seconds=first.seconds / 2, local_search=True)
    doctored = (
        replace(frontier, points=[first, *middle, small]),
        replace(frontier, points=[quick, *middle, last], lower_bound_seconds=0.0),
        replace(frontier, keep_all_peak=frontier.keep_all_peak * 2),
        replace(frontier, keep_all_seconds=frontier.keep_all_seconds / 2),
    )
    assert chosen(frontier, "none") == 0
    for other in doctored:
        capsys.readouterr()
        assert chosen(other, "none") == 1
        assert "where the simulator finds" in capsys.readouterr().err


def test_the_status_is_printed_by_hand_alone(
    frontier: Frontier, capsys: pytest.CaptureFixture[str]
) -> None:
    for budget in ("1B", "none"):
        capsys.readouterr()
        assert chosen(frontier, budget) == 0
        plan = read_plan("p/plan.json")
        assert (plan.status == "infeasible") == (budget == "1B")
        assert capsys.readouterr().out.splitlines()[-1] == format_status(plan.status, plan.message)
    words = ("--frontier", "other.arrow", "--budget", "none", "--out", "p")
    assert main(["select", *FILES, *words, "--error-file", "errors.txt"]) == 0
    assert plan.message not in capsys.readouterr().out


def test_times_are_numbers(frontier: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    first, *others = frontier.points
    for time in (float("inf"), float("nan")):
        points = [replace(first, strategy_seconds=time), *others]
        assert chosen(replace(frontier, points=points), "none") == 1
        assert "a time that is no number" in capsys.readouterr().err


def test_strategies_are_known(frontier: Frontier, capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen(replace(frontier, strategy="magic"), "none") == 1
    assert "strategy 'magic' is not known" in capsys.readouterr().err


def test_points_are_held_to_what_is_said_of_all(
    frontier: Frontier, capsys: pytest.CaptureFixture[str]
) -> None:
    last = frontier.points[-1]
    given = replace(last, strategy_peak=last.peak + 1, local_search=False, in_place=False)
    negative = replace(last, strategy_peak=-1, local_search=True)
    doctored = (
        replace(frontier, lower_bound_peak=last.peak + 1),
        replace(frontier, lower_bound_seconds=frontier.points[0].seconds * 1.01),
        replace(frontier, lower_bound_seconds=float("nan")),
        replace(frontier, timed_out_solves=-1),
        replace(frontier, points=[*frontier.points[:-1], given]),
        replace(frontier, points=[*frontier.points[:-1], negative]),
    )
    for other in doctored:
        capsys.readouterr()
        assert chosen(other, "none") == 1
        assert capsys.readouterr().err.startswith("tightfit select: other.arrow: ")


def test_a_sequence_that_frees_what_it_has_not_made_is_refused() -> None:
    graph, costs = graph_of(two_layers(), False)
    problem = build_planning_graph(graph, costs)
    order = [node.op for node in problem.nodes]
    with pytest.raises(ScheduleError, match="which it has not made"):
        ScheduleLowering(graph, problem).schedule(order[-1:], in_place=False)


def test_options_of_nodes_that_the_block_lacks_are_refused(
    frontier: Frontier, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("combine", *FILES, "--blocks", "blocks.arrow", "--options", "more.arrow")
    groups = read_block_options("options.arrow")
    first, *others = [option for group in groups.values() for option in group]
    write_block_options("more.arrow", [replace(first, forward=[*first.forward, 2**62]), *others])
    assert main([*words, "--strategy", "rotor", "--out", "g.arrow"]) == 1
    assert f"runs node {2**62}, the block has" in capsys.readouterr().err


@pytest.mark.parametrize("figure", ["save", "forward_peak", "backward_peak"])
def test_options_that_take_other_bytes_are_refused(
    frontier: Frontier, capsys: pytest.CaptureFixture[str], figure: str
) -> None:
    options = [option for group in read_block_options("options.arrow").values() for option in group]
    for option in (options[0], options[-1]):
        more = {name: getattr(option, name) + 1 for name in {figure, "forward_peak"}}
        assert refused(options, option, replace(option, **more), capsys)


@pytest.mark.parametrize("figure", ["forward_seconds", "backward_seconds", "output_seconds"])
def test_options_that_take_another_time_are_refused(
    frontier: Frontier, capsys: pytest.CaptureFixture[str], figure: str
) -> None:
    options = [option for group in read_block_options("options.arrow").values() for option in group]
    option = options[-1]
    other = replace(option, **{figure: getattr(option, figure) * 2 + 1.0})
    assert refused(options, option, other, capsys)


def test_options_that_cannot_run_are_refused(
    frontier: Frontier, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [option for group in read_block_options("options.arrow").values() for option in group]
    option = options[-1]
    other = replace(option, forward=option.forward[::-1])
    assert "cannot be run, node" in refused(options, option, other, capsys)


def refused(
    options: list[BlockOption],
    option: BlockOption,
    other: BlockOption,
    capsys: pytest.CaptureFixture[str],
) -> str:
    write_block_options("more.arrow", [other if each is option else each for each in options])
    words = ("combine", *FILES, "--blocks", "blocks.arrow", "--options", "more.arrow")
    capsys.readouterr()
    assert main([*words, "--strategy", "rotor", "--no-local-search", "--out", "g.arrow"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"more.arrow: option {option.option} of block" in said
    return said


@pytest.mark.parametrize("figure", ["seconds", "peak"])
def test_blocks_of_other_costs_are_refused(
    frontier: Frontier, capsys: pytest.CaptureFixture[str], figure: str
) -> None:
    costs = read_costs("costs.arrow")
    rows = [replace(row, **{figure: getattr(row, figure) * 2 + 1}) for row in costs.rows.values()]
    write_costs("other.arrow", Costs(rows, costs.device))
    files = ("--graph", "graph.arrow", "--costs", "other.arrow", "--blocks", "blocks.arrow")
    words = (
        "combine",
        *files,
        "--options",
        "options.arrow",
        "--strategy",
        "rotor",
        "--no-local-search",
    )
    assert main([*words, "--out", "g.arrow"]) == 1
    assert "make the blocks with these costs" in capsys.readouterr().err


def test_sizes_that_no_memory_has_are_refused() -> None:
    graph, _ = graph_of(two_layers(), False)
    for sizes in ([2**60], [2**59, 2**59]):
        large = [*sizes, *graph.storages[len(sizes) :]]
        with pytest.raises(ArtifactError, match="more bytes than there are"):
            check_graph(replace(graph, storages=large), "large")
