"""Whole steps in two memories: plans that the simulator plays, within the bytes of both."""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.engines import engines_asked
from tests.stages.report.cases import WEIGHT, WIDE, small_costs, small_graph
from tightfit.__main__ import main
from tightfit.schemas.actions import AccumulateOnHost, UpdateOnDevice, UpdateOnHost
from tightfit.schemas.costs import write_costs
from tightfit.schemas.graph.training_graph import write_graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.machine import MachineDevice
from tightfit.schemas.plan import Plan, read_plan
from tightfit.schemas.schedule import read_schedule, schedule_link, schedule_optimizer_plan
from tightfit.stages.combine.optimizer_offload import command
from tightfit.stages.combine.optimizer_offload.budget_search import plan_for_min_budget
from tightfit.stages.combine.optimizer_offload.lower_bound import lower_bound_seconds
from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import update_costs_from_spec
from tightfit.stages.combine.optimizer_offload.plan import build_offload_plan
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem, build_offload_problem
from tightfit.stages.combine.optimizer_offload.search import OffloadSearch, OffloadSearchResult
from tightfit.stages.combine.optimizer_offload.search_space import OffloadChoice
from tightfit.stages.simulate.cyclic_schedule import simulate_any
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ConfigError

DEVICE = MachineDevice("cpu", 10**9, {"": 1e12}, 1e9, 1e-5)
GRAPH = small_graph(6)
COSTS = small_costs(GRAPH)


def task(
    budget: int,
    bandwidth: float = 1e9,
    host: float | None = 1e9,
    optimizer: str = "adamw",
    shared: bool = False,
    room: float = 1e9,
    microbatches: int = 1,
) -> OffloadProblem:
    link = HostLink(bandwidth, 1e-5, shared, room, "cpu")
    if shared:
        link = replace(link, overhead=2e-5, overhead_per_byte=1e-10)
    updates = update_costs_from_spec(GRAPH, DEVICE, host, optimizer)
    return build_offload_problem(GRAPH, COSTS, link, updates, budget, 1, microbatches)


def test_what_makes_a_gradient_runs_once() -> None:
    own = task(10**9)
    made = [node for node in own.problem.nodes if _gradients(own).intersection(node.outputs)]
    once = {node.op for node in own.loose.nodes if not node.repeatable}
    assert made and once >= {node.op for node in made}


def _gradients(own: OffloadProblem) -> set[int]:
    return {n for n, storage in enumerate(own.problem.storages) if storage.gradient}


def check(planned: OffloadProblem, found: OffloadSearchResult) -> None:
    played = found.simulation
    assert played.peak + planned.fixed + found.updates.staging <= planned.budget
    assert lower_bound_seconds(planned) <= found.seconds * (1 + 1e-9)
    again = simulate(GRAPH, COSTS, played.steps, link=planned.link, updates=found.updates)
    assert again.steps == played.steps
    updated = [
        s.action.value for s in played.steps if isinstance(s.action, UpdateOnDevice | UpdateOnHost)
    ]
    assert sorted(updated) == sorted(planned.updates)
    here = [s.action.value for s in played.steps if isinstance(s.action, UpdateOnDevice)]
    once = planned.microbatches * sum(node.least_seconds for node in planned.problem.nodes)
    least = once + sum(planned.updates[value].seconds for value in here)
    assert found.seconds >= least * (1 - 1e-9)
    assert ("updates are done beside" in build_offload_plan(planned, found, "").message) == (
        len(here) < len(updated)
    )
    if found.adding is not None:
        added = [
            s.action.value for s in found.adding.steps if isinstance(s.action, AccumulateOnHost)
        ]
        assert sorted(added) == sorted(planned.remote.values())
        assert found.adding.peak + planned.fixed <= planned.budget


