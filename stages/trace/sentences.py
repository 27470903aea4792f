"""What is said of a forward that does what a plan cannot."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch

from tightfit.stages.trace.changes import of_capture
from tightfit.stages.trace.codes import line_that
from tightfit.stages.trace.holders import Holder, Kept
from tightfit.stages.trace.structure import name_of


def on_hook(path: str, field: str, hook: Any) -> str:
    """A hook of a submodule, which a plan would not run."""
    kind = field.strip("_").replace("_", " ").removesuffix("s")
    return (
        f"{path} has the {kind} {name_of(hook)}, which a plan would not run; remove it before "
        f"planning, do its work in the forward, or put it on the whole model"
    )


def on_new_hook(shown: str, hook: Any) -> str:
    """A hook that the forward puts on or removes."""
    return (
        f"the forward puts the hook {name_of(hook)} on {shown or 'the model'} or removes it, which "
        f"a plan would not do; do its work in the forward"
    )


def on_set(shown: str, name: Any, fields: bool, codes: Iterable[types.CodeType]) -> str:
    """An attribute or field that the forward sets."""
    whole = f"{shown}.{name}" if shown else name
    if not fields and shown:
        line = line_that(codes, "read", shown.rpartition(".")[2])
        plain = isinstance(name, str) and name.isidentifier()
        name = torch.Tensor if of_capture(name) else name
        what = f"changes {whole}" if plain else f"changes {name!r} in {shown}"
    else:
        line = line_that(codes, "attribute", name) or line_that(codes, "global", name)
        what = f"sets {whole}"
    return (
        f"the forward {what}{at(line)}, which a plan would not do; return it, keep it in a "
        f"buffer, or where it is only made once run the model once before planning"
    )


def drawn(kept: Kept, draws: dict[int, str]) -> str:
    """A generator of the model that the forward draws from."""
    return (
        f"the forward draws from {kept.shown}{at(draws.get(id(kept.thing), ''))}, and a plan "
        f"would keep what was drawn when it was made; draw with torch's default generator"
    )


def named(holder: Holder, name: str) -> str:
    """A part of a holder by name."""
    return f"{holder.shown}.{name}" if holder.shown else name


def at(line: str) -> str:
    """A source line behind a sentence, where it is known."""
    return f" at {line}" if line else ""
