"""What the trace read of a model is compared at load and at each call."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated
from tests.stages.runtime.guards import guarded_models
from tests.stages.runtime.guards.guarded_models import Inner, Settings, Whole, scaling
from tests.stages.runtime.guards.guarded_plans import is_planned, traced_watched
from tests.stages.runtime.guards.model_changes import CHANGES, activation, came, layer_longer

X = torch.ones(2, 3)


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    graph, _ = traced_watched((Whole(), ((X,), {})), "whole")
    return generated(graph, tmp_path_factory.mktemp("whole") / "planned_whole")


def names(part: Any) -> str:
    return getattr(part, "__name__", "")


@pytest.mark.parametrize(("change", "sentence"), CHANGES, ids=names)
def test_what_moved_since_is_named_at_the_call(whole: Any, change: Any, sentence: str) -> None:
    planned, other = whole.load(Whole()), whole.load(Whole(), on_mismatch="original")
    assert is_planned(planned(X)) and is_planned(other(X))
    change(planned)
    with pytest.raises(whole.PlanMismatch) as caught:
        planned(X)
    assert str(caught.value).startswith(sentence) and "\n" not in str(caught.value)
    change(other)
    assert not is_planned(other(X))


AT_LOAD = [(change, text) for change, text in CHANGES if "hook" not in change.__name__]


@pytest.mark.parametrize(("change", "sentence"), AT_LOAD, ids=names)
def test_another_model_is_named_at_load(whole: Any, change: Any, sentence: str) -> None:
    model = Whole()
    change(model)
    with pytest.raises(RuntimeError) as caught:
        whole.load(model)
    assert str(caught.value).startswith("the plan was made for whole and this model")
    if change not in (layer_longer, activation, came):
        assert sentence.removeprefix("the model ") in str(caught.value)


def test_a_model_of_another_depth_is_refused_at_load(whole: Any) -> None:
    with pytest.raises(RuntimeError, match=r"this model has the module layers\.2, the plan"):
        whole.load(Whole(3))
    with pytest.raises(RuntimeError, match=r"this model has no (parameter|module) layers\.1"):
        whole.load(Whole(1))
    model = Whole()
    model.unused = nn.Linear(2, 3)
    with pytest.raises(RuntimeError, match=r"this model's unused\.weight has shape \(3, 2\)"):
        whole.load(model)


GLOBALS = [
    ("TEMPERATURE", 3.0, "the global TEMPERATURE is 3.0, the plan was made with 2.0"),
    ("FLAGS", {"bias": False}, "the global FLAGS is "),
    ("TABLE", torch.zeros(3), "the global TABLE is other values, the plan was made with"),
    ("ACTIVATION", torch.sigmoid, "the global ACTIVATION is the function "),
    ("helper", torch.neg, "the global helper is "),
]


@pytest.mark.parametrize(("name", "value", "sentence"), GLOBALS)
def test_a_global_that_moved_is_named(
    whole: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: Any, sentence: str
) -> None:
    planned = whole.load(Whole())
    planned(X)
    monkeypatch.setattr(guarded_models, name, value)
    with pytest.raises(whole.PlanMismatch) as caught:
        planned(X)
    assert str(caught.value).startswith(sentence)
    with pytest.raises(RuntimeError, match="the plan was made for whole and the global"):
        whole.load(Whole())
    monkeypatch.undo()
    assert is_planned(planned(X))


def test_a_global_that_is_written_in_place_is_named(
    whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = whole.load(Whole())
    planned(X)
    monkeypatch.setitem(guarded_models.FLAGS, "bias", False)
    with pytest.raises(whole.PlanMismatch, match="the global FLAGS is a dict with other items"):
        planned(X)


def test_methods_and_class_attributes_that_moved_are_named(
    whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = whole.load(Whole())
    planned(X)
    for kind, name, value in [
        (Inner, "forward", lambda self, x: x),
        (Whole, "finish", lambda self, x: x),
        (Inner, "kind", "shifted"),
        (nn.GELU, "forward", lambda self, x: x),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(kind, name, value)
            with pytest.raises(whole.PlanMismatch, match=f" has {name} "):
                planned(X)
        assert is_planned(planned(X))


def test_settings_of_the_process_that_moved_are_named(whole: Any) -> None:
    planned = whole.load(Whole())
    planned(X)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(whole.PlanMismatch, match=r"the default dtype is torch\.float64"):
            planned(X)
    finally:
        torch.set_default_dtype(torch.float32)
    with (
        torch.backends.mkldnn.flags(enabled=False),
        pytest.raises(whole.PlanMismatch, match=r"mkldnn\.enabled is False, the plan was"),
    ):
        planned(X)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    with pytest.raises(whole.PlanMismatch, match="PyTorch has a hook for all modules"):
        planned(X)
    handle.remove()
    assert is_planned(planned(X))


def test_a_function_of_pytorch_that_was_replaced_is_named(
    whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = whole.load(Whole())
    planned(X)
    monkeypatch.setattr(nn.functional, "layer_norm", lambda *given: given[0])
    sentence = r"the replacement in torch\.nn\.functional is layer_norm, the plan was made with"
    with pytest.raises(whole.PlanMismatch, match=sentence):
        planned(X)
    monkeypatch.undo()
    assert is_planned(planned(X))


def test_what_does_not_matter_may_move(whole: Any) -> None:
    planned = whole.load(Whole())
    planned(X)
    planned.tag = "x"
    planned.inner.unread = 5
    planned.settings.unread = 7
    planned.settings = Settings(scale=3.0, unread=9)
    planned.space = SimpleNamespace(shift=1.0)
    planned.inner.alpha = float("0.5")
    planned.inner.table = torch.ones(3)
    planned.inner.table.add_(1).sub_(1)
    planned.inner.sizes = [1, 2]
    planned.inner.linear = nn.Linear(3, 3)
    planned.inner.drop = nn.Dropout(0.1)
    planned.scaled = scaling(1.5)
    planned.register_forward_hook(lambda *_: None)
    planned.inner.linear.weight = nn.Parameter(torch.ones(3, 3))
    planned.inner.linear.weight.register_post_accumulate_grad_hook(lambda p: None)
    assert is_planned(planned(X)) and is_planned(planned(X))
    planned.inner.drop.p = 0.3
    with pytest.raises(whole.PlanMismatch, match=r"inner\.drop has p 0\.3"):
        planned(X)
    planned.inner.drop.p = 0.1
    assert is_planned(planned(X))


def test_training_as_people_do_is_planned_throughout(whole: Any) -> None:
    planned = whole.load(Whole(), on_mismatch="error")
    optimizer = torch.optim.AdamW(planned.parameters())
    for _ in range(3):
        planned(X).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    planned.eval()
    planned(X)
    planned.train()
    assert is_planned(planned(X))
    planned.load_state_dict(copy.deepcopy(planned.state_dict()))
    planned.to("cpu").float()
    assert is_planned(planned(X))
    twin = copy.deepcopy(planned)
    assert is_planned(twin(X)) and is_planned(planned(X))
    with torch.no_grad():
        planned(X)


class Bound(nn.Module):
    """Keeps a method of one of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(3, 3), nn.Linear(3, 3)
        self.runs = self.one.forward

    def _times(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        return x * factor

    times = functools.partialmethod(_times, factor=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.times(self.runs(x))


def test_whose_method_is_kept_and_with_what_it_is_called_is_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, _ = traced_watched((Bound(), ((X,), {})))
    package = generated(graph, tmp_path / "bound")
    planned = package.load(Bound())
    assert is_planned(planned(X))
    planned.runs = planned.other.forward
    with pytest.raises(package.PlanMismatch, match="runs forward of other, the plan was made with"):
        planned(X)
    planned.runs = planned.one.forward
    changed = functools.partialmethod(Bound._times, factor=3.0)
    monkeypatch.setattr(Bound, "times", changed)
    with pytest.raises(
        package.PlanMismatch, match=r"times a partial of the function .* with other"
    ):
        planned(X)
