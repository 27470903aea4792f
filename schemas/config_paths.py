"""Paths of a configuration: a relative one starts at the folder of the configuration's file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MACHINE_SUFFIX = ".json"
"""How a description of a machine ends, unlike the name of a device."""


def resolve_config_paths(value: Any, schema: Mapping[str, Any], folder: Path) -> Any:
    """The same value with its relative paths resolved.

    The schema tells a path by its `format`: `path` for a text that is one, `machine` for the name
    of a device or the path of a description (`.json`). An empty text stays empty.

    Args:
        value: A value as JSON has it, also one that does not fit its schema.
        schema: The JSON schema of the value, with the schemas that `$ref` names in `$defs`.
        folder: The folder that relative paths start at; with `Path()` they stay as written.

    Example:
        >>> resolve_config_paths("results", {"format": "path"}, Path("runs"))
        'runs/results'
    """
    definitions = schema.get("$defs", {})

    def resolve(value: Any, schema: Mapping[str, Any]) -> Any:
        name = schema.get("$ref", "").rpartition("/")[2]
        schema = {**definitions.get(name, {}), **schema}
        if isinstance(value, dict):
            known, others = schema.get("properties", {}), schema.get("additionalProperties")
            others = others if isinstance(others, dict) else {}
            return {key: resolve(item, known.get(key, others)) for key, item in value.items()}
        if isinstance(value, list):
            return [resolve(item, schema.get("items", {})) for item in value]
        return str(folder / value) if _is_path(value, schema.get("format")) else value

    return value if folder == Path() else resolve(value, schema)


def shortest_path(path: str) -> str:
    """The same folder in one spelling, whatever way it is written: relative to the working
    directory if it is below that, else absolute.

    Example:
        >>> shortest_path("./runs/../results")
        'results'
    """
    here = Path.cwd()
    whole = Path(os.path.normpath(here / path))
    return str(whole.relative_to(here) if here in whole.parents else whole)


def _is_path(value: Any, kind: str | None) -> bool:
    if not isinstance(value, str) or not value:
        return False
    return kind == "path" or (kind == "machine" and value.endswith(MACHINE_SUFFIX))
