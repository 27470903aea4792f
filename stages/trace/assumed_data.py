"""What a capture that nobody runs takes in place of the data that its forward asks for."""

from __future__ import annotations

from types import FrameType
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException

from tightfit.stages.trace.capture_errors import has_data_dependent_shape, is_data_dependent
from tightfit.stages.trace.code_inspection import caller_frame, caller_location, short_path

MAX_ANSWERS = 300
"""Answers to one call of a function in a row at most: a loop that goes on for longer may never
end."""
aten = torch.ops.aten


class AssumedData:
    """Answers what a forward asks of the data of tensors: a truth value is `truth`, a number is
    one, and a mask selects all. `places` has what was assumed at each line, in order."""

    def __init__(self, truth: bool) -> None:
        self.truth = truth
        self.places: dict[str, str] = {}
        self._last: FrameType | None = None
        self._repeats = 0

    def read(self, func: Any, tensor: torch.Tensor) -> bool | int | float | complex:
        """The answer to an operator that gives data of a tensor to Python."""
        frame = caller_frame()
        self._repeats = self._repeats + 1 if frame is self._last else 1
        self._last = frame
        if self._repeats > MAX_ANSWERS:
            raise DataDependentOutputException(func)
        if func is not aten._local_scalar_dense.default or tensor.dtype is torch.bool:
            self._note(f"a condition is taken as {self.truth}")
            return self.truth
        self._note("a number is taken as 1")
        if tensor.dtype.is_complex:
            return complex(1)
        return 1.0 if tensor.dtype.is_floating_point else 1

    def select(self, func: Any, args: Any) -> torch.Tensor | None:
        """The result of an operator whose shape a mask decides; None for other operators."""
        if func is aten.nonzero.default:
            return self.nonzero(args[0])
        if func is aten.masked_select.default:
            self._note("a mask selects all")
            whole = torch.broadcast_tensors(args[0], args[1])[0]
            return whole.clone(memory_format=torch.contiguous_format).view(-1)
        return None

    def nonzero(self, mask: torch.Tensor) -> torch.Tensor:
        """Places of so many ones as a mask has elements."""
        self._note("a mask selects all")
        return mask.new_zeros((mask.numel(), mask.dim()), dtype=torch.int64)

    def _note(self, assumed: str) -> None:
        file, _, line = caller_location().rpartition(":")
        if file:
            self.places.setdefault(f"{short_path(file)}:{line}", assumed)


def depends_on_data(error: BaseException | None) -> bool:
    """Whether an error of the capture, or one that it is from, says that the forward asks for the
    data of a tensor, or for a shape that depends on it."""
    while error is not None:
        if is_data_dependent(error) or has_data_dependent_shape(error):
            return True
        error = error.__cause__
    return False
