"""Buffers of whose values a forward asks: flags, counters, numbers that a loop sets."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import built_of, compare, generated, traced
from tightfit.stages.torch_utils.model_factory import BuiltModel, fake_tensor_mode
from tightfit.stages.trace.program import FakeConstantError
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError


class Normalizing(nn.Module):
    """Scales by the statistics of its first batch, in buffers or in a parameter."""

    scale: Any
    ready: Tensor

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        if trained:
            self.scale = nn.Parameter(torch.ones(8))
        else:
            self.register_buffer("scale", torch.ones(8))
        self.register_buffer("ready", torch.tensor([False]))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        if not self.ready:
            self.scale.data.copy_(1 / (x.detach().std(0) + 1e-6))
            self.ready.fill_(True)
        return x * self.scale


class Quantizing(nn.Module):
    """A vector quantizer: its first batch is the codebook, which follows later ones."""

    ready: Tensor
    codes: Tensor
    counts: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("ready", torch.zeros(1))
        self.register_buffer("codes", torch.zeros(4, 8))
        self.register_buffer("counts", torch.ones(4))

    def forward(self, x: Tensor) -> Any:
        flat = self.layer(x)
        if not self.ready:
            self.codes.data.copy_(flat[:4])
            self.ready.data.copy_(torch.ones(1))
        index = torch.cdist(flat, self.codes).argmin(1)
        chosen = nn.functional.one_hot(index, 4).type(flat.dtype)
        quantized = nn.functional.embedding(index, self.codes)
        self.counts.mul_(0.9).add_(chosen.sum(0), alpha=0.1)
        means = chosen.t() @ flat.detach() / self.counts[:, None]
        self.codes.mul_(0.9).add_(means, alpha=0.1)
        return flat + (quantized - flat).detach(), index


class Leveled(nn.Module):
    """Runs as many layers as a buffer says, at the temperature of another one."""

    depth: Tensor
    temperature: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("depth", torch.tensor(2))
        self.register_buffer("temperature", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        for number in range(int(self.depth)):
            x = self.layers[number](x) / self.temperature.item()
        return x


class Counting(Leveled):
    """Goes another way in each second step."""

    def forward(self, x: Tensor) -> Tensor:
        self.depth += 1
        return self.layers[int(self.depth % 2)](x)


X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "made", [lambda: Normalizing(True), lambda: Normalizing(False), Quantizing]
)
def test_a_flag_of_the_first_step(made: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = made()
    with pytest.raises(
        ModelError, match=r"buffer 'ready' at \S+\.py:\d+ and .* run the model once"
    ):
        trace(built_of((model, ((X,), {}))), "m")
    assert not model.ready
    model(X)
    graph, built = traced((model, ((X,), {})))
    compare(generated(graph, tmp_path / "plan"), built)


def test_a_counter_is_refused() -> None:
    with pytest.raises(ModelError, match=r"buffer 'depth' at .* and changes it"):
        trace(built_of((Counting(), ((X,), {}))), "m")


def test_another_value_is_refused_at_the_call(tmp_path: Path) -> None:
    graph, built = traced((Leveled(), ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned: Any = compare(package, built)
    planned.depth.fill_(3)
    with pytest.raises(package.PlanMismatch, match=r"depth, which is 3, the plan was made with 2"):
        planned(X)
    planned.depth = torch.tensor(2)
    planned(X)
    planned.load_state_dict(planned.state_dict() | {"temperature": torch.tensor(0.25)})
    with pytest.raises(package.PlanMismatch, match=r"temperature, which is 0\.25, .* with 0\.5"):
        planned(X)
    eager = copy.deepcopy(built.model)
    eager.load_state_dict(planned.state_dict())
    original: Any = package.load(copy.deepcopy(eager), on_mismatch="original")
    assert torch.equal(original(X), eager(X))


def quantization_aware(kind: str) -> nn.Module:
    from torch.ao.quantization import (
        get_default_qat_qconfig,
        get_default_qat_qconfig_mapping,
        prepare_qat,
    )
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    model: Any = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "eager":
            model.qconfig = get_default_qat_qconfig("x86")
            return prepare_qat(model)
        return prepare_qat_fx(model, get_default_qat_qconfig_mapping(kind), (X,))


@pytest.mark.parametrize("kind", ["eager", "x86", "qnnpack"])
def test_quantization_aware_training(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = quantization_aware(kind)
    if kind != "qnnpack":
        with pytest.raises(ModelError, match=r"quantizer 0\.weight_fake_quant changes the shape"):
            trace(built_of((model, ((X,), {}))), "m")
    model(X)
    graph, built = traced((model, ((X,), {})))
    compare(generated(graph, tmp_path / "plan"), built)


def test_an_observer_that_checks_what_it_saw_is_named() -> None:
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    model = nn.Sequential(FakeQuantize(MovingAverageMinMaxObserver), nn.Linear(8, 8))
    with pytest.raises(ModelError, match=r"an observer of torch\.ao\.quantization checks"):
        trace(built_of((model, ((X,), {}))), "m")


def test_a_model_without_memory_is_to_be_made_for_real() -> None:
    with fake_tensor_mode() as mode:
        model, x = Leveled(), torch.randn(6, 8)
    with pytest.raises(FakeConstantError, match="asks for values"):
        trace(BuiltModel(model, [((x,), {})], fake_mode=mode), "m")
