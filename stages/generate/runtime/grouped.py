"""The groups of a step, compiled for the process that runs it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .absent import Absent
from .kernels import Form, Kernel, Over, check_compiler, compile_function


class Group:
    """Runs a function of calls of ATen as one kernel, compiled for its device and the number of
    threads of the process. Raises RuntimeError, in one sentence, where it cannot be compiled."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Sequence[Tensor]],
        inputs: tuple[Form, ...],
        outputs: tuple[Form, ...],
        reads: tuple[tuple[int, ...], ...],
        place: Over | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.inputs = inputs
        self.outputs = outputs
        self.reads = reads
        self.place = place
        self.kernels: dict[tuple[str, int], Kernel] = {}

    def over(self, position: int, output: int) -> Group:
        """The same in place: an output takes the memory of the input at a position."""
        name, place = f"{self.name}_over_{position}", Over(position, output)
        return Group(name, self.function, self.inputs, self.outputs, self.reads, place)

    def __call__(self, *given: Any) -> Any:
        """The output, or a tuple of all. Where operands are absent, which are the only gradients
        among them, so is what depends on them."""
        if any(isinstance(operand, Absent) for operand in given):
            return self.joining((), *given)
        key = given[0].device.type, torch.get_num_threads()
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.compiled(given[0].device)
        outputs = kernel(given)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def joining(self, gradients: tuple[int, ...], *given: Any) -> Any:
        """The same where several gradients meet, some of which may be absent: what depends on
        absent ones alone is absent, anything else sees zeros for them, as in autograd."""
        absent = {place for place, operand in enumerate(given) if isinstance(operand, Absent)}
        if not absent:
            return self(*given)
        present = set(gradients) - absent
        gone = [bool(absent & set(at)) and not present & set(at) for at in self.reads]
        made: Sequence[Any] = [None] * len(gone)
        if not all(gone):
            device = next(operand.device for operand in given if isinstance(operand, Tensor))
            result = self(*(_there(operand, device) for operand in given))
            made = result if isinstance(result, tuple) else (result,)
        outputs = [
            Absent(_meta(form)) if lacking else output
            for form, lacking, output in zip(self.outputs, gone, made, strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compiled(self, device: torch.device) -> Kernel:
        """The kernel for a device, compiled where there is none."""
        key = device.type, torch.get_num_threads()
        if key not in self.kernels:
            self.kernels[key] = compile_function(
                self.name,
                self.function,
                self.inputs,
                self.outputs,
                torch.device(device.type),
                self.place,
            )
        return self.kernels[key]


def _meta(form: Form) -> Tensor:
    dtype = getattr(torch, form.dtype)
    return torch.empty_strided(form.shape, form.strides, dtype=dtype, device="meta")


def _there(operand: Tensor | Absent, device: torch.device) -> Tensor:
    """An operand, or zeros in place of one that is absent."""
    return torch.zeros_like(operand.meta, device=device) if isinstance(operand, Absent) else operand


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
