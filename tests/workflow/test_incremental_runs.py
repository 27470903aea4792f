"""Only what changed is done again: `make plan` after edits of models, budgets and stages."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.conftest import Workplace

pytestmark = pytest.mark.long

LAYERS = '''"""Layers of mine."""
from torch import nn


class Layer(nn.Module):
    """One of them."""

    def __init__(self, width, activation):
        super().__init__()
        self.first = nn.Linear(width, 2 * width)
        self.activation = activation
        self.second = nn.Linear(2 * width, width)

    def forward(self, x):
        # wide in the middle
        return self.second(self.activation(self.first(x)))
'''

MINE = """import torch
from torch import nn
from layers import Layer

def tower(width=32):
    activations = [nn.GELU(), nn.GELU(), nn.GELU(), nn.GELU()]
    layers = [Layer(width, activation) for activation in activations]
    return nn.Sequential(*layers).train(), ((torch.randn(64, width),), {})
"""

THEIRS = """import torch
from torch import nn

class Layer(nn.Sequential):
    def __init__(self, width):
        super().__init__(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

def tower(width=32):
    return nn.Sequential(*[Layer(width) for _ in range(4)]).train(), (
        (torch.randn(64, width),),
        {},
    )
"""

SOURCES = {"layers.py": LAYERS, "mine.py": MINE, "theirs.py": THEIRS}

MODELS = {
    "mine": {"factory": "mine:tower", "budgets": ["50%"], "strategies": ["rockmate"]},
    "theirs": {"factory": "theirs:tower", "strategies": ["keep_all"]},
}

Run = subprocess.CompletedProcess[str]
FOLLOWING_RUN = "  the run, 1 step: its inputs are made again"
"""What a dry run says of the index, behind the models."""


def configuration(**changes: Any) -> dict[str, Any]:
    return {"models": MODELS, "solver": {"peaks": 2, "saves": 2}, "pairs": 2, **changes}


def steps(run: Run) -> list[str]:
    """What a run did or would do, in the words of the rules."""
    return [line.partition("] ")[2] for line in run.stderr.splitlines() if line[:1] == "["]


def solves(run: Run) -> list[str]:
    """What the stage solve said of each model."""
    return re.findall(
        r"^\w+: solved \d+, \d+ from the store$", run.stdout + run.stderr, re.MULTILINE
    )


def reasons(place: Workplace) -> list[str]:
    """What would be done and why, as `make plan` says it first."""
    run = place.snakemake("--dry-run", "--logger-tightfit-why")
    assert run.returncode == 0, run.stderr
    return [line for line in run.stderr.splitlines() if line.startswith(("To do", "  "))]


@pytest.fixture(scope="module")
def first(quick: Workplace) -> tuple[Workplace, Run]:
    """The first run of two models whose layers are the same, written differently."""
    place = replace(quick, folder=quick.checkout)
    for name, source in SOURCES.items():
        (place.folder / name).write_text(source)
    place.configure(configuration())
    return place, place.plan()


@pytest.fixture
def place(first: tuple[Workplace, Run]) -> Iterator[Workplace]:
    """Where two models are planned; sources and configuration come back afterwards."""
    place = first[0]
    yield place
    for name, source in SOURCES.items():
        (place.folder / name).write_text(source)
    place.configure(configuration())


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def test_the_first_run_says_what_is_new(first: tuple[Workplace, Run]) -> None:
    run = first[1]
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(
        "To do: 25 steps\n  mine, 12 steps: it is new\n  theirs, 11 steps: it is new\n"
    )
    assert len(steps(run)) == 25


def test_a_block_of_two_models_is_solved_once(first: tuple[Workplace, Run]) -> None:
    assert len(solves(first[1])) == 2
    assert any(line.endswith(": solved 0, 3 from the store") for line in solves(first[1]))


def test_a_block_solved_in_another_folder_is_not_solved_again(
    place: Workplace, tmp_path: Path
) -> None:
    for name in SOURCES:
        shutil.copy(place.folder / name, tmp_path / name)
    other = replace(place, folder=tmp_path)
    other.configure(configuration(store=str(place.folder / "store")))
    run = other.snakemake("results/mine/options.arrow")
    assert run.returncode == 0, run.stderr
    assert solves(run) == ["mine: solved 0, 3 from the store"]


def test_comments_in_a_model_are_no_edits(place: Workplace) -> None:
    for name, old, new in (
        ("layers.py", "# wide in the middle", "# and narrow at its ends"),
        ("layers.py", '"""One of them."""', '"""One\n    of many."""'),
        ("mine.py", "def tower(width=32)", "def tower( width = 32 )"),
    ):
        edit(place.folder / name, old, new)
    assert reasons(place) == []


def test_another_budget_is_planned_alone(place: Workplace) -> None:
    models = {**MODELS, "mine": {**MODELS["mine"], "budgets": ["50%", "80%"]}}
    place.configure(configuration(models=models))
    assert set(steps(place.snakemake("--dry-run"))) == {
        "mine: choosing rockmate for 80%",
        "mine: writing the module of rockmate 80pct",
        "mine: writing the trace of rockmate 80pct",
        "mine: running rockmate 80pct against the model",
        "mine: writing the report",
        "writing the index",
    }
    assert reasons(place) == [
        "To do: 6 steps",
        "  mine, 5 steps: the budget 80% is new for rockmate",
        FOLLOWING_RUN,
    ]


def test_the_code_of_a_stage_is_said_to_have_changed(place: Workplace) -> None:
    with (place.checkout / "stages/partition/command.py").open("a") as code:
        code.write("\nCHANGED = True\n")
    found = reasons(place)
    edit(place.checkout / "stages/partition/command.py", "\nCHANGED = True\n", "")
    assert found == [
        "To do: 18 steps",
        "  mine, 9 steps: the code of the stage partition changed",
        "  theirs, 8 steps: the code of the stage partition changed",
        FOLLOWING_RUN,
    ]


def test_another_number_of_cores_measures_and_plans_again(place: Workplace) -> None:
    """Bytes of a step depend on its threads: a plan is validated with those of its costs."""
    run = place.snakemake("--dry-run", "--logger-tightfit-why", "--cores", "1")
    told = [line for line in run.stderr.splitlines() if line.startswith("  ")]
    assert told == [
        f"  {name}, {count} steps: the number of threads changed, which --cores sets"
        for name, count in (("mine", 11), ("theirs", 10))
    ] + [FOLLOWING_RUN]


def test_an_edit_that_leaves_the_graph_alone_is_traced_and_nothing_else(place: Workplace) -> None:
    before = (place.folder / "results/mine/graph.arrow").read_bytes()
    edit(place.folder / "layers.py", "2 * width)\n        self.act", "width * 2)\n        self.act")
    run = place.plan()
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(
        "To do: up to 13 steps\n"
        "  mine, up to 12 steps: its source, or what that imports, was edited\n"
    )
    assert steps(run) == ["mine: tracing the training step"]
    assert (place.folder / "results/mine/graph.arrow").read_bytes() == before
    assert str(place.folder).encode() not in before


def test_an_edited_layer_is_solved_alone_and_not_again_when_undone(place: Workplace) -> None:
    followed = {
        "mine: tracing the training step",
        "mine: measuring each distinct op",
        "mine: cutting the graph into blocks",
        "mine: finding the options of each distinct block",
        "mine: planning with rockmate",
        "mine: planning with rockmate for all budgets",
        "mine: choosing rockmate for 50%",
        "mine: writing the module of rockmate 50pct",
        "mine: writing the trace of rockmate 50pct",
        "mine: running the model",
        "mine: running rockmate 50pct against the model",
        "mine: writing the report",
        "writing the index",
    }
    edit(place.folder / "mine.py", "[nn.GELU(), nn.GELU()", "[nn.GELU(), nn.Tanh()")
    run = place.plan()
    assert run.returncode == 0, run.stderr
    assert sorted(steps(run)) == sorted(followed)
    assert solves(run) == ["mine: solved 1, 3 from the store"]
    edit(place.folder / "mine.py", "[nn.GELU(), nn.Tanh()", "[nn.GELU(), nn.GELU()")
    undone = place.snakemake("results/mine/options.arrow")
    assert undone.returncode == 0, undone.stderr
    left = place.snakemake("--dry-run")
    assert sorted(steps(undone) + steps(left)) == sorted(followed)
    assert solves(undone) == ["mine: solved 0, 3 from the store"]


def test_costs_are_measured_again_where_that_is_asked(place: Workplace) -> None:
    place.configure(configuration(models={"theirs": MODELS["theirs"]}))
    assert place.plan().returncode == 0
    costs = place.folder / "results/theirs/costs.arrow"
    before = costs.read_bytes()
    again = place.plan("--remeasure")
    assert again.returncode == 0, again.stderr
    assert "it is to be measured again" in again.stdout
    assert "theirs: measuring each distinct op" in steps(again)
    assert costs.read_bytes() != before
    assert not steps(place.plan())
