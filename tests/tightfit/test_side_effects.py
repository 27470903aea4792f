"""What a forward stores beside its output, and what hooks of submodules do, a planned one does."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit import ModelError, PlanMismatch
from tightfit.stages.runtime.guards.lru_caches import nested_tensors

pytestmark = pytest.mark.usefixtures("loose_bounds")

STORED: Any = None
CALLS = 0


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.body = nn.Linear(8, 4), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = self.gate(x).softmax(-1)
        self.aux_loss = shares.mean(0).pow(2).sum()
        self.logits = shares.detach()
        self.tokens = x.shape[0]
        return self.body(x).relu() * shares[:, :1]


class Experts(nn.Module):
    """An auxiliary loss in each layer, which the model adds up, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.calls, self.width = Router(), Router(), 0, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.last(self.first(x))
        self.calls += 1
        self.width = x.shape[-1]
        self.aux_loss = self.first.aux_loss + self.last.aux_loss
        return y


class Layers(nn.Module):
    """A list, a deque and a dictionary that each call adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.maps: list[torch.Tensor] = []
        self.last: collections.deque[torch.Tensor] = collections.deque(maxlen=2)
        self.means: dict[str, Any] = {"calls": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, layer in enumerate(self.layers):
            x = layer(x).tanh()
            self.maps.append(x)
            self.last.append(x.detach())
            self.means[f"layer {number}"] = x.mean()
        self.means["calls"] += 1
        self.means.update(width=8)
        return x


class Fresh(nn.Module):
    """A list that is made anew, one that is cleared, and what the model returns, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.losses: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.losses.clear()
        y = self.layer(x)
        self.losses.append(y.pow(2).mean())
        self.hidden = [y, {"squares": y * y}]
        self.output = y.relu()
        return self.output


