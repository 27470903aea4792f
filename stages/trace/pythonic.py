"""Notices Python that runs in a backward: functions of one's own and hooks of tensors.

What they ask of a gradient's layout, such as `contiguous()` of one that is, leaves nothing in a
capture.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction


class PythonInBackward:
    """Whether a capture had Python in its backward."""

    def __init__(self) -> None:
        self.found = False

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Within it functions that run and hooks that are given are noticed."""
        places: tuple[tuple[Any, str], ...] = (
            (BackwardCFunction, "apply"),
            (torch.Tensor, "register_hook"),
        )
        originals = [(owner, name, getattr(owner, name)) for owner, name in places]
        for owner, name, original in originals:
            setattr(owner, name, self._noticed(original))
        try:
            yield
        finally:
            for owner, name, original in originals:
                setattr(owner, name, original)

    def _noticed(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.found = True
            return original(*args, **kwargs)

        return call
