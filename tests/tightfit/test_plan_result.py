"""Budgets that do not fit, the smallest that does, and a frontier to choose from."""

from __future__ import annotations

import copy
import pickle
import re
import traceback
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

import tightfit
from tests.tightfit.conftest import SETTINGS, tower
from tightfit.api.plan_result import FrontierEntries
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.plan import BaselineBytes, GpuMemory
from tightfit.stages.combine.plan_summary import describe_peak
from tightfit.stages.simulate.simulate import SimulationResult
from tightfit.util.command_line import format_duration

pytestmark = pytest.mark.usefixtures("traced_once")

ROWS = torch.randn(64, 16)


def plan(store: Path, budget: object) -> tightfit.ChosenPlan:
    settings = {"budget": budget, "store": store, "progress": False, **SETTINGS}
    return tightfit.plan(tower(), (ROWS,), check=False, **settings)[1]


def refusal(store: Path, budget: object) -> str:
    with pytest.raises(tightfit.ConfigError) as caught:
        plan(store, budget)
    said = str(caught.value)
    assert "".join(traceback.format_exception(caught.value)).count(said) == 1
    return said


@pytest.fixture(scope="module")
def made(store: Path) -> tightfit.ChosenPlan:
    return plan(store, "90%")


@pytest.fixture(scope="module")
def whole(store: Path) -> tightfit.ChosenPlan:
    return plan(store, "100%")


@pytest.fixture(scope="module")
def in_percent(store: Path) -> str:
    return refusal(store, "1%")


@pytest.fixture(scope="module")
def in_bytes(store: Path) -> str:
    return refusal(store, "1kB")


def test_an_infeasible_percentage_names_the_smallest(store: Path, in_percent: str) -> None:
    said = in_percent
    found = re.search(r"known to work for Tower with auto is ([\d.]+)%;", said)
    assert found is not None, said
    assert plan(store, f"{found[1]}%").feasible
    assert float(found[1]) > 1


def test_infeasible_bytes_name_the_smallest_and_what_holds_it(store: Path, in_bytes: str) -> None:
    said = in_bytes
    found = re.search(
        r"with auto is ([\d,]+) bytes; at the peak of the step these are .*, (.*)$", said
    )
    assert found is not None and "\n" not in said, said
    smallest = int(found[1].replace(",", ""))
    made = plan(store, smallest)
    assert made.budget_total == smallest
    assert made.smallest_budget is not None and made.smallest_budget <= smallest


def test_a_refusal_names_what_no_plan_takes_less_than_and_the_op(
    in_percent: str, in_bytes: str
) -> None:
    for said, unit in ((in_percent, "%"), (in_bytes, " bytes")):
        found = re.findall(rf"(?:auto is|less than) ([\d,.]+){unit}", said)
        smallest, floor = (float(size.replace(",", "")) for size in found)
        assert 0 < floor <= smallest
        assert re.search(
            r", which \w+ of layers\.\d \(at .*\.py:\d+\) takes with what it reads", said
        )


def test_what_holds_the_smallest_adds_up_to_it(in_bytes: str) -> None:
    said = in_bytes
    smallest = int(said.split("auto is ")[1].split(" bytes")[0].replace(",", ""))
    held = said.split("peak of the step these are ")[1].split("; no plan")[0]
    own = re.sub(r" \((?:the largest|at) [^)]*\)", "", held)
    assert (
        sum(int(size.replace(",", "")) for size in re.findall(r" ([\d,]+)(?:,|$)", own)) == smallest
    )
    assert "parameters (the largest layers.0.weight 1,024) 3,264" in held
    assert re.search(r"gradients [\d,]+", held) and "inputs 4,096" in held
    assert re.search(
        r"\w+ of layers\.\d \(at .*\.py:\d+\) [\d,]+|\w+ \(at .*\.py:\d+\) [\d,]+", held
    )


