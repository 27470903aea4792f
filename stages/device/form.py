"""The form of what is written down of a model's forward; see `stages.trace.watching`."""

from __future__ import annotations

from typing import Any


def check_form(description: Any) -> None:
    """Raises ValueError unless a description has the form that `stages.trace.watching` writes."""
    if description is None:
        return
    fields = {
        "modules": (list, _is_module),
        "tensors": (list, _is_tensor),
        "holders": (list, _is_holder),
        "names": (list, _is_names),
        "hooks": (list, _is_texts),
        "twins": (list, _is_texts),
        "states": (dict, None),
    }
    if not isinstance(description, dict) or not set(fields) <= set(description):
        raise ValueError("the description of what is watched lacks a part")
    for name, (kind, test) in fields.items():
        part = description[name]
        if not isinstance(part, kind) or (test and not all(map(test, part))):
            raise ValueError(f"the description of what is watched has {name} of an unknown form")
    if not all(isinstance(value, str | bool) for value in description["states"].values()):
        raise ValueError("the description of what is watched has states of an unknown form")


def _is_texts(item: Any) -> bool:
    return isinstance(item, list) and all(isinstance(part, str) for part in item)


def _is_module(item: Any) -> bool:
    return _is_texts(item) and len(item) == 3


def _is_tensor(item: Any) -> bool:
    return (
        isinstance(item, list)
        and len(item) == 4
        and _is_texts(item[:2])
        and (item[2] is None or isinstance(item[2], list))
        and (item[3] is None or isinstance(item[3], str))
    )


def _is_names(item: Any) -> bool:
    return (
        isinstance(item, list)
        and len(item) == 3
        and isinstance(item[0], str)
        and item[1] in ("_modules", "_parameters", "_buffers")
        and _is_texts(item[2])
    )


def _is_holder(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and set(item) == {"place", "shown", "kind", "reads"}
        and isinstance(item["shown"], str)
        and item["kind"] in ("fields", "names", "class", "cells", "defaults", "code")
        and isinstance(item["reads"], dict)
        and isinstance(item["place"], list)
        and bool(item["place"])
        and all(isinstance(step, list) and step and _is_step(step) for step in item["place"])
    )


def _is_step(step: list[Any]) -> bool:
    if step[0] in ("globals", "function", "bound", "type"):
        return len(step) == 1
    if len(step) != 2:
        return False
    if step[0] in ("item", "base"):
        return type(step[1]) is int
    words = ("module", "python", "field", "class", "cell", "default", "global", "given")
    return step[0] == "key" or (step[0] in words and isinstance(step[1], str))
