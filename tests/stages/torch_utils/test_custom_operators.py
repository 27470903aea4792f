"""Operators that are not PyTorch's own: allowed by the user alone, never by an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.torch_utils import custom_ops
from tightfit.stages.profile.cost_library import open_cost_library
from tightfit.stages.profile.profile import profile
from tightfit.stages.torch_utils.custom_operators import allow_operators, register_operators
from tightfit.stages.torch_utils.devices import describe_device
from tightfit.stages.torch_utils.model_factory import check_factory_result
from tightfit.stages.torch_utils.operators import resolve
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ArtifactError, ConfigError, ModelError

SCALED = "mine.scaled.default"


def graph_of(operator: Any, grad: bool = True) -> Any:
    made: tuple[Any, ...] = custom_ops.Calling(operator, grad), ((torch.randn(4, 32),), {})
    with allow_operators(["mine"]):
        return trace(check_factory_result(made, "mine"), "mine")


def test_resolves_where_the_namespace_is_allowed_and_nowhere_else() -> None:
    with pytest.raises(ArtifactError, match="'mine' is not PyTorch's own, and not allowed as one"):
        resolve(SCALED)
    with allow_operators(["mine"]):
        assert resolve(SCALED) is torch.ops.mine.scaled.default
        with pytest.raises(ArtifactError, match=r"no operator 'mine.+default': import the mod"):
            resolve("mine.gone.default")
        with pytest.raises(ArtifactError, match="changes its arguments"):
            resolve("mine.writing.default")
        with pytest.raises(ArtifactError, match="'other' is not PyTorch's own"):
            resolve("other.scaled.default")
    with pytest.raises(ArtifactError, match="not allowed"):
        resolve(SCALED)


def test_one_that_is_registered_late_is_found() -> None:
    with allow_operators(["mine"]):
        assert resolve(SCALED)
        library = torch.library.Library("mine", "FRAGMENT")
        library.define("late(Tensor x) -> Tensor")
        library.impl("late", lambda x: x * 2, "CPU")
        assert resolve("mine.late.default") is torch.ops.mine.late.default
        library._destroy()


@pytest.mark.parametrize("names", ["mine", 3, None])
def test_namespaces_are_a_list(names: Any) -> None:
    with pytest.raises(ConfigError, match="is no list of namespaces"), allow_operators(names):
        pass


@pytest.mark.parametrize("name", ["a.b", "", "mine=x", 3])
def test_a_namespace_is_a_name(name: Any) -> None:
    with pytest.raises(ConfigError, match="is no namespace of operators"), allow_operators([name]):
        pass


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("mine", "is not of the form NAMESPACE=MODULE"),
        ("mine=os;x", "is not of the form NAMESPACE=MODULE"),
        ("mine=tests.not_there", "tests.not_there cannot be imported"),
    ],
)
def test_a_module_that_registers_nothing_is_told(written: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said), register_operators([written], []):
        pass


def test_a_graph_calls_it_only_where_it_is_allowed() -> None:
    made: tuple[Any, ...] = custom_ops.Calling(custom_ops.shifted), ((torch.randn(4, 32),), {})
    said = r"custom_ops.py:\d+: .*namespace is named as .* operators=\['mine'\]"
    with pytest.raises(ModelError, match=said):
        trace(check_factory_result(made, "mine"), "mine")
    assert SCALED in [op.target for op in graph_of(custom_ops.shifted).ops]
    assert SCALED in [op.target for op in graph_of(lambda x: custom_ops.scaled(x, 0.5)).ops]


@pytest.mark.parametrize(
    ("operator", "said"),
    [
        (custom_ops.unfaked, "mine::unfaked has no fake kernel, which planning needs"),
        (custom_ops.underived, r"mine[.:]+underived\S* has no derivative"),
        (torch.ops.mine.bare, "mine::bare has no derivative"),
    ],
)
def test_what_planning_lacks_is_named(operator: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        graph_of(operator)


@pytest.mark.parametrize("operator", [custom_ops.underived, torch.ops.mine.bare])
def test_no_derivative_is_needed_where_there_is_no_gradient(operator: Any) -> None:
    assert any(op.target.startswith("mine.") for op in graph_of(operator, grad=False).ops)


def test_the_library_does_not_learn_what_may_change_under_its_name(tmp_path: Path) -> None:
    graph = graph_of(custom_ops.shifted)
    with allow_operators(["mine"]), open_cost_library(tmp_path, describe_device("cpu")) as library:
        costs = profile(graph, None, library)
        assert SCALED in [row.target for row in costs.rows.values()]
        assert SCALED not in [row.target for row in library.costs.rows.values()]
        asked: list[str] = []
        profile(graph, None, library, report=lambda done, total, target: asked.append(target))
    assert asked == [SCALED]
