"""A plan with an optimizer: trained as without, in the bytes that were predicted, or refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import tightfit
from tests.tightfit.optimizer_steps import Measured, check_three_steps, loss
from tightfit import OffloadOptions
from tightfit.api import optimizer_search
from tightfit.api.optimizer_search import _bisect_plans
from tightfit.schemas.actions import UpdateOnDevice
from tightfit.schemas.costs import read_costs
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.schedule import read_schedule, schedule_link, schedule_optimizer_plan
from tightfit.stages.generate.package import build_package
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ConfigError

SETTINGS: dict[str, Any] = {"strategy": "checkpoint_all", "progress": False}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTFIT_DISK", str(tmp_path))
    monkeypatch.setattr("tightfit.stages.profile.link_cache.CACHED_LINK_BYTES", 4 << 20)


class Tied(nn.Module):
    """Reads tokens and predicts them with one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(60, 24)
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(2)])
        self.norm = nn.LayerNorm(24)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens)
        for layer in self.layers:
            hidden = hidden + nn.functional.gelu(layer(hidden))
        return nn.functional.linear(self.norm(hidden), self.table.weight)


def tied() -> tuple[nn.Module, tuple[Tensor]]:
    torch.manual_seed(0)
    return Tied(), (torch.randint(0, 60, (4, 16)),)


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def momentum(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)


@pytest.mark.sample(only=["adamw"])
@pytest.mark.parametrize("kind", [adamw, momentum])
def test_three_steps_are_those_of_torch_in_the_bytes_predicted(kind: Any, store: Path) -> None:
    model, args = tied()
    plain = copy.deepcopy(model)
    expected, given = kind(plain), kind(model)
    fitted, made = tightfit.plan(model, args, loss=loss, optimizer=given, store=store, **SETTINGS)
    assert made.optimizer_step is not None and made.optimizer is not None
    check_three_steps(fitted, made.optimizer, plain, expected, args, made.optimizer_step)
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    with made.optimizer.accumulating():  # type: ignore[attr-defined]
        loss(fitted(*args)).backward()
    assert Measured(fitted).peak(args) == made.optimizer_step.accumulating_peak
    made.optimizer.step()
    assert made.optimizer.staging_bytes == made.optimizer_step.staging  # type: ignore[attr-defined]
    assert made.optimizer_step.places["optimizer states"].startswith("disk")
    with pytest.raises(ConfigError, match=r"in the backward of a plan already: .* close\(\) it"):
        tightfit.plan(model, args, optimizer=made.optimizer, store=store, **SETTINGS)
    made.optimizer.close()  # type: ignore[attr-defined]


@pytest.mark.sample(2)
@pytest.mark.parametrize(("budget", "some"), [(100_000, True), (400_000, False)])
def test_states_stay_on_the_device_in_what_a_budget_leaves(
    budget: int, some: bool, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightfit.stages.runtime.offload.backward_optimizer.PIECE_BYTES", 512)
    model, args = tied()
    plain = copy.deepcopy(model)
    fitted, made = tightfit.plan(
        model, args, budget=budget, loss=loss, optimizer=adamw(model), store=store,
        strategy="rotor", progress=False,
    )  # fmt: skip
    own, optimizer = made.optimizer_step, cast(Any, made.optimizer)
    assert own is not None and own.total <= budget
    assert 0 < own.resident == optimizer._updates.resident.bytes
    assert (own.slow > 0) == (own.moved > 0) == some
    assert f"{own.resident:,} of them for states that stay there" in made.message
    check_three_steps(fitted, optimizer, plain, adamw(plain), args, own)
    optimizer.close()


def test_its_schedule_is_played_and_written_as_the_same_program(store: Path) -> None:
    model, args = tied()
    _, made = tightfit.plan(
        model, args, loss=loss, optimizer=adamw(model), store=store, check=False, **SETTINGS
    )
    assert made.optimizer_step is not None and made.optimizer is not None
    made.optimizer.close()  # type: ignore[attr-defined]
    path = Path(made.optimizer_step.schedule)
    steps, updates = read_schedule(path), schedule_optimizer_plan(path)
    graph, costs = read_graph(_beside(path, "graph")), read_costs(_beside(path, "costs"))
    updated = [step.action.value for step in steps if isinstance(step.action, UpdateOnDevice)]
    paths = {graph.values[value].path for value in updated}
    assert paths == {name for name, _ in model.named_parameters()}
    played = simulate(graph, costs, steps, link=schedule_link(path), updates=updates)
    assert played.peak == made.optimizer_step.peak
    facts = {"strategy": "", "budget": "", "budget_bytes": 0, "status": "feasible"}
    files = build_package(graph, steps, {**facts, "message": "", "peak": 0, "time": 0.0})
    lines = files["step.py"].decode().splitlines()
    remarks = [line for line in lines if line.startswith("    # ---- updated: ")]
    assert len(remarks) == len(updated)
    plain = (made.package / "step.py").read_text().splitlines()
    code = [line for line in lines if line.strip() and line not in remarks]
    assert [_code(line) for line in code] == [_code(line) for line in plain if line.strip()]


def _beside(path: Path, name: str) -> Path:
    """The file of a plan's graph or costs, which lies above it."""
    found = (folder / f"{name}.arrow" for folder in path.parents)
    return next(file for file in found if file.exists())


def _code(line: str) -> str:
    """A line without what stands in its margin."""
    return line.partition("  #")[0].rstrip()


@pytest.mark.long
def test_a_budget_in_bytes_counts_the_whole_step(store: Path) -> None:
    model, args = tied()

    def whole_of(budget: int) -> Any:
        _, made = tightfit.plan(
            model, args, budget=budget, loss=loss, check=False, store=store,
            optimizer=adamw(model), strategy="rotor", progress=False
        )  # fmt: skip
        made.optimizer.close()  # type: ignore[union-attr]
        assert made.optimizer_step is not None
        assert f"takes {made.optimizer_step.total:,} bytes, " in made.message
        return made.optimizer_step

    assert whole_of(300_000).total <= 300_000
    said = r"no plan fits in 90,000 bytes: the smallest budget known .* is ([\d,]+) bytes; (.*)"
    with pytest.raises(ConfigError, match=said) as refused:
        whole_of(90_000)
    found = re.search(said, str(refused.value))
    assert found is not None and "parameters (the largest " in found[2]
    least = int(found[1].replace(",", ""))
    parts = [int(size.replace(",", "")) for size in re.findall(r" ([\d,]*\d)(?:, |$)", found[2])]
    assert sum(parts) == least and " with what is kept then" in found[2]
    assert whole_of(least).total == least


def test_the_largest_that_fits_is_found() -> None:
    class Whole:
        def __init__(self, total: int) -> None:
            self.total = total

    def made(budget: str) -> Any:
        return budget, Whole(int(budget) + 5)

    def tried(sizes: list[int], limit: int) -> tuple[list[int], list[int]]:
        found: Any = _bisect_plans(sizes, limit, made)
        fitting = [int(size) for size, whole in found if whole.total <= limit]
        return fitting, [int(size) for size, _ in found]

    assert tried([10, 20, 30, 40], 36)[0][-1:] == [30]
    assert tried([10], 15)[0] == [10]
    assert tried([10, 20], 14) == ([], [20, 10])


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (lambda p: torch.optim.RMSprop(p), "optimizer: torch.optim.rmsprop.RMSprop is not known"),
        (lambda p: torch.optim.AdamW(p, differentiable=True), "differentiable=True"),
    ],
)
def test_optimizers_that_cannot_be(kind: Any, words: str, store: Path) -> None:
    model, args = tied()
    with pytest.raises(ConfigError, match=words):
        tightfit.plan(model, args, optimizer=kind(model.parameters()), store=store, **SETTINGS)


