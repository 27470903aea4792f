"""A plan that lacks the kernels of a library is compared within the tolerance of its dtypes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.validate.test_original_out_of_memory import Planned
from tests.stages.validate.test_validate import PLAN, net
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import Measurement
from tightfit.stages.torch_utils.model_factory import BuiltModel, check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate import difference_causes
from tightfit.stages.validate.step_results import StepResults, compare_results, dtype_tolerance
from tightfit.stages.validate.training_step import StepRunner
from tightfit.stages.validate.validate import check_planned_module, validate

OURS = "aten._native_batch_norm_legit_functional.default"
EAGER = "aten.native_batch_norm.default"


class Rounded(Planned):
    """A planned module whose results are by a part larger."""

    part = 1e-5

    def forward(self, x: Tensor) -> Any:
        return {name: value * (1 + self.part) for name, value in self.model(x).items()}


@pytest.fixture
def built() -> BuiltModel:
    torch.manual_seed(1)
    return check_factory_result(net(), "net")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(check_factory_result(net(), "net"), "net")


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch norm that eager runs here stands for that of a library."""
    monkeypatch.setattr(difference_causes, "LIBRARY_KERNELS", {EAGER: ("aten.other.default",)})


def judged(graph: Graph, built: BuiltModel, module: nn.Module) -> Measurement:
    return validate(graph, built, {**PLAN, "peak": 1}, module, pairs=0).measurement


def test_a_plan_without_the_kernels_of_a_library_may_round_otherwise(
    graph: Graph, built: BuiltModel, library: None
) -> None:
    peak = judged(graph, built, Rounded(built.model)).measured_peak
    found = validate(graph, built, {**PLAN, "peak": peak}, Rounded(built.model), 0).measurement
    assert found.status == "feasible" and found.bits_equal is False
    assert found.output_difference is not None and found.output_difference > 0
    assert found.message.startswith(
        f"The original model runs {EAGER}, whose kernels the plan does not have; its results "
        "differ by up to "
    )
    with pytest.warns(UserWarning, match=r"whose kernels the plan does not have; its results"):
        assert check_planned_module(graph, built, Rounded(built.model)) == ""


def test_what_is_beyond_the_tolerance_fails(
    graph: Graph, built: BuiltModel, library: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rounded, "part", 1e-2)
    found = judged(graph, built, Rounded(built.model))
    assert found.status == "failed" and "differs from the original model" in found.message
    assert "differs from the original model" in check_planned_module(
        graph, built, Rounded(built.model)
    )


@pytest.mark.parametrize("kernels", [{}, {EAGER: (OURS,)}])
def test_a_plan_with_the_same_kernels_has_the_same_bits(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch, kernels: Any
) -> None:
    monkeypatch.setattr(difference_causes, "LIBRARY_KERNELS", kernels)
    assert "differs from the original model" in check_planned_module(
        graph, built, Rounded(built.model)
    )


def test_an_operator_that_runs_more_often_than_the_plan_has_it_counts(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(difference_causes, "LIBRARY_KERNELS", {EAGER: (OURS,)})
    stepper, sample = StepRunner.of(graph, built), built.samples[0]
    assert difference_causes.find_missing_library_kernels(graph, built.model, stepper, sample) == []
    twice = Twice(built.model)
    assert difference_causes.find_missing_library_kernels(graph, twice, stepper, sample) == [EAGER]
    assert all(parameter.grad is None for parameter in built.model.parameters())


class Twice(Planned):
    """Runs the model two times."""

    def forward(self, x: Tensor) -> Any:
        self.model(x)
        return self.model(x)


def test_cudnn_is_what_libraries_are_asked_for() -> None:
    assert set(difference_causes.LIBRARY_KERNELS) == {
        "aten.cudnn_batch_norm.default", "aten._cudnn_rnn.default"
    }  # fmt: skip
    for name in [
        *difference_causes.LIBRARY_KERNELS,
        *sum(difference_causes.LIBRARY_KERNELS.values(), ()),
    ]:
        packet, _, overload = name.removeprefix("aten.").partition(".")
        assert str(getattr(getattr(torch.ops.aten, packet), overload)) == name


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [(torch.float32, 3.45e-4), (torch.bfloat16, 8.84e-2), (torch.complex128, 1.49e-8)],
)
def test_the_tolerance_is_half_of_the_digits(dtype: torch.dtype, allowed: float) -> None:
    assert dtype_tolerance(dtype) == pytest.approx(allowed, rel=1e-2)
    assert dtype_tolerance(torch.int64) == 0.0


def test_the_share_is_that_beside_the_largest_element_of_all() -> None:
    """Infinite and undefined elements are no measure; numbers of no floating point have none."""
    large = torch.tensor([1000.0, math.inf, math.nan])
    one = {"large": large, "small": torch.tensor([1e-3]), "n": torch.tensor(10**9)}

    def share(**changed: Any) -> float:
        return compare_results(
            StepResults({}, {**one, **changed}, {}), StepResults({}, one, {})
        ).share

    assert share() == 0.0
    assert share(small=torch.tensor([0.101])) == pytest.approx(0.1 / 0.34527, rel=1e-3)
    assert share(n=torch.tensor(10**9 + 1)) == math.inf
    assert share(small=torch.tensor([math.nan])) == math.inf
    assert share(large=large[:1]) == math.inf
    assert compare_results(StepResults(one, {}, {}), StepResults({}, {}, {})).share == math.inf
    assert compare_results(StepResults({}, {}, one), StepResults({}, {}, one)).share == 0.0
