"""The examples run as they stand, and what they print is true."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from examples import loop_peak, resnet_sweep

ROOT = Path(__file__).parents[1]
SMALL = {
    "gpt2_half": (["--small", "--steps", "2"], "the losses are equal"),
    "selective_checkpointing": (["--small"], "the losses are equal"),
    "loop_peak": (["--small", "--budget", "min", "--steps", "2"], "the loop keeps to the budget"),
    "trainer_lora": (["--width", "32", "--layers", "2", "--tokens", "16"], "equal to Trainer"),
    "trl_sft": (
        ["--width", "32", "--layers", "2", "--tokens", "16", "--budget", "min"],
        "equal to SFTTrainer",
    ),
    "lightning_fit": (["--width", "32", "--layers", "4"], "equal to Lightning"),
    "accelerate_fit": (
        ["--width", "32", "--layers", "2", "--tokens", "16", "--budget", "min"],
        "equal to accelerate",
    ),
    "optimizer_on_disk": (["--layers", "4"], "equal to torch.optim"),
    "pipeline_three_ranks": (["--width", "64"], "equal to one process"),
    "resnet_sweep": (
        ["--blocks", "2", "--width", "4", "--size", "8", "--budgets", "100%", "min"],
        "  min  peak",
    ),
}
"""For each example what makes it small, and how a line of its output begins."""


def test_every_example_is_run() -> None:
    assert {path.stem for path in (ROOT / "examples").glob("*.py")} - {"__init__"} == set(SMALL)


@pytest.mark.usefixtures("brief_search")
def test_a_smaller_budget_takes_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tightfit.api.plan_arguments.default_store_path", lambda: tmp_path)
    (_, most, _), (_, least, _) = resnet_sweep.sweep(1, 4, 8, ["100%", "min"])
    assert least < most


@pytest.mark.usefixtures("brief_search")
def test_a_loop_with_a_loss_keeps_to_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightfit.api.plan_arguments.default_store_path", lambda: tmp_path)
    promised, states, peak = loop_peak.measure_loop("min", small=True, steps=2)
    assert states > 0 and promised < peak <= promised + states


@pytest.mark.long
@pytest.mark.parametrize("name", SMALL)
def test_an_example(name: str, tmp_path: Path) -> None:
    words, line = SMALL[name]
    command = [sys.executable, str(ROOT / "examples" / f"{name}.py"), *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(said.startswith(line) for said in done.stdout.splitlines()), done.stdout
