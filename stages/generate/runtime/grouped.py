"""The groups of a step, compiled for the process that runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .kernels import Form, Kernel, check_compiler, compile_function


class Group:
    """Runs a function of calls of ATen as one kernel, compiled for its device and the number of
    threads of the process. Raises RuntimeError, in one sentence, where it cannot be compiled."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Sequence[Tensor]],
        inputs: tuple[Form, ...],
        outputs: tuple[Form, ...],
    ) -> None:
        self.name = name
        self.function = function
        self.inputs = inputs
        self.outputs = outputs
        self.kernels: dict[tuple[str, int], Kernel] = {}

    def __call__(self, *given: Tensor) -> Any:
        """The output, or a tuple of all."""
        key = given[0].device.type, torch.get_num_threads()
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.compiled(given[0].device)
        outputs = kernel(given)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compiled(self, device: torch.device) -> Kernel:
        """The kernel for a device, compiled where there is none."""
        key = device.type, torch.get_num_threads()
        if key not in self.kernels:
            self.kernels[key] = compile_function(
                self.name, self.function, self.inputs, self.outputs, torch.device(device.type)
            )
        return self.kernels[key]


def prepare(groups: Sequence[Group], device: str) -> None:
    """Compiles groups for a device, and tells a terminal how far it is. What inductor has kept in
    its folder takes milliseconds, anything else seconds."""
    check_compiler(torch.device(device))
    shown = sys.stderr.isatty()
    for number, group in enumerate(groups, start=1):
        if shown:
            print(f"\rcompiling group {number} of {len(groups)}", end="", file=sys.stderr)
        group.compiled(torch.device(device))
    if shown:
        print("\r\033[K", end="", file=sys.stderr)
