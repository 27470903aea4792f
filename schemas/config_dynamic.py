"""Dynamic dimensions of a model, as a configuration declares them."""

from __future__ import annotations

import json
import keyword
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tightfit.schemas.graph.size_expressions import linear_size
from tightfit.util.errors import ArtifactError
from tightfit.util.strategies import STRATEGIES

DYNAMIC_KEY = "dynamic"
"""The key of a model whose mappings may have numbers, those of axes, as keys."""
_AXIS_SIZES = "a dimension, as tokens, or a multiple of one, as 32*height"
_DYNAMIC_SETTINGS = ("dimensions", "plans")
_EXCLUDED_KEYS = ("optimizer", "pipeline", "samples")
_Path = list[str | int]


@dataclass(frozen=True)
class DynamicConfig:
    """Which `axes` of the arguments of a model are dynamic, as the configuration has them, the
    `ranges` of their dimensions, as far as these are given, and the most `plans`."""

    axes: dict[str, Any]
    ranges: dict[str, dict[str, int]]
    plans: int = 1

    @classmethod
    def of_model(cls, model: Mapping[str, Any]) -> DynamicConfig | None:
        """Those of a valid model, None where it has none."""
        if DYNAMIC_KEY not in model:
            return None
        return cls(model[DYNAMIC_KEY], model.get("dimensions", {}), model.get("plans", 1))

    @property
    def options(self) -> list[str]:
        """The options of `tightfit trace` that say the same."""
        words = ["--dynamic-shapes", json.dumps(self.axes, sort_keys=True)]
        if self.ranges:
            words += ["--dimensions", json.dumps(self.ranges, sort_keys=True)]
        words += ["--plans", str(self.plans)] if self.plans > 1 else []
        return words


def parse_axes(value: Any) -> Any:
    """Dynamic axes as JSON holds them, whose keys are texts, with numbers for axes."""
    if isinstance(value, dict):
        numbers = all(key.isdecimal() for key in value)
        return {int(key) if numbers else key: parse_axes(item) for key, item in value.items()}
    return [parse_axes(item) for item in value] if isinstance(value, list) else value


def find_dynamic_problems(document: Any) -> Iterator[tuple[_Path, str]]:
    """What is wrong with the dynamic dimensions of a document, sound or not: paths, each with what
    was found and expected."""
    models = document.get("models") if isinstance(document, dict) else None
    for name, model in models.items() if isinstance(models, dict) else ():
        if not isinstance(model, dict):
            continue
        path: _Path = ["models", name]
        ranges = model.get("dimensions")
        if not isinstance(model.get(DYNAMIC_KEY), dict):
            for key in () if DYNAMIC_KEY in model else _DYNAMIC_SETTINGS:
                if key in model:
                    yield [*path, key], f"was found, expected {DYNAMIC_KEY} beside it"
            continue
        found: set[str] = set()
        for argument, axes in model[DYNAMIC_KEY].items():
            yield from _axes_problems([*path, DYNAMIC_KEY, argument], axes, found)
        if isinstance(ranges, dict):
            yield from _range_problems([*path, "dimensions"], ranges, found)
        yield from _combination_problems(path, model, document)


def _axes_problems(path: _Path, axes: Any, found: set[str]) -> Iterator[tuple[_Path, str]]:
    """What is wrong with the axes of an argument; adds the names of its dimensions to `found`."""
    if isinstance(axes, list):
        for number, item in enumerate(axes):
            yield from _axes_problems([*path, number], item, found)
        return
    if not isinstance(axes, dict) or not axes:
        yield path, f"{json.dumps(axes)} was found, expected axes, such as {{0: batch, 1: tokens}}"
        return
    for key, item in axes.items():
        if not key.isdecimal():
            yield from _axes_problems([*path, key], item, found)
        elif (name := _dimension_name(item)) is None:
            yield [*path, key], f"{json.dumps(item)} was found, expected {_AXIS_SIZES}"
        else:
            found.add(name)


def _dimension_name(size: Any) -> str | None:
    """The name of the dimension in the size of an axis, None where it is no such size."""
    try:
        form = linear_size(size) if isinstance(size, str) else None
    except ArtifactError:
        return None
    return None if form is None or keyword.iskeyword(form[0]) else form[0]


def _range_problems(
    path: _Path, ranges: Mapping[str, Any], found: set[str]
) -> Iterator[tuple[_Path, str]]:
    for name, limits in ranges.items():
        if name not in found:
            known = ", ".join(sorted(found)) or "no dimension at all"
            yield [*path, name], f"is no dimension of {DYNAMIC_KEY}, which has {known}"
        if not isinstance(limits, dict):
            continue
        least, most = limits.get("min"), limits.get("max")
        if type(least) is int and type(most) is int and least >= most:
            yield (
                [*path, name, "min"],
                f"{least} was found, expected less than max, which is {most}",
            )


def _combination_problems(
    path: _Path, model: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[tuple[_Path, str]]:
    """What a model with dynamic dimensions cannot have for now."""
    for key in _EXCLUDED_KEYS:
        if key in model:
            yield [*path, key], f"was found, expected none beside {DYNAMIC_KEY} for now"
    if model.get("kernels", document.get("kernels")) == "fused":
        yield (
            [*path, "kernels"],
            f"fused was found, expected eager beside {DYNAMIC_KEY} for now",
        )
    own = "strategies" in model
    strategies = model.get("strategies", document.get("strategies"))
    for index, name in enumerate(strategies if isinstance(strategies, list) else ()):
        if isinstance(name, str) and name in STRATEGIES and STRATEGIES[name].links:
            where: _Path = [*(path if own else []), "strategies", index]
            yield (
                where,
                f"{name} was found, expected one that sends no tensors away: model {path[1]} has "
                "dynamic dimensions",
            )
