from __future__ import annotations

import argparse
import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from data import models
from tests.stages.generate.plans import keep_all, recompute
from tightfit.schemas.graph.training_graph import Graph, write_graph
from tightfit.schemas.measurement import read_measurement, read_memory_timeline
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.generate.package import build_package, write_directory
from tightfit.stages.profile import measure
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.model_factory import BuiltModel, check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate import command
from tightfit.stages.validate.step_results import (
    compare_results,
    max_abs_difference,
    record_steps,
    same_bits,
)
from tightfit.stages.validate.training_step import StepRunner
from tightfit.stages.validate.validate import validate
from tightfit.util.errors import ArtifactError, ConfigError, ModelError

torch.set_num_threads(1)

PLAN = {
    "strategy": "keep_all",
    "budget": "1KB",
    "budget_bytes": 10**9,
    "status": "feasible",
    "message": "fits",
    "time": 0.1,
    "peak": 0,
    "gap": None,
}


class Net(nn.Module):
    """A layer, batch normalization, dropout and a second layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)
        self.norm, self.drop = nn.BatchNorm1d(16), nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.drop(self.norm(self.first(x)).relu())
        return {"hidden": hidden, "result": self.second(hidden)}


def net() -> tuple[Any, ...]:
    """The factory of the command-line test."""
    samples: list[Any] = [((torch.randn(6, 8, requires_grad=True),), {}) for _ in range(2)]
    return Net(), samples


class Losing(nn.Module):
    """Gives its own loss; the first layer's backward takes most memory."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 512), nn.Linear(512, 4)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.second(self.first(x).tanh()).square().mean()}


