"""The groups of a step, compiled for the process that runs it."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .absent import Absent
from .kernels import (
    CompilerError,
    Form,
    Kernel,
    KernelError,
    Over,
    check_compiler,
    checked_kernel,
    compile_function,
)
from .libraries import Libraries

PAUSE = 5.0
"""Seconds between two lines on how far it is, where there is no terminal."""


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


def prepare(
    groups: Sequence[Group],
    device: str,
    libraries: Libraries | None,
    eager: Any,
    wanted: bool,
    without_compiler: str,
) -> bool:
    """Gets the kernels of groups for a device, from `libraries` where they are `wanted` and of this
    build, and compiled elsewhere. False where that cannot be and the plan of `eager`'s kernels is
    to run, which a warning says.

    Raises RuntimeError, in one sentence, where kernels cannot be had and the caller asks for
    nothing else, or asks for what the package does not have; ValueError for what is no answer."""
    if without_compiler not in ("error", "eager"):
        said = f'without_compiler is {without_compiler!r}, it can be "error" or "eager"'
        raise ValueError(said)
    if without_compiler == "eager" and eager is None:
        raise RuntimeError(
            "no plan of eager's kernels is beside this one: plan with with_eager=True"
        )
    if wanted and libraries is None:
        raise RuntimeError("the package has no compiled libraries: plan with with_libraries=True")
    try:
        if not (wanted and libraries and opened(groups, torch.device(device), libraries)):
            compile_all(groups, torch.device(device))
    except (CompilerError, KernelError) as error:
        if without_compiler != "eager":
            raise type(error)(f"{error}{_others(libraries, eager)}") from error
        peak = eager.PREDICTED_PEAK
        warnings.warn(
            f"{error}; the plan of eager's kernels runs, which takes {peak:,} bytes", stacklevel=3
        )
        return False
    return True


def _others(libraries: Libraries | None, eager: Any) -> str:
    """What the package has for those without a compiler."""
    found = ["libraries=True"] if libraries is not None else []
    found += ['without_compiler="eager"'] if eager is not None else []
    return f", or load the package with {' or '.join(found)}" if found else ""


def opened(groups: Sequence[Group], device: torch.device, libraries: Libraries) -> bool:
    """Lets groups run their compiled libraries; False, with a warning, where these are of another
    build, processor or number of threads."""
    unlike = libraries.unlike(device)
    if unlike:
        warnings.warn(f"{unlike}: groups are compiled here", stacklevel=4)
        return False
    key = device.type, torch.get_num_threads()
    missing = [group for group in groups if key not in group.kernels]
    made = libraries.opened([group.name for group in missing]) if missing else {}
    for group in missing:
        group.kernels[key] = checked_kernel(
            group.name, made[group.name], group.outputs, group.place
        )
    return True


def compile_all(groups: Sequence[Group], device: torch.device) -> None:
    """Compiles groups, and tells standard error how far it is. What inductor has kept in its folder
    takes milliseconds, anything else seconds."""
    check_compiler(device)
    shown = sys.stderr.isatty()
    told = time.monotonic()
    try:
        for number, group in enumerate(groups, start=1):
            said = f"compiling group {number} of {len(groups)}"
            if shown:
                print(f"\r{said}", end="", file=sys.stderr, flush=True)
            elif time.monotonic() - told >= PAUSE:
                told = time.monotonic()
                print(said, file=sys.stderr, flush=True)
            group.compiled(device)
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
