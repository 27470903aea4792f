"""Operators that are not PyTorch's own, which a module of the user's registers."""

from __future__ import annotations

from typing import Any

import torch

from .mismatch import PlanMismatch


def operator(target: str) -> Any:
    """The operator that "namespace.name.overload" names; raises PlanMismatch where none is
    registered."""
    found: Any = torch.ops
    try:
        for name in target.split("."):
            found = getattr(found, name)
    except AttributeError as error:
        raise PlanMismatch(
            f"the operator {target} is not registered here: import the module that registers it "
            "before the plan is loaded"
        ) from error
    return found
