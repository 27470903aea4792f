"""Reads the YAML of a configuration: no key twice, no value within itself, no NUL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tightfit.schemas.config_dynamic import DYNAMIC_KEY
from tightfit.schemas.config_errors import format_key_path
from tightfit.util.errors import ConfigError


def read_yaml(path: Path | str) -> tuple[Any, list[str]]:
    """The document of a YAML file, with a sentence for each key that it has twice.

    Raises ConfigError when the file cannot be read or is no YAML.
    """
    import yaml

    try:
        loader = yaml.SafeLoader(Path(path).read_text())
        root = loader.get_single_node()
        if root is None:
            return None, []
        twice = _repeated_keys(root, [], set())
        return loader.construct_document(root), twice
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: is nested too deeply") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML ({_describe_yaml_error(error)})") from error


def _describe_yaml_error(error: Exception) -> str:
    said = " ".join(str(error).split())
    return f"{said}; indent with spaces, not tabs" if r"'\t'" in said else said


def _repeated_keys(node: Any, path: list[str | int], seen: set[int]) -> list[str]:
    """A sentence for each key that a mapping of a document has more than once."""
    if id(node) in seen:
        return []
    seen.add(id(node))
    found: list[str] = []
    if node.id == "sequence":
        for number, item in enumerate(node.value):
            found += _repeated_keys(item, [*path, number], seen)
    if node.id != "mapping":
        return found
    lines: dict[str, int] = {}
    for key, value in node.value:
        name, line = str(key.value), key.start_mark.line + 1
        if name in lines and name != "<<":
            where = format_key_path([*path, name])
            found.append(
                f"{where}: is there twice, in lines {lines[name]} and {line}, expected it once"
            )
        lines.setdefault(name, line)
        found += _repeated_keys(value, [*path, name], seen)
    return found


def to_json_values(document: Any) -> tuple[Any, list[str]]:
    """The document as JSON would hold it, with a sentence for each value that JSON has not, and for
    each text that can be no part of a path."""
    problems: list[str] = []

    def convert(value: Any, path: list[str | int], around: frozenset[int]) -> Any:
        inner = around | {id(value)}
        if isinstance(value, Mapping | list | tuple) and id(value) in around:
            problems.append(
                f"{format_key_path(path)}: is a value that contains itself, expected none"
            )
            return None
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str) and not (type(key) is int and _has_axes(path)):
                    problems.append(
                        f"{format_key_path([*path, str(key)])}: the key {key!r} is no text, "
                        'expected a name; write it in quotes, such as "off"'
                    )
            return {
                str(key): convert(item, [*path, str(key)], inner) for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [convert(item, [*path, index], inner) for index, item in enumerate(value)]
        if isinstance(value, str) and "\0" in value:
            problems.append(f"{format_key_path(path)}: has the character NUL, expected none")
            return value.replace("\0", "")
        finite = not isinstance(value, float) or math.isfinite(value)
        if value is None or (isinstance(value, str | int | float) and finite):
            return value
        problems.append(
            f"{format_key_path(path)}: {value!r} is a {type(value).__name__}, "
            "expected a number, a text, a list or a mapping"
        )
        return str(value)

    return convert(document, [], frozenset()), problems


def _has_axes(path: list[str | int]) -> bool:
    """Whether a mapping may have the numbers of axes as keys."""
    return path[:1] == ["models"] and path[2:3] == [DYNAMIC_KEY]


def without_refused_values(document: Any, errors: list[Any]) -> Any:
    """A copy of a document, as JSON holds it, without the values of errors of jsonschema."""
    import copy

    kept = copy.deepcopy(document)
    for error in errors:
        path = list(error.absolute_path)
        if error.validator == "additionalProperties":
            refused = [
                [*path, key] for key in error.instance if key not in error.schema["properties"]
            ]
        elif "propertyNames" in error.absolute_schema_path:
            refused = [[*path, error.instance]]
        else:
            refused = [path] if path else []
        for each in refused:
            _remove_value(kept, each)
    return kept


def _remove_value(document: Any, path: list[str | int]) -> None:
    """Removes the value of a path, or its nearest list, so that no other element moves, and the
    mapping that it leaves empty."""
    whole = document
    for depth, part in enumerate(path):
        inside = isinstance(document, list) and isinstance(part, int)
        if not (inside or (isinstance(document, dict) and part in document)):
            return
        following = path[depth + 1 :]
        if not following or isinstance(following[0], int):
            if isinstance(document, dict):
                del document[part]
                if not document and depth:
                    _remove_value(whole, path[:depth])
            return
        document = document[part]
