"""What a forward reads is compared however far it lies and however it is reached."""

from __future__ import annotations

import copy
import functools
import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from tests.stages.generate.plans import compare, generated
from tests.stages.runtime.guards.guarded_plans import traced_watched
from tests.stages.runtime.guards.reachable_objects import READS, Derived, Factor, Model, Thing
from tests.stages.runtime.guards.settings import far
from tightfit.util.errors import ModelError

X = torch.ones(2, 3)


@pytest.mark.sample("name")
@pytest.mark.parametrize("kind", [Model, Derived])
@pytest.mark.parametrize("name", READS)
def test_what_moves_is_noticed(
    name: str, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Factor, "factor", 2.0)
    monkeypatch.setattr(far.SETTINGS, "level", 1.0)
    make, reads, change = READS[name]
    graph, built = traced_watched((kind(make(), reads), ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    before = planned(X)
    assert torch.equal(before, kind.forward(built.model, X))
    change(built.model.held)
    assert not torch.equal(before, kind.forward(built.model, X))
    with pytest.raises(package.PlanMismatch, match=r"the plan was made|when the plan was made"):
        planned(X)


ASKS: list[Callable[[nn.Module], bool]] = [
    lambda model: "kind" in vars(model),
    lambda model: "kind" in model.__dict__,
    lambda model: "kind" in dir(model),
]


class Asking(nn.Module):
    """Does another thing where it has an attribute that it looks for among all."""

    def __init__(self, asks: Callable[[nn.Module], bool]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.asks = asks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * (2.0 if self.asks(self) else 1.0)


@pytest.mark.parametrize("asks", ASKS)
def test_an_attribute_that_a_model_looks_for_among_its_own(asks: Any, tmp_path: Path) -> None:
    graph, built = traced_watched((Asking(asks), ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    planned(X)
    planned.kind = "another"
    with pytest.raises(package.PlanMismatch, match="the model has other attributes than when"):
        planned(X)


UNFOUND: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "a member of a set": (lambda: {Thing()}, lambda h: sum(thing.gain for thing in h)),
    "a key": (lambda: {Thing(): 1.0}, lambda h: next(iter(h)).gain),
}


@pytest.mark.parametrize("name", UNFOUND)
def test_what_cannot_be_found_again_is_refused(name: str) -> None:
    make, reads = UNFOUND[name]
    with pytest.raises(ModelError, match=r"reads 'gain' of a Thing .* keep it in a list"):
        traced_watched((Model(make(), reads), ((X,), {})))


def test_what_a_bound_method_changes_is_refused() -> None:
    thing = Thing()
    with pytest.raises(ModelError, match=r"the forward sets held\.__self__\.gain"):
        traced_watched((Model(thing.count, lambda held: held()), ((X,), {})))
    assert thing.gain == 2.0


@functools.lru_cache
def table(width: int) -> torch.Tensor:
    return torch.arange(width).float() * 0.1


@pytest.mark.parametrize("warm", [False, True])
def test_a_cached_table(warm: bool, tmp_path: Path) -> None:
    """The cache holds no tensor without memory afterwards."""
    table.cache_clear()
    if warm:
        table(3)
    graph, built = traced_watched((Model(None, lambda held: table(3)), ((X,), {})))
    assert table.cache_info().currsize == int(warm)
    compare(generated(graph, tmp_path / "plan"), built)


@functools.lru_cache
def norm_of(layer: nn.Linear) -> torch.Tensor:
    return layer.weight.detach().norm()


@functools.cache
def drawn(width: int) -> dict[str, list[torch.Tensor]]:
    return {"drawn": [torch.rand(width)]}


@functools.cache
def settings() -> Any:
    return Thing()


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(
    ("reads", "said"),
    [
        (lambda held: norm_of(held), "norm_of keeps what it returns .*, and makes tensors of"),
        (lambda held: drawn(3)["drawn"][0], "drawn keeps what it returns"),
        (lambda held: settings().gain, r"reads 'gain' of a Thing .* kept by a cached function"),
    ],
)
def test_a_cached_function_of_what_changes(warm: bool, reads: Any, said: str) -> None:
    functions = (norm_of, drawn, settings)
    model = Model(nn.Linear(3, 3), reads)
    for function in functions:
        function.cache_clear()
    if warm:
        model(X)
    before = [function.cache_info().currsize for function in functions]
    with pytest.raises(ModelError, match=said):
        traced_watched((model, ((X,), {})))
    assert [function.cache_info().currsize for function in functions] == before


def test_what_a_cached_function_keeps_is_changed(tmp_path: Path) -> None:
    table.cache_clear()
    with pytest.raises(ModelError, match="changes in place what a function keeps"):
        traced_watched((Model(None, lambda held: table(3).add_(1.0)), ((X,), {})))
    graph, built = traced_watched((Model(None, lambda held: table(3)), ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    built.model(X)
    planned(X)
    table(3).mul_(2.0)
    with pytest.raises(
        package.PlanMismatch, match=r"a tensor that table keeps was changed .* clear"
    ):
        planned(X)
    table.cache_clear()
    planned(X)


def test_another_cached_function(tmp_path: Path) -> None:
    model = Model(functools.lru_cache(lambda n: n + 1.0), lambda held: held(1))
    graph, built = traced_watched((model, ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    planned(X)
    planned.held = functools.lru_cache(lambda n: n + 2.0)
    with pytest.raises(package.PlanMismatch, match="has held another value"):
        planned(X)


def test_parametrizations_within_their_cache_are_refused(tmp_path: Path) -> None:
    model = parametrizations.spectral_norm(nn.Linear(3, 3))
    graph, built = traced_watched((model, ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    planned(X)
    with (
        parametrize.cached(),
        pytest.raises(package.PlanMismatch, match="the cache of parametrizations is True"),
    ):
        planned(X)
    with parametrize.cached(), pytest.raises(ModelError, match=r"within parametrize\.cached"):
        traced_watched((parametrizations.spectral_norm(nn.Linear(3, 3)), ((X,), {})))


class Child(nn.Linear):
    """A layer that refers to the model that it is of."""

    parent: list[nn.Module]


class Parent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = Child(3, 3)
        self.child.parent = [self]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x) * len(self.child.parent)


def test_a_layer_that_refers_to_its_model(tmp_path: Path) -> None:
    graph, built = traced_watched((Parent(), ((X,), {})))
    planned = generated(graph, tmp_path / "plan").load(built.model)
    copied = copy.deepcopy(planned)
    assert torch.equal(copied(X), planned(X))
    assert vars(copied.child.parent[0]) is vars(copied)
    assert copied.child.weight is not planned.child.weight


class Marked(Model):
    """A model whose forward is timed by the profiler."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.profiler.record_function("a region"):
            return self.layer(x)


def test_a_region_of_the_profiler_computes_nothing(tmp_path: Path) -> None:
    graph, built = traced_watched((Marked(None, abs), ((X,), {})))
    compare(generated(graph, tmp_path / "plan"), built)


class Outer(nn.Module):
    """A model with a part that may be planned."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x).sin()


def test_a_planned_part_of_a_model_that_is_planned(tmp_path: Path) -> None:
    part = Model(2.0, abs)
    graph, _ = traced_watched((part, ((X,), {})))
    outer = Outer(generated(graph, tmp_path / "part").load(part))
    graph, _ = traced_watched((outer, ((X,), {})))
    planned = generated(graph, tmp_path / "whole").load(outer)
    assert torch.equal(planned(X), Outer(part)(X))


def test_a_shallow_copy_has_attributes_of_its_own(tmp_path: Path) -> None:
    model = Model(2.0, abs)
    graph, _ = traced_watched((model, ((X,), {})))
    planned = generated(graph, tmp_path / "plan").load(model)
    copied = copy.copy(planned)
    copied.held, copied.note = 3.0, "other"
    assert planned.held == 2.0 and not hasattr(planned, "note")
    assert copied.layer is planned.layer
    planned(X)
    with pytest.raises(RuntimeError, match=r"held 3\.0, the plan was made with 2\.0"):
        copied(X)


SCRIPT = """
import sys
import torch
from torch import nn

SCALE = 2.0

class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        return self.layer(x) * SCALE

if __name__ == "__main__":
    import scaled
    sys.path.insert(0, sys.argv[1])
    from plan import PlanMismatch, load
    planned = load(Small())
    planned(torch.ones(2, 3))
    SCALE = 3.0
    try:
        planned(torch.ones(2, 3))
    except PlanMismatch as error:
        print(error)
"""


@pytest.mark.long
def test_a_script_that_was_planned_as_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its globals are those of the script, whatever the module of the same file says."""
    script = tmp_path / "scaled.py"
    script.write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("scaled")
    graph, _ = traced_watched((module.Small(), ((X,), {})))
    generated(graph, tmp_path / "plan")
    command = [sys.executable, str(script), str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "the global SCALE is 3.0, the plan was made with 2.0" in child.stdout, child.stderr
    del sys.modules["scaled"]
