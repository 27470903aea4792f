"""Models of a configuration that stand for several: samples and matrices of arguments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.schemas.test_config import minimal, problems
from tightfit.schemas.config import parse_config


def test_samples_of_several_shapes_are_planned_each_for_itself() -> None:
    document = minimal(strategies=["rotor"])
    document["models"]["own"] = {
        "factory": "a.b:c",
        "arguments": {"tokens": 1, "width": 3},
        "samples": [{"tokens": 2}, {}],
        "budgets": ["40%"],
    }
    models = parse_config(document).models
    assert list(models) == ["small", "own.1", "own.2"]
    assert models["own.1"].arguments == {"tokens": 2, "width": 3}
    assert models["own.2"].arguments == {"tokens": 1, "width": 3}
    assert [request.model for request in parse_config(document).requests("own.2")] == ["own.2"]
    document["models"]["own.2"] = {"factory": "a.b:c"}
    assert problems(document) == [
        "models.own.2: is planned as own.2, as models.own is, expected distinct names"
    ]


def test_a_matrix_stands_for_a_model_for_each_combination() -> None:
    document = minimal(strategies=["rotor"])
    document["models"]["own"] = {
        "factory": "a.b:c",
        "arguments": {"tokens": 1},
        "matrix": {"layers": [2, 4], "rate": [0.1], "kind": ["gelu", "a/b c"], "tied": [True]},
        "budgets": ["40%"],
    }
    models = parse_config(document).models
    assert list(models) == [
        "small",
        "own-layers2-rate0.1-kind_gelu-tied_true",
        "own-layers2-rate0.1-kind_a-b-c-tied_true",
        "own-layers4-rate0.1-kind_gelu-tied_true",
        "own-layers4-rate0.1-kind_a-b-c-tied_true",
    ]
    assert models["own-layers4-rate0.1-kind_a-b-c-tied_true"].arguments == {
        "tokens": 1, "layers": 4, "rate": 0.1, "kind": "a/b c", "tied": True
    }  # fmt: skip
    assert models["own-layers2-rate0.1-kind_gelu-tied_true"].budgets == ["40%"]
    model = {"factory": "a:b", "matrix": {"n": [1, 2]}, "samples": [{}, {"m": 1}]}
    document["models"] = {"x": model}
    assert list(parse_config(document).models) == ["x-n1.1", "x-n1.2", "x-n2.1", "x-n2.2"]


@pytest.mark.parametrize(
    ("model", "said"),
    [
        ({"matrix": {}}, "matrix: {} was found, expected a mapping from argument names to lists"),
        ({"matrix": {"n": 3}}, "matrix.n: 3 was found, expected a list of values, each listed"),
        ({"matrix": {"n": [[3]]}}, "matrix.n[0]: [3] was found, expected a number, a text, true"),
        ({"matrix": {"a b": [3]}}, "matrix.a b: is no name to use, expected the name of an arg"),
        (
            {"matrix": {"n": [3]}, "arguments": {"n": 1}},
            "matrix.n: is also in arguments, expected it in one of the two",
        ),
        (
            {"matrix": {"n": [3]}, "samples": [{"n": 1}]},
            "matrix.n: is also in samples, expected it in one of the two",
        ),
        (
            {"matrix": {"n": ["a/b", "a b"]}},
            "matrix: has 2 combinations named own-n_a-b, expected distinct names",
        ),
        (
            {"matrix": {"n": list(range(101)), "m": list(range(100))}},
            "matrix: stands for 10100 models, expected at most 10000",
        ),
    ],
)
def test_what_no_matrix_can_be_is_told(model: dict[str, Any], said: str) -> None:
    models = {"own": {"factory": "a:b", **model}, "own-n7": {"factory": "a:b"}}
    [problem] = problems({"models": models})
    assert problem.startswith(f"models.own.{said}")


@pytest.mark.parametrize(
    ("own", "name", "other", "shared"),
    [
        ({"matrix": {"n": [7]}}, "own-n7", {}, "own-n7"),
        ({"matrix": {"n": [7], "m": [2]}}, "own-n7", {"matrix": {"m": [2]}}, "own-n7-m2"),
        ({"matrix": {"n": [1.2]}}, "own-n1", {"samples": [{}, {"m": 3}]}, "own-n1.2"),
        ({"matrix": {"n": [1]}, "samples": [{"m": 8}]}, "own-n1.1", {}, "own-n1.1"),
    ],
)
def test_no_two_models_are_planned_as_one(
    own: dict[str, Any], name: str, other: dict[str, Any], shared: str
) -> None:
    models = {"own": {"factory": "a:b", **own}, name: {"factory": "a:b", **other}}
    assert problems({"models": models}) == [
        f"models.{name}: is planned as {shared}, as models.own is, expected distinct names"
    ]
