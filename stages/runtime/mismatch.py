"""The error of a call that a plan was not made for: one class for all packages of a process.

`tightfit.PlanMismatch` is the same class, whichever of them was imported first. Nothing is
imported for it, so that a package needs PyTorch alone. Where a number is another one than when the
plan was made, the error's `number` has what it is called, what it is, and what it was.
"""

from __future__ import annotations

import sys
import types

_MODULE_NAME = "tightfit.mismatch"


def _process_wide_class() -> type[RuntimeError]:
    known = getattr(sys.modules.get(_MODULE_NAME), "PlanMismatch", None)
    if isinstance(known, type) and issubclass(known, RuntimeError):
        return known
    said = "The call differs from what the plan was made for; the message is one sentence."
    kind = type("PlanMismatch", (RuntimeError,), {"__module__": _MODULE_NAME, "__doc__": said})
    place = sys.modules.setdefault(_MODULE_NAME, types.ModuleType(_MODULE_NAME, said))
    vars(place)["PlanMismatch"] = kind
    return kind


PlanMismatch = _process_wide_class()