def total(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["result"].square().mean()


@pytest.fixture
def built() -> BuiltModel:
    torch.manual_seed(1)
    return check_factory_result(net(), "net")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(check_factory_result(net(), "net"), "net")


def written(folder: Path, body: str) -> Path:
    """A package with a `load` of the given body."""
    folder.mkdir(exist_ok=True)
    text = "import torch\n\n\ndef load(model, on_mismatch='error'):\n"
    (folder / "__init__.py").write_text(
        text + "".join(f"    {line}\n" for line in body.splitlines())
    )
    return folder


def peak_of(graph: Graph, built: BuiltModel, folder: Path) -> int:
    """The peak of the model itself, found by a plan that promises nothing."""
    original = validate(graph, built, PLAN, written(folder / "same", "return model"), pairs=0)
    assert original.measurement.original_peak is not None
    return original.measurement.original_peak


def test_a_module_that_does_the_same_passes(
    graph: Graph, built: BuiltModel, tmp_path: Path
) -> None:
    plan = {**PLAN, "peak": peak_of(graph, built, tmp_path)}
    told: list[tuple[int, int, str]] = []
    package = written(tmp_path / "same", "return model")
    result = validate(graph, built, plan, package, 3, 1.5, report=lambda *step: told.append(step))
    measured = result.measurement
    assert [what for _, _, what in told[:2]] == ["the model's own step", "the planned step"]
    assert [what for _, _, what in told[-3:]] == ["timing"] * 3
    assert [done for done, _, _ in told] == list(range(len(told))) and told[-1][0] < told[-1][1]
    assert (measured.status, measured.message) == ("feasible", "fits")
    assert measured.output_difference == measured.gradient_difference == 0.0
    assert measured.buffer_difference == 0.0 and measured.bits_equal is True
    assert measured.measured_peak == measured.original_peak == plan["peak"]
    assert measured.accumulate_peak == measured.original_accumulate_peak
    assert measured.within_budget and measured.peak_as_predicted
    assert measured.pairs == 3 and measured.plan_seconds == 1.5
    ratios = (measured.time_ratio_first_quartile, measured.time_ratio)
    assert 0 < ratios[0] <= ratios[1] <= measured.time_ratio_third_quartile  # type: ignore[operator]
    assert {point.run for point in result.line} == {"planned", "original"}
    assert max(point.live for point in result.line) == measured.measured_peak


@pytest.mark.parametrize(
    ("body", "sentence", "field"),
    [
        (
            "model.first.weight.register_hook(lambda grad: grad + 0.5)\nreturn model",
            "The gradient of first.weight",
            "gradient_difference",
        ),
        (
            "model.norm.register_forward_hook("
            "lambda *_: [model.norm.running_mean.data.add_(0.5), None][1])\nreturn model",
            "Buffer norm.running_mean",
            "buffer_difference",
        ),
        (
            "model.second.register_forward_hook(lambda m, i, output: output + 0.5)\nreturn model",
            "Output 1",
            "output_difference",
        ),
    ],
    ids=["gradient", "buffer", "output"],
)
def test_other_numbers_fail(
    graph: Graph, built: BuiltModel, tmp_path: Path, body: str, sentence: str, field: str
) -> None:
    measured = validate(graph, built, PLAN, written(tmp_path / "m", body), 0).measurement
    assert measured.status == "failed" and measured.message.startswith(sentence)
    assert getattr(measured, field) >= 0.4 and measured.bits_equal is False
    assert measured.time_ratio is None and measured.pairs == 0


def test_one_bit_is_enough(graph: Graph, built: BuiltModel, tmp_path: Path) -> None:
    body = (
        "model.second.register_forward_hook("
        "lambda m, i, o: torch.where(o == 0, o, o * (1 + 2**-23)))\nreturn model"
    )
    measured = validate(graph, built, PLAN, written(tmp_path / "m", body), 0).measurement
    assert measured.status == "failed" and measured.output_difference is not None
    assert 0 < measured.output_difference < 1e-6


def test_another_draw_of_random_numbers_is_noticed(
    graph: Graph, built: BuiltModel, tmp_path: Path
) -> None:
    body = "model.register_forward_hook(lambda m, i, o: torch.rand(1) and None)\nreturn model"
    measured = validate(graph, built, PLAN, written(tmp_path / "m", body), 0).measurement
    assert measured.status == "failed" and "step 1" in measured.message


def test_a_missed_prediction_and_a_missed_budget_fail(
    graph: Graph, built: BuiltModel, tmp_path: Path
) -> None:
    folder = written(tmp_path / "m", "return model")
    peak = peak_of(graph, built, tmp_path)
    over = validate(graph, built, {**PLAN, "peak": peak, "budget_bytes": peak - 1}, folder, 0)
    assert over.measurement.status == "failed" and over.measurement.within_budget is False
    assert f"{peak} bytes, over its budget of {peak - 1}" in over.measurement.message
    missed = validate(graph, built, {**PLAN, "peak": peak + 1}, folder, 0).measurement
    assert missed.status == "failed" and missed.peak_as_predicted is False
    assert f"{peak} bytes where {peak + 1} were predicted" in missed.message


def test_a_step_that_raises_fails_with_its_reason(
    graph: Graph, built: BuiltModel, tmp_path: Path
) -> None:
    body = "model.second.register_forward_hook(lambda m, i, o: o.view(17))\nreturn model"
    measured = validate(graph, built, PLAN, written(tmp_path / "m", body), 0).measurement
    assert measured.status == "failed" and measured.measured_peak is None
    assert "The planned step fails with RuntimeError" in measured.message


def test_an_infeasible_plan_is_not_run(graph: Graph, built: BuiltModel, tmp_path: Path) -> None:
    plan = {**PLAN, "status": "infeasible", "message": "Too small.", "time": None, "peak": None}
    result = validate(graph, built, plan, tmp_path / "absent", 3)
    assert result.line == [] and result.measurement.measured_peak is None
    assert (result.measurement.status, result.measurement.message) == ("infeasible", "Too small.")


def test_wrong_packages_and_plans_are_named(
    graph: Graph, built: BuiltModel, tmp_path: Path
) -> None:
    with pytest.raises(ArtifactError, match="absent: there is no generated package"):
        validate(graph, built, PLAN, tmp_path / "absent", 0)
    with pytest.raises(ArtifactError, match="returns a int"):
        validate(graph, built, PLAN, written(tmp_path / "int", "return 3"), 0)
    with pytest.raises(ArtifactError, match="refuses the model, ValueError: no"):
        validate(graph, built, PLAN, written(tmp_path / "no", "raise ValueError('no')"), 0)
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "__init__.py").write_text("")
    with pytest.raises(ArtifactError, match="no function 'load'"):
        validate(graph, built, PLAN, tmp_path / "empty", 0)
    with pytest.raises(ArtifactError, match="lacks the key 'peak'"):
        validate(graph, built, {k: v for k, v in PLAN.items() if k != "peak"}, tmp_path, 0)


