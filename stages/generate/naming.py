"""Names and comments of the generated text, safe whatever an artifact says."""

from __future__ import annotations

import builtins
import keyword
import re

from tightfit.schemas.graph.training_graph import Graph, GraphValue

_MAX_LENGTH = 60


class UniqueNames:
    """Gives each thing one name; no name is given twice, is a keyword or hides a builtin."""

    def __init__(self) -> None:
        self._taken = set(keyword.kwlist) | set(dir(builtins))

    def reserve(self, wanted: str) -> str:
        """`wanted`, or with a number behind it where it is taken."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name


def value_names(graph: Graph, names: UniqueNames) -> list[str]:
    """A name for each value of a graph: where it comes from, and its number."""
    maker = {value: op.target for op in graph.ops for value in op.outputs}
    return [
        names.reserve(f"{_name_stem(value, maker.get(value.id, ''))}_{value.id}")
        for value in graph.values
    ]


def _name_stem(value: GraphValue, target: str) -> str:
    if value.kind == "intermediate":
        return _short_operator_name(target)
    if value.kind in ("parameter", "buffer"):
        return to_identifier("_".join(value.path.split(".")[-2:]))
    return value.kind


def _short_operator_name(target: str) -> str:
    """What an operator makes, in a word: `layer_norm` of `aten.native_layer_norm.default`."""
    name = to_identifier(target.split(".")[1] if "." in target else target)
    if "scaled_dot_product" in name:
        name = "attention_backward" if "backward" in name else "attention"
    for long, short in _ABBREVIATIONS:
        name = name.replace(long, short)
    return name


_ABBREVIATIONS = (
    ("native_", ""),
    ("_legit_functional", ""),
    ("_backward", "_grad"),
    ("_default", ""),
)


def to_identifier(text: str) -> str:
    """A Python identifier that resembles a text: ASCII letters, digits and underscores."""
    name = re.sub(r"[^A-Za-z0-9_]+", "_", text).strip("_")[:_MAX_LENGTH]
    return f"v{name}" if not name or name[0].isdigit() else name


def comment_text(text: str) -> str:
    """A text for a comment or a docstring: one line of printable characters, at most 120, without
    what would end it."""
    shown = "".join(character if character.isprintable() else "?" for character in text[:120])
    return shown.replace("\\", "/").replace('"', "'")


def format_megabytes(size: int) -> str:
    """Bytes in MB (1e6 bytes) with two decimals."""
    return f"{size / 1e6:,.2f} MB"
