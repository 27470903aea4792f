"""Whose code asks a module for what it holds."""

from __future__ import annotations

import sys
import types

from torch import nn

_READER = "tightfit.stages.trace.reader"


def asked_by_torch() -> bool:
    """True where PyTorch's own code takes an object's `__dict__`, for nobody's `dir`."""
    frame: types.FrameType | None = sys._getframe(3)
    if frame is not None and frame.f_code is nn.Module.__dir__.__code__:
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "") if frame else ""
    return str(name).partition(".")[0] == "torch"


def walked_by_capture() -> bool:
    """True where what walks through a module's modules is the capture and not the forward."""
    frame: types.FrameType | None = sys._getframe(3)
    while frame is not None:
        name = str(frame.f_globals.get("__name__", ""))
        if name not in ("torch.nn.modules.module", _READER):
            capturing = ("torch.fx", "torch.export", "torch._", "torch.utils._")
            return name.startswith(capturing)
        frame = frame.f_back
    return False