def test_a_loss_must_be_there_as_it_was_traced(graph: Graph, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="returns a loss"):
        validate(graph, check_factory_result((*net(), total), "net"), PLAN, tmp_path, 0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", ["gpt2", "resnet", "loss", "own loss"])
def test_the_simulator_predicts_the_peak_to_the_byte(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "TIMING_SECONDS", 0.0)
    made = {
        "gpt2": lambda: models.gpt2(1, 32, 2, 50, 2, 8, dropout=0.1),
        "resnet": lambda: models.resnet("resnet10", 2, 32),
        "loss": lambda: (*net(), total),
        "own loss": lambda: (Losing(), ((torch.randn(6, 8),), {}), lambda output: output["loss"]),
    }[name]()
    built = check_factory_result(made, name)
    graph = trace(built, name)
    with open_cost_library(tmp_path, describe_device("cpu")) as library:
        costs = profile(graph, built.loss, library)
    for executions, in_place in (
        (keep_all(graph), False),
        (recompute(graph, 3, 0.7), False),
        (recompute(graph, 4, 0.7), True),
    ):
        opened = lower_to_schedule(graph, costs, executions, in_place)
        played = simulate(graph, costs, opened)
        plan = {**PLAN, "peak": played.peak, "budget_bytes": played.peak, "time": played.seconds}
        folder = tmp_path / f"module_{len(executions)}_{in_place}"
        write_directory(folder, build_package(graph, played.steps, plan))
        measured = validate(graph, built, plan, folder, 0).measurement
        assert (measured.status, measured.message) == ("feasible", "fits")
        assert measured.accumulate_peak == simulate(graph, costs, opened, accumulate=True).peak


def test_differences_of_numbers_that_are_none() -> None:
    nan = torch.tensor([1.0, math.nan])
    assert max_abs_difference(nan, nan.clone()) == 0.0
    assert max_abs_difference(nan, torch.tensor([1.0, 2.0])) == math.inf
    assert max_abs_difference(torch.tensor([math.inf]), torch.tensor([math.inf])) == 0.0
    assert max_abs_difference(torch.tensor([1.0]), torch.tensor([[1.0]])) == math.inf
    assert max_abs_difference(torch.tensor([True]), torch.tensor([False])) == 1.0
    assert max_abs_difference(None, nan) == math.inf and max_abs_difference(None, None) == 0.0
    assert max_abs_difference(torch.empty(0), torch.empty(0)) == 0.0
    assert same_bits(nan, nan.clone()) and not same_bits(torch.tensor(0.0), torch.tensor(-0.0))
    assert same_bits(torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool))


def test_trails_cover_all_samples_and_steps(graph: Graph, built: BuiltModel) -> None:
    stepper = StepRunner.of(graph, built)
    trail = record_steps(copy.deepcopy(built.model), stepper, built.samples, 1)
    assert len(trail.outputs) == 4 * 5
    assert len(trail.gradients) == 4 * (len(list(built.model.parameters())) + 1)
    assert all(gradient is not None for gradient in trail.gradients.values())
    assert len(trail.buffers) == 4 * (3 + 1)  # with the state of random numbers
    other = record_steps(copy.deepcopy(built.model), stepper, built.samples, 2)
    found = compare_results(trail, other)
    assert found.output > 0 and found.gradient > 0 and not found.bits_equal


