"""A strategy from outside that sends one storage of a model's step to an offload target, from the
configuration to the report."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.audit.towers import SOURCE, solve_tower
from tightfit.__main__ import main
from tightfit.schemas.actions import Action, ComputeLoss, Free, Offload, Prefetch, Wait
from tightfit.schemas.config import parse_config
from tightfit.schemas.frontier import read_frontier, write_frontier
from tightfit.schemas.plan import read_plan
from tightfit.schemas.schedule import read_schedule, schedule_link
from tightfit.stages.combine.activation_offload.placement import offloadable_values
from tightfit.stages.combine.lowering.blocks import run_actions
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.util import progress
from tightfit.util.errors import ConfigError
from tightfit.util.strategies import STRATEGIES, StrategyInfo


class OneLeaves:
    """Sends the largest storage that the forward makes, and brings it back after the loss."""

    about = StrategyInfo("one_leaves", "the largest storage waits in an offload target", links=True)

    def supports(self, step: PlanningProblem) -> str:
        return "" if step.link is not None else "it came without a link"

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        problem, graph = step.problem, step.graph
        assert graph is not None
        values, sizes = offloadable_values(graph, problem), graph.storages
        kept = [s for n in problem.nodes[problem.loss + 1 :] for s in n.inputs if s in values]
        made = [s for s in kept if problem.storages[s].producer < problem.loss]
        value = values[max(made, key=lambda storage: sizes[storage])]
        plain = run_actions(problem, [node.op for node in problem.nodes])
        loss = plain.index(ComputeLoss(problem.nodes[problem.loss].op))
        away: list[Action] = [Offload(value), Free(value)]
        actions = [*plain[:loss], *away, plain[loss], Prefetch(value), *plain[loss + 1 :]]
        return [Candidate(actions, [], "the largest leaves")]


def machine(path: Path, bandwidth: float = 1e9) -> Path:
    """The description of a CPU with a disk."""
    document = {
        "artifact": "tightfit.machine/1",
        "name": "here",
        "devices": [{"name": "cpu", "memory": 10**9}],
        "memories": [{"name": "disk", "memory": 10**9}],
        "links": [{"between": ["cpu", "disk"], "bandwidth": bandwidth, "latency": 1e-5}],
    }
    path.write_text(json.dumps(document))
    return path


def test_a_strategy_with_a_link_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(STRATEGIES, "one_leaves", replace(OneLeaves.about, baseline=True))
    place = types.ModuleType("tightfit.stages.combine.strategies.one_leaves")
    monkeypatch.setitem(sys.modules, place.__name__, place)
    monkeypatch.setattr(OneLeaves, "about", STRATEGIES["one_leaves"])
    monkeypatch.setattr(place, "STRATEGY", OneLeaves(), raising=False)
    monkeypatch.chdir(tmp_path)
    linked = machine(Path("machine.json"))
    models = {"tower": {"factory": "towers:tower", "strategies": ["one_leaves"]}}
    assert parse_config({"models": models}).link_machine is None
    with pytest.raises(ConfigError, match=r"machine: absent\.json: cannot be read"):
        parse_config({"models": models, "machine": "absent.json"})
    config = parse_config({"models": models, "machine": str(linked)})
    [asked] = config.requests("tower")
    assert (asked.budget, config.link_machine) == ("none", linked)
    model = Path("results/tower")
    solve_tower(model, Path("store"))
    files = ["--graph", f"{model}/graph.arrow", "--costs", f"{model}/costs.arrow"]
    blocks = ["--blocks", f"{model}/blocks.arrow", "--options", f"{model}/options.arrow"]
    frontier, point = model / "one_leaves/frontier.arrow", model / "one_leaves/none"
    words = ["combine", *files, *blocks, "--strategy", "one_leaves", "--out", str(frontier)]
    assert main(words) == 1
    assert "name a machine with a link to one" in capsys.readouterr().err
    assert main([*words, "--machine", str(linked)]) == 0
    [chosen] = read_frontier(frontier).points
    assert chosen.transfers
    words = ["select", *files, "--frontier", str(frontier), "--budget", "none"]
    monkeypatch.setattr(progress, "PRINT_INTERVAL", 0.0)
    assert main([*words, "--out", str(point)]) == 0
    assert "tower: one_leaves at 1 of " in capsys.readouterr().out
    plan, steps = read_plan(point / "plan.json"), read_schedule(point / "schedule.arrow")
    assert (
        plan.transfers is not None
        and plan.transfers.offloaded_bytes == plan.transfers.prefetched_bytes > 0
    )
    assert plan.peak is not None and plan.time is not None
    assert "bytes wait in disk/memory, and computations wait " in plan.message
    assert plan.peak <= plan.keep_all.peak and plan.time > plan.keep_all.time
    streams = {step.stream for step in steps}
    assert streams == {"cpu/compute", "cpu/to-disk", "cpu/from-disk"}
    assert {step.memory for step in steps} == {"cpu/memory", "disk/memory"}
    assert len([step for step in steps if isinstance(step.action, Wait)]) == 2
    link = schedule_link(point / "schedule.arrow")
    assert link is not None and (link.bandwidth, link.to, link.device) == (1e9, "disk", "cpu")
    assert main(["audit", "results"]) == 0
    trace = ["--graph", f"{model}/graph.arrow", "--out", "trace.json"]
    assert main(["report", "--perfetto", str(point / "schedule.arrow"), *trace]) == 0
    named = {event["name"] for event in json.loads(Path("trace.json").read_text())["traceEvents"]}
    assert {"offload", "prefetch", "wait", "free_host_copy", "disk/memory"} <= named
    assert main(["report", "--model-dir", str(model), "--out", "report.html"]) == 0
    capsys.readouterr()
    made = ["--schedule", str(point / "schedule.arrow"), "--plan", str(point / "plan.json")]
    assert main(["generate", *files[:2], *made, "--out", "module"]) == 0
    assert SOURCE and "transfers.restore_storage(" in Path("module/step.py").read_text()
    found = read_frontier(frontier)
    write_frontier(frontier, replace(found, link=replace(link, bandwidth=2e9)))
    assert main([*words, "--out", str(point)]) == 1
    assert "where the simulator finds" in capsys.readouterr().err
