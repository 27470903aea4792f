"""Packages whose calls differ in sizes: bits of eager and the predicted bytes at each size."""

from __future__ import annotations

import copy
import importlib
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.generate.plans import (
    PLAN,
    check_equal,
    generated,
    keep_all,
    recompute,
    step,
)
from tests.stages.trace import dynamic_models as dynamic
from tests.stages.trace.test_dynamic_trace import MODELS
from tightfit.schemas.actions import Offload
from tightfit.schemas.costs import Costs
from tightfit.schemas.dynamic_plan import DynamicPlan
from tightfit.schemas.graph.dynamic_shapes import DynamicShapes, graph_at
from tightfit.schemas.graph.training_graph import Graph, check_graph
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.dynamic_peaks import predict_dynamic_peaks
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.generate.package import build_package
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.torch_utils.sample_sizes import resize_samples
from tightfit.stages.trace.dynamic_trace import trace_dynamic
from tightfit.stages.validate.dynamic_sizes import compare_sizes, measure_size_peak
from tightfit.util.errors import ArtifactError, ModelError


def random_sizes(built: BuiltModel, count: int) -> list[dict[str, int]]:
    """The limits, and sizes between."""
    assert built.dynamic is not None
    chance = random.Random(0)
    between = [
        {one.name: chance.randint(one.smallest, one.largest) for one in built.dynamic.dimensions}
        for _ in range(count)
    ]
    return [built.dynamic.smallest, built.dynamic.largest, *between]


def costs_of(graph: Graph, built: BuiltModel, folder: Path) -> Costs:
    with open_cost_library(folder, describe_device("cpu")) as library:
        return profile(graph, built.loss, library)


