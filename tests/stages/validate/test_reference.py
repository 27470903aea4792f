"""The model's own step, measured once for all of its plans."""

from __future__ import annotations

import argparse
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.validate.test_validate import PLAN, net, validate_command, written
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.measurement import (
    CPU_APART,
    CPU_IN_TURNS,
    read_measurement,
    read_memory_timeline,
)
from tightfit.schemas.reference import ReferenceMeasurement, read_reference, write_reference
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.model_factory import BuiltModel, check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate import command, measure, reference_command
from tightfit.stages.validate.comparison import ORIGINAL_STEP, SEED
from tightfit.stages.validate.measure import OriginalMeasurement, measure_original
from tightfit.stages.validate.scenarios import SCENARIOS
from tightfit.stages.validate.step_results import (
    StepResults,
    equal_digests,
    result_digests,
    same_bits,
)
from tightfit.stages.validate.validate import validate
from tightfit.util import child_process
from tightfit.util.errors import ArtifactError, ConfigError

torch.set_num_threads(1)
FACTORY = ("--factory", "tests.stages.validate.test_validate:net", "--pairs", "2")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(check_factory_result(net(), "net"), "net")


@pytest.fixture
def built() -> BuiltModel:
    torch.manual_seed(SEED)
    return check_factory_result(net(), "net")


@pytest.fixture(scope="module")
def original(graph: Graph) -> OriginalMeasurement:
    torch.manual_seed(SEED)
    return measure_original(graph, "0" * 64, check_factory_result(net(), "net"), 3, "cpu")


def measured(
    graph: Graph, built: BuiltModel, folder: Path, body: str, original: OriginalMeasurement | None
) -> tuple[Any, list[str]]:
    """What validation finds of a module, and what it tells of its steps."""
    told: list[str] = []
    package = written(folder / "module", body)
    plan = {**PLAN, "peak": original.reference.peak if original else 0}

    def report(done: int, most: int, what: str) -> None:
        assert done < most
        told.append(what)

    return validate(graph, built, plan, package, 3, report=report, original=original), told


def test_the_model_is_not_run_beside_a_plan_that_gives_the_same(
    graph: Graph, built: BuiltModel, original: OriginalMeasurement, tmp_path: Path
) -> None:
    found, told = measured(graph, built, tmp_path, "return model", original)
    measurement = found.measurement
    assert told and not any(what.startswith(ORIGINAL_STEP) for what in told)
    assert not any("model's own" in what for what in told)
    assert (measurement.status, measurement.bits_equal) == ("feasible", True)
    assert measurement.output_difference == measurement.gradient_difference == 0.0
    assert measurement.measured_peak == measurement.original_peak == original.reference.peak
    assert measurement.original_accumulate_peak == original.reference.accumulate_peak
    assert measurement.original_resident_peak == original.reference.resident_peak is not None
    assert measurement.resident_peak is not None and measurement.allocator
    assert measurement.pairs == 3 and len(original.reference.seconds) == 3
    assert measurement.timing == CPU_APART and measurement.preemption_fraction is None
    ratios = (measurement.time_ratio_first_quartile, measurement.time_ratio)
    assert 0 < ratios[0] <= ratios[1] <= measurement.time_ratio_third_quartile
    assert [point for point in found.line if point.run == "original"] == list(original.line)
    assert original.line


def test_a_validation_takes_seven_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that are compared, of which the second tells its memory, two at the same time, and three
    that are timed and of which the RSS is measured. The model takes as many."""
    steps: list[nn.Module] = []
    forward = Layers.forward

    def counted(self: Layers, x: torch.Tensor) -> torch.Tensor:
        steps.append(self)
        return forward(self, x)

    built = check_factory_result((Layers(), ((torch.randn(4, 8),), {})), "layers")
    graph = trace(built, "layers")
    monkeypatch.setattr(Layers, "forward", counted)
    found = measure_original(graph, "0" * 64, built, 3, "cpu")
    assert len(steps) == 7
    measurement = measured(graph, built, tmp_path, "return model", found)[0].measurement
    assert len(steps) == 14
    assert measurement.status == "feasible" and measurement.bits_equal
    assert measurement.accumulate_peak == found.reference.accumulate_peak is not None
    assert measurement.resident_peak is not None and measurement.time_ratio is not None


class Layers(nn.Module):
    """Its input gets no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


@pytest.mark.parametrize(
    "body",
    [
        "model.first.weight.register_hook(lambda grad: grad + 0.5)\nreturn model",
        "model.norm.momentum = 0.5\nreturn model",
        "model.drop.p = 0.4\nreturn model",
        "model.calls = 0\n"
        "def later(module, args, output):\n"
        "    module.calls += 1\n"
        "    return {**output, 'result': output['result'] + (module.calls > 4)}\n"
        "model.register_forward_hook(later)\nreturn model",
    ],
)
def test_a_plan_that_differs_is_compared_with_the_model_itself(
    graph: Graph, built: BuiltModel, original: OriginalMeasurement, tmp_path: Path, body: str
) -> None:
    """The sentence and the differences are those of a validation that runs both."""
    found, told = measured(graph, built, tmp_path, body, original)
    torch.manual_seed(SEED)
    alone, _ = measured(graph, check_factory_result(net(), "net"), tmp_path, body, None)
    assert any(what.startswith(ORIGINAL_STEP) for what in told) or body.startswith("model.calls")
    for name in ("output_difference", "gradient_difference", "buffer_difference", "bits_equal"):
        assert getattr(found.measurement, name) == getattr(alone.measurement, name)
    beginnings = [each.measurement.message.partition(";")[0] for each in (found, alone)]
    assert beginnings[0] == beginnings[1].removesuffix(".") or found.measurement.bits_equal


