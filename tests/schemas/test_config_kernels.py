"""Fused kernels in a configuration, and what modules of them carry."""

from __future__ import annotations

from typing import Any

import pytest

from tightfit.schemas.config import parse_config
from tightfit.util.errors import ConfigError


def test_fused_kernels_are_planned_beside_their_keep_all_step() -> None:
    model = {"factory": "a:b", "budgets": ["50%"], "strategies": ["rotor"]}
    eager = {**model, "kernels": "eager"}
    config = parse_config({"models": {"one": model, "other": eager}, "kernels": "fused"})
    assert [(asked.strategy, asked.directory) for asked in config.requests("one")] == [
        ("keep_all", "none"),
        ("rotor", "50pct"),
    ]
    assert [asked.strategy for asked in config.requests("other")] == ["rotor"]


def test_modules_of_fused_kernels_carry_what_is_asked_for() -> None:
    models = {
        "one": {"factory": "a:b"},
        "other": {"factory": "a:b", "kernels": "eager"},
        "third": {"factory": "a:b", "with_eager": False},
    }
    asked = {"kernels": "fused", "with_eager": True, "with_libraries": True}
    found = parse_config({"models": models, **asked}).models
    assert [(at.with_eager, at.with_libraries) for at in found.values()] == [
        (True, True), (False, False), (False, True)
    ]  # fmt: skip
    assert not parse_config({"models": models, "kernels": "fused"}).models["one"].with_eager


@pytest.mark.parametrize(
    ("model", "document", "said"),
    [
        (
            {"with_eager": True},
            {},
            "models.one.with_eager: true was found, expected kernels: fused",
        ),
        ({}, {"with_libraries": True}, "with_libraries: true was found, expected kernels: fused"),
        (
            {"kernels": "fused", "with_libraries": True},
            {"device": "cuda"},
            "models.one.with_libraries: true was found, expected false where the device is not",
        ),
        ({"with_eager": 1}, {}, "models.one.with_eager: 1 was found, expected true or false"),
    ],
)
def test_what_modules_cannot_carry_is_refused(
    model: dict[str, Any], document: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config({"models": {"one": {"factory": "a:b", **model}}, **document})
    assert said in str(raised.value)


def test_fused_kernels_are_refused_where_the_device_is_described() -> None:
    models = {"one": {"factory": "a:b"}, "other": {"factory": "a:b", "kernels": "fused"}}
    with pytest.raises(ConfigError) as caught:
        parse_config({"models": models, "device": "h100"})
    assert str(caught.value) == (
        'config.yaml: models.other.kernels: "fused" was found, expected eager where the device is '
        "described"
    )
