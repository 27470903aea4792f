"""Model patterns: a `matrix` of arguments stands for a model for each combination of its values."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

MAX_MODELS = 10_000
"""The most models that one matrix stands for."""

KeyPath = tuple[str, ...]


def expand_matrices(models: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The models of a valid configuration, each with a matrix replaced by those it stands for.

    A model is named by its arguments, in the order of the matrix: NAME-layers2-width128 has
    `layers: 2` and `width: 128`. The value of a text, or of true and false, stands behind an
    underscore, as in NAME-activation_gelu, with a dash for each character that a name must not
    have. The last argument changes fastest.

    Example:
        >>> list(expand_matrices({"gpt2": {"factory": "a:b", "matrix": {"layers": [2, 4]}}}))
        ['gpt2-layers2', 'gpt2-layers4']
    """
    expanded: dict[str, dict[str, Any]] = {}
    for name, model in models.items():
        common = {key: value for key, value in model.items() if key != "matrix"}
        for arguments in _argument_combinations(model):
            given = {**model.get("arguments", {}), **arguments}
            expanded[_expanded_name(name, arguments)] = {**common, "arguments": given}
    return expanded


def matrix_problems(models: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[KeyPath, str]]:
    """The faults of matrices of models that fit the schema: for each the path of the key, and a
    sentence without its subject."""
    for name, model in models.items():
        matrix, path = model.get("matrix", {}), ("models", name, "matrix")
        for key in matrix:
            if key in model.get("arguments", {}):
                yield (*path, key), "is also in arguments, expected it in one of the two"
            if any(key in sample for sample in model.get("samples", ())):
                yield (*path, key), "is also in samples, expected it in one of the two"
        count = math.prod(map(len, matrix.values()))
        if count > MAX_MODELS:
            yield path, f"stands for {count} models, expected at most {MAX_MODELS}"
            continue
        names = Counter(
            _expanded_name(name, arguments) for arguments in _argument_combinations(model)
        )
        for expanded, times in names.items():
            if times > 1:
                yield path, f"has {times} combinations named {expanded}, expected distinct names"


def _argument_combinations(model: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The arguments of each model that a model stands for."""
    matrix = model.get("matrix", {})
    for values in itertools.product(*matrix.values()):
        yield dict(zip(matrix, values, strict=True))


def _expanded_name(name: str, arguments: Mapping[str, Any]) -> str:
    return "-".join([name, *(f"{key}{_value_suffix(value)}" for key, value in arguments.items())])


def _value_suffix(value: Any) -> str:
    if isinstance(value, bool):
        return f"_{str(value).lower()}"
    if isinstance(value, str):
        return f"_{re.sub('[^A-Za-z0-9._-]', '-', value)}"
    return str(value)
