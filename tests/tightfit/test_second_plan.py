"""`tightfit.plan` with `plans=2`: a second plan for small sizes of calls, in one package."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import tightfit
from data import models
from tests.tightfit.conftest import SETTINGS
from tests.tightfit.test_dynamic_shapes import check_step, scorer, tokens
from tightfit.schemas.graph.dynamic_shapes import graph_at, graph_within
from tightfit.schemas.graph.training_graph import Graph, read_graph
from tightfit.schemas.plan import read_plan
from tightfit.schemas.schedule import read_schedule, read_small_schedule
from tightfit.stages.audit.size_checks import check_dynamic_plan

pytestmark = pytest.mark.usefixtures("brief_search", "loose_bounds")


def test_two_plans_need_dynamic_shapes(store: Path) -> None:
    with pytest.raises(tightfit.ConfigError, match="plans=2 needs dynamic_shapes"):
        tightfit.plan(scorer(), (tokens(3, 9),), plans=2, store=store)


class Planned:
    """GPT-2 with two plans: tokens up to 32, of which those up to 17 have a second one."""

    def __init__(self, store: Path) -> None:
        torch.manual_seed(0)
        self.model, ((), sample), _ = models.gpt2_loss(
            layers=2, width=32, heads=2, vocabulary=50, batch=3, tokens=32, dropout=0.1
        )
        axes = {0: Dim("batch", max=4), 1: Dim("tokens", max=32)}
        self.module, self.plan = tightfit.plan(
            self.model,
            (),
            sample,
            budget="30%",
            dynamic_shapes={"input_ids": axes, "labels": axes},
            plans=2,
            store=store,
            progress=False,
            **SETTINGS,
        )

    @property
    def graph(self) -> Graph:
        """The graph at the largest sizes."""
        folders = self.plan.package.parents
        return read_graph(next(f / "graph.arrow" for f in folders if (f / "graph.arrow").exists()))


@pytest.fixture(scope="module")
def planned(store: Path) -> Iterator[Planned]:
    yield Planned(store)


def test_small_calls_run_a_second_plan(planned: Planned) -> None:
    dynamic = planned.plan.dynamic
    assert dynamic is not None and dynamic.small is not None and planned.plan.peak is not None
    assert dynamic.small.sizes == {"batch": 4, "tokens": 17}
    assert dynamic.small.time < dynamic.small.first_time
    assert dynamic.small.peak <= planned.plan.peak
    assert dynamic.small.sizes in [one.sizes for one in dynamic.peaks]
    said = planned.plan.summary()
    assert "calls with tokens up to 17 run a second plan, as the first would take" in said
    assert "second plan: calls with tokens up to 17, " in said
    assert "(batch = 4, tokens = 17)" in said
    schedule = planned.plan.package.with_name("schedule.arrow")
    assert read_small_schedule(schedule) != read_schedule(schedule)
    twin, chance = copy.deepcopy(planned.model), random.Random(0)
    restored = pickle.loads(pickle.dumps(planned.module))
    for count in (2, 16, 17, 18, 32, chance.randint(3, 31)):
        ids = tokens(chance.randint(2, 4), count)
        check_step(planned.module, twin, input_ids=ids, labels=ids)
        check_step(restored, twin, input_ids=ids, labels=ids)
    with pytest.raises(tightfit.PlanMismatch, match="has the size 33 on axis 1"):
        planned.module(input_ids=tokens(3, 33), labels=tokens(3, 33))


def test_the_size_decides_which_step_runs(planned: Planned) -> None:
    module = tightfit.load(planned.plan.package, planned.model)
    cells = [cell.cell_contents for cell in type(module).forward.__closure__ or ()]
    [interface] = [cell.interface for cell in cells if type(cell).__name__ == "Guards"]
    small = interface.sizes.small
    assert small.sizes == (4, 17) and small.interface.sizes.small is None

    def refuse(*tensors: torch.Tensor) -> None:
        raise ArithmeticError

    object.__setattr__(small, "step", refuse)
    module(input_ids=tokens(2, 18), labels=tokens(2, 18)).loss.backward()
    with pytest.raises(ArithmeticError):
        module(input_ids=tokens(4, 17), labels=tokens(4, 17))


def test_an_audit_checks_the_second_plan(planned: Planned) -> None:
    from tightfit.schemas.costs import read_costs

    folder = planned.plan.package.parent
    costs = read_costs(
        next(f / "costs.arrow" for f in folder.parents if (f / "costs.arrow").exists())
    )
    path, graph = folder / "plan.json", planned.graph
    plan, schedule = read_plan(path), folder / "schedule.arrow"
    steps, second = read_schedule(schedule), read_small_schedule(schedule)
    assert [*check_dynamic_plan(path, plan, graph, costs, steps, second)] == []
    [found] = check_dynamic_plan(path, plan, graph, costs, steps)
    assert "a second plan is in either this file or its schedule" in found
    found = "\n".join(check_dynamic_plan(path, plan, graph, costs, steps, steps))
    assert "peak of the second plan is" in found and "time of the second plan is" in found


def test_a_graph_within_smaller_limits(planned: Planned) -> None:
    graph = planned.graph
    assert graph.dynamic is not None
    within = graph_within(graph, graph.dynamic.small_sizes)
    assert within.dynamic is not None and within.dynamic.largest == graph.dynamic.small_sizes
    sizes: dict[str, Any] = {"batch": 3, "tokens": 9}
    assert graph_at(within, sizes) == graph_at(graph, sizes)


def test_a_plan_that_keeps_everything_has_no_second(store: Path) -> None:
    module, plan = tightfit.plan(
        scorer(),
        (tokens(3, 9),),
        budget="100%",
        dynamic_shapes={"ids": {1: Dim("tokens", max=9)}},
        plans=2,
        store=store,
        progress=False,
        **SETTINGS,
    )
    assert plan.dynamic is not None and plan.dynamic.small is None
    assert "second plan" not in plan.summary()
    module(tokens(3, 4)).backward()