def test_a_step_fits_in_a_part_of_what_everything_takes() -> None:
    everything = sum(c.states for c in task(10**9).updates.values()) + 6 * WEIGHT + 8 * WIDE
    planned = task(everything * 6 // 10)
    found = OffloadSearch(planned).best()
    check(planned, found)
    assert found.simulation.seconds < 2 * planned.keep_all_seconds
    assert found.simulation.transfers is not None
    assert found.simulation.transfers.host_peak >= 6 * WEIGHT * 3


@settings(max_examples=12, deadline=None)
@given(
    budget=st.integers(5_000_000, 12_000_000),
    bandwidth=st.sampled_from([5e7, 1e9, float("inf")]),
    host=st.sampled_from([None, 1e7, 1e9]),
    optimizer=st.sampled_from(["sgd", "momentum", "adam"]),
    shared=st.booleans(),
    microbatches=st.sampled_from([1, 1, 3]),
    choice=st.builds(
        OffloadChoice,
        activations=st.sampled_from([0.5, 0.7, 0.9]),
        linked=st.sampled_from([0.0, 0.4]),
        there=st.sampled_from([0.0, 0.1, 0.4]),
        here=st.sampled_from([0.0, 0.3, 1.0]),
        last=st.sampled_from([0.0, 0.4, 1.0]),
    ),
)
def test_the_referee_plays_every_plan(
    budget: int,
    bandwidth: float,
    host: float | None,
    optimizer: str,
    shared: bool,
    microbatches: int,
    choice: OffloadChoice,
) -> None:
    if microbatches > 1:
        host, choice = host or 1e9, replace(choice, here=0.0)
    try:
        planned = task(budget, bandwidth, host, optimizer, shared, microbatches=microbatches)
    except ConfigError as refused:
        [needed] = re.findall(r" needs (\S+) with what it reads", str(refused))
        assert int(needed.replace(",", "")) > budget
        return
    if host is None:
        choice = replace(choice, here=1.0)
    found = OffloadSearch(planned).look(choice)
    if found is not None:
        check(planned, found)
        # What is known to be slower is left out, and may be asked for again.
        again = OffloadSearch(planned)
        assert again.look(choice, found.seconds * (1 - 1e-6)) is None
        assert again.look(choice, found.seconds) == found


class Exhaustive(OffloadSearch):
    """A search that places and plays every plan to its end."""

    def look(self, choice: OffloadChoice, most: float = math.inf) -> OffloadSearchResult | None:
        return super().look(choice)


@pytest.mark.sample(2)
@pytest.mark.parametrize("microbatches", [1, 3])
def test_slow_plans_are_not_played_and_the_best_is_the_same(microbatches: int) -> None:
    planned = task(9_000_000, 3e8, microbatches=microbatches)
    search = OffloadSearch(planned)
    exhaustive = Exhaustive(planned, search.schedules.views)
    assert search.best() == exhaustive.best()
    assert search.slow and not exhaustive.slow
    assert len(search.made) < len(exhaustive.made)


def test_choices_that_come_to_the_same_are_placed_once() -> None:
    search = OffloadSearch(task(9_000_000))
    first, second = (search.look(OffloadChoice(0.7, last=last)) for last in (0.0, 1.0))
    assert first is not None and second is not None
    assert second == replace(first, choice=second.choice) and second.simulation is first.simulation


def test_a_faster_link_is_never_slower_where_transfers_are_all() -> None:
    slow, fast = (OffloadSearch(task(7_000_000, b)).best().simulation.seconds for b in (1e8, 1e9))
    assert fast < slow


def test_where_nothing_computes_beside_the_other_memory_the_device_updates() -> None:
    found = OffloadSearch(task(10_000_000, host=None)).best()
    check(task(10_000_000, host=None), found)
    assert not any(isinstance(step.action, UpdateOnHost) for step in found.simulation.steps)


def test_a_slow_processor_beside_the_other_memory_makes_no_step_slower() -> None:
    none, slow = (OffloadSearch(task(9_000_000, 2e8, host)).best() for host in (None, 2e7))
    assert slow.seconds <= none.seconds < 2 * task(9_000_000).keep_all_seconds
    assert none.seconds >= task(9_000_000, 2e8, None).min_device_update_seconds


def test_what_cannot_be_is_told_in_one_sentence() -> None:
    with pytest.raises(ConfigError, match="between cpu and host has no bandwidth"):
        task(6_000_000, bandwidth=0)
    crowded = (
        "^parameters and optimizer states take 4,500,000 bytes in host/memory, which has "
        "4,499,999, and what moves takes more$"
    )
    with pytest.raises(ConfigError, match=crowded):
        OffloadSearch(task(6_000_000, room=4_499_999)).best()
    with pytest.raises(ConfigError, match=r"no plan fits in 3,000,000 bytes: aten.* of h.\d"):
        task(3_000_000)
    crowded = r"fits in host/memory, which has 6,000,001 bytes, .* known takes \d,\d{3},\d{3} with"
    for planning in (lambda own: OffloadSearch(own).best(), plan_for_min_budget):
        with pytest.raises(ConfigError, match=crowded):
            planning(replace(task(9_000_000, room=6_000_001), microbatches=2))
    tight = task(4_020_000)
    with pytest.raises(ConfigError, match="no plan is known that fits in 4,020,000 bytes"):
        OffloadSearch(tight).best()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    write_graph(folder / "graph.arrow", GRAPH)
    write_costs(folder / "costs.arrow", COSTS)
    return folder


def machine(folder: Path, **memory: float) -> Path:
    path = folder / "machine.json"
    document = {
        "artifact": "tightfit.machine/1",
        "name": "one",
        "devices": [{"name": "cuda:0", "memory": 10**9, "flops": 1e12, "bandwidth": 1e9}],
        "memories": [{"name": "host", "memory": 10**9, "bandwidth": 1e9, **memory}],
        "links": [{"between": ["cuda:0", "host"], "bandwidth": 1e9}],
    }
    path.write_text(json.dumps(document))
    return path


def test_the_command_writes_a_plan_and_its_schedule(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--graph", str(files / "graph.arrow"), "--costs", str(files / "costs.arrow")]
    small = machine(files, memory=4_000_000).rename(files / "small.json")
    given += ["--machine", str(machine(files)), "--out", str(files / "plan")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1)
        assert main(["optimizer-offload", *given, "--budget", "7MB"]) == 0
        plan = read_plan(files / "plan/plan.json")
        assert plan.message.startswith("feasible: ")
        assert capsys.readouterr().out == f"{plan.message}\n"
        steps = read_schedule(files / "plan/schedule.arrow")
        updates = schedule_optimizer_plan(files / "plan/schedule.arrow")
        link = schedule_link(files / "plan/schedule.arrow")
        played, cycle = simulate_any(GRAPH, COSTS, steps, link, updates)
        assert (played.seconds, played.peak) == (plan.time, plan.peak)
        assert cycle is not None and "steps overlap" in plan.message
        assert plan.lower_bound is not None and plan.lower_bound <= played.seconds
        twice = ["--graph", given[1], "--costs", given[3], "--microbatches", "2"]
        assert (
            main(["optimizer-offload", *given, *twice, "--microbatches", "1", "--budget", "7MB"])
            == 0
        )
        assert read_schedule(files / "plan/microbatch.arrow") == []
        assert main(["optimizer-offload", *given, "--microbatches", "2", "--budget", "7MB"]) == 0
        assert "in 2 microbatches" in read_plan(files / "plan/plan.json").message
        adds = schedule_optimizer_plan(files / "plan/microbatch.arrow")
        assert adds is not None and adds.accumulates
        graphs = ["--graph", given[1], "--costs", given[3]]
        for words, more in (
            ("2 --graph, 2 --costs and 1 --microbatches", ["2", *graphs]),
            ("--microbatches is 0", ["0"]),
        ):
            assert (
                main(["optimizer-offload", *given, "--budget", "7MB", "--microbatches", *more]) == 1
            )
            assert words in capsys.readouterr().err
        assert main(["optimizer-offload", *given, "--budget", "2GB"]) == 1
        assert "less than the budget" in capsys.readouterr().err
        assert main(["optimizer-offload", *given, "--budget", "50"]) == 1
        assert "--budget: 50 is 50 bytes, write '50%' or '50MB'\n" in capsys.readouterr().err
        assert main(["optimizer-offload", *given, "--budget", "50B"]) == 0
        plan = read_plan(files / "plan/plan.json")
        assert (plan.status, plan.budget_total, plan.smallest_budget) == ("infeasible", 50, None)
        assert capsys.readouterr().out == f"{plan.message}\n"
        assert plan.message.startswith("infeasible: no plan fits in 50 bytes: ")
        assert read_schedule(files / "plan/schedule.arrow") == []
        for budget in ("6MB", "min"):
            limited = ["--budget", budget, "--limit", "4MB"]
            assert main(["optimizer-offload", *given, *limited]) == 0
            assert capsys.readouterr().out == (
                "infeasible: parameters and optimizer states take 4,500,000 bytes in host/memory, "
                "which has 4,000,000, and what moves takes more: give it more by offload.limit of "
                "the configuration (--limit), or name a second one for states by "
                "offload.second_disk\n"
            )
            plan = read_plan(files / "plan/plan.json")
            assert (plan.status, plan.budget) == ("infeasible", budget)
        assert main(["optimizer-offload", *given, "--budget", "6MB", "--limit", "4%"]) == 1
        assert "--limit: '4%' is a share, expected a size such as 20GB" in capsys.readouterr().err
        given[given.index("--machine") + 1] = str(small)
        assert main(["optimizer-offload", *given, "--budget", "6MB"]) == 0
        assert f"more by the memory of host in {small}, or" in capsys.readouterr().out


@pytest.mark.parametrize("budget", ["7MB", "min"])
def test_the_best_of_several_numbers_of_microbatches_is_taken_for_one_graph(
    budget: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the least time per sample or, for the budget min, of the fewest bytes."""
    monkeypatch.setattr("tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1)
    given = ["--graph", str(files / "graph.arrow"), "--costs", str(files / "costs.arrow")]
    given += ["--machine", str(machine(files)), "--out", str(files / "plan"), "--budget", budget]

    def planned(*counts: int) -> Plan:
        words = [word for count in counts for word in ("--microbatches", str(count))]
        assert main(["optimizer-offload", *given, *words]) == 0
        return read_plan(files / "plan/plan.json")

    alone = {count: planned(count) for count in (1, 3)}
    assert [plan.microbatches for plan in alone.values()] == [1, 3]
    assert not any("compared" in plan.message for plan in alone.values())
    per_sample = {count: (plan.time or 0) / count for count, plan in alone.items()}
    totals = {count: plan.budget_total or 0 for count, plan in alone.items()}
    best = min(alone, key=lambda count: (totals[count], per_sample[count]))
    chosen = planned(1, 3)
    updates = schedule_optimizer_plan(files / "plan/schedule.arrow")
    assert updates is not None and updates.microbatches == chosen.microbatches == best
    assert chosen.time == alone[best].time and chosen.budget_total == totals[best]
    least = "the fewest bytes" if budget == "min" else "the least time per sample"
    assert f"({least}, compared with {4 - best})" in chosen.message


def test_the_engine_that_is_asked_for_solves(files: Path, tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    traced, paid = files / "graph.arrow", files / "costs.arrow"
    given = ["--graph", str(traced), "--costs", str(paid), "--machine", str(machine(tmp_path))]
    options = parser.parse_args([*given, "--budget", "7MB", "--solver", "cbc", "--out", "plan"])
    own, _ = command.read_offload_problem(options, traced, paid, 1)
    assert own.engine == "cbc"
    search = OffloadSearch(replace(task(6_500_000), engine=own.engine))
    with engines_asked() as asked:
        search.look(OffloadChoice(0.5))
        search.look(OffloadChoice(0.5, linked=0.4))
        assert search.schedules.view((True, True)).sweep
    assert asked == {"cbc"}


def test_states_come_ahead_through_more_staging_buffers() -> None:
    whole = task(14_000_000, 1e8, None)
    pieces = {v: replace(c, pieces=(c.states // 8,) * 8) for v, c in whole.updates.items()}
    planned = replace(whole, updates=pieces)
    search = OffloadSearch(planned)
    few = search.look(OffloadChoice(0.5, here=1.0))
    many = search.look(OffloadChoice(0.5, here=1.0, buffers=16))
    assert few and many and many.seconds < few.seconds
    assert many.updates.staging == 4 * few.updates.staging
    check(planned, many)
    assert search.best().choice.buffers > few.choice.buffers


def test_activations_stay_where_they_have_to() -> None:
    planned = task(10_000_000, host=None)
    sent, stay = (
        OffloadSearch(replace(planned, activations_stay=each)).best() for each in (False, True)
    )
    assert stay.choice.linked == 0.0 and sent.choice.linked > 0.0
    assert sent.seconds < stay.seconds
