"""A further backward over one forward: the step runs its forward again, as it ran before.

Eager keeps for it what the first backward leaves (`retain_graph`), or what that did not come to; a
planned step has dropped all of it by then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .interface import Interface

_keeps_graph: Callable[[], bool] = getattr(
    torch._C._autograd, "_get_current_graph_task_keep_graph", lambda: False
)


class RepeatableForward:
    """A forward that can run again for a further backward: it draws no random numbers, and nothing
    that it writes changes what it computes. Its tensors are referred to weakly."""

    def __init__(
        self, step: Any, interface: Interface, tensors: Sequence[torch.Tensor], written: set[int]
    ) -> None:
        self._step = step
        self._interface = interface
        self._written = written
        self._tensors = [weakref.ref(tensor) for tensor in tensors]
        self._versions = [tensor._version for tensor in tensors]
        self._begun: list[tuple[set[int], bool]] = []

    def begin(self, outputs: Sequence[int]) -> bool:
        """Takes note of a backward that begins, through the `outputs`, and says whether it is a
        further one. Raises RuntimeError where eager has no graph for it any more."""
        parts = {self._interface.output_components[output] for output in outputs}
        for earlier, kept in self._begun:
            if not kept and parts & earlier:
                raise RuntimeError(
                    "a second backward goes through a part of the planned module that an earlier "
                    "one went through: call the earlier one with retain_graph=True, or give "
                    "several losses one backward of their sum"
                )
        self._begun.append((parts, _keeps_graph()))
        return len(self._begun) > 1

    def tensors(self) -> list[torch.Tensor]:
        """The tensors of the forward; copies of those that it writes. Raises RuntimeError where
        they are gone or were changed."""
        found: list[torch.Tensor] = []
        for position, (ref, version) in enumerate(zip(self._tensors, self._versions, strict=True)):
            tensor, spec = ref(), self._interface.tensors[position]
            if tensor is None:
                raise RuntimeError(
                    f"a second backward of a planned module runs its forward again, and an "
                    f"{spec.kind} of it is gone: keep it until then"
                )
            if position in self._written:
                tensor = tensor.detach().clone()
            elif tensor._version != version:
                what = f"the {spec.kind} {spec.path}" if spec.path else f"an {spec.kind}"
                raise RuntimeError(
                    f"{what} was changed in place between the forward and a second backward, which "
                    "needs it as it was: change it after the backward, or a clone of it"
                )
            found.append(tensor)
        return found

    def start(self, tensors: Sequence[torch.Tensor]) -> Any:
        """The step from its beginning."""
        return self._step(*tensors)
