"""Every dtype that ATen returns: planned, written, read, filled and compared."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import PLAN, built_of, recompute
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.schemas.graph.training_graph import GraphValue, read_graph, write_graph
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.generate.package import build_package, write_directory
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.operands import (
    fill_normal,
    fill_positive,
    fill_unit_interval,
    make_tensor,
)
from tightfit.stages.profile.profile import profile
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.step_results import max_abs_difference, same_bits
from tightfit.stages.validate.validate import validate


class Casting(nn.Module):
    """Keeps its input in another dtype from forward to backward, and returns it too."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.dtype = dtype

    def forward(self, x: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        seeds = numbers.to(self.dtype)
        return self.layer(x) * seeds.to(x.dtype), seeds


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "float8_e4m3fnuz"])
def test_a_step_with_values_of_a_rare_dtype(tmp_path: Path, dtype: str) -> None:
    torch.manual_seed(0)
    model = Casting(getattr(torch, dtype)).train()
    built = built_of((model, ((torch.randn(3, 4), torch.rand(3, 4) * 100), {})))
    write_graph(tmp_path / "graph.arrow", trace(built, "casting"))
    graph = read_graph(tmp_path / "graph.arrow")
    assert dtype in {value.dtype for value in graph.values}
    with open_cost_library(tmp_path / "library", describe_device("cpu")) as library:
        costs = profile(graph, None, library)
    played = simulate(graph, costs, lower_to_schedule(graph, costs, recompute(graph, 1, 1.0), True))
    write_directory(tmp_path / "module", build_package(graph, played.steps, PLAN))
    plan = PLAN | {"peak": played.peak, "budget_bytes": played.peak, "gap": None}
    measured = validate(graph, built, plan, tmp_path / "module", pairs=0).measurement
    assert (measured.status, measured.bits_equal) == ("feasible", True), measured.message


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
def test_the_table_has_the_bytes_of_an_element(dtype: str) -> None:
    assert getattr(torch, dtype).itemsize == DTYPE_BYTES[dtype]


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("fill", [fill_normal, fill_positive, fill_unit_interval])
def test_operands_of_every_dtype_are_filled_and_compared(dtype: str, fill: object) -> None:
    value = GraphValue(0, "intermediate", [5, 3], [3, 1], 0, dtype, 0)
    tensor = make_tensor(value, fill, torch.device("cpu"))  # type: ignore[arg-type]
    other = copy.deepcopy(tensor)
    assert same_bits(tensor, other) and max_abs_difference(tensor, other) == 0.0
    other.view(torch.uint8)[0, 0] ^= 1
    assert not same_bits(tensor, other) and max_abs_difference(tensor, other) > 0.0


def test_large_integers_that_differ_are_not_rounded_to_equal() -> None:
    one = torch.tensor([2**63 + 1], dtype=torch.uint64)
    other = torch.tensor([2**63 + 2], dtype=torch.uint64)
    assert max_abs_difference(one, other) == 1.0
