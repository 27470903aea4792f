"""Calls that no plan takes are planned within the same budget; the training goes on as in eager."""

from __future__ import annotations

import copy
import pickle
import random
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tightfit
from tests.tightfit.conftest import SETTINGS
from tests.tightfit.test_multi_shape_module import Net, net, rows
from tightfit import ReplanOptions
from tightfit.stages.validate.load import load_package

pytestmark = pytest.mark.usefixtures("brief_search", "loose_bounds")

BUDGET = "80%"
BATCH = 64


def replanned(store: Path, **options: Any) -> tuple[Any, tightfit.ChosenPlan]:
    """The module of a plan for one batch size, which makes further plans."""
    settings = {"budget": BUDGET, "store": store, "progress": False, "on_mismatch": "replan"}
    return tightfit.plan(net(), (rows(BATCH),), **{**settings, **SETTINGS, **options})


def left(model: torch.nn.Module, *outputs: torch.Tensor) -> list[Any]:
    """What steps leave: outputs, gradients, parameters, buffers and all random states."""
    return [
        *(output.detach() for output in outputs),
        *(weight.grad for weight in model.parameters()),
        *model.state_dict().values(),
        torch.get_rng_state(),
        torch.tensor(list(random.getstate()[1])),
        torch.tensor(np.random.get_state(legacy=True)[1].astype("int64")),  # type: ignore[index]
    ]


def equal(one: list[Any], other: list[Any]) -> bool:
    """Whether two runs have left the same, bit by bit."""
    return len(one) == len(other) and all(
        mine is theirs or (mine is not None and theirs is not None and torch.equal(mine, theirs))
        for mine, theirs in zip(one, other, strict=True)
    )


def seeded(run: Callable[[Any], list[Any]], model: Any) -> list[Any]:
    """What a run leaves that begins with the same random numbers."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)
    return run(model)


def change_dropout(model: Any) -> None:
    model.norm.train()
    model.drop.p = 0.5


def freeze_first(model: Any) -> None:
    model.first.requires_grad_(False)


CHANGES: list[tuple[Callable[[Any], Any] | None, int, bool]] = [
    (None, BATCH, False),
    (None, 24, False),
    (None, 24, True),
    (lambda model: model.norm.eval(), BATCH, False),
    (change_dropout, BATCH, False),
    (freeze_first, BATCH, False),
    (None, 24, True),
]
"""What is done ahead of each step, its number of rows, and whether labels are given."""


def train_through_changes(model: Any) -> list[Any]:
    """Steps whose gradients add up; a forward waits for its backward while each plan is made."""
    seen: list[Any] = []
    model.register_forward_hook(lambda module, args, output: output * 2.0)
    model.last.weight.register_hook(lambda gradient: gradient * 0.5)
    optimizer = torch.optim.SGD([*model.parameters()], 0.05, momentum=0.9)
    for number, (change, count, labels) in enumerate(CHANGES):
        waiting = model(rows(BATCH, 90 + number)) if number < 3 else torch.zeros(())
        if change is not None:
            change(model)
        given = {"labels": torch.arange(count) % 5} if labels else {}
        output = model(rows(count, number), **given)
        (output + waiting).backward()
        seen += [output, torch.rand(2), torch.tensor([random.random(), np.random.rand()])]
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return left(model, *seen)


def test_a_loop_with_changes_is_eagers_bit_for_bit(store: Path) -> None:
    fitted, plan = replanned(store)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mine = seeded(train_through_changes, fitted)
    assert equal(mine, seeded(train_through_changes, net()))
    assert len(plan.replans) == 6 and plan.plans == (plan, *plan.replans)
    assert {one.budget_total for one in plan.plans} == {plan.budget_total}
    assert all(one.planned_total <= (plan.budget_total or 0) for one in plan.plans)
    assert all(store in one.package.parents for one in plan.plans)


def test_a_call_without_an_argument_keeps_the_ranges_of_the_others(store: Path) -> None:
    batch = torch.export.Dim("batch", max=BATCH)
    fitted, plan = tightfit.plan(
        net(),
        (rows(BATCH),),
        {"labels": torch.arange(BATCH) % 5},
        budget=BUDGET,
        store=store,
        progress=False,
        on_mismatch="replan",
        dynamic_shapes={"x": {0: batch}, "labels": {0: batch}},
        **SETTINGS,
    )
    twin = net()
    for count in (BATCH, 24, 9):
        assert equal(step(fitted, count), step(twin, count))
    assert len(plan.replans) == 1


def step(model: Any, count: int, **kwargs: Any) -> list[Any]:
    """What one step leaves."""
    torch.manual_seed(count)
    model.zero_grad()
    output = model(rows(count), **kwargs)
    output.backward()
    return left(model, output)


def test_beyond_the_limit_the_original_runs_with_one_warning(store: Path) -> None:
    fitted, plan = replanned(store, on_mismatch=ReplanOptions(max_replans=1))
    twin = net()
    assert equal(step(fitted, 24), step(twin, 24))
    said = f"takes {plan.keep_all_total:,} bytes, the plan {plan.planned_total:,}"
    with pytest.warns(UserWarning, match=rf"max_replans=1 calls.*{said}"):
        assert equal(step(fitted, 9), step(twin, 9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in (11, 24, BATCH, 9):
            assert equal(step(fitted, count), step(twin, count))
    assert len(plan.replans) == 1


def test_a_call_that_does_not_fit_the_budget_runs_the_original(store: Path) -> None:
    fitted, plan = replanned(store)
    twin = net()
    with pytest.warns(UserWarning, match=r"shape \(4096, 16\).*cannot be planned: infeasible"):
        assert equal(step(fitted, 4096), step(twin, 4096))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equal(step(fitted, 4096), step(twin, 4096))
        assert equal(step(fitted, 24), step(twin, 24))
    assert len(plan.replans) == 1


def test_the_smallest_budget_grows_with_the_call(store: Path) -> None:
    fitted, plan = replanned(store, budget="min", check=False)
    step(fitted, 2 * BATCH)
    (larger,) = plan.replans
    assert plan.budget_total is not None and larger.budget_total is not None
    assert larger.budget_total > plan.budget_total


class Silent(TorchDispatchMode):
    """Runs what is called."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_no_plan_is_made_where_none_can_help(store: Path) -> None:
    fitted, plan = replanned(store, check=False)
    twin = net()
    with pytest.warns(UserWarning, match="inside the mode Silent"), Silent():
        assert equal(step(fitted, BATCH), step(twin, BATCH))
    found: list[bool] = []

    @torch.enable_grad()
    def compare(*_: Any) -> None:
        step(net(), 9)  # the first step of a thread has more threads than all others
        found.append(equal(step(fitted, 9), step(twin, 9)))

    with pytest.warns(UserWarning, match="in the main thread alone"):
        thread = threading.Thread(target=compare)
        thread.start()
        thread.join()
    outer = torch.ones((), requires_grad=True)
    outer.register_hook(compare)
    with pytest.warns(UserWarning, match="within a backward"):
        (outer * 2).backward()
    assert found == [True, True] and not plan.replans


