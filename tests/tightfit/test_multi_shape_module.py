"""Samples of several shapes: one module with a plan each, chosen at the call."""

from __future__ import annotations

import copy
import gc
import pickle
import traceback
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.tightfit.conftest import SETTINGS
from tightfit.api import stage_runner

pytestmark = pytest.mark.usefixtures("traced_once")

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Net(torch.nn.Module):
    """Takes rows, and classes now and then; counts its steps in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(16, 32)
        self.norm = torch.nn.BatchNorm1d(32)
        self.drop = torch.nn.Dropout(0.25)
        self.last = torch.nn.Linear(32, 5)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = self.last(self.drop(self.norm(self.first(x).tanh()).sigmoid()))
        if labels is None:
            return out.square().mean()
        return torch.nn.functional.cross_entropy(out, labels)


def net(seed: int = 0) -> Net:
    torch.manual_seed(seed)
    return Net().train()


def rows(count: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(seed))


def call(count: int, labels: bool = False, seed: int = 1) -> Call:
    given = {"labels": torch.arange(count) % 5} if labels else {}
    return (rows(count, seed),), given


SAMPLES = [call(64), call(24), call(24, labels=True)]


def plan(store: Path, model: Net, **options: Any) -> tuple[torch.nn.Module, tightfit.ChosenPlan]:
    settings = {
        **{"budget": "80%", "store": store, "progress": False, "samples": SAMPLES},
        **{**SETTINGS, **options},
    }
    return tightfit.plan(model, **settings)


def train(model: torch.nn.Module, calls: list[Call]) -> list[torch.Tensor]:
    """Outputs, gradients, weights and buffers of a few steps on new contents."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    found = []
    for number, ((x, *_), kwargs) in enumerate(calls):
        torch.manual_seed(number)
        optimizer.zero_grad()
        output = model(rows(len(x), number + 7), **kwargs)
        output.backward()
        found.append(output.detach())
        found += [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
        optimizer.step()
    return [*found, *(tensor.clone() for tensor in model.state_dict().values())]


def equal(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


ORDERS = [SAMPLES, SAMPLES[::-1], [*SAMPLES, *SAMPLES, SAMPLES[1], SAMPLES[1]]]


@pytest.mark.sample(2)
@pytest.mark.parametrize("order", range(len(ORDERS)))
def test_each_call_gives_eagers_bits(order: int, store: Path) -> None:
    model = net()
    fitted, made = plan(store, model)
    assert len(made.plans) == 3 and made is made.plans[0]
    assert isinstance(fitted, Net) and [*fitted.state_dict()] == [*model.state_dict()]
    assert equal(train(fitted, ORDERS[order]), train(net(), ORDERS[order]))


def test_one_budget_in_bytes_for_all(store: Path) -> None:
    _, made = plan(store, net(), check=False)
    totals = {one.budget_total for one in made.plans}
    assert len(totals) == 1
    assert made.peak is not None and made.budget_bytes is not None
    assert made.peak <= made.budget_bytes < made.keep_all.peak
    assert made.plans[1].recomputed == 0
    _, least = plan(store, net(), budget="min", check=False)
    assert least.plans[0].budget_total == least.plans[0].smallest_budget


def test_packages_for_several_shapes_are_loaded_as_one_module(store: Path) -> None:
    folders = [one.package for one in plan(store, net())[1].plans]
    fitted = tightfit.load(folders, net())
    assert equal(train(fitted, ORDERS[2]), train(net(), ORDERS[2]))
    assert equal(train(copy.deepcopy(fitted), SAMPLES), train(fitted, SAMPLES))
    with pytest.raises(
        tightfit.PlanMismatch, match=r"that for \(64, 16\).*for \(24, 16\), \(24,\)"
    ):
        fitted(rows(3))
    other = tightfit.load(folders, net(), "original")
    assert torch.isfinite(other(rows(3)))
    assert equal(train(tightfit.load(folders[:1], net()), SAMPLES[:1]), train(net(), SAMPLES[:1]))
    with pytest.raises(tightfit.ConfigError, match="load is given no package"):
        tightfit.load([], net())
    with pytest.raises(tightfit.ArtifactError, match="load refuses the"):
        tightfit.load(folders, torch.nn.Linear(16, 5))


def test_no_plan_for_one_shape_names_it(store: Path) -> None:
    with pytest.raises(
        tightfit.ConfigError, match=r"shapes \(64, 16\): infeasible: 1% is .* is 7\d\.\d%"
    ) as caught:
        plan(store, net(), budget="1%")
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("smallest budget known to work") == 1


def test_a_shape_that_was_not_planned_is_refused_or_run_as_the_original(store: Path) -> None:
    fitted, _ = plan(store, net(), check=False)
    with pytest.raises(tightfit.PlanMismatch) as caught:
        fitted(rows(7))
    said = str(caught.value)
    assert "that for (64, 16) since x has shape (7, 16), the plan was made for (64, 16)" in said
    assert 'plan with a sample of its shapes too, or with on_mismatch="original"' in said
    loose, _ = plan(store, net(), check=False, on_mismatch="original")
    calls = [call(7), SAMPLES[0], call(3, labels=True)]
    assert equal(train(loose, calls), train(net(), calls))


@pytest.mark.parametrize("way", ["as planned", "pickle"])
def test_inputs_of_other_strides_are_copied_where_asked(way: str, store: Path) -> None:
    fitted, _ = plan(store, net(), check=False, on_mismatch="copy")
    again = COPIES.get(way, lambda model: model)(fitted)
    for count in (64, 24):
        x, twin = rows(count), net()
        turned = x.t().contiguous().t()
        torch.manual_seed(2)
        mine = again(turned)
        torch.manual_seed(2)
        assert torch.equal(mine, twin(x))
        again.load_state_dict(net().state_dict())
    with pytest.raises(tightfit.PlanMismatch, match=r"no plan takes the call, that for .64, 16"):
        again(rows(7))


def test_what_changed_since_is_told_once(store: Path) -> None:
    fitted, _ = plan(store, net(), check=False)
    fitted(*SAMPLES[1][0])
    fitted.drop.p = 0.5  # type: ignore[union-attr]
    for sample in SAMPLES:
        with pytest.raises(tightfit.PlanMismatch, match=r"^drop has p 0\.5, the plan was made"):
            fitted(*sample[0], **sample[1])


def test_evaluation_runs_the_original_in_any_shape(store: Path) -> None:
    fitted, _ = plan(store, net(), check=False)
    twin = net()
    for count in (64, 24, 9):
        with torch.no_grad():
            found = []
            for model in (fitted, twin):
                torch.manual_seed(0)
                found.append(model(rows(count)))
            assert torch.equal(found[0], found[1])
    for model in (fitted, twin):
        model.eval()
    assert torch.equal(fitted(rows(9)), twin(rows(9)))
    for model in (fitted, twin):
        model.train()
    assert equal(train(fitted, SAMPLES), train(twin, SAMPLES))


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_has_all_plans(way: str, store: Path) -> None:
    fitted, _ = plan(store, net(), check=False)
    again = COPIES[way](fitted)
    with torch.no_grad():
        fitted.first.weight.zero_()  # type: ignore[union-attr,operator]
    assert equal(train(again, SAMPLES), train(net(), SAMPLES))
    with pytest.raises(tightfit.PlanMismatch, match="no plan takes the call"):
        again(rows(7))
    assert copy.copy(fitted).first is fitted.first


def test_a_refused_call_keeps_nothing(store: Path) -> None:
    fitted, _ = plan(store, net(), check=False)
    gc.collect()
    gc.disable()
    try:
        x = rows(24)
        alive = weakref.ref(x)
        fitted(x).backward()
        del x
        assert alive() is None
    finally:
        gc.enable()


def test_shapes_that_are_alike_are_planned_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    run = stage_runner.StageRunner.run

    def noting(self: Any, task: Any, reuse: bool = False) -> None:
        ran.append(task.stage)
        run(self, task, reuse)

    monkeypatch.setattr(stage_runner.StageRunner, "run", noting)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8), torch.nn.Tanh()] * 3)
    samples: list[Any] = [((torch.randn(count, 8),), {}) for count in (16, 16, 8)]
    settings: Any = {"store": tmp_path, "progress": False, "check": False, **SETTINGS}
    for given in (samples, samples[::-1]):
        made = tightfit.plan(model, samples=given, strategy="checkpoint_all", **settings)[1]
        assert len(made.plans) == 2
    assert ran.count("solve") == ran.count("combine") == 2


@pytest.mark.parametrize(
    ("samples", "words"),
    [([], "no samples"), ([torch.ones(2)], r"not a list of \(args, kwargs\)")],
)
def test_what_are_no_samples(samples: Any, words: str, store: Path) -> None:
    with pytest.raises(tightfit.ModelError, match=words):
        tightfit.plan(net(), samples=samples, store=store, progress=False)
