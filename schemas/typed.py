"""Whether plain data has the types that a dataclass says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

_LARGEST = 2**62
_TYPES: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}


def misfit(kind: Any, row: Mapping[str, Any]) -> str:
    """The first field of a dataclass that is a whole number (of 62 bits), a number or a text and
    has another value in `row`; "" where there is none."""
    for part in fields(kind):
        types = _TYPES.get(str(part.type))
        value = row[part.name]
        if types is None:
            continue
        large = isinstance(value, int) and abs(value) > _LARGEST
        if not isinstance(value, types) or isinstance(value, bool) or large:
            return part.name
    return ""
