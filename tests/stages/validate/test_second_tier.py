"""A whole step whose states are in a second offload tier in part, by hand: planned, written and
run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.validate.test_offloaded_parameters import MODEL, generated
from tightfit.__main__ import main
from tightfit.schemas.measurement import read_measurement
from tightfit.schemas.schedule import (
    read_schedule,
    schedule_link,
    schedule_optimizer_plan,
    write_schedule,
)
from tightfit.stages.profile import measure
from tightfit.stages.validate.load import load_package


def test_states_of_a_third_memory_are_judged_to_the_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Planned by the description of a machine that the command measured, with less room."""
    monkeypatch.setenv("TIGHTFIT_DISK", str(tmp_path))
    source = ["--factory", "data.models:gpt2", "--arguments", json.dumps(MODEL)]
    graph = ["--graph", str(tmp_path / "graph.arrow")]
    assert main(["trace", *source, "--name", "gpt2", "--out", graph[1]]) == 0
    near, far, path = tmp_path / "near", tmp_path / "far", tmp_path / "three.json"
    near.mkdir()
    far.mkdir()
    costs = tmp_path / "costs.arrow"
    measured = [*graph, "--library", str(tmp_path / "store"), "--optimizer", "adamw"]
    measured += ["--link", str(path), "--disk", str(near), "--second-disk", str(far)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "TIMING_SECONDS", 0.0)
        patch.setattr("tightfit.stages.profile.link_cache.CACHED_LINK_BYTES", 4 << 20)
        patch.setattr("tightfit.stages.profile.optimizer_updates.PIECE_BYTES", 4 << 10)
        assert main(["profile", *measured, "--out", str(costs)]) == 0
    machine = json.loads(path.read_text())
    machine["memories"][0]["memory"] = 300_000
    path.write_text(json.dumps(machine))
    given = [*graph, "--costs", str(costs), "--machine", str(path), "--budget", "420kB"]
    given += ["--updates", str(tmp_path / "updates.json")]
    plan, module = tmp_path / "plan", tmp_path / "module"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tightfit.stages.combine.optimizer_offload.command.MIN_OFFLOAD_BYTES", 1 << 10
        )
        # The fewest leave no room for gradients on their way, which takes a while to find.
        patch.setattr(
            "tightfit.stages.combine.optimizer_offload.state_placement.EXTRA_TIER_SHARES", (0.15,)
        )
        assert main(["optimizer-offload", *given, "--out", str(plan)]) == 0
    assert generated(plan, graph, module) == 0
    offload_plan = load_package(module).OFFLOAD_PLAN
    assert offload_plan.second_tier and offload_plan.second_tier_bytes > 4096
    out = ["--out", str(tmp_path / "measurement.arrow"), "--pairs", "1"]
    model = [*source, *graph, "--plan", str(plan / "plan.json"), "--module", str(module)]
    assert main(["validate", *model, *out]) == 1
    assert "--second-disk: the plan has states in a second offload tier" in capsys.readouterr().err
    out += ["--second-disk", str(far), "--disk"]
    assert main(["validate", *model, *out, "/nowhere"]) == 1
    assert "/nowhere" in capsys.readouterr().out
    assert main(["validate", *model, *out, str(near)]) == 0
    found = read_measurement(tmp_path / "measurement.arrow")
    assert found.status == "feasible", found.message
    assert found.peak_as_predicted and found.within_budget and found.bits_equal
    assert (
        found.offload_peak == found.predicted_offload_peak and (found.offload_peak or 0) <= 300_000
    )
    assert (
        f"{offload_plan.second_tier_bytes:,} bytes of states are in the second offload tier"
        in found.message
    )
    steps, updates = plan / "schedule.arrow", schedule_optimizer_plan(plan / "schedule.arrow")
    assert updates is not None and updates.second_tier is not None
    one = frozenset([min(updates.second_tier.values)])
    for said, wrong in (
        ("and its states are here", replace(updates, on_device=one)),
        (
            "pass through 9 buffers in the",
            replace(updates, second_tier=replace(updates.second_tier, buffers=9)),
        ),
    ):
        write_schedule(steps, read_schedule(steps), "", schedule_link(steps), wrong)
        assert generated(plan, graph, tmp_path / "other") == 1
        assert said in capsys.readouterr().err
