"""Values as `encode` writes them down: whether two are the same, and what a sentence says of one.

The file travels with a generated package and needs nothing.
"""

from __future__ import annotations

import sys
from typing import Any

_NAMED_KINDS = ("function", "class", "object", "property", "enum")


def encodings_match(expected: Any, found: Any) -> bool:
    """True where two written values are the same.

    The module of a function or class is ignored where it is the script that was started; digests
    are compared where both are there and, for code, of one version of Python. `["either", one,
    other]` is the same as each of the two.
    """
    if isinstance(expected, list) and len(expected) == 3 and expected[0] == "either":
        return encodings_match(expected[1], found) or encodings_match(expected[2], found)
    if type(expected) is not type(found):
        return False
    if not isinstance(expected, list):
        return same_plain(expected, found)
    if len(expected) != len(found):
        return False
    if not expected or expected[0] != found[0]:
        return all(map(encodings_match, expected, found))
    if expected[0] in ("items", "dict", *_NAMED_KINDS) and len(expected) > 2:
        return _same_name(expected, found) and all(map(_same_part, expected[3:], found[3:]))
    if expected[0] == "tensor" and len(expected) == 4:
        return expected[1:3] == found[1:3] and _same_part(expected[3], found[3])
    return all(map(encodings_match, expected, found))


def same_plain(one: Any, other: Any) -> bool:
    """True where two plain values are the same to whatever reads them: not 0.0 and -0.0, which are
    equal, but NaN and NaN, which are not."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float | complex):
        return repr(one) == repr(other)
    return bool(one == other)


def _same_name(expected: list[Any], found: list[Any]) -> bool:
    script = "__main__" in (expected[1], found[1])
    return expected[2] == found[2] and (script or expected[1] == found[1])


def _same_part(expected: Any, found: Any) -> bool:
    if isinstance(expected, list):
        return encodings_match(expected, found)
    if expected is None or found is None or expected == found:
        return True
    texts = isinstance(expected, str) and isinstance(found, str) and ":" in expected
    return texts and expected.partition(":")[0] != found.partition(":")[0]


def describe_encoding(written: Any, other: Any = None) -> str:
    """A written value in a few words, for a sentence; `other` is what it differs from."""
    if not isinstance(written, list) or not written:
        text = repr(written)
        return text if len(text) < 60 else f"a {type(written).__name__} of {len(text)} characters"
    word = written[0]
    if word == "absent":
        return "nothing"
    if word == "either":
        return f"{describe_encoding(written[1])} or {describe_encoding(written[2])}"
    if word == "own":
        return written[1] or "the model itself"
    if word == "unguarded":
        return f"a {written[2]}"
    if word in ("plain", "torch", "python"):
        return str(written[-1])
    if word == "enum":
        alike = isinstance(other, list) and other[:4] == written[:4]
        return ".".join(written[2:4]) + (" that holds something else" if alike else "")
    if word in ("items", "dict"):
        return _describe_items(written, other)
    if word == "partial":
        alike = isinstance(other, list) and other[:2] == written[:2]
        return f"a partial of {describe_encoding(written[1])}" + (
            " with other arguments" if alike else ""
        )
    if word == "tensor":
        alike = isinstance(other, list) and other[:3] == written[:3]
        return "other values" if alike else f"a {written[2]} tensor of shape {written[1]}"
    if word in _NAMED_KINDS:
        kind = "" if word == "class" else "a " if word == "object" else f"the {word} "
        alike = isinstance(other, list) and other[:3] == written[:3]
        return f"{kind}{written[2]}" + (" of other code" if alike else "")
    if word == "bound":
        alike = isinstance(other, list) and other[:2] == written[:2]
        if alike and len(written) > 3 and other[2] == written[2]:
            return describe_encoding(written[3], other[3])
        return f"{written[1]} of {describe_encoding(written[2], other[2] if alike else None)}"
    return "another value"


def _describe_items(written: list[Any], other: Any) -> str:
    kind, items = written[2], written[3]
    if len(items) > 4 or any(isinstance(item, list) for item in items):
        alike = isinstance(other, list) and other[:3] == written[:3]
        return f"a {kind} with other items" if alike else f"a {kind} of {len(items)} items"
    return (
        f"a {kind} of {', '.join(map(describe_encoding, items))}" if items else f"an empty {kind}"
    )


class ModelDifference(Exception):  # noqa: N818
    """The model is not as it was when the plan was made; the message is a clause. `remedy` says
    what to do, where that is something of its own. Where a number is another one, `number` has
    what it is called, what it is, and what it was."""

    def __init__(
        self, clause: str, remedy: str = "", number: tuple[str, Any, Any] | None = None
    ) -> None:
        super().__init__(clause)
        self.remedy = remedy
        self.number = number


def changed_number(name: str, found: Any, expected: Any) -> tuple[str, Any, Any] | None:
    """What a `ModelDifference` says of a number, None for values that are not both numbers."""
    numbers = all(type(value) in (int, float) for value in (found, expected))
    return (name, found, expected) if numbers else None


def missing_source(holder: dict[str, Any]) -> ModelDifference:
    """What is said of a thing that is no longer found."""
    word, name = holder["path"][0]
    if word == "python" and name not in sys.modules:
        said = f"the module {name}, which the forward reads, is not imported"
        return ModelDifference(said, "import it first")
    what = holder["label"] or "what holds " + ", ".join(holder["values"])
    return ModelDifference(f"{what} is not where it was when the plan was made")


def describe_difference(holder: dict[str, Any], name: str, found: Any, expected: Any) -> str:
    """What is said of a part, read as `name`, that is written as `found` now."""
    shown = holder["label"]
    if holder["path"][-1][0] in ("globals", "python") and not shown:
        return (
            f"the global {name} is {describe_encoding(found, expected)}, "
            f"the plan was made with {describe_encoding(expected)}"
        )
    if holder["kind"] == "code":
        return f"{shown} is not that which the plan was made of"
    if holder["kind"] == "cells":
        return (
            f"{name}, which {shown} reads from around it, is {describe_encoding(found, expected)}, "
            f"the plan was made with {describe_encoding(expected)}"
        )
    if holder["kind"] == "defaults":
        return (
            f"the default of {name} of {shown} is {describe_encoding(found, expected)}, "
            f"the plan was made with {describe_encoding(expected)}"
        )
    what = shown or "the model"
    if holder["kind"] == "names":
        return f"{what} has other attributes than when the plan was made"
    return (
        f"{what} has {name} {describe_encoding(found, expected)}, "
        f"the plan was made with {describe_encoding(expected)}"
    )
