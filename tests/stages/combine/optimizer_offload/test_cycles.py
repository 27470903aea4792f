"""Steps that follow each other without a seam: what the simulator says of them is what a reader
finds who plays many of them, and it refuses those with a fault at the seam."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.stages.combine.optimizer_offload.cycle_reader import CycleReader
from tests.stages.combine.optimizer_offload.test_search import COSTS, GRAPH, machine, task
from tests.stages.report.cases import write_results
from tightfit.__main__ import main
from tightfit.schemas.actions import (
    Action,
    Free,
    FreeHostCopy,
    PassGradient,
    Prefetch,
    UpdateOnHost,
    Wait,
    action_to_row,
)
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.optimizer_plan import OptimizerPlan, parse_optimizer_plan
from tightfit.schemas.plan import read_plan, write_plan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.audit.plan_checks import PlanFiles, check_plan_files
from tightfit.stages.combine.optimizer_offload.cycle_bound import cycle_lower_bound
from tightfit.stages.combine.optimizer_offload.cycle_search import CycleChoice, CycleSearch
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.combine.optimizer_offload.search import OffloadSearch, OffloadSearchResult
from tightfit.stages.simulate.cyclic_schedule import carried_positions, simulate_cycle
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ArtifactError, ScheduleError

STEPS = 40
GRADIENTS = {found[0]: owner for owner, found in partial_gradients_by_owner(GRAPH).items()}


def planned_cycle(planned: OffloadProblem, choice: CycleChoice) -> OffloadSearchResult | None:
    search = CycleSearch(OffloadSearch(planned))
    found = search.look(choice)
    if found is None:
        return None
    played = search.played(found)
    assert played is not None and played.cycle is not None
    assert played.seconds == pytest.approx(found.placement.seconds)
    return played


@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(
    budget=st.integers(10_000_000, 20_000_000),
    bandwidth=st.sampled_from([2e7, 5e7, 1e8, 1e9]),
    host=st.sampled_from([None, 2e7, 1e8, 1e9]),
    optimizer=st.sampled_from(["sgd", "adam"]),
    shared=st.booleans(),
    choice=st.builds(
        CycleChoice,
        activations=st.sampled_from([0.5, 0.7, 0.9]),
        linked=st.sampled_from([0.0, 0.4]),
        here=st.sampled_from([0.0, 0.3, 0.6, 1.0]),
        spread=st.sampled_from([0.5, 1.0]),
        buffers=st.sampled_from([4, 16]),
        ahead=st.sampled_from([0.0, 0.3]),
    ),
)
def test_a_cycle_is_what_a_reader_finds_who_plays_many_steps(
    budget: int,
    bandwidth: float,
    host: float | None,
    optimizer: str,
    shared: bool,
    choice: CycleChoice,
) -> None:
    planned = task(budget, bandwidth, host, optimizer, shared)
    found = planned_cycle(planned, choice if host else replace(choice, here=1.0))
    if found is None:
        return
    cycle, steps = found.cycle, found.simulation.steps
    assert cycle is not None and found.updates.cyclic
    reader = CycleReader(
        GRAPH, COSTS, steps, carried_positions(GRAPH, steps), planned.link, found.updates
    )
    assert reader.step("first")[1] == cycle.first_peak
    played = [reader.step("next") for _ in range(STEPS)]
    assert {peak for _, peak in played} == {cycle.steady_peak}
    assert played[-1][0] == pytest.approx(played[-2][0]) == pytest.approx(found.seconds)
    assert reader.step("close")[1] == cycle.closing_peak
    assert not reader.copies
    assert found.simulation.peak == max(cycle.first_peak, cycle.steady_peak, cycle.closing_peak)
    assert found.simulation.peak + planned.fixed + found.updates.staging <= budget
    moved = found.simulation.transfers
    if moved is not None:
        assert moved.host_peak == found.updates.host_bytes(GRAPH) + reader.most_copies
    assert cycle_lower_bound(planned) <= found.seconds * (1 + 1e-9)
    assert parse_optimizer_plan(found.updates.text(), "") == found.updates


def late_updates() -> tuple[OffloadProblem, OffloadSearchResult, list[ScheduleStep]]:
    """A cycle in which gradients are on the device at the seam, and updates not done."""
    planned = task(12_000_000, 2e7, 1e8)
    found = planned_cycle(planned, CycleChoice(0.6, 0.0, 0.0, 1.0, buffers=4))
    assert found is not None
    return planned, found, found.simulation.steps


def carried(steps: Sequence[ScheduleStep], kind: type[Action]) -> list[int]:
    own = carried_positions(GRAPH, steps)
    return [n for n, step in enumerate(steps) if n in own and isinstance(step.action, kind)]


def value_of(step: ScheduleStep) -> int:
    """What an action is about."""
    return action_to_row(step.action)["value"]


def refused(
    planned: OffloadProblem, updates: OptimizerPlan, steps: Sequence[ScheduleStep], words: str
) -> None:
    with pytest.raises(ScheduleError, match=re.compile(words)):
        simulate_cycle(GRAPH, COSTS, steps, planned.link, updates)


def test_the_seam_of_a_cycle_has_all_kinds_of_carried_actions() -> None:
    _, _, steps = late_updates()
    assert all(carried(steps, kind) for kind in (Wait, Free, FreeHostCopy, UpdateOnHost))


def test_a_parameter_comes_after_its_update_of_the_step_before() -> None:
    planned, found, steps = late_updates()
    at = carried(steps, UpdateOnHost)[-1]
    value = value_of(steps[at])
    comes = next(n for n, step in enumerate(steps) if n > at and step.action == Prefetch(value))
    late = [*steps[:at], *steps[at + 1 : comes + 1], steps[at], *steps[comes + 1 :]]
    refused(planned, found.updates, late, "comes back before its update of the step before")


def test_a_parameter_that_stays_is_not_read_before_its_update() -> None:
    """What stays over the seam and is updated elsewhere is older than there."""
    planned, found, steps = late_updates()
    at = carried(steps, UpdateOnHost)[-1]
    value = value_of(steps[at])
    kept = [n for n, step in enumerate(steps) if step.action in (Prefetch(value), Free(value))]
    ends = [n for n, step in enumerate(steps) if step.action == Wait(value)]
    first, last = kept[0], kept[-1]
    own = [s for n, s in enumerate(steps) if n not in (first, last, ends[0])]
    updates = replace(found.updates, resident=found.updates.resident | {value})
    refused(planned, updates, own, "lacks its update of the step before")


def test_every_update_of_a_step_is_done_within_the_next() -> None:
    planned, found, steps = late_updates()
    at = carried(steps, UpdateOnHost)[0]
    value = value_of(steps[at])
    gradient = next(g for g, owner in GRADIENTS.items() if owner == value)
    gone = [n for n in carried(steps, FreeHostCopy) if value_of(steps[n]) == gradient]
    waits = [n for n in carried(steps, Wait) if value_of(steps[n]) == gradient]
    own = [s for n, s in enumerate(steps) if n not in {at, gone[-1], waits[-1]}]
    refused(planned, found.updates, own, "comes back before its update of the step before")


def test_a_gradient_is_not_made_anew_before_its_update_has_read_it() -> None:
    planned, found, steps = late_updates()
    at = carried(steps, Free)[0]
    gradient = value_of(steps[at])
    given = next(n for n, step in enumerate(steps) if step.action == PassGradient(gradient))
    own = [*steps[:at], *steps[at + 1 : given], steps[at], *steps[given:]]
    refused(planned, found.updates, own, "in a gradient of the step before, which has not been")


def test_copies_of_two_steps_are_counted() -> None:
    planned, found, steps = late_updates()
    moved = found.simulation.transfers
    assert moved is not None
    link = replace(planned.link, room=moved.host_peak - 1)
    refused(replace(planned, link=link), found.updates, steps, "bytes in host/memory, which has")


def test_a_copy_is_freed_before_the_one_of_the_next_step_is_made() -> None:
    planned, found, steps = late_updates()
    at = carried(steps, FreeHostCopy)[0]
    own = [*steps[:at], *steps[at + 1 :]]
    refused(planned, found.updates, own, "leaves, of which there is a copy")


def test_a_step_leaves_what_it_began_with() -> None:
    planned, found, steps = late_updates()
    value = next(iter(found.updates.offloaded))
    own = [*steps, ScheduleStep(Prefetch(value))]
    refused(planned, found.updates, own, "are not where they were before the step")


def test_what_the_graph_does_not_have_is_refused() -> None:
    planned, found, steps = late_updates()
    for action in (UpdateOnHost(0), Wait(10**6), FreeHostCopy(-5)):
        own = [ScheduleStep(action), *steps]
        refused(planned, found.updates, own, "step 0 of the schedule: ")


def test_a_cycle_is_no_single_step() -> None:
    planned, found, steps = late_updates()
    with pytest.raises(ScheduleError, match="without a seam"):
        simulate(GRAPH, COSTS, steps, link=planned.link, updates=found.updates)
    with pytest.raises(ScheduleError):
        updates = replace(found.updates, cyclic=False)
        simulate(GRAPH, COSTS, steps, link=planned.link, updates=updates)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a plan among others of the model above it."""
    model = tmp_path_factory.mktemp("cycles") / "small"
    write_results(model, GRAPH)
    plan = model / "rockmate/90pct"
    given = ["--graph", str(model / "graph.arrow"), "--costs", str(model / "costs.arrow")]
    given += ["--machine", str(machine(model)), "--out", str(plan)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1)
        assert main(["optimizer-offload", *given, "--budget", "12MB"]) == 0
    return plan


