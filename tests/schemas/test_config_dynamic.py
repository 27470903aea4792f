"""The keys `dynamic` and `dimensions` of a model: options of the trace, every error at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.schemas.test_config import problems
from tightfit.schemas.config import parse_config, read_config
from tightfit.schemas.config_dynamic import parse_axes

AXES = {"input_ids": {0: "batch", 1: "8*blocks"}, "more": {"weights": [{0: "batch"}]}}


def document(dynamic: Any, top: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    model = {"factory": "a.b:c", "dynamic": dynamic, **changes}
    return {"models": {"gpt2": model}, **(top or {})}


def test_axes_and_ranges_are_options_of_the_trace(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document(AXES, dimensions={"blocks": {"min": 2}}, plans=2)))
    dynamic = read_config(path).models["gpt2"].dynamic
    assert dynamic is not None
    assert dynamic.options == [
        "--dynamic-shapes",
        '{"input_ids": {"0": "batch", "1": "8*blocks"}, "more": {"weights": [{"0": "batch"}]}}',
        *("--dimensions", '{"blocks": {"min": 2}}'),
        *("--plans", "2"),
    ]
    assert parse_axes(dynamic.axes) == AXES
    assert parse_config(document({"x": {"0": "rows"}})).models["gpt2"].dynamic is not None
    assert parse_config({"models": {"gpt2": {"factory": "a:b"}}}).models["gpt2"].dynamic is None


def test_every_error_is_told_at_once() -> None:
    found = problems(
        document(
            {"x": {0: 7, 1: "rows*columns", 2: "class"}, "y": "batch", "z": [{0: "batch"}, {}]},
            dimensions={"tokens": {"min": 0}, "batch": {"min": 8, "max": 4, "step": 2}},
            kernels="fused",
            samples=[{"width": 3}],
            strategies=["rotor", "offload"],
        )
    )
    axes = "expected a dimension, as tokens, or a multiple of one, as 32*height"
    own = "models.gpt2"
    assert found == sorted(
        [
            f"{own}.dimensions.batch.min: 8 was found, expected less than max, which is 4",
            f"{own}.dimensions.batch.step: is no known key, expected one of min, max",
            f"{own}.dimensions.tokens.min: 0 was found, expected a whole number from 1",
            f"{own}.dimensions.tokens: is no dimension of dynamic, which has batch",
            f"{own}.dynamic.x.0: 7 was found, {axes}",
            f'{own}.dynamic.x.1: "rows*columns" was found, {axes}',
            f'{own}.dynamic.x.2: "class" was found, {axes}',
            f'{own}.dynamic.y: "batch" was found, expected axes, such as {{0: batch, 1: tokens}}',
            f"{own}.dynamic.z[1]: {{}} was found, expected axes, such as {{0: batch, 1: tokens}}",
            f"{own}.kernels: fused was found, expected eager beside dynamic for now",
            f"{own}.samples: was found, expected none beside dynamic for now",
            f"{own}.strategies[1]: offload was found, expected one that sends no tensors away: "
            "model gpt2 has dynamic dimensions",
        ]
    )


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (document({}), "models.gpt2.dynamic: {} was found, expected a mapping from arguments"),
        (document(["x"]), 'models.gpt2.dynamic: ["x"] was found, expected a mapping from'),
        (
            {"models": {"m": {"factory": "a:b", "dimensions": {}}}},
            "models.m.dimensions: was found, expected dynamic beside it",
        ),
        (
            {"models": {"m": {"factory": "a:b", "plans": 2}}},
            "models.m.plans: was found, expected dynamic beside it",
        ),
        (document(AXES, plans=3), "models.gpt2.plans: 3 was found, expected 1 or 2"),
        (
            document(AXES, {"strategies": ["offload"]}),
            "strategies[0]: offload was found, expected one that sends no tensors away: model gpt2",
        ),
        (document(AXES, {"kernels": "fused"}), "models.gpt2.kernels: fused was found"),
        (document({"x": {0: "1 +"}}), 'models.gpt2.dynamic.x.0: "1 +" was found, expected a'),
    ],
)
def test_what_cannot_be_is_told(written: dict[str, Any], said: str) -> None:
    assert any(line.startswith(said) for line in problems(written)), problems(written)


def test_numbers_are_keys_of_axes_alone() -> None:
    [said] = problems({"models": {"gpt2": {"factory": "a:b", "arguments": {0: 1}}}})
    assert "the key 0 is no text" in said
