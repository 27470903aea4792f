"""Steps of odd shapes, planned by every strategy: as eager, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit import ModelError, OffloadOptions
from tightfit.util.errors import ConfigError
from tightfit.util.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("traced_once")

MACHINE = {
    "artifact": "tightfit.machine/1",
    "name": "here",
    "devices": [{"name": "cpu", "memory": 10**9}],
    "memories": [{"name": "disk", "memory": 10**9}],
    "links": [{"between": ["cpu", "disk"], "bandwidth": 1e9, "latency": 1e-5}],
}
PLANNED = [name for name, about in STRATEGIES.items() if not about.baseline]


class Complex(nn.Module):
    """Parameters of a complex dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))
        self.second = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x @ self.first) @ self.second).abs()


class Odd(nn.Module):
    """A scalar, an empty tensor, an op of several outputs of which one is used, an output that is
    an input, and a parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))
        self.unused = nn.Linear(3, 3)
        self.into = nn.Linear(4, 8)
        self.out = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, _ = self.into(x).tanh().chunk(2, -1)
        most, _ = (self.out(first) * self.gain).exp().max(-1)
        return torch.cat([most, self.out(x[:0]).sum(-1)]).sum(), x


def step(module: nn.Module, x: Tensor) -> list[Tensor | None]:
    output = module(x)
    found = output if isinstance(output, tuple) else (output,)
    next(each for each in found if each.requires_grad).sum().backward()
    return [*found, *(parameter.grad for parameter in module.parameters())]


class Scores(nn.Module):
    """Outputs that no gradient reaches, of which one would best be made after the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 6)
        self.out = nn.Linear(6, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        scores = self.out(self.into(x).tanh())
        return scores.argmax(-1), scores, scores > 0


@pytest.mark.sample(3)
@pytest.mark.parametrize("strategy", PLANNED)
@pytest.mark.parametrize("kind", [Complex, Odd])
def test_a_plan_gives_what_eager_gives(
    strategy: str,
    kind: type[nn.Module],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    torch.manual_seed(0)
    model = kind()
    x = torch.randn(3, 4, dtype=torch.complex64 if kind is Complex else torch.float32)
    store = tmp_path_factory.getbasetemp() / "odd"
    if strategy == "join":
        with pytest.raises(ConfigError, match="its forward is no join"):
            tightfit.plan(model, (x,), strategy=strategy, store=store, progress=False)
        return
    linked = None
    if STRATEGIES[strategy].links:
        linked = tmp_path / "machine.json"
        linked.write_text(json.dumps(MACHINE))
    planned, _ = tightfit.plan(
        model,
        (x,),
        budget="min",
        strategy=strategy,
        store=store,
        progress=False,
        offload=OffloadOptions(machine=linked),
        **SETTINGS,
    )
    given = step(planned, x)
    model.zero_grad()
    for one, other in zip(given, step(model, x), strict=True):
        assert (one is None) == (other is None)
        assert one is None or (other is not None and torch.equal(one, other))


def test_outputs_that_no_gradient_reaches_are_made_ahead_of_the_loss(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Scores(), torch.randn(12, 4)
    planned, _ = tightfit.plan(
        model, (x,), budget="min", store=tmp_path, progress=False, **SETTINGS
    )
    given = step(planned, x)
    model.zero_grad()
    for one, other in zip(given, step(model, x), strict=True):
        assert one is not None and other is not None and torch.equal(one, other)


def test_a_step_without_a_backward_is_refused(tmp_path: Path) -> None:
    model = nn.Linear(4, 4).requires_grad_(False)
    with pytest.raises(ModelError, match="no parameter of the model and no input requires"):
        tightfit.plan(model, (torch.ones(2, 4),), store=tmp_path, progress=False)
