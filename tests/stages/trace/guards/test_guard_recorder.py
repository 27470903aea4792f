"""A forward that does what a plan would not do is refused by name and line, and the model is left
as it was."""

from __future__ import annotations

import random
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.attention
from torch import nn

import data.models as models
import data.zoo_text as texts
from tests.stages.generate.plans import built_of
from tests.stages.runtime.guards.guarded_plans import traced_watched
from tests.stages.trace import forwards
from tests.stages.trace.forwards import (
    ALLOWED,
    NOISE,
    REFUSED,
    REPLAYED,
    Model,
    attends,
    sets_the_same,
    uses_torch,
)
from tightfit.stages.trace.capture import capture
from tightfit.stages.trace.guards.guard_recorder import GuardRecorder, record_guards
from tightfit.util.errors import ModelError


def numpy_numbers() -> list[int]:
    state: Any = np.random.get_state()
    return list(state[1])


def sample() -> Any:
    return (torch.randn(2, 3),), {}


def everything(model: nn.Module) -> dict[str, Any]:
    """Each plain attribute of each module, with a copy of what containers hold."""
    found: dict[str, Any] = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            copied = value.copy() if isinstance(value, dict | list) else value
            copied = dict(vars(value)) if isinstance(value, SimpleNamespace) else copied
            found[f"{path}.{name}"] = copied
    return found


@pytest.mark.parametrize(("does", "kind", "label"), REPLAYED)
def test_what_a_plan_can_do_is_described(does: Any, kind: str, label: str) -> None:
    model = Model(does)
    before = everything(model)
    captured = capture(built_of((model, sample())))
    [effect] = captured.side_effects
    assert (effect.kind, effect.label) == (kind, label)
    assert captured.watched["side_effects"] == [effect.written()]
    assert everything(model) == before


@pytest.mark.parametrize(
    ("does", "sentence"), REFUSED, ids=lambda part: getattr(part, "__name__", str(part))[:30]
)
def test_what_a_plan_would_not_do_is_refused(does: Any, sentence: str) -> None:
    model = Model(does)
    before, states = everything(model), (random.getstate(), model.own.getstate(), NOISE.getstate())
    arrays = numpy_numbers(), model.numbers.bit_generator.state
    drawn = torch.get_rng_state()
    inputs = sample()
    drawn = torch.get_rng_state()
    with pytest.raises(ModelError) as caught:
        traced_watched((model, inputs), "model")
    assert sentence in str(caught.value) and str(caught.value).startswith("model: the forward ")
    assert "\n" not in str(caught.value)
    after = everything(model)
    assert list(after) == list(before)
    for name, value in before.items():
        assert value is after[name] or value == after[name], name
    assert forwards.COUNT == 0 and forwards.SEEN == [] and forwards.METERS[0].count == 0
    assert model.bytes[0] == 0 and model.array[0] == 0.0
    assert states == (random.getstate(), model.own.getstate(), NOISE.getstate())
    assert arrays[0] == numpy_numbers()
    assert arrays[1] == model.numbers.bit_generator.state
    assert torch.equal(drawn, torch.get_rng_state())
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.parametrize("bits", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_a_generator_of_numpy_that_nobody_draws_from_is_no_matter(bits: Any) -> None:
    for numbers in (np.random.Generator(bits(1)), np.random.RandomState(bits(1))):
        model = Model(lambda self, x: x * 2)
        model.numbers = numbers  # type: ignore[assignment]
        traced_watched((model, sample()), "model")


def test_attention_is_planned_with_all_its_kernels() -> None:
    with (
        nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH),
        pytest.raises(ModelError, match="is False, which the capture of attention does not follow"),
    ):
        traced_watched((Model(attends), sample()))


@pytest.mark.parametrize("does", ALLOWED, ids=lambda does: does.__name__)
def test_what_cannot_be_seen_is_not_refused(does: Any) -> None:
    model = Model(does)
    before = everything(model)
    traced_watched((model, sample()))
    after = everything(model)
    assert list(after) == list(before)
    assert all(value is after[name] or value == after[name] for name, value in before.items())


