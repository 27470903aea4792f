"""What the forward reads of classes, modules and functions is compared at each call."""

from __future__ import annotations

import functools
import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import tests.stages.runtime.guards.settings.deep.conf
from tests.stages.generate.plans import generated, load_package
from tests.stages.runtime.guards.guarded_plans import traced_watched
from tests.stages.runtime.guards.settings import deep
from tests.stages.runtime.guards.settings.deep import conf
from tests.stages.runtime.guards.settings.deep.conf import Config, Sub
from tightfit.util.errors import ModelError

X = torch.ones(2, 3)
NUMBER = 2.0
TABLE = {"scale": 2.0}


class Single:
    """Settings of which there is one object."""

    instance: Any = None

    def __init__(self) -> None:
        self.scale = 2.0

    @classmethod
    def get(cls) -> Any:
        if cls.instance is None:
            cls.instance = cls()
        return cls.instance


class Base(nn.Module):
    """A model that is made of another class."""

    above = 2.0
    size = 2.0


class Model(Base):
    """A linear layer and what `does` does with a function or setting."""

    size = 3.0
    calls = 0

    def __init__(self, does: Callable[..., Any]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.config = Config
        self.key = "scale"
        self.helper = functools.partial(functional.leaky_relu, negative_slope=0.1)
        self.does = does

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.does(self, self.layer(x))

    def of_the_base(self) -> float:
        return super().size


def scaled(x: torch.Tensor, table: Any = TABLE, *, shift: float = 1.0) -> torch.Tensor:
    return x * table["scale"] + shift


def attributed(x: torch.Tensor) -> torch.Tensor:
    return x * attributed.scale  # type: ignore[attr-defined]


attributed.scale = 2.0  # type: ignore[attr-defined]


def by_import(self: Any, x: torch.Tensor) -> torch.Tensor:
    from tests.stages.runtime.guards.settings.deep.conf import FLAG

    return x * FLAG


def by_other_import(self: Any, x: torch.Tensor) -> torch.Tensor:
    import tests.stages.runtime.guards.settings.deep.conf as settings

    return x * settings.FLAG


def by_relative_import(self: Any, x: torch.Tensor) -> torch.Tensor:
    from .settings.deep import conf as settings

    return x * settings.FLAG


CASES: dict[str, tuple[Callable[..., Any], Any, str, str]] = {
    "global class": (lambda s, x: x * Config.scale, Config, "scale", "Config has scale 5.0"),
    "own class": (lambda s, x: x * s.config.scale, Config, "scale", "Config has scale 5.0"),
    "list": (lambda s, x: x * Config.shifts[0], Config.shifts, "0", "Config has shifts"),
    "below": (lambda s, x: x * Sub.Below.scale, Sub.Below, "scale", "Below has scale 5.0"),
    "type": (lambda s, x: x * type(s).size, Model, "size", "Model has size 5.0"),
    "name": (lambda s, x: x * Model.above, Base, "above", "Base has above 5.0"),
    "super": (lambda s, x: x * s.of_the_base(), Base, "size", "Base has size 5.0"),
    "of module": (lambda s, x: x * conf.Config.scale, Config, "scale", "Config has scale 5.0"),
    "single": (lambda s, x: x * Single.get().scale, Single.get(), "scale", "scale 5.0"),
    "computed name": (lambda s, x: x * getattr(Config, s.key), Config, "scale", "scale 5.0"),
    "deep": (
        lambda s, x: x * tests.stages.runtime.guards.settings.deep.conf.FLAG,
        conf,
        "FLAG",
        "FLAG 5.0",
    ),
    "one level": (lambda s, x: x * deep.conf.FLAG, conf, "FLAG", "FLAG 5.0"),
    "getattr": (lambda s, x: x * getattr(conf, "FLAG"), conf, "FLAG", "FLAG 5.0"),  # noqa: B009
    "import": (by_import, conf, "FLAG", "FLAG"),
    "other import": (by_other_import, conf, "FLAG", "FLAG"),
    "relative import": (by_relative_import, conf, "FLAG", "FLAG"),
    "globals": (
        lambda s, x: x * globals()["NUMBER"],
        sys.modules[__name__],
        "NUMBER",
        "the global NUMBER is 5.0",
    ),
    "default": (lambda s, x: scaled(x), TABLE, "scale", "default of table of scaled"),
    "defaults": (
        lambda s, x: scaled(x),
        scaled,
        "__defaults__",
        "the default of table of scaled is 5.0",
    ),
    "keyword": (
        lambda s, x: scaled(x),
        scaled.__kwdefaults__,
        "shift",
        "the default of shift of scaled is 5.0",
    ),
    "function": (lambda s, x: attributed(x), attributed, "scale", "attributed has scale 5.0"),
}


@pytest.fixture
def changed() -> Iterator[Callable[[Any, str], None]]:
    """Sets a part of a thing to 5.0 and afterwards to what it was."""
    with pytest.MonkeyPatch.context() as patch:

        def change(thing: Any, name: str) -> None:
            if isinstance(thing, dict):
                patch.setitem(thing, name, 5.0)
            elif isinstance(thing, list):
                thing[int(name)] = 5.0
            else:
                patch.setattr(thing, name, (5.0,) if name == "__defaults__" else 5.0)

        yield change
    Config.shifts[0] = 1.0


@pytest.mark.parametrize("name", CASES)
def test_what_changed_is_refused(name: str, tmp_path: Path, changed: Any) -> None:
    does, thing, part, said = CASES[name]
    module, planned = _planned(does, tmp_path)
    planned(X)
    changed(thing, part)
    with pytest.raises(module.PlanMismatch, match=re.escape(said)):
        planned(X)


def _planned(does: Callable[..., Any], folder: Path) -> Any:
    graph, built = traced_watched((Model(does), ((X,), {})))
    module = generated(graph, folder / "plan")
    return module, module.load(built.model)


def test_a_partials_keywords_are_compared(tmp_path: Path) -> None:
    module, planned = _planned(lambda s, x: s.helper(x), tmp_path)
    planned(X)
    planned.helper.keywords["negative_slope"] = 0.7
    with pytest.raises(module.PlanMismatch, match="the model has helper"):
        planned(X)


def test_what_is_not_read_may_change(tmp_path: Path, changed: Any) -> None:
    _, planned = _planned(lambda s, x: x.tanh(), tmp_path)
    for thing, name in ((Config, "scale"), (conf, "FLAG"), (Model, "size"), (Model, "calls")):
        changed(thing, name)
    planned(X)


def counting(self: Any, x: torch.Tensor) -> torch.Tensor:
    Model.calls += 1
    return x


def test_a_forward_that_sets_a_class_is_refused() -> None:
    with pytest.raises(ModelError, match=r"the forward sets Model\.calls"):
        traced_watched((Model(counting), ((X,), {})))
    assert Model.calls == 0


def test_a_file_never_imports(tmp_path: Path) -> None:
    graph, built = traced_watched((nn.Linear(3, 3), ((X,), {})))
    generated(graph, tmp_path / "module")
    path = tmp_path / "module/guards.json"
    document = json.loads(path.read_text())
    place, reads = [["python", "antigravity"]], {"x": 1}
    document["guards"]["sources"] += [
        {"path": place, "label": "", "kind": "fields", "values": reads}
    ]
    path.write_text(json.dumps(document))
    with pytest.raises(RuntimeError, match="module antigravity, which the forward reads, is not"):
        load_package(tmp_path / "module").load(built.model)
    assert "antigravity" not in sys.modules
