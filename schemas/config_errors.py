"""What a configuration has wrong, in words: each error with its path and what was expected."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping
from typing import Any, cast

TOP_LEVEL_KEYS = (
    "frontier",
    "fail_on",
    "search_path",
    "operators",
    "results",
    "store",
    "hierarchy",
)
"""Keys that people look for in a model."""


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
    if error.validator == "enum" and isinstance(error.instance, str):
        close = find_closest(error.instance, map(str, error.validator_value))
        hint = f" (did you mean {close}?)" if close else ""
        found = _format_value(error.instance)
        return f"{format_key_path(path)}: {found} was found, expected {expected}{hint}"
    if "propertyNames" in error.absolute_schema_path:
        return f"{format_key_path([*path, error.instance])}: is no name to use, expected {expected}"
    return (
        f"{format_key_path(path)}: {_format_value(error.instance)} was found, expected {expected}"
    )


MIN_SIMILARITY = 0.7
"""How alike two words are of which one may have been meant by the other."""


def find_closest(text: str, names: Iterable[str]) -> str:
    """The name that a text may have meant, in letters of any case, "" for none."""
    known = {name.lower(): name for name in names}
    close = difflib.get_close_matches(text.lower(), known, 1, MIN_SIMILARITY)
    return known[close[0]] if close else ""


def _describe_unknown_key(path: list[Any], key: str, known: list[str]) -> str:
    close = find_closest(key, known)
    hint = f"did you mean {close}" if close else f"expected one of {', '.join(known)}"
    if path and key in TOP_LEVEL_KEYS:
        hint = f"expected it at the top of the file, where it is said of all {path[0]}"
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
    shown = text if text.isprintable() else json.dumps(text, ensure_ascii=False)[1:-1]
    return shown or "the configuration"


def format_config_errors(source: str, problems: list[str]) -> str:
    """All errors of a configuration as one text, a line each."""
    lines = [line for problem in problems for line in problem.splitlines()]
    if len(lines) == 1:
        return f"{source}: {lines[0]}"
    return "\n".join([f"{source} has {len(lines)} errors:", *(f"  {line}" for line in lines)])


def format_choices(names: Iterable[str], word: str = "or") -> str:
    """Names to choose from, as `highs, cbc or none`; with the word "and" all of them."""
    *most, last = names
    return f"{', '.join(most)} {word} {last}" if most else last
