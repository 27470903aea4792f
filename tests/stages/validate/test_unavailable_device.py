"""A plan for a device that is not here has nothing to be validated on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.schemas.machine_descriptions import described
from tests.stages.audit.towers import SOURCE, stage
from tightfit.__main__ import main

FILES = ("--graph", "graph.arrow", "--costs", "costs.arrow")


def test_a_plan_for_a_described_gpu_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    stage("trace", *SOURCE, "--name", "tower", "--out", "graph.arrow")
    machine = described(tmp_path / "gpu.json")
    stage("profile", *FILES[:2], "--source", "roofline", "--machine", machine, "--out", FILES[3])
    stage("partition", *FILES, "--out", "blocks.arrow")
    stage("solve", "--blocks", "blocks.arrow", "--store", "store", "--out", "options.arrow")
    given = ("--blocks", "blocks.arrow", "--options", "options.arrow", "--strategy", "keep_all")
    stage("combine", *FILES, *given, "--out", "frontier.arrow")
    stage("select", *FILES, "--frontier", "frontier.arrow", "--budget", "none", "--out", "p")
    plan = ("--plan", "p/plan.json")
    stage("generate", *FILES[:2], *plan, "--schedule", "p/schedule.arrow", "--out", "module")
    words = ("validate", *SOURCE, *FILES[:2], *plan, "--module", "module", "--out", "m.arrow")
    capsys.readouterr()
    assert main(words) == 1
    said = capsys.readouterr().err
    assert said.endswith(
        "p/plan.json: is a plan for a GPU by its description, which is not here: there is nothing "
        "to validate it on\n"
    )
    assert not Path("m.arrow").exists()
