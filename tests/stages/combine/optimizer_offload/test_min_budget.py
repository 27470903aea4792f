"""The least budgets of whole steps: with updates on the side where they take less."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.stages.combine.optimizer_offload.test_search import GRAPH
from tests.stages.combine.optimizer_offload.test_search import task as described
from tests.stages.report.cases import small_costs
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import OptimizerCosts, ParameterUpdateCost
from tightfit.stages.combine.optimizer_offload.budget_search import (
    plan_for_min_budget,
    plan_in_min_memory,
)
from tightfit.stages.combine.optimizer_offload.command import plan_step as whole
from tightfit.stages.combine.optimizer_offload.plan import total_device_bytes
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem, build_offload_problem
from tightfit.stages.combine.optimizer_offload.search import OffloadSearch, OffloadSearchResult
from tightfit.stages.combine.optimizer_offload.search_space import OffloadChoice
from tightfit.util.errors import ConfigError

FLOATS = replace(GRAPH, values=[replace(value, dtype="float8_e4m3fn") for value in GRAPH.values])
"""Bytes that count as numbers with fractions."""
COSTS = small_costs(FLOATS)


def measured(peak: int, away_peak: int, spare: bool = False) -> OffloadProblem:
    """A step whose updates take so many bytes on the device, and of it beside a disk."""
    costs = {
        gradient.value: ParameterUpdateCost(
            FLOATS.values[gradient.value].path,
            (64,),
            1e-3,
            peak,
            0,
            (peak, 0),
            1e-3,
            1e-3,
            away_peak,
        )
        for gradient in FLOATS.gradients
    }
    by_path = {cost.path: cost for cost in costs.values()}
    link = HostLink(1e9, 1e-5, False, 1e9, "cpu", to="disk")
    given = OptimizerCosts("AdamW", 1 << 20, by_path, spare)
    return build_offload_problem(FLOATS, COSTS, link, costs, 10**9, 1, 1, given)


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("peak", "away_peak", "here"), [(3_000_000, 1000, 0.0), (1000, 3_000_000, 1.0)]
)
def test_updates_are_where_they_take_less(
    peak: int, away_peak: int, here: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = measured(peak, away_peak)
    sized, found = plan_for_min_budget(task)
    assert found.choice.close and found.choice.here == here
    assert (
        found.simulation.peak + found.updates.staging + found.updates.workspace_bytes <= sized.room
    )
    assert sized.budget == total_device_bytes(sized, found)
    assert plan_in_min_memory(OffloadSearch(replace(task, budget=sized.budget - 1))) is None
    both = OffloadSearch.tightest_choices.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(
        OffloadSearch,
        "tightest_choices",
        property(lambda own: [c for c in both(own) if c.here != here]),
    )
    assert plan_for_min_budget(task)[0].budget > sized.budget


def test_the_least_is_found_where_activations_take_all_room_and_refusals_name_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = measured(1000, 1000)
    least = plan_for_min_budget(task)[0].budget
    with pytest.raises(ConfigError, match=f"known to work is {least:,} bytes$") as caught:
        whole(task, None, str(least - 1))
    assert "known there are" not in str(caught.value)
    look = OffloadSearch.look

    def crowded_out(
        own: OffloadSearch, choice: OffloadChoice, most: float = math.inf
    ) -> OffloadSearchResult | None:
        found = look(own, choice, most)
        whole = choice.close and choice.activations == 1.0 and not choice.linked
        return None if whole else found

    monkeypatch.setattr(OffloadSearch, "look", crowded_out)
    assert plan_for_min_budget(task)[0].budget == least


def test_what_no_plan_can_fit_in_is_refused_without_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(OffloadSearch, "look")
    words = (
        r"no plan fits in 1,000 bytes: aten\S+ of \S+ needs \S+ .*; the budget min takes the least"
    )
    with pytest.raises(ConfigError, match=words):
        whole(measured(1000, 1000), None, "1000")
    beyond = HostLink(1e9, 1e-5, False, 1e9, "host", to="disk")
    with pytest.raises(ConfigError, match=words):
        whole(described(10**9, room=4_700_000), beyond, "1000")


def test_the_memory_that_is_too_small_is_told_where_the_closest_plans_fit_on_the_device() -> None:
    with pytest.raises(ConfigError, match="fits in host/memory, which has 4,600,000 bytes, and"):
        whole(described(7_000_000, room=4_600_000), None)
    search = OffloadSearch(described(7_000_000, room=4_600_000))
    # Another plan that was tried last lacks bytes of the device.
    search.missing_bytes, search.tier_bytes = 1000, 4_750_000
    words = "in host/memory, which has 4,600,000 bytes, and the closest known takes 4,750,000"
    assert words in str(search._refusal())