def test_the_page_and_the_trace_of_a_model_show_steps_that_overlap(
    folder: Path, tmp_path: Path
) -> None:
    model, page, trace = folder.parents[1], tmp_path / "page.html", tmp_path / "trace.json"
    assert main(["report", "--model-dir", str(model), "--out", str(page)]) == 0
    assert "updates and transfers of a step end in the next one" in page.read_text()
    given = ["--graph", str(model / "graph.arrow"), "--costs", str(model / "costs.arrow")]
    schedule = str(folder / "schedule.arrow")
    assert main(["report", "--perfetto", schedule, *given, "--out", str(trace)]) == 0
    names = {event["name"] for event in json.loads(trace.read_text())["traceEvents"]}
    assert {"update_on_host", "prefetch", "cpu/memory"} <= names


def test_the_audit_plays_steps_that_overlap(folder: Path) -> None:
    path = folder / "plan.json"
    plan = read_plan(path)
    assert plan.overlap is not None and plan.peak is not None
    assert plan.peak >= plan.overlap.steady_peak and plan.gap is not None

    def wrong() -> list[str]:
        return list(check_plan_files(PlanFiles.of(path, ())))

    assert [each for each in wrong() if "overlap" in each or "simulator" in each] == []
    for other in (None, replace(plan.overlap, first_peak=plan.overlap.first_peak + 1)):
        write_plan(path, replace(plan, overlap=other))
        assert any("overlap is" in each for each in wrong())
    write_plan(path, replace(plan, overlap=replace(plan.overlap, version=2)))
    with pytest.raises(ArtifactError, match="overlap has version 2, expected 1"):
        read_plan(path)


def test_the_bound_knows_what_updates_and_activations_that_stay_take() -> None:
    """Each stream binds in turn: what computes, and what updates beside the offload target."""
    free, slow = task(16_000_000, 1e9, 1e9), task(16_000_000, 1e9, 2e7)
    computed = sum(node.seconds for node in free.problem.nodes)
    assert cycle_lower_bound(free) == pytest.approx(computed, rel=1e-6)
    assert computed < cycle_lower_bound(slow) <= cycle_lower_bound(task(16_000_000, 1e9, None))
    tight = task(9_000_000, 1e9, 1e9)
    assert cycle_lower_bound(replace(tight, activations_stay=True)) > cycle_lower_bound(tight)
    link = replace(free.link, bandwidth=1e7)
    assert cycle_lower_bound(replace(free, link=link)) > computed