HOOKS = [
    ("register_full_backward_hook", "backward hook"),
    ("register_full_backward_pre_hook", "backward pre hook"),
]


@pytest.mark.parametrize(("register", "kind"), HOOKS)
def test_backward_hooks_of_submodules_are_refused_and_those_of_the_model_are_not(
    register: str, kind: str
) -> None:
    def peek(*_: Any) -> None:
        return None

    with record_guards(root := Model(sets_the_same)) as watcher:
        getattr(root, register)(peek)
    watcher.refuse("model")
    model = Model(sets_the_same)
    getattr(model.layer, register)(peek)
    with record_guards(model) as watcher:
        pass
    with pytest.raises(ModelError, match=f"layer has the {kind} .*peek, which a plan would not"):
        watcher.refuse("model")


def test_containers_within_containers_are_watched() -> None:
    class Layer(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 4), nn.GELU())

    captured = capture(built_of((nn.Sequential(Layer(), Layer()), ((torch.ones(2, 4),), {}))))
    assert not [h for h in captured.watched["sources"] if "stages" in str(h)]


def test_a_hook_for_all_modules_is_refused() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        with pytest.raises(ModelError, match="PyTorch has a hook for all modules"):
            traced_watched((Model(sets_the_same), sample()))
    finally:
        handle.remove()


def test_parameters_outside_the_model_are_refused() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.layers = [nn.Linear(3, 3)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers[0](self.first(x))

    with pytest.raises(ModelError, match=r"layers\[0\] is a module with parameters that the model"):
        traced_watched((Listed(), sample()))

    class Loose(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)
            self.weights = [torch.ones(3, requires_grad=True)]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.first(x) * self.weights[0]

    with pytest.raises(ModelError, match="weights holds a tensor that requires a gradient"):
        traced_watched((Loose(), sample()))


def test_a_closure_that_hangs_on_nothing_is_refused() -> None:
    class Applying(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(3, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return HIDDEN()(self.first(x))

    with pytest.raises(ModelError, match="scaled reads 'factor', a float from around it"):
        traced_watched((Applying(), sample()))


def _hide() -> Any:
    factor = 2.0

    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return type("Giver", (), {"__slots__": (), "__call__": staticmethod(lambda: scaled)})


HIDDEN = _hide()()
del _hide


def test_nothing_is_left_behind() -> None:
    original, profile = nn.Module.__getattribute__, sys.getprofile()
    model = Model(sets_the_same)
    traced_watched((model, sample()))
    assert nn.Module.__getattribute__ is original is object.__getattribute__
    assert "__getattribute__" not in vars(nn.Module) and sys.getprofile() is profile
    assert Model.forward.__name__ == "forward" and "forward" not in vars(model)


def test_the_description_repeats_itself() -> None:
    descriptions = []
    for _ in range(2):
        model = built_of((Model(uses_torch), sample())).model
        with record_guards(model) as watcher, watcher.running():
            model(*sample()[0])
        descriptions.append(watcher.description())
    assert descriptions[0] == descriptions[1]
    assert isinstance(watcher, GuardRecorder) and descriptions[0]["sources"]


@pytest.mark.sample(5)
@pytest.mark.parametrize(
    "made",
    [
        lambda: models.gpt2(1, 32, 2, 100, 2, 8, 0.1),
        lambda: models.bert(1, tokens=8),
        lambda: models.llama(1, tokens=8),
        lambda: texts.t5(1),
        lambda: models.resnet("resnet10", 2, 32),
    ],
    ids="gpt2 bert llama t5 resnet".split(),
)
def test_real_models_are_not_refused(made: Any) -> None:
    _, built = traced_watched(made())
    assert not any(type(p).__name__ == "FakeTensor" for p in built.model.buffers())


class Given(nn.Module):
    """Draws from a generator that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, g: torch.Generator | None = None) -> torch.Tensor:
        drawn: torch.Tensor = self.layer(x) * torch.rand(2, 3, generator=g)
        return drawn


def test_a_generator_that_is_given_is_refused() -> None:
    inputs = (torch.randn(2, 3),), {"g": torch.Generator()}
    with pytest.raises(ModelError, match="Generator of its own"):
        traced_watched((Given(), inputs), "model")