def test_a_disk_that_is_none(store: Path) -> None:
    model, args = tied()
    with pytest.raises(ConfigError, match="path is '/nowhere', which is no folder: make it"):
        tightfit.plan(
            model, args, optimizer=adamw(model), offload=OffloadOptions("/nowhere"), store=store,
            **SETTINGS,
        )  # fmt: skip


def test_the_optimizer_alone_for_a_model_that_is_not_planned() -> None:
    model, args = tied()
    plain = copy.deepcopy(model)
    expected, found = adamw(plain), tightfit.in_backward(adamw(model))
    for module, optimizer in ((plain, expected), (model, found)):
        for _ in range(2):
            loss(module(*args)).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    with pytest.raises(ConfigError, match="updated in its backward by another optimizer"):
        tightfit.in_backward(adamw(model))


def test_refusals_name_the_least_of_all_plans_not_of_the_strategys_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Fake:
        built = graph = costs = None

        def __init__(self, *sizes: int) -> None:
            self.sizes = list(sizes)

        def bytes_of(self, written: str) -> int:
            return min(self.sizes) if written == "min" else int(written)

        def made(self, route: Any, budget: str) -> Any:
            fixed = SimpleNamespace(there_before=0)
            plan = SimpleNamespace(message="", size=int(budget), fixed=fixed)
            plan.with_note = lambda note: plan
            return plan

    class Step:
        def step(self, variant: Any, plan: Any) -> Any:
            return SimpleNamespace(total=plan.size + 5, seconds=1.0, staging=0, resident=0)

        def holding(self, variant: Any, plan: Any, whole: Any) -> str:
            return f"its {plan.size}"

    every = Fake(10, 20, 30)
    monkeypatch.setattr(optimizer_search, "_plan_sizes", lambda variant: variant.sizes)
    monkeypatch.setattr(optimizer_search.InputSpecialization, "with_frontier", lambda *given: every)
    monkeypatch.setattr(
        optimizer_search, "_step_totals", lambda own, _: ((s + 5, s) for s in own.sizes)
    )
    monkeypatch.setattr(
        optimizer_search, "_keep_states_resident", lambda own, _, plan, whole, __: (plan, whole)
    )
    own: tuple[Any, Any, Any] = (None, Fake(20, 30), Step())
    with pytest.raises(ConfigError, match=r"in 14 bytes: .* is 15 bytes; .* its 10$"):
        optimizer_search.plan_optimizer_step(*own, "14")
    assert optimizer_search.plan_optimizer_step(*own, "15")[1].total == 15
    assert optimizer_search.plan_optimizer_step(*own, "35")[1].total == 35
