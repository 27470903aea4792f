"""What the trace read is compared in layers with hooks and the like, and in real models."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import data.models as models
import data.zoo_text as texts
from tests.stages.generate.plans import check_equal, compare, generated, step
from tests.stages.runtime.guards.guarded_models import Closing, Pair
from tests.stages.runtime.guards.guarded_plans import is_planned, traced_watched

X = torch.ones(2, 3)


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
    ("gpt2", lambda: models.gpt2(1, 32, 2, 100, 2, 8, 0.1)),
    ("bert", lambda: models.bert(1, tokens=8)),
    ("llama", lambda: models.llama(1, tokens=8)),
    ("t5", lambda: texts.t5(1)),
    ("resnet", lambda: models.resnet("resnet10", 2, 32)),
]


@pytest.mark.sample(only=["gpt2"])
@pytest.mark.parametrize(("name", "made"), REAL, ids=[name for name, _ in REAL])
def test_real_models_are_planned_again_and_again(name: str, made: Any, tmp_path: Path) -> None:
    graph, built = traced_watched(made(), name)
    args, kwargs = built.samples[0]
    module = generated(graph, tmp_path / name)
    planned = module.load(copy.deepcopy(built.model))
    optimizer = torch.optim.SGD(planned.parameters(), lr=1e-3)
    for _ in range(2):
        output = planned(*args, **kwargs)
        loss = output if isinstance(output, torch.Tensor) else output[0]
        loss.float().sum().backward()
        optimizer.step()
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
