"""The workflow with fused kernels, run for real on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workflow.conftest import Workplace
from tightfit.schemas.graph.fused_groups import is_fused_group
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.measurement import read_measurement
from tightfit.schemas.plan import read_plan

pytestmark = pytest.mark.long

FACTORY = '''
import torch


class Wave(torch.nn.Module):
    """Groups of many small operators between matrix products."""

    def __init__(self):
        super().__init__()
        self.first, self.last = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        inner = self.first(x)
        made = inner.sigmoid() * inner.tanh() * inner.exp() * 0.5 + inner.sin() * inner.cos()
        return self.last(made)


def wave():
    return Wave().train(), ((torch.randn(2048, 64),), {})
'''


@pytest.fixture(scope="module")
def finished(quick: Workplace) -> Workplace:
    """A run of a model with fused kernels, whose packages carry all that they can."""
    (quick.folder / "mine.py").write_text(FACTORY)
    model = {
        "factory": "mine:wave",
        "budgets": ["4MB"],
        "strategies": ["rotor"],
        "kernels": "fused",
        "with_eager": True,
        "with_libraries": True,
    }
    quick.configure({"models": {"fused": model}, "solver": {"peaks": 2, "saves": 2}, "pairs": 2})
    run = quick.snakemake()
    assert run.returncode == 0, run.stderr
    return quick


@pytest.fixture
def model(finished: Workplace) -> Path:
    """The folder of its results."""
    return finished.folder / "results/fused"


def test_fused_kernels_are_compared_with_their_keep_all_step_and_with_eager(model: Path) -> None:
    targets = [op.target for op in read_graph(model / "graph.arrow").ops]
    assert any(map(is_fused_group, targets))
    assert not any(is_fused_group(op.target) for op in read_graph(model / "eager.arrow").ops)
    found = read_measurement(model / "rotor/4MB/measurement.arrow")
    assert found.bits_equal
    assert found.measured_peak == read_plan(model / "rotor/4MB/plan.json").peak
    assert found.message.startswith("Fused kernels are ")
    page = (model / "report.html").read_text().replace("&#39;", "'")
    assert found.message in page
    assert "of the keep-all step with the same kernels bit for bit" in page
    assert read_measurement(model / "keep_all/none/measurement.arrow").bits_equal


def test_plans_of_fused_kernels_are_compared_with_those_of_eagers(
    finished: Workplace, model: Path
) -> None:
    plan, other = (read_plan(at / "rotor/4MB/plan.json") for at in (model, model / "eager"))
    assert plan.competing_plan is not None and other.time is not None and plan.time is not None
    assert (plan.kernels, other.kernels) == ("fused", "eager")
    assert (plan.competing_plan.time, plan.budget_total) == (other.time, other.budget_total)
    assert plan.time < other.time
    assert plan.groups and plan.compiled
    table = finished.stage("summary", "--configuration", "config.yaml")
    assert table.returncode == 0, table.stderr
    assert any("rotor" in line and "fused" in line for line in table.stdout.splitlines())
    audited = finished.stage("audit", "results/fused", "--configuration", "config.yaml")
    assert audited.returncode == 0, audited.stdout + audited.stderr


def test_modules_carry_what_a_configuration_asks_for(model: Path) -> None:
    module = model / "rotor/4MB/module"
    carried = {"libraries.pt2", "eager.py", "eager_step.py"}
    assert carried <= {path.name for path in module.iterdir()}
    assert not carried & {path.name for path in (model / "keep_all/none/module").iterdir()}
    said = read_measurement(model / "rotor/4MB/measurement.arrow").message
    assert "The plan of eager's kernels beside it has eager's bits" in said
