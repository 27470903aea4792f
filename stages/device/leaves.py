"""The leaves of samples and outputs, as `stages.device.trees` takes them apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tightfit.stages.device.trees import flatten, read_tree


def leaves_of(value: Any) -> list[Any]:
    """The leaves of a value, in order."""
    return flatten(value)[0]


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """The same structure with what a function makes of each leaf."""
    leaves, text = flatten(value)
    return read_tree(text).unflatten([function(leaf) for leaf in leaves])
