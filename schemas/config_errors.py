"""What a configuration has wrong, in words: each error with its path and what was expected."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast


def describe_schema_error(error: Any) -> str:
    """One line for an error of jsonschema: path, what was found, what was expected."""
    path, expected = list(error.absolute_path), _expected_value(error.schema)
    if error.validator == "required":
        missing = next(key for key in error.validator_value if key not in error.instance)
        wanted = _expected_value(error.schema["properties"][missing])
        return f"{format_key_path([*path, missing])}: is missing, expected {wanted}"
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        unknown = [key for key in error.instance if key not in known]
        return "\n".join(_describe_unknown_key(path, key, known) for key in unknown)
    if "propertyNames" in error.absolute_schema_path:
        return f"{format_key_path([*path, error.instance])}: is no name to use, expected {expected}"
    return (
        f"{format_key_path(path)}: {_format_value(error.instance)} was found, expected {expected}"
    )


def _describe_unknown_key(path: list[Any], key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, 1)
    hint = f"did you mean {close[0]}" if close else f"expected one of {', '.join(known)}"
    return f"{format_key_path([*path, key])}: is no known key, {hint}"


def _expected_value(schema: Mapping[str, Any]) -> str:
    return cast(str, schema["expected"])


def _format_value(value: Any) -> str:
    if value is None:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def format_key_path(parts: Iterable[str | int]) -> str:
    """The path of a key, as `models.NAME.budgets[0]`."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text or "the configuration"


def format_config_errors(source: str, problems: list[str]) -> str:
    """All errors of a configuration as one text, a line each."""
    lines = [line for problem in problems for line in problem.splitlines()]
    if len(lines) == 1:
        return f"{source}: {lines[0]}"
    return "\n".join([f"{source} has {len(lines)} errors:", *(f"  {line}" for line in lines)])


def format_choices(names: Iterable[str]) -> str:
    """Names to choose from, as `highs, cbc or none`."""
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