def test_evaluation_makes_no_plan(store: Path) -> None:
    fitted, plan = replanned(store, check=False)
    with torch.no_grad():
        fitted(rows(9))
    fitted.eval()(rows(9))
    assert not plan.replans


def test_a_forward_that_was_wrapped_since_is_planned(store: Path) -> None:
    fitted, plan = replanned(store)
    whole = fitted.forward
    fitted.forward = lambda *args, **kwargs: whole(*args, **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert equal(step(fitted, 24), step(net(), 24))
    assert len(plan.replans) == 1


COPIES: dict[str, Callable[[Any], Any]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_has_the_plans_and_makes_more(way: str, store: Path) -> None:
    fitted, plan = replanned(store)
    step(fitted, 24)
    again = COPIES[way](fitted)
    assert isinstance(again, Net)
    again.load_state_dict(net().state_dict())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        twin = net()
        for count in (24, BATCH):
            assert equal(step(again, count), step(twin, count))
        given = {"labels": torch.arange(24) % 5}
        assert equal(step(again, 24, **given), step(twin, 24, **given))
    assert len(plan.replans) == (2 if way == "deepcopy" else 1)


def test_a_pickle_without_its_loss_runs_the_original(store: Path) -> None:
    fitted, _ = replanned(store, loss=lambda output: output * 1.0, check=False)
    again = pickle.loads(pickle.dumps(fitted))
    assert equal(step(again, 9), step(net(), 9))


def test_what_cannot_make_plans_refuses_in_a_sentence(store: Path) -> None:
    with pytest.raises(tightfit.ConfigError, match="not for a plan with an optimizer"):
        model = net()
        tightfit.plan(
            model,
            (rows(9),),
            optimizer=torch.optim.SGD(model.parameters(), 0.1),
            on_mismatch="replan",
            store=store,
        )
    with pytest.raises(tightfit.ConfigError, match="not for cuda_graphs"):
        replanned(store, cuda_graphs=True)
    with pytest.raises(tightfit.ConfigError, match="max_replans is 0, expected a number of at lea"):
        ReplanOptions(max_replans=0)
    package = replanned(store, check=False)[1].package
    with pytest.raises(tightfit.ConfigError, match=r"needs the options .* call tightfit\.plan"):
        tightfit.load(package, net(), "replan")
    with pytest.raises(ValueError, match=r"'replan', which only tightfit.plan can do: here it can"):
        load_package(package).load(net(), on_mismatch="replan")


def test_no_plan_is_made_for_each_value_of_a_number(store: Path) -> None:
    fitted, plan = replanned(store)
    twin = net()
    with pytest.warns(UserWarning, match=r"drop\.p changes from call to call.*in a buffer") as told:
        for number, rate in enumerate((0.25, 0.5, 0.125, 0.0625, 0.5, 0.25)):
            fitted.drop.p = twin.drop.p = rate
            count = 24 if number == 5 else BATCH
            assert equal(step(fitted, count), step(twin, count))
    assert len(told) == 1 and len(plan.replans) == 2
