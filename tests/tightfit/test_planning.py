"""`tightfit.plan(model, ...)`: the whole path in one call, on the store of the workflow."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import tightfit
import tightfit.stages
from data.models import gpt2
from tightfit import SolverOptions
from tightfit.api import verification_timer
from tightfit.api.verification_timer import VerificationTimer
from tightfit.schemas.plan import Plan
from tightfit.stages.combine.frontier_task import FrontierTask
from tightfit.stages.combine.select_task import SelectionTask
from tightfit.stages.generate.task import PackageTask
from tightfit.stages.solve.task import SolveTask
from tightfit.util.errors import ConfigError, ModelError

pytestmark = pytest.mark.usefixtures("traced_once")

SETTINGS: dict[str, Any] = {"solver": SolverOptions(peak_levels=2, save_levels=2, jobs=1)}


def model_and_tokens() -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    model, (args, _) = gpt2(layers=2, width=64, heads=2, vocabulary=100, batch=2, tokens=16)
    return model, args[0]


def gradients(model: torch.nn.Module, tokens: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(tokens).logits.sum().backward()
    return [weight.grad for weight in model.parameters() if weight.grad is not None]


def test_a_module_and_its_plan(store: Path) -> None:
    model, tokens = model_and_tokens()
    wanted = gradients(copy.deepcopy(model), tokens)
    fitted, plan = tightfit.plan(model, (tokens,), budget="50%", store=store, **SETTINGS)
    assert isinstance(plan, Plan)
    assert plan.peak is not None and plan.budget_bytes is not None
    assert plan.peak <= plan.budget_bytes < plan.keep_all.peak
    assert type(fitted).__mro__[1] is type(model)
    assert all(map(torch.equal, gradients(fitted, tokens), wanted))
    assert list(fitted.state_dict()) == list(model.state_dict())


def test_a_further_budget_solves_and_measures_nothing(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = model_and_tokens()
    tightfit.plan(model, (tokens,), budget="50%", store=store, **SETTINGS)
    known = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.suffix == ".arrow"}
    tighter = tightfit.plan(model, (tokens,), budget="40%", store=store, **SETTINGS)[1]
    assert tighter.budget == "40%"
    for path, time in known.items():
        if path.name not in ("graph.arrow", "costs.arrow"):
            assert path.stat().st_mtime_ns == time, path


def never(*_: Any) -> None:
    raise AssertionError("this was there already")


def test_the_same_call_measures_searches_and_writes_nothing_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokens = model_and_tokens()
    asked: dict[str, Any] = {"budget": "50%", "store": store, **SETTINGS}
    first = tightfit.plan(model, (tokens,), **asked)[1]
    wanted = gradients(copy.deepcopy(model), tokens)
    for task in (SolveTask, FrontierTask, SelectionTask, PackageTask):
        monkeypatch.setattr(task, "run", never)
    monkeypatch.setattr("tightfit.stages.profile.profile.measure_op", never)
    fitted, again = tightfit.plan(model, (tokens,), **asked)
    assert (again.message, again.package) == (first.message, first.package)
    assert all(map(torch.equal, gradients(fitted, tokens), wanted))
    with pytest.raises(AssertionError, match="there already"):
        tightfit.plan(model, (tokens,), **(asked | {"budget": "45%"}))
    with (first.package / "__init__.py").open("a") as file:
        file.write("# somebody was here\n")
    with pytest.raises(AssertionError, match="there already"):
        tightfit.plan(model, (tokens,), **asked)


@pytest.mark.parametrize(("asked", "full"), [(True, [False]), ("full", [True]), (False, [])])
def test_a_check_is_of_two_steps_or_full_or_left_out(
    asked: Any, full: list[bool], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks: list[bool] = []

    def noting(graph: Any, built: Any, planned: Any, report: Any, full: bool) -> str:
        checks.append(full)
        return ""

    monkeypatch.setattr("tightfit.stages.validate.validate.check_planned_module", noting)
    model, tokens = model_and_tokens()
    tightfit.plan(model, (tokens,), budget="50%", store=store, check=asked, **SETTINGS)
    assert checks == full


def test_a_baseline_takes_no_budget(store: Path) -> None:
    model, tokens = model_and_tokens()
    _, plan = tightfit.plan(model, (tokens,), strategy="checkpoint_all", store=store, **SETTINGS)
    assert plan.budget == "none"
    named = tightfit.plan(
        model, (tokens,), strategy="checkpoint_all", budget=plan.budget, store=store, **SETTINGS
    )
    assert named[1].peak == plan.peak
    assert plan.peak is not None and plan.peak < plan.keep_all.peak
    with pytest.raises(ConfigError, match="checkpoint_all is a baseline, which keeps to none"):
        tightfit.plan(
            model, (tokens,), strategy="checkpoint_all", budget="1MB", store=store, **SETTINGS
        )


def test_a_budget_too_small_and_one_that_is_none(store: Path) -> None:
    model, tokens = model_and_tokens()
    with pytest.raises(ConfigError, match="smallest"):
        tightfit.plan(model, (tokens,), budget="1kB", store=store, **SETTINGS)
    for written, words in (
        ("8 gigs", "'8 gigs' has the unknown unit"),
        ("minimum", "'minimum' is no size, expected a size .*, or 'min'"),
        (50, "50 is 50 bytes, write '50%' or '50MB'"),
    ):
        with pytest.raises(ConfigError, match=words):
            tightfit.plan(model, (tokens,), budget=written, store=store, **SETTINGS)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("a model", ()), "given a str instead of a torch module"),
        (
            (torch.nn.Linear(2, 2), torch.ones(2)),
            r"given a Tensor as args, .* plan\(model, \(x,\)\)",
        ),
        (
            (torch.nn.Linear(2, 2, device="meta"), (torch.ones(2),)),
            r"^Linear: tensors on the device 'meta' have no values",
        ),
        ((torch.nn.Linear(2, 2), (), [torch.ones(2)]), "no keyword arguments as kwargs"),
        ((torch.nn.Linear(2, 2), (), torch.ones(2)), "no keyword arguments as kwargs"),
        ((torch.nn.Linear(2, 2).requires_grad_(False), (torch.ones(2),)), "^Linear: no parameter"),
    ],
)
def test_what_is_no_call_of_a_model(arguments: Any, words: str, store: Path) -> None:
    with pytest.raises(ModelError, match=words):
        tightfit.plan(*arguments, store=store, **SETTINGS)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        (
            {"optimizer": torch.optim.AdamW},
            "optimizer is given AdamW, expected one of the parameters",
        ),
        (
            {"optimizer": torch.optim.SGD([torch.ones(2)])},
            "optimizer has no parameter of the model",
        ),
        ({"solver": SolverOptions(peak_levels=0)}, "plan: solver: peak_levels: 0"),
        ({"solver": SolverOptions(save_levels=cast(Any, 1.5))}, "plan: solver: save_levels: 1.5"),
        ({"solver": SolverOptions(engine=cast(Any, "gurobi"))}, 'engine: "gurobi"'),
        ({"strategy": "rokmate"}, "rokmate.*rockmate"),
        ({"check": "quick"}, "check is 'quick', expected True, False or \"full\""),
        (
            {"on_mismatch": "orig"},
            'on_mismatch is \'orig\', expected "error", "original", "copy", "replan" or ',
        ),
        ({"cuda_graphs": True}, "cuda_graphs needs a GPU, and the model is on cpu"),
        ({"cuda_graphs": "yes"}, "cuda_graphs is 'yes', expected True or False"),
        ({"store": "/proc/none"}, "cannot be made"),
        ({"store": __file__}, "is a file, expected a folder"),
        ({"store": "a\0b"}, "store: has the character NUL, expected none"),
        ({"store": "x" * 300}, "cannot be made"),
    ],
)
def test_settings_that_are_none(setting: dict[str, Any], words: str, store: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        tightfit.plan(
            torch.nn.Linear(2, 2), (torch.ones(2),), **{"store": store, **SETTINGS, **setting}
        )


def test_jobs_that_are_no_number() -> None:
    with pytest.raises(ConfigError, match="jobs is 0, expected a number of at least 1"):
        SolverOptions(jobs=0)


def test_a_loss_that_is_no_function() -> None:
    with pytest.raises(ModelError, match="plan: loss is a str, expected a function"):
        tightfit.plan(torch.nn.Linear(2, 2), (torch.ones(2),), loss="mse")  # type: ignore[arg-type]


def test_a_loss_is_planned_too(store: Path) -> None:
    model, tokens = model_and_tokens()

    def loss(output: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            output.logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()
        )

    fitted, plan = tightfit.plan(model, (tokens,), budget="60%", loss=loss, store=store, **SETTINGS)
    assert plan.feasible
    reference = copy.deepcopy(model)
    loss(reference(tokens)).backward()
    loss(fitted(tokens)).backward()
    for mine, theirs in zip(fitted.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_what_the_package_does_not_have_is_named() -> None:
    assert callable(tightfit.integrations.plan_trainer)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        tightfit.nothing  # noqa: B018


class Showing(torch.nn.Module):
    """Gives its caller a parameter and its input beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)
        self.scale = torch.nn.Parameter(torch.randn(16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.layer(x), self.scale, x


def test_what_is_outside_the_step_takes_no_memory_of_it(store: Path) -> None:
    model = Showing().train()
    x = torch.randn(8, 16)
    own = copy.deepcopy(model)
    fitted, made = tightfit.plan(model, (x,), budget="100%", store=store, **SETTINGS)
    assert made.feasible
    for module in (own, fitted):
        sum(output.sum() for output in module(x)).backward()
    for mine, other in zip(own.parameters(), model.parameters(), strict=True):
        assert mine.grad is not None and other.grad is not None
        assert torch.equal(mine.grad, other.grad)


def test_an_lstm_is_planned_and_checked(store: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.LSTM(16, 16, 2, bidirectional=True, batch_first=True)
    rows = torch.randn(4, 6, 16)
    reference = copy.deepcopy(model)
    fitted, plan = tightfit.plan(model, (rows,), budget="95%", store=store, **SETTINGS)
    assert plan.feasible
    for module in (fitted, reference):
        module(rows)[0].square().sum().backward()
    for mine, theirs in zip(fitted.parameters(), reference.parameters(), strict=True):
        assert mine.grad is not None and theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)


def test_a_device_may_be_pytorchs_own(store: Path) -> None:
    model, tokens = model_and_tokens()
    here = torch.device("cpu")
    _, made = tightfit.plan(
        model, (tokens,), strategy="keep_all", device=here, store=store, check=False, **SETTINGS
    )
    assert made.feasible


@pytest.mark.parametrize("wrong", [{"store": 5}, {"samples": 5}], ids=str)
def test_settings_of_another_type_are_said(wrong: dict[str, Any]) -> None:
    model, tokens = model_and_tokens()
    with pytest.raises(
        (ConfigError, ModelError), match=r"store is 5, expected|samples that are no"
    ):
        tightfit.plan(model, (tokens,), progress=False, **wrong)


def test_the_check_tells_its_own_times(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(verification_timer.time, "process_time", lambda: now[0])
    said: list[str] = []
    clock = VerificationTimer(lambda done, total, label: said.append(label), "cpu")
    clock(0, 2, "the model's own step")
    now[0] += 2.0
    clock(1, 2, "the planned step")
    now[0] += 3.0
    words = "1.50 times the model's own time in the two steps of its check"
    assert clock.describe_ratio() == words
    assert said == ["the model's own step", "the planned step"]
    clock(2, 2, "another step")
    assert clock.describe_ratio() == ""
    short = VerificationTimer(lambda done, total, label: None, "cpu")
    short(0, 2, "")
    now[0] += 0.01
    short(1, 2, "")
    assert short.describe_ratio() == ""


def test_a_plan_of_longer_steps_says_what_they_took(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification_timer, "SHORTEST_SECONDS", 0.0)
    model, tokens = model_and_tokens()
    _, plan = tightfit.plan(model, (tokens,), budget="50%", store=store, **SETTINGS)
    assert re.search(r"\d\.\d\d times the model's own time in the two steps", plan.message)
    assert "times the model's own" in plan.summary()