class Global(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global STORED, CALLS
        y = self.layer(x)
        STORED, CALLS = y, CALLS + 1
        return y.relu()


class Losses:
    """A dictionary that all modules share, of a class."""

    terms: ClassVar[dict[str, torch.Tensor]] = {}


class Part(nn.Module):
    def __init__(self, losses: list[torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.losses, self.shared = nn.Linear(8, 8), losses, Losses()
        self._features: Any = None

    @property
    def features(self) -> Any:
        return self._features

    @features.setter
    def features(self, value: torch.Tensor) -> None:
        self._features = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.features = self.layer(x).tanh()
        self.losses.append(self.features.mean())
        self.shared.terms["squares"] = self.features.pow(2).sum()
        self.given = x
        return self.features + x


class Shared(nn.Module):
    """A list that all parts share, a dictionary of a class, a property, what is given."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []
        self.parts = nn.Sequential(Part(self.losses), Part(self.losses))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x)


def plan(model: nn.Module, store: Path, **options: Any) -> nn.Module:
    settings = {**SETTINGS, "store": store, "strategy": "keep_all", "progress": False, **options}
    return tightfit.plan(model, (torch.ones(5, 8),), **settings)[0]


def stored(model: nn.Module, watched: Any = None) -> list[Any]:
    """All that is stored beside parameters and buffers, and the tensors of it that are trained."""
    found = [STORED if isinstance(model, Global) else None, watched]
    found += [dict(Losses.terms)] if isinstance(model, Shared) else []
    for module in model.modules():
        found += [value for name, value in vars(module).items() if name[0] != "_"]
    return found


def step(model: nn.Module, seed: int, watched: Any = None) -> list[Any]:
    """The output, all that is stored and all gradients of a step whose loss takes in all of it."""
    torch.manual_seed(seed)
    model.zero_grad()
    output = model(torch.randn(5, 8))
    found = [tensor for tensor in nested_tensors(stored(model, watched)) if tensor.grad_fn]
    (output.pow(2).mean() + sum((1 + x.pow(2)).log().sum() for x in found)).backward()
    tensors = [output, *found, *(weight.grad for weight in model.parameters())]
    return [None if x is None else x.detach().clone() for x in tensors]


def same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        x is y if x is None or y is None else torch.equal(x, y)
        for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("kind", [Experts, Layers, Fresh, Global, Shared])
def test_what_a_forward_stores_is_stored_with_its_gradients(
    kind: Callable[[], nn.Module], store: Path
) -> None:
    torch.manual_seed(0)
    model: Any = kind()
    eager = copy.deepcopy(model)
    planned: Any = plan(model, store, check="full")
    for seed in range(3):
        for one in (eager, planned):
            if kind is Layers:
                one.maps = []
            if kind is Shared:
                one.losses.clear()
        before = CALLS
        expected = step(eager, seed)
        assert same(step(planned, seed), expected)
        assert CALLS - before == 2 * (kind is Global)
    if kind is Experts:
        assert planned.calls == eager.calls == 3
        assert planned.first.tokens == 5 and planned.width == 8
        assert planned.aux_loss is model.aux_loss
    if kind is Layers:
        assert planned.means["calls"] == 3
        assert list(planned.means) == list(eager.means)
        assert len(planned.last) == 2
    if kind is Fresh:
        assert planned.output.grad_fn is not None


def test_a_loss_that_reads_what_is_stored_is_planned(store: Path) -> None:
    torch.manual_seed(0)
    model: Any = Experts()
    eager = copy.deepcopy(model)

    def loss(of: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda output: output.pow(2).mean() + 0.1 * of.aux_loss

    planned = plan(model, store, loss=loss(model), strategy="auto", budget="min")
    results = []
    for one in (eager, planned):
        one.zero_grad()
        loss(one)(one(torch.ones(5, 8))).backward()
        results.append([weight.grad for weight in one.parameters()])
    assert same(*results)


def test_the_output_that_is_stored_is_the_object_that_is_returned(store: Path) -> None:
    planned: Any = plan(Fresh(), store)
    assert planned(torch.ones(5, 8)) is planned.output


def test_a_place_that_is_gone_refuses_the_call(store: Path) -> None:
    planned: Any = plan(Layers(), store)
    planned.maps = None
    with pytest.raises(PlanMismatch, match="maps"):
        planned(torch.ones(5, 8))


class Carried(nn.Module):
    """What is stored is read in the next call, in a way of several."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(8, 8), way
        self.average: Any = None
        self.outputs: list[torch.Tensor] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        if self.way == "average":
            new = y.detach().mean(0)
            self.average = new if self.average is None else 0.9 * self.average + 0.1 * new
            return y - self.average
        if self.way == "outputs":
            self.outputs.append(y.detach())
            if len(self.outputs) > 100:
                self.outputs.pop(0)
            return y
        self.calls += 1
        return y * 2 if self.calls % 50 == 0 else y


@pytest.mark.parametrize(
    ("way", "remedy"), [("average", "buffer"), ("outputs", "list of its own"), ("calls", "buffer")]
)
def test_what_is_carried_from_step_to_step_is_refused_by_name(
    way: str, remedy: str, store: Path
) -> None:
    said = f"{way} at .*test_side_effects.py:\\d+ and reads .*earlier steps? .*{remedy}"
    with pytest.raises(ModelError, match=said):
        plan(Carried(way), store)


class Recorder:
    """Hooks of a user's that keep and count what they see."""

    def __init__(self) -> None:
        self.seen: list[torch.Tensor] = []
        self.named: dict[str, torch.Tensor] = {}
        self.calls = 0

    def keep(self, module: nn.Module, given: Any, output: torch.Tensor) -> None:
        self.seen.append(output)
        self.calls += 1

    def name(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, given: Any, output: torch.Tensor) -> None:
            self.named[name] = output.detach()

        return hook


def hooked() -> tuple[nn.Module, Recorder, Recorder]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    recorder, naming = Recorder(), Recorder()
    model[0].register_forward_hook(recorder.keep)
    model[1].register_forward_hook(naming.name("relu"))
    model[2].register_forward_pre_hook(lambda module, given: None)
    model[2].register_forward_hook(lambda module, given, output: output * 2)
    return model, recorder, naming


def test_forward_hooks_of_submodules_do_what_they_do(store: Path) -> None:
    (model, mine, named), (eager, theirs, others) = hooked(), hooked()
    planned = plan(model, store)
    assert not mine.calls and not mine.seen and not named.named
    for seed in range(2):
        mine.seen.clear()
        theirs.seen.clear()
        assert same(step(planned, seed, mine), step(eager, seed, theirs))
    assert mine.calls == theirs.calls == 2
    assert torch.equal(named.named["relu"], others.named["relu"])


def test_a_variable_around_a_hook_is_refused_by_name(store: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    calls = 0

    def hook(module: nn.Module, given: Any, output: torch.Tensor) -> None:
        nonlocal calls
        calls += 1

    model[0].register_forward_hook(hook)
    with pytest.raises(ModelError, match=r"sets calls, which .*hook at .*nonlocal.*attribute"):
        plan(model, store)
    assert calls == 0


class Momentum(nn.Module):
    """A copy that the forward averages, read with or without a gradient through it."""

    def __init__(self, trained: bool, frozen: bool = True) -> None:
        super().__init__()
        self.query, self.key, self.trained = nn.Linear(8, 8), nn.Linear(8, 8), trained
        self.key.requires_grad_(not frozen)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for new, old in zip(self.query.parameters(), self.key.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
        with torch.set_grad_enabled(self.trained):
            target = self.key(self.query(x).tanh())
        return (self.query(x) - target).pow(2).mean()


@pytest.mark.parametrize("trained", [False, True])
def test_an_averaged_copy_is_written_as_in_eager(trained: bool, store: Path) -> None:
    torch.manual_seed(0)
    model = Momentum(trained)
    eager = copy.deepcopy(model)
    planned = plan(model, store, check="full")
    for seed in range(3):
        for one in (eager, planned):
            torch.manual_seed(seed)
            one.zero_grad()
            one(torch.randn(5, 8)).backward()
            trained_weights = [weight for weight in one.parameters() if weight.requires_grad]
            torch.optim.SGD(trained_weights, 0.1).step()
        assert same([*planned.parameters()], [*eager.parameters()])
    for one in (eager, planned):
        first = one(torch.ones(5, 8))
        one(torch.ones(5, 8))
        if trained:
            with pytest.raises(RuntimeError, match=r"in.?place"):
                first.backward()
        else:
            first.backward()


def test_a_trained_parameter_that_the_forward_writes_is_refused_by_name(store: Path) -> None:
    said = r"writes at .*test_side_effects.py:\d+ to its parameter 'key.weight'.*requires_grad_"
    with pytest.raises(ModelError, match=said):
        plan(Momentum(False, frozen=False), store)
