"""The one call and the stages with operators that are not PyTorch's own."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tightfit
from tests.stages.torch_utils import custom_ops
from tests.tightfit.conftest import SETTINGS
from tightfit.__main__ import main

HOUSE = Path(__file__).parents[2]
OPTION = ["--operators", "mine=tests.stages.torch_utils.custom_ops"]


def test_a_model_that_calls_one_is_planned_and_equal(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = custom_ops.Calling(custom_ops.shifted)
    original, x = copy.deepcopy(model), torch.randn(16, 32)
    with pytest.raises(tightfit.ModelError, match="is named as one of `operators`"):
        tightfit.plan(model, (x,), store=tmp_path, progress=False)
    planned, made = tightfit.plan(
        model, (x,), budget="90%", operators=["mine"], store=tmp_path, progress=False,
        **SETTINGS,
    )  # fmt: skip
    for one in (planned, original):
        one(x).square().sum().backward()
    assert all(
        torch.equal(p.grad, q.grad)  # type: ignore
        for p, q in zip(planned.parameters(), original.parameters(), strict=True)
    )
    said = subprocess.run(
        [
            *(sys.executable, "-c"),
            "import sys, torch, tightfit\n"
            "model = torch.nn.Linear(2, 2)\n"
            "try: tightfit.load(sys.argv[1], model)\n"
            "except Exception as error: print(type(error).__name__, error)",
            str(made.package),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=HOUSE,
    )
    assert "mine.scaled.default is not registered here: import the module" in said.stdout


def test_the_stages_take_them_by_their_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ["--factory", "tests.stages.torch_utils.custom_ops:calling"]
    graph, costs, out = tmp_path / "graph.arrow", tmp_path / "costs.arrow", tmp_path / "point"
    tracing = ["trace", *source, "--name", "mine", "--out", str(graph)]
    assert main(tracing) == 1
    assert "is named as one of `operators`" in capsys.readouterr().err
    assert main([*tracing, *OPTION]) == 0
    profiling = ["profile", "--graph", str(graph), "--out", str(costs), "--library", str(tmp_path)]
    assert main(profiling) == 1
    assert "'mine' is not PyTorch's own, and not allowed" in capsys.readouterr().err
    assert main([*profiling, *OPTION]) == 0
    files = ["--graph", str(graph), "--costs", str(costs)]
    frontier = tmp_path / "frontier.arrow"
    blocks, options = str(tmp_path / "blocks.arrow"), str(tmp_path / "options.arrow")
    assert main(["partition", *files, "--out", blocks]) == 0
    solving = ["--blocks", blocks, "--store", str(tmp_path), "--solver", "none"]
    assert main(["solve", *solving, "--out", options]) == 0
    combining = [*files, "--blocks", blocks, "--options", options, "--strategy", "checkpoint_all"]
    assert main(["combine", *combining, "--out", str(frontier)]) == 0
    chosen = ["select", "--frontier", str(frontier), *files, "--budget", "none"]
    assert main([*chosen, "--out", str(out)]) == 0
    plan = ["--plan", str(out / "plan.json")]
    module, schedule = str(out / "module"), str(out / "schedule.arrow")
    generating = ["generate", *files[:2], "--schedule", schedule, *plan, "--out", module]
    assert main(generating) == 1
    assert "not allowed" in capsys.readouterr().err
    assert main([*generating, *OPTION]) == 0
    validating = ["validate", *source, *files[:2], *plan, "--module", module, "--pairs", "1"]
    assert main([*validating, "--out", str(out / "measurement.arrow"), *OPTION]) == 0
