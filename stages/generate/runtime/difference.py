"""How a model differs from the one that a plan was made of, in a clause."""

from __future__ import annotations

import sys
from typing import Any

from .written import say


class Difference(Exception):  # noqa: N818
    """The model is not as it was when the plan was made; the message is a clause. `remedy` says
    what to do, where that is something of its own."""

    def __init__(self, clause: str, remedy: str = "") -> None:
        super().__init__(clause)
        self.remedy = remedy


def not_there(holder: dict[str, Any]) -> Difference:
    """What is said of a thing that is no longer found."""
    word, name = holder["place"][0]
    if word == "python" and name not in sys.modules:
        said = f"the module {name}, which the forward reads, is not imported"
        return Difference(said, "import it first")
    what = holder["shown"] or "what holds " + ", ".join(holder["reads"])
    return Difference(f"{what} is not where it was when the plan was made")


def differs(holder: dict[str, Any], name: str, found: Any, expected: Any) -> str:
    """What is said of a part, read as `name`, that is written as `found` now."""
    shown = holder["shown"]
    if holder["place"][-1][0] in ("globals", "python") and not shown:
        return (
            f"the global {name} is {say(found, expected)}, the plan was made with {say(expected)}"
        )
    if holder["kind"] == "code":
        return f"{shown} is not that which the plan was made of"
    if holder["kind"] == "cells":
        return (
            f"{name}, which {shown} reads from around it, is {say(found, expected)}, "
            f"the plan was made with {say(expected)}"
        )
    if holder["kind"] == "defaults":
        return (
            f"the default of {name} of {shown} is {say(found, expected)}, "
            f"the plan was made with {say(expected)}"
        )
    what = shown or "the model"
    if holder["kind"] == "names":
        return f"{what} has other attributes than when the plan was made"
    return f"{what} has {name} {say(found, expected)}, the plan was made with {say(expected)}"
