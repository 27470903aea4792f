"""What the trace read of a model is compared at load and at each call."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import data.models as models
import data.zoo_text as texts
from schemas.errors import ArtifactError
from stages.generate.package import package
from stages.generate.watched import watched_bytes
from tests.stages.generate import watched_models
from tests.stages.generate.changes import CHANGES, activation, came, layer_longer
from tests.stages.generate.plans import (
    PLAN,
    check_equal,
    compare,
    generated,
    keep_all,
    step,
)
from tests.stages.generate.watched import traced_watched
from tests.stages.generate.watched_models import Closing, Inner, Pair, Settings, Whole, scaling

X = torch.ones(2, 3)


def is_planned(output: torch.Tensor) -> bool:
    """True when a planned step made the output."""
    return output.grad_fn is not None and "_Output" in output.grad_fn.name()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.manual_seed(0)
    graph, _ = traced_watched((Whole(), ((X,), {})), "whole")
    return generated(graph, tmp_path_factory.mktemp("whole") / "planned_whole")


def names(part: Any) -> str:
    return getattr(part, "__name__", "")


@pytest.mark.parametrize(("change", "sentence"), CHANGES, ids=names)
def test_what_moved_since_is_named_at_the_call(whole: Any, change: Any, sentence: str) -> None:
    planned, other = whole.load(Whole()), whole.load(Whole(), otherwise="original")
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
    monkeypatch.setattr(watched_models, name, value)
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
    monkeypatch.setitem(watched_models.FLAGS, "bias", False)
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
    planned = whole.load(Whole(), otherwise="error")
    optimiser = torch.optim.AdamW(planned.parameters())
    for _ in range(3):
        planned(X).sum().backward()
        optimiser.step()
        optimiser.zero_grad()
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


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_computing_hooks_are_captured(tmp_path: Path) -> None:
    norms: list[Any] = [nn.utils.weight_norm, nn.utils.spectral_norm]
    for place, norm in enumerate(norms):
        twins = []
        for _ in range(2):
            torch.manual_seed(4)
            twins.append(nn.Sequential(norm(nn.Linear(3, 3)), nn.Tanh()))
        graph, built = traced_watched((twins[0], ((X,), {})))
        module = generated(graph, tmp_path / f"normed{place}")
        planned = module.load(twins[0])
        for number in range(3):
            output, sample = step(planned, built.samples[0], number)
            expected, given = step(twins[1], built.samples[0], number)
            check_equal((planned, output, sample), (twins[1], expected, given))
        planned[0].register_forward_pre_hook(lambda m, a: None)
        with pytest.raises(module.PlanMismatch, match="0 has the hook "):
            planned(X)


def test_a_second_parametrization_is_named(tmp_path: Path) -> None:
    class Symmetric(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight + weight.T

    model = nn.Sequential(nn.Linear(3, 3))
    parametrize.register_parametrization(model[0], "weight", Symmetric())
    graph, built = traced_watched((model, ((X,), {})))
    module = generated(graph, tmp_path / "symmetric")
    planned: Any = compare(module, built)
    parametrize.register_parametrization(planned[0], "weight", Symmetric())
    with pytest.raises(module.PlanMismatch, match=r"parametrizations\.weight now has the mod"):
        planned(X)


def test_recurrent_layers_are_watched_without_harm(tmp_path: Path) -> None:
    model = nn.LSTM(3, 4)
    graph, built = traced_watched((model, ((torch.ones(2, 1, 3),), {})))
    planned = generated(graph, tmp_path / "lstm").load(built.model)
    for _ in range(2):
        output, _ = planned(torch.ones(2, 1, 3))
        assert is_planned(output)
        output.sum().backward()
        planned.weight_ih_l0 = nn.Parameter(planned.weight_ih_l0.detach().clone())


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    inputs = torch.zeros(2, 3, requires_grad=True), torch.ones(2, 3, requires_grad=True)
    graph, _ = traced_watched((Pair(), (inputs, {})), "pair")
    return generated(graph, tmp_path_factory.mktemp("pair") / "planned_pair")


def test_tied_inputs_are_refused_where_it_matters(pair: Any) -> None:
    planned = pair.load(Pair())
    x, y = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
    assert is_planned(planned(x, y))
    with pytest.raises(pair.PlanMismatch, match="y is the same tensor as x, whose gradients"):
        planned(x, x)
    with pytest.raises(pair.PlanMismatch, match="x is the same tensor as weight, whose"):
        planned(planned.weight, y)
    made = (x * 2).detach_()
    assert is_planned(planned(x * 2, made.requires_grad_()))
    shared = planned.mean.detach().requires_grad_()
    with pytest.raises(pair.PlanMismatch, match="y shares its bytes with the buffer mean, which"):
        planned(x, shared)


REAL = [
    ("gpt2", lambda: models.gpt2(2, 32, 2, 100, 2, 8, 0.1)),
    ("bert", lambda: models.bert(tokens=8)),
    ("llama", lambda: models.llama(tokens=8)),
    ("t5", lambda: texts.t5()),
    ("resnet", lambda: models.resnet("resnet10", 2, 32)),
]


@pytest.mark.parametrize(("name", "made"), REAL, ids=[name for name, _ in REAL])
def test_real_models_are_planned_again_and_again(name: str, made: Any, tmp_path: Path) -> None:
    graph, built = traced_watched(made(), name)
    args, kwargs = built.samples[0]
    module = generated(graph, tmp_path / name)
    planned = module.load(copy.deepcopy(built.model))
    optimiser = torch.optim.SGD(planned.parameters(), lr=1e-3)
    for _ in range(2):
        output = planned(*args, **kwargs)
        loss = output if isinstance(output, torch.Tensor) else output[0]
        loss.float().sum().backward()
        optimiser.step()
    planned.eval()
    with torch.no_grad():
        planned(*args, **kwargs)
    planned.train()
    planned(*args, **kwargs)
    planned.load_state_dict(built.model.state_dict())
    copy.deepcopy(planned).to("cpu")(*args, **kwargs)
    config = getattr(planned, "config", None)
    if config is not None:
        config.name_or_path = "elsewhere"
        planned(*args, **kwargs)


MALFORMED = [
    "[]",
    '{"watch": []}',
    '{"watch": {"modules": [["a"]]}}',
    '{"watch": {"modules": [], "tensors": [], "holders": [{}], "names": [], "hooks": [], '
    '"states": {}}}',
    '{"watch": {"modules": [], "tensors": [], "holders": [], "names": [], "hooks": [], '
    '"states": {"a": []}}}',
]


@pytest.mark.parametrize("guards", MALFORMED)
def test_malformed_guards_are_one_sentence(whole: Any, guards: str) -> None:
    graph, _ = traced_watched((nn.Linear(3, 3), ((X,), {})))
    with pytest.raises(ArtifactError, match="the guards are not JSON of the known form"):
        watched_bytes(replace(graph, guards=guards))


def test_a_package_without_its_description_is_refused(tmp_path: Path) -> None:
    graph, built = traced_watched((nn.Linear(3, 3), ((X,), {})))
    module = generated(graph, tmp_path / "linear")
    assert is_planned(module.load(built.model)(X))
    file = tmp_path / "linear" / "watched.json"
    document = json.loads(file.read_text())
    document["watch"]["holders"][0]["place"] = [["module"]]
    file.write_text(json.dumps(document))
    with pytest.raises(RuntimeError, match=r"watched\.json is not what was generated"):
        module.load(built.model)
    document["watch"]["holders"][0] |= {"place": [["python", "builtins"], ["global", "len"]]}
    for kind in ("defaults", "cells", "names"):
        document["watch"]["holders"][0] |= {"kind": kind, "reads": {"x": 1}}
        file.write_text(json.dumps(document))
        with pytest.raises(RuntimeError, match=r"the plan was made|is not what was generated"):
            module.load(built.model)
    file.write_text("[" * 100_000)
    with pytest.raises(RuntimeError, match=r"watched\.json cannot be read, generate the module"):
        module.load(built.model)
    file.unlink()
    with pytest.raises(RuntimeError, match=r"watched\.json cannot be read, generate the module"):
        module.load(built.model)
    assert "watched.json" in package(graph, _steps(graph), PLAN)


def _steps(graph: Any) -> Any:
    from stages.combine.schedule.opening import open_schedule
    from stages.generate.package import timeless
    from stages.replay.referee import replay

    costs = timeless(graph)
    return replay(graph, costs, open_schedule(graph, costs, keep_all(graph), False)).steps


@pytest.mark.parametrize("which", ["one", "other"])
def test_functions_of_one_code_are_watched_each_with_what_is_around_it(
    which: str, tmp_path: Path
) -> None:
    graph, built = traced_watched((Closing(), ((torch.randn(3, 4),), {})))
    module = generated(graph, tmp_path / "closing").load(built.model)
    module(torch.randn(3, 4))
    getattr(module, which)[0] = 9.0
    with pytest.raises(RuntimeError, match="reads from around it"):
        module(torch.randn(3, 4))