def test_what_holds_the_smallest_has_no_line_where_none_is_known(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bare(graph: Graph, played: SimulationResult, fixed: BaselineBytes) -> str:
        ops = [replace(op, source="") for op in graph.ops]
        return describe_peak(replace(graph, ops=ops), played, fixed)

    monkeypatch.setattr("tightfit.stages.combine.select_plan.describe_peak", bare)
    monkeypatch.setattr(
        "tightfit.stages.combine.select_plan.describe_peak_bound", lambda *_: "which an op takes"
    )
    said = refusal(store, "2kB")
    assert "at the peak of the step" in said and "(at" not in said


def test_the_least_budget(store: Path) -> None:
    made = plan(store, "min")
    assert made.smallest_budget is not None and made.budget_total is not None
    assert made.smallest_budget <= made.budget_total
    assert made.peak == made.frontier[-1].peak and made.frontier.chosen == len(made.frontier) - 1


def test_a_choice_is_a_budget(store: Path, whole: tightfit.ChosenPlan) -> None:
    made = whole
    for choice in (made.frontier[0], made.frontier[-1]):
        chosen = plan(store, choice)
        assert chosen.peak is not None and chosen.time is not None
        assert chosen.budget_total == choice.budget and chosen.peak <= choice.peak
        assert chosen.time <= choice.seconds
    percents = [choice.percent for choice in made.frontier if choice.percent is not None]
    assert percents == sorted(percents, reverse=True) and percents[0] <= 100


@pytest.mark.long
def test_a_percentage_that_is_shown_is_enough(store: Path, whole: tightfit.ChosenPlan) -> None:
    made = whole
    for number, choice in enumerate(made.frontier):
        shown = re.search(rf"\[{number}\].*?([\d.]+%)", str(made.frontier))
        for percent in {f"{choice.percent}%", shown[1] if shown else "100%"}:
            if choice.percent is not None:
                found = plan(store, percent)
                assert found.time is not None and found.time <= choice.seconds


def test_a_budget_that_no_device_has_is_refused(store: Path) -> None:
    assert refusal(store, 10**30).endswith("is more than any device has")


def test_a_plan_says_all_that_it_did(made: tightfit.ChosenPlan) -> None:
    assert isinstance(made, tightfit.Plan) and (made.package / "__init__.py").is_file()
    assert made.summary().splitlines() == [
        f"{made.status}: {made.message.removeprefix(f'{made.status}: ')}",
        f"memory: {made.baseline.bytes_before_step + (made.peak or 0):,} bytes, "
        f"{made.keep_all_total:,} without a plan",
        f"time: {format_duration(made.time or 0)} predicted, "
        f"{format_duration(made.keep_all.time)} without a plan",
        f"package: {made.package}",
    ]


def test_a_plan_is_kept_with_the_way_to_its_frontier(made: tightfit.ChosenPlan) -> None:
    for kept in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert kept == made
        assert str(kept.frontier) == str(made.frontier)


def test_a_table_and_a_picture(made: tightfit.ChosenPlan) -> None:
    frontier = made.frontier
    lines = str(frontier).splitlines()
    assert "plans of auto for Tower" in lines[0]
    assert len(lines) <= 2 + 13 and sum("*" in line for line in lines) == 1
    assert f"{frontier[0].budget:,}" in str(frontier) and f"{frontier[-1].budget:,}" in str(
        frontier
    )
    page = ElementTree.fromstring(f"<body>{frontier._repr_html_()}</body>")
    assert len(page.findall("./svg/circle")) == len(frontier)
    assert len(page.findall("./table/tbody/tr")) == len(lines) - 2


def test_a_model_of_a_strange_name_stays_a_text(made: tightfit.ChosenPlan) -> None:
    from tightfit.schemas.frontier import read_frontier

    path = made.package.parents[1] / "frontier.arrow"
    strange = replace(read_frontier(path), model="<script>alert(1)</script>")
    assert "<script>" not in FrontierEntries(strange, made)._repr_html_()


def test_one_point_is_a_frontier_too(made: tightfit.ChosenPlan) -> None:
    from tightfit.schemas.frontier import read_frontier

    whole = read_frontier(made.package.parents[1] / "frontier.arrow")
    assert made.peak is not None and made.time is not None
    point = replace(whole.points[0], peak=made.peak, seconds=made.time)
    one = FrontierEntries(replace(whole, points=[point]), made)
    assert len(str(one).splitlines()) == 3
    ElementTree.fromstring(f"<body>{one._repr_html_()}</body>")


def test_choices_for_a_gpu_are_budgets_of_reserved_bytes(made: tightfit.ChosenPlan) -> None:
    """A plan that reserves more than a faster one is none to choose."""
    from tightfit.schemas.frontier import read_frontier

    whole = read_frontier(made.package.parents[1] / "frontier.arrow")
    slow, fast = replace(whole.points[0], peak=9000, seconds=3.0), whole.points[0]
    points = [replace(fast, peak=11000, seconds=1.0), replace(fast, peak=10000, seconds=2.0), slow]
    gpu = GpuMemory(12000, 12288, 2 << 20, 2 << 20, 0, 8 << 20, 0)
    on_gpu = replace(made, peak=10000, time=2.0, gpu=gpu)
    found = FrontierEntries(replace(whole, points=points), on_gpu, [6 << 20, 2 << 20, 4 << 20])
    assert [choice.budget for choice in found] == [6 << 20, 2 << 20]
    assert found.keep_all == 8 << 20 and found.chosen == 1
    assert found[0].percent is not None and 74 < found[0].percent < 76


def test_the_bytes_of_a_frontier_are_counted_as_budgets_are(
    made: tightfit.ChosenPlan, tmp_path: Path
) -> None:
    from tightfit.api.input_specialization import frontier_totals
    from tightfit.schemas.costs import Costs, read_costs, write_costs
    from tightfit.schemas.frontier import read_frontier

    place = made.package.parents[1]
    folders = list(place.parents)
    graph = next(path for folder in folders if (path := folder / "graph.arrow").exists())
    paid = next(path for folder in folders if (path := folder / "costs.arrow").exists())
    whole, costs = read_frontier(place / "frontier.arrow"), read_costs(paid)
    before = made.baseline.bytes_before_step
    assert frontier_totals(graph, paid, whole) == [before + point.peak for point in whole.points]
    device = replace(costs.device, type="cuda", build="")
    write_costs(tmp_path / "costs.arrow", Costs(costs.rows.values(), device))
    assert set(frontier_totals(graph, tmp_path / "costs.arrow", whole)) <= {2 << 20, 4 << 20}
