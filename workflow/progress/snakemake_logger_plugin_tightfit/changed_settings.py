"""Says which settings of a configuration changed, from the parameters of a job before and now."""

from __future__ import annotations

import ast
import json
from collections.abc import Collection, Mapping
from typing import Any

MAX_VALUE_CHARACTERS = 60
"""Characters that a value has at most that is shown."""
KEYS_OF_PARAMETERS = {
    "engine": "solver",
    "step_engine": "solver",
    "budgets": "frontier",
    "optimizer-settings": "optimizer",
    "limit": "offload.limit",
}
"""Keys of the configuration that are named otherwise than the parameters that they set."""

_Settings = dict[str, Any]


def find_changed_settings(job: Any) -> list[str]:
    """Which settings of a job of Snakemake are not those of its last run, a text for each.

    Snakemake's records have the values of parameters without their names. What follows from the
    files of a job is not compared.
    """
    change = job.dag.reason(job).params_changed
    if not change:
        return []
    written = {
        name: job.dag.workflow.persistence._serialize_param(value)
        for name, value in job.params.items()
    }
    now = {name: text for name, text in written.items() if text in change.only_new}
    return describe_changed_settings(change.only_old, now)


def describe_changed_settings(before: Collection[str], now: Mapping[str, str]) -> list[str]:
    """What changed, a text for each key.

    Args:
        before: The values of a job's parameters before that it does not have now, as Python writes
            them, without names.
        now: The values that it did not have before, by the names of its parameters.

    Example:
        >>> describe_changed_settings(["15"], {"pairs": "20"})
        ['pairs changed from 15 to 20']
        >>> describe_changed_settings(["['--limit', '2GB']"], {"placement": "[]"})
        ['offload.limit is no longer set']
    """
    plain = {name: text for name, text in now.items() if not _is_list(text)}
    old = _named_options(text for text in before if _is_list(text))
    new = _named_options(text for text in now.values() if _is_list(text))
    values = [_value(text) for text in before if not _is_list(text)]
    if len(plain) == len(values) == 1:
        old |= dict.fromkeys(plain, values[0])
    new |= {name: _value(text) for name, text in plain.items()}
    old, new = _expand_mappings(old), _expand_mappings(new)
    return [
        _describe_change(key, old, new)
        for key in dict.fromkeys([*new, *old])
        if key not in old or key not in new or old[key] != new[key]
    ]


def _describe_change(key: str, old: _Settings, new: _Settings) -> str:
    """One key that changed, with its values if these are short."""
    parameter, dot, member = key.partition(".")
    name = KEYS_OF_PARAMETERS.get(parameter, parameter.replace("-", "_")) + dot + member
    if key not in new:
        return f"{name} is no longer set"
    texts = [_format_value(settings[key]) for settings in (old, new) if key in settings]
    if any(len(text) > MAX_VALUE_CHARACTERS for text in texts):
        return f"{name} changed"
    return f"{name} changed from {texts[0]} to {texts[1]}" if key in old else f"{name} = {texts[0]}"


def _format_value(value: Any) -> str:
    """A value as a configuration has it."""
    words = value if isinstance(value, list) else [value]
    return ", ".join(word if isinstance(word, str) else json.dumps(word) for word in words) or '""'


def _is_list(text: str) -> bool:
    return isinstance(_value(text), list)


def _value(text: str) -> Any:
    """The value of a parameter; the text itself of what is no plain value."""
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
    return found if isinstance(found, str | int | float | list) else text


def _named_options(texts: Any) -> _Settings:
    """The values behind each option of some lists of words of a command line."""
    found: dict[str, list[Any]] = {}
    for text in texts:
        key = ""
        for word in _value(text):
            if isinstance(word, str) and word.startswith("--"):
                key = word.removeprefix("--")
                found.setdefault(key, [])
            elif key:
                found[key].append(word)
    return dict(found)


def _expand_mappings(settings: _Settings) -> _Settings:
    """The same with the members of mappings, which are JSON there, each under its own path."""
    found: _Settings = {}
    for key, value in settings.items():
        members = _json_mapping(value)
        if members is None:
            found[key] = value
        else:
            found |= {f"{key}.{name}": member for name, member in members.items()}
    return found


def _json_mapping(value: Any) -> dict[str, Any] | None:
    """The mapping that a single word is, None if it is none."""
    [text] = value if isinstance(value, list) and len(value) == 1 else [None]
    if not isinstance(text, str) or not text.startswith("{"):
        return None
    try:
        return dict(json.loads(text))
    except ValueError:
        return None
