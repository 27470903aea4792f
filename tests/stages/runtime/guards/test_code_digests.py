"""All code that a forward ran is found again at load, and at each call, and compared."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.generate.plans import generated
from tests.stages.runtime.guards import code_samples
from tests.stages.runtime.guards.guarded_plans import is_planned, traced_watched
from tightfit.util.errors import ModelError

X = torch.ones(2, 3)

_ELSEWHERE = """
import importlib, json, sys, torch
sys.path.insert(0, sys.argv[1])
for number, name in json.loads(sys.argv[2]):
    model = importlib.import_module(f"user{number}").M()
    planned = importlib.import_module(f"planned{number}").load(model)
    output = planned(torch.ones(2, 3))
    same = torch.equal(output, type(model).forward(model, torch.ones(2, 3)))
    assert same and "_ReturnOutput" in output.grad_fn.name(), name
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forms")
    for number, form in enumerate(code_samples.FORMS):
        (folder / f"user{number}.py").write_text(code_samples.source(form, 2.0))
    return folder


@pytest.fixture(scope="module")
def packages(folder: Path) -> list[Any]:
    made = []
    for number in range(len(code_samples.FORMS)):
        graph, _ = traced_watched((_run(folder, number).M(), ((X,), {})), "user")
        made.append(generated(graph, folder / f"planned{number}"))
    return made


def _run(folder: Path, number: int, k: float = 2.0) -> Any:
    """A module of a form, as it is after an edit, in the place of the one before."""
    module = types.ModuleType(f"user{number}")
    module.__file__ = str(folder / f"user{number}.py")
    sys.modules[module.__name__] = module
    exec(
        compile(code_samples.source(code_samples.FORMS[number], k), module.__file__, "exec"),
        vars(module),
    )
    return module


@pytest.mark.parametrize("form", code_samples.FORMS)
def test_other_code_is_refused_at_load(form: str, folder: Path, packages: list[Any]) -> None:
    number = code_samples.FORMS.index(form)
    with pytest.raises(RuntimeError, match="the plan was made for user and th") as caught:
        packages[number].load(_run(folder, number, 3.0).M())
    assert "\n" not in str(caught.value)


@pytest.mark.long
def test_the_same_code_is_planned_in_another_process(folder: Path, packages: list[Any]) -> None:
    names = json.dumps(list(enumerate(code_samples.FORMS)))
    command = [sys.executable, "-c", _ELSEWHERE, str(folder), names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


PATCHES = [
    ("a base's forward", "B", "forward", lambda s, x: s.l(x) * 3.0),
    ("a method of a helper", "H", "run", lambda s, x: x * 3.0),
    ("a static method", "H", "run", staticmethod(lambda x: x * 3.0)),
    ("a call of a global", "H", "__call__", lambda s, x: x * 3.0),
    ("a metaclass", "T", "__call__", lambda c, x: x * 3.0),
    ("the backward of a function", "A", "backward", staticmethod(lambda c, g: g * 3.0)),
]


@pytest.mark.parametrize(("form", "kind", "name", "value"), PATCHES)
def test_other_code_is_refused_at_the_call(
    form: str,
    kind: str,
    name: str,
    value: Any,
    folder: Path,
    packages: list[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    number = code_samples.FORMS.index(form)
    module = _run(folder, number)
    planned = packages[number].load(module.M())
    assert is_planned(planned(X))
    monkeypatch.setattr(getattr(module, kind), name, value)
    with pytest.raises(packages[number].PlanMismatch, match=rf"the code of {kind}\.{name} is not"):
        planned(X)
    monkeypatch.undo()
    assert is_planned(planned(X))


class Top(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Middle(Top):
    pass


class Low(Middle):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


def test_a_method_that_a_class_between_gets_later_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, built = traced_watched((Low(), ((X,), {})))
    package = generated(graph, tmp_path / "low")
    planned = package.load(built.model)
    assert is_planned(planned(X))
    monkeypatch.setattr(Middle, "forward", lambda s, x: 2 * s.layer(x), raising=False)
    with pytest.raises(package.PlanMismatch, match=r"the code of Top\.forward is not"):
        planned(X)


def _scaling(k: float) -> type[torch.nn.Module]:
    if k == 2.0:

        class Scaling(torch.nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return 2.0 * x
    else:

        class Scaling(torch.nn.Module):  # type: ignore[no-redef]
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return 3.0 * x

    return Scaling


def test_two_classes_of_one_name_are_told_apart(tmp_path: Path) -> None:
    one, other = _scaling(2.0), _scaling(3.0)
    layers = [torch.nn.Linear(3, 3), one(), other(), one()]
    graph, _ = traced_watched((torch.nn.Sequential(*layers), ((X,), {})))
    package = generated(graph, tmp_path / "twins")
    again, further = _scaling(2.0), _scaling(3.0)
    layers = [torch.nn.Linear(3, 3), again(), further(), _scaling(2.0)()]
    planned = package.load(torch.nn.Sequential(*layers))
    assert is_planned(planned(X))
    planned[3].__class__ = further
    with pytest.raises(package.PlanMismatch, match=r"3 is of another class .*Scaling than 1, when"):
        planned(X)


def test_a_function_in_a_set_is_compared_as_its_item(tmp_path: Path) -> None:
    class Reading(torch.nn.Module):
        def __init__(self, function: Any) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.items = {function}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            (scaled,) = self.items
            return scaled(self.layer(x))

    graph, built = traced_watched((Reading(eval("lambda x: 2 * x")), ((X,), {})))
    package = generated(graph, tmp_path / "members")
    assert is_planned(package.load(built.model)(X))
    with pytest.raises(RuntimeError, match="this model has items a set with other items"):
        package.load(Reading(eval("lambda x: 3 * x")))


def test_code_that_cannot_be_found_again_is_refused() -> None:
    class Reading(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.kept = threading.local()
            self.kept.runs = eval("lambda x: 2 * x")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.kept.runs(self.layer(x))

    with pytest.raises(ModelError, match=r"runs <lambda> at <string>:1, which cannot be found"):
        traced_watched((Reading(), ((X,), {})))
