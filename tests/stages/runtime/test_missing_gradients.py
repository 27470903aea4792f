"""Outputs that no loss uses give their parameters no gradient, not zeros."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, keep_all, recompute, traced
from tightfit.stages.torch_utils.model_factory import BuiltModel

CHOICES = [chosen for size in (1, 2, 3, 4) for chosen in itertools.combinations(range(4), size)]


class Trunk(nn.Module):
    """Heads that share a trunk: sums, a concatenation and a square root at 0 meet in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.LayerNorm(6))
        self.heads = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))
        self.scale = nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        hidden = self.trunk(x)
        left, right = hidden.split(3, dim=1)
        low, high = (head(part) for head, part in zip(self.heads, (left, right), strict=True))
        return low, high.tanh(), self.scale.sqrt() * high, hidden.t().sin()


def _gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes: dict[str, Any] = {
        "vocab_size": 30,
        "n_embd": 16,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 16,
    }
    ids = torch.randint(1, 30, (2, 6))
    return GPT2LMHeadModel(GPT2Config(**sizes)).eval(), ((), {"input_ids": ids, "labels": ids})


def _recurrent(kind: Any, **options: Any) -> tuple[nn.Module, Any]:
    return kind(6, 8, bidirectional=True, **options), ((torch.randn(5, 2, 6),), {})


class Cached(nn.Module):
    """Attention that gives its keys and values, too, as a model with a cache does."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q, k, v = (part(x).view(2, 5, 2, 4).transpose(1, 2) for part in self.parts[:3])
        out = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.parts[3](out.transpose(1, 2).reshape(2, 5, 8)), k, v


@pytest.mark.sample(only=["<lambda>0", "<lambda>2"])
@pytest.mark.parametrize(
    "made",
    [
        _gpt2,
        lambda: (Cached(), ((torch.randn(2, 5, 8),), {})),
        lambda: _recurrent(nn.GRU),
        lambda: _recurrent(nn.LSTM),
        lambda: _recurrent(nn.LSTM, batch_first=True),
    ],
)
def test_a_loss_of_the_first_output_alone_gives_eagers_gradients(
    made: Callable[[], tuple[nn.Module, Any]], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, (args, kwargs) = made()
    graph, _ = traced((model, (args, kwargs)))
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(model))
    for run in (planned, model):
        run(*args, **kwargs)[0].square().mean().backward()
    for mine, other in zip(planned.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None
        assert torch.equal(mine.grad, other.grad)


@pytest.fixture(scope="module", params=["keep", "recompute"])
def planned(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModuleType, BuiltModel]:
    torch.manual_seed(0)
    graph, built = traced((Trunk(), ((torch.randn(5, 6, requires_grad=True),), {})))
    executions = keep_all(graph) if request.param == "keep" else recompute(graph, 3, 0.8)
    folder: Path = tmp_path_factory.mktemp("absent")
    return generated(graph, folder / "plan", executions, request.param != "keep"), built


@pytest.mark.parametrize("chosen", CHOICES)
def test_each_choice_of_outputs_gives_eagers_gradients(
    planned: tuple[ModuleType, BuiltModel], chosen: tuple[int, ...]
) -> None:
    package, built = planned
    found = []
    for load in (package.load, lambda model: model):
        model = load(copy.deepcopy(built.model))
        x = built.samples[0][0][0].detach().clone().requires_grad_()
        outputs = model(x)
        sum(outputs[place].square().sum() for place in chosen).backward()
        found.append([x.grad, *(parameter.grad for parameter in model.parameters())])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one.nan_to_num(), other.nan_to_num())
        assert one is None or torch.equal(one.isnan(), other.isnan())
    assert any(each is None for each in found[0]) or 2 in chosen


class Pairs(nn.Module):
    """Logits of pairs, and the same transposed: their gradients meet with different strides."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(5, 7), nn.Linear(5, 7)
        self.scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.left(x) @ self.right(x).t() * self.scale.exp()
        return logits.t(), logits


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("in_place", [False, True])
def test_one_of_two_that_meet_has_the_strides_that_it_has_in_eager(
    place: int, in_place: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    graph, built = traced((Pairs(), ((torch.randn(37, 5),), {})))
    package = generated(graph, tmp_path / "plan", keep_all(graph), in_place)
    gradients, weights = [], torch.randn(37, 37)
    for load in (package.load, lambda model: model):
        model = load(copy.deepcopy(built.model))
        outputs = model(*built.samples[0][0])
        try:
            (outputs[place] * weights).sum().backward()
        except RuntimeError as error:
            assert in_place
            assert "only some of the outputs have a gradient" in str(error)
            return
        gradients.append([parameter.grad for parameter in model.parameters()])
    for mine, theirs in zip(*gradients, strict=True):
        assert torch.equal(mine, theirs)


class Weighing(torch.autograd.Function):
    """Two results, whose gradients are not taken alike."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 1.0, x * 2.0

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return torch.add(g, h, alpha=2)


class Halving(torch.autograd.Function):
    """Whatever arrives, its gradient is the same."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return torch.full((5, 6), 0.5)


class Turning(Halving):
    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -g


def hooked(y: torch.Tensor) -> list[torch.Tensor]:
    parts = list(y.chunk(2, 1))
    parts[0].register_hook(lambda g: torch.ones(5, 3) if g is None else g * 2)
    return [parts[0].sin(), parts[1].cos()]


class Pythonic(nn.Module):
    def __init__(self, made: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.made = nn.Linear(6, 6), made

    def forward(self, x: torch.Tensor) -> Any:
        return self.made(self.layer(x))


@pytest.mark.parametrize(
    ("made", "refuses"),
    [
        (lambda y: [part.clone() for part in Weighing.apply(y)], True),
        (lambda y: [Halving.apply(y), y.clone()], True),
        (hooked, True),
        (lambda y: [Turning.apply(y), y.clone()], False),
    ],
)
def test_python_in_the_backward_that_needs_all_gradients(
    made: Callable[[torch.Tensor], Any], refuses: bool, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    graph, built = traced((Pythonic(made), ((torch.randn(5, 6),), {})))
    package = generated(graph, tmp_path / "plan")
    x = built.samples[0][0][0]
    for chosen in ((0, 1), (0,), (1,)):
        models = [package.load(copy.deepcopy(built.model)), copy.deepcopy(built.model)]
        for model in models:
            outputs = model(x)
            loss = sum(outputs[place].square().sum() for place in chosen)
            if model is models[0] and refuses and len(chosen) == 1:
                with pytest.raises(
                    RuntimeError, match=r"output \d receives no gradient, but Python"
                ):
                    loss.backward()
                break
            loss.backward()
        else:
            assert torch.equal(models[0].layer.weight.grad, models[1].layer.weight.grad)