def validate_command(
    graph: Graph, plan: dict[str, Any], folder: Path
) -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of the stage, and the words that validate a module which is its model."""
    write_graph(folder / "graph.arrow", graph)
    (folder / "plan.json").write_text(json.dumps(plan))
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["--factory", "tests.stages.validate.test_validate:net", "--pairs", "1"]
    words += ["--graph", str(folder / "graph.arrow"), "--plan", str(folder / "plan.json")]
    words += ["--module", str(written(folder / "module", "return model"))]
    return parser, [*words, "--out", str(folder / "measurement.arrow")]


def test_the_command_builds_no_model_for_an_infeasible_plan(graph: Graph, tmp_path: Path) -> None:
    """Its budget may be smaller than what is there before the step."""
    refused = {"status": "infeasible", "message": "Too small.", "budget_bytes": -57112}
    plan = {**PLAN, **refused, "time": None, "peak": None}
    parser, words = validate_command(graph, plan, tmp_path)
    command.run(parser.parse_args([*words, "--factory", "nowhere:net"]))
    measured = read_measurement(tmp_path / "measurement.arrow")
    assert (measured.status, measured.message) == ("infeasible", "Too small.")
    assert not read_memory_timeline(tmp_path / "memory_timeline.arrow")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"message": None}, "the plan lacks the key 'message'"),
        ({"peak": "large"}, "peak is 'large', which a plan cannot have"),
        ({"budget_bytes": True}, "budget_bytes is True, which a plan cannot have"),
        ({"budget_bytes": -(1 << 62)}, f"budget_bytes is {-(1 << 62)}, which a plan cannot have"),
        ({"threads": 0}, "threads is 0, which a plan cannot have"),
        ({"gpu": 5}, "the plan does not say what it takes of a GPU"),
        ({"gpu": {"reserved": -1}}, "gpu.reserved is -1, which a plan cannot have"),
        ({"transfers": {}}, "the plan does not say what it sends"),
    ],
)
def test_what_is_wrong_with_a_plan_names_its_file(
    changes: dict[str, Any], said: str, graph: Graph, tmp_path: Path
) -> None:
    plan = {key: value for key, value in {**PLAN, **changes}.items() if key != "message"}
    plan |= {} if "message" in changes else {"message": ""}
    parser, words = validate_command(graph, plan, tmp_path)
    with pytest.raises(ArtifactError, match=f"^{tmp_path}/plan.json: {said}"):
        command.run(parser.parse_args(words))


def test_the_command_writes_measurement_and_line(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    parser, words = validate_command(graph, PLAN, tmp_path)
    assert command.run(parser.parse_args(words)) == 1
    measured = read_measurement(tmp_path / "measurement.arrow")
    assert measured.bits_equal and measured.status == "failed"
    assert {point.run for point in read_memory_timeline(tmp_path / "memory_timeline.arrow")} == {
        "planned",
        "original",
    }
    with pytest.raises(ConfigError, match="--pairs"):
        command.run(parser.parse_args([*words, "--pairs", "-1"]))
    with pytest.raises(ConfigError, match="--arguments"):
        command.run(parser.parse_args([*words, "--arguments", "{"]))


def test_a_plan_is_validated_with_the_threads_of_its_costs(
    graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some workspaces depend on how many there are: a plan does not fail for having others."""
    monkeypatch.chdir(Path(__file__).parents[3])
    parser, words = validate_command(graph, {**PLAN, "threads": 2}, tmp_path)
    with pytest.raises(
        ConfigError, match=r"--threads 1: the costs of .*plan\.json were measured with 2"
    ):
        command.run(parser.parse_args([*words, "--threads", "1"]))
    seen: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(torch, "set_num_threads", seen.append)
        for more in ((), ("--threads", "2")):
            command.run(parser.parse_args([*words, *more]))
    assert seen == [2, 2]
