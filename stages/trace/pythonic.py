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

from stages.trace.as_eager import replaced


class PythonInBackward:
    """Whether a capture had Python in its backward."""

    def __init__(self) -> None:
        self.found = False

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """Within it functions that run and hooks that are given are noticed."""
        with (
            replaced(BackwardCFunction, "apply", self._noticed),
            replaced(torch.Tensor, "register_hook", self._noticed),
        ):
            yield

    def _noticed(self, original: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.found = True
            return original(*args, **kwargs)

        return call