def test_each_round_is_known_but_those_that_another_contains(original: OriginalMeasurement) -> None:
    contained = {one.contains for one in SCENARIOS if one.contains}
    assert set(original.reference.rounds) == {one.name for one in SCENARIOS} - contained
    assert all(all(digests.values()) for digests in original.reference.rounds.values())


def test_digests_are_equal_where_bits_are() -> None:
    nan, other = torch.tensor([math.nan, 1.0]), torch.tensor([-math.nan, 1.0])
    things: list[Any] = [
        *(nan, other, torch.tensor([1.0, math.nan]), torch.tensor([0.0]), torch.tensor([-0.0])),
        *(torch.tensor([0]), torch.tensor(0.0), torch.zeros(1, 1), torch.zeros(3, 2).t()),
        *(torch.zeros(2, 3), torch.tensor([1 + 2j]), torch.tensor([1 - 2j]).conj()),
        *(torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([True]), True, 1, 1.0, None),
        *("1", "structure"),
    ]
    trails = [result_digests(StepResults({"thing": thing}, {}, {})) for thing in things]
    for one, mine in zip(things, trails, strict=True):
        for another, theirs in zip(things, trails, strict=True):
            assert equal_digests(mine, theirs) == same_bits(one, another), (one, another)
    for odd in (object(), math.nan, torch.eye(2).to_sparse()):
        unknown = result_digests(StepResults({"thing": odd}, {}, {}))
        assert not equal_digests(unknown, unknown)


REFERENCE = ReferenceMeasurement(
    "a" * 64, describe_device("cpu"), {"": {"x": "b" * 64}, "empty": {}}, 5, 6
)


def test_a_reference_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = replace(REFERENCE, seconds=(0.25, 0.5), lost=0.125)
    for one in (whole, replace(whole, rounds={}, peak=None, accumulate_peak=None, seconds=())):
        write_reference(tmp_path / "reference.arrow", one)
        assert read_reference(tmp_path / "reference.arrow") == one


@pytest.mark.parametrize(
    "changes",
    [{"resident_peak": -1}, {"peak": -1}, {"peak": 1.5}, {"seconds": (-0.5,)}, {"lost": "much"}],
)
def test_a_reference_of_no_step_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    write_reference(tmp_path / "r.arrow", replace(REFERENCE, **changes))
    with pytest.raises(ArtifactError, match="has bytes or seconds that no step takes"):
        read_reference(tmp_path / "r.arrow")


@pytest.fixture
def commands(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words that validate a module, after the reference was measured by the command."""
    monkeypatch.chdir(Path(__file__).parents[3])
    words = validate_command(graph, PLAN, tmp_path)[1]
    own = argparse.ArgumentParser()
    reference_command.add_arguments(own)
    where = [
        "--graph",
        str(tmp_path / "graph.arrow"),
        "--out",
        str(tmp_path / "own/reference.arrow"),
    ]
    reference_command.run(own.parse_args([*FACTORY, *where]))
    with pytest.raises(ConfigError, match="--pairs 0: must be 1 or more"):
        reference_command.run(own.parse_args([*FACTORY, *where, "--pairs", "0"]))
    return words


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(words))


def test_the_commands_share_one_reference(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = tmp_path / "own/reference.arrow"
    run([*commands, "--reference", str(reference)], capsys)
    found, known = read_measurement(tmp_path / "measurement.arrow"), read_reference(reference)
    assert found.bits_equal and found.original_peak == known.peak
    assert found.original_time in (*known.seconds, sum(known.seconds) / 2)
    lines = read_memory_timeline(tmp_path / "memory_timeline.arrow")
    assert [point for point in lines if point.run == "original"] == read_memory_timeline(
        tmp_path / "own/memory_timeline.arrow"
    )


def test_the_command_times_the_model_in_a_process_of_its_own(
    commands: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where other work goes on."""
    monkeypatch.setattr(measure, "BUSY_FRACTION", 0.0)
    monkeypatch.setattr(child_process, "USE_CHILD_PROCESSES", True)
    torch.set_num_threads(1)
    run([*commands, "--reference", str(tmp_path / "own/reference.arrow")], capsys)
    found = read_measurement(tmp_path / "measurement.arrow")
    assert found.timing == CPU_IN_TURNS and found.time_ratio is not None


def test_a_reference_of_other_threads_is_not_used(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = tmp_path / "own/reference.arrow"
    known = read_reference(reference)
    threads = replace(known.device, threads=known.device.threads + 1)
    write_reference(reference, replace(known, device=threads, peak=1, seconds=(1e6, 1e6)))
    run([*commands, "--reference", str(reference)], capsys)
    found = read_measurement(tmp_path / "measurement.arrow")
    assert found.bits_equal and found.original_peak == known.peak
    assert found.original_time is not None and found.original_time < 1e6


def test_a_reference_of_another_model_is_refused(
    commands: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = tmp_path / "own/reference.arrow"
    write_reference(reference, replace(read_reference(reference), graph="1" * 64))
    with pytest.raises(ConfigError, match="was measured of another graph than"):
        run([*commands, "--reference", str(reference)], capsys)


def test_a_model_without_memory_on_the_device_has_no_figures(
    graph: Graph, built: BuiltModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(type(built.model), "forward", full)
    found = measure_original(graph, "0" * 64, built, 2, "cpu")
    assert found.reference.peak is None and not found.reference.seconds
    assert not any(found.reference.rounds.values()) and not found.line