@pytest.mark.parametrize("name", MODELS)
def test_bits_and_peaks_are_those_of_each_size(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    built = MODELS[name]()
    graph = trace_dynamic(built, name)
    costs = costs_of(graph, built, tmp_path / "library")
    executions = recompute(graph, 1, 0.8)
    steps = lower_to_schedule(graph, costs, executions, True)
    largest = simulate(graph, costs, steps).peak
    package = generated(graph, tmp_path / "package", executions, True, costs)
    planned, twin = copy.deepcopy(built.model), copy.deepcopy(built.model)
    module = package.load(planned)
    for sizes in random_sizes(built, 4):
        resized = resize_samples(built, sizes)
        module.zero_grad()
        twin.zero_grad()
        found, expected = step(module, resized.samples[0]), step(twin, resized.samples[0])
        check_equal((module, *found), (twin, *expected))
        at_sizes = graph_at(graph, sizes)
        peak = simulate(at_sizes, costs_of(at_sizes, resized, tmp_path / "library"), steps).peak
        assert measure_size_peak(at_sizes, resized, module) == peak <= largest
    own = package.load(built.model)
    foretold = predict_dynamic_peaks(graph, costs, steps, largest)
    assert foretold is not None and len(foretold.peaks) == 4
    measured, said = compare_sizes(graph, built, own, foretold, full=False)
    assert (len(measured), said) == (2, "")
    wrong = replace(foretold, peaks=[replace(one, peak=1) for one in foretold.peaks])
    assert "takes" in compare_sizes(graph, built, own, wrong, full=False)[1]
    with pytest.raises(ModelError, match=r"takes .* bytes at .*, and 1 at the largest sizes"):
        predict_dynamic_peaks(graph, costs, steps, 1)


class Doctored:
    """A graph whose expressions lie where its own checks do not look."""

    def __init__(self, change: Callable[[DynamicShapes], DynamicShapes], folder: Path) -> None:
        self.folder = folder
        self.built = dynamic.built_dynamic(dynamic.tokens(dynamic.Weighted))
        true = trace_dynamic(self.built, "model")
        assert true.dynamic is not None
        self.graph = replace(true, dynamic=change(true.dynamic))
        check_graph(self.graph, "a graph")
        self.costs = costs_of(true, self.built, folder / "library")
        self.steps = lower_to_schedule(self.graph, self.costs, keep_all(self.graph), False)
        self.peak = simulate(self.graph, self.costs, self.steps).peak

    def compare(self, predicted: DynamicPlan | None) -> str:
        """What a comparison with the model says of it."""
        given = (keep_all(self.graph), False, self.costs)
        package = generated(self.graph, self.folder / "package", *given)
        planned = package.load(self.built.model)
        return compare_sizes(self.graph, self.built, planned, predicted, full=False)[1]


def test_bytes_that_lie_between_are_found(tmp_path: Path) -> None:
    """All storages have as many bytes at all sizes as at the largest."""
    graph = Doctored(lambda shapes: replace(shapes, storages={}), tmp_path)
    predicted = predict_dynamic_peaks(graph.graph, graph.costs, graph.steps, graph.peak)
    assert re.search(r"takes [\d,]+ bytes where [\d,]+ were predicted", graph.compare(predicted))


def test_an_argument_that_lies_between_is_found(tmp_path: Path) -> None:
    """One that is right at the largest and at the smallest sizes alone."""

    def change(shapes: DynamicShapes) -> DynamicShapes:
        lie = "tokens + (tokens - 2)*(24 - tokens)"
        number, text = next((n, t) for n, t in shapes.arguments.items() if '"tokens"' in t)
        return replace(shapes, arguments=shapes.arguments | {number: text.replace("tokens", lie)})

    graph = Doctored(change, tmp_path)
    with pytest.raises(ArtifactError, match="the costs lack op"):
        predict_dynamic_peaks(graph.graph, graph.costs, graph.steps, graph.peak)
    with pytest.raises(ModelError, match=r"op .* of model cannot be run: shape"):
        costs_of(graph.graph, graph.built, tmp_path / "another library")
    said = graph.compare(None)
    assert said.startswith("With dynamic sizes, at batch = 3, tokens = 13: The planned step fails")


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: Any) -> tuple[Graph, torch.nn.Module, Path, str]:
    built = dynamic.built_dynamic(dynamic.tokens(dynamic.Weighted))
    graph = trace_dynamic(built, "model")
    folder = tmp_path_factory.mktemp("package")
    package = generated(graph, folder, keep_all(graph))
    return graph, package.load(built.model), folder, package.__name__


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        ((3, 25, 4), "x has the size 25 on axis 1, the plan was made for tokens from 2 to 24"),
        ((5, 7, 4), "x has the size 5 on axis 0, the plan was made for batch from 2 to 4"),
        ((1, 7, 4), "x has the size 1 on axis 0, the plan was made for batch from 2 to 4"),
        ((0, 7, 4), "x has the size 0 on axis 0"),
        ((3, 7, 5), r"shape \(3, 7, 5\), the plan was made for \(3, 7, 4\) where batch = 3 and"),
        ((3,), r"x has shape \(3,\)"),
    ],
)
def test_calls_of_other_sizes_are_refused(loaded: Any, shape: Any, said: str) -> None:
    with pytest.raises(RuntimeError, match=said):
        loaded[1](torch.randn(shape))


def test_gradients_of_other_strides_are_taken_at_each_size(loaded: Any) -> None:
    module = loaded[1]
    for count in (5, 9):
        x = torch.randn(3, count, 4)
        out = module(x)
        arriving = torch.randn(count, 3, 4).transpose(0, 1)
        module.zero_grad()
        out.backward(arriving)
        first = module.layer.weight.grad.clone()
        twin = dynamic.Weighted()
        twin.load_state_dict(module.state_dict())
        twin(x).backward(arriving)
        expected = twin.layer.weight.grad
        assert expected is not None and torch.equal(first, expected)


def test_the_program_reads_its_sizes(loaded: Any) -> None:
    text = (loaded[2] / "step.py").read_text()
    assert "tokens = input_0.shape[1]" in text or ".shape[1]" in text
    assert "batch*tokens" in text


def test_no_cuda_graph_is_made_of_it(loaded: Any) -> None:
    interface = replace(importlib.import_module(f"{loaded[3]}.interface").INTERFACE, device="cuda")
    graphs = importlib.import_module("tightfit.stages.runtime.cuda_graphs")
    assert "calls of several sizes" in graphs.cuda_graph_obstacle(loaded[1].forward, interface)


def test_a_step_that_sends_tensors_away_is_refused(loaded: Any) -> None:
    moved = ScheduleStep(Offload(0))
    with pytest.raises(ArtifactError, match="sends no tensors away"):
        build_package(loaded[0], [moved], PLAN)
