"""The groups of a step, compiled for the process that runs it."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..output_gradients import MissingGradient
from .aot_libraries import CompiledLibraries
from .compile import (
    CompilerError,
    InPlaceKernel,
    Kernel,
    KernelError,
    TensorForm,
    check_compiler,
    compile_function,
    kernel_with_checks,
)

PROGRESS_SECONDS = 5.0
"""Seconds between two lines on how far it is, where there is no terminal."""


class CompiledGroup:
    """Runs a function of calls of ATen as one kernel, compiled for its device and the number of
    threads of the process. Raises RuntimeError, in one sentence, where it cannot be compiled."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Sequence[Tensor]],
        inputs: tuple[TensorForm, ...],
        outputs: tuple[TensorForm, ...],
        reads: tuple[tuple[int, ...], ...],
        place: InPlaceKernel | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.inputs = inputs
        self.outputs = outputs
        self.reads = reads
        self.place = place
        self.kernels: dict[tuple[str, int], Kernel] = {}
        self.parts: dict[tuple[frozenset[int], frozenset[int]], CompiledGroup] = {}

    def over(self, position: int, output: int) -> CompiledGroup:
        """The same in place: an output takes the memory of the input at a position."""
        name, place = f"{self.name}_over_{position}", InPlaceKernel(position, output)
        return CompiledGroup(name, self.function, self.inputs, self.outputs, self.reads, place)

    def __call__(self, *given: Any) -> Any:
        """The output, or a tuple of all. Where operands are absent, which are the only gradients
        among them, so is what depends on them."""
        if any(isinstance(operand, MissingGradient) for operand in given):
            return self.joining((), *given)
        key = given[0].device.type, torch.get_num_threads()
        kernel = self.kernels.get(key)
        if kernel is None:
            kernel = self.compiled(given[0].device)
        outputs = kernel(given)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def joining(self, gradients: tuple[int, ...], *given: Any) -> Any:
        """The same where several gradients meet, some of which may be absent: what depends on
        absent ones alone is absent, and does not run; a sum sees zeros for it, as in autograd. Each
        choice of absent ones is a kernel of its own, compiled when it is first needed."""
        absent = frozenset(
            at for at, operand in enumerate(given) if isinstance(operand, MissingGradient)
        )
        if not absent:
            return self(*given)
        present = frozenset(gradients) - absent
        gone = [bool(absent & set(at)) and not present & set(at) for at in self.reads]
        made: Iterator[Any] = iter(())
        if not all(gone):
            there = [operand for operand in given if isinstance(operand, Tensor)]
            result = self.part(absent, present, gone)(*there)
            made = iter(result if isinstance(result, tuple) else (result,))
        outputs = [
            MissingGradient(_meta(form)) if lacking else next(made)
            for form, lacking in zip(self.outputs, gone, strict=True)
        ]
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def part(
        self, absent: frozenset[int], present: frozenset[int], gone: Sequence[bool]
    ) -> CompiledGroup:
        """The group of what is there, by the places of absent operands and of gradients that are
        present; it writes over nothing. `gone` says which outputs it does not make."""
        if (absent, present) not in self.parts:
            there = [at for at in range(len(self.inputs)) if at not in absent]

            def function(*given: Tensor) -> list[Tensor]:
                operands: list[Any] = [MissingGradient(_meta(form)) for form in self.inputs]
                for at, operand in zip(there, given, strict=True):
                    operands[at] = PresentGradient(operand) if at in present else operand
                made = zip(self.function(*operands), gone, strict=True)
                return [_zeros_if_missing(output) for output, lacking in made if not lacking]

            name = "_".join([self.name, "without", *map(str, sorted(absent))])
            kept = [place for place, lacking in enumerate(gone) if not lacking]
            self.parts[absent, present] = CompiledGroup(
                name,
                function,
                tuple(self.inputs[at] for at in there),
                tuple(self.outputs[place] for place in kept),
                tuple(
                    tuple(there.index(at) for at in self.reads[place] if at in there)
                    for place in kept
                ),
            )
        return self.parts[absent, present]

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


def _meta(form: TensorForm) -> Tensor:
    dtype = getattr(torch, form.dtype)
    return torch.empty_strided(form.shape, form.strides, dtype=dtype, device="meta")


class PresentGradient:
    """Stands for a tensor that a gradient is in, while a group is traced of which others are
    absent: an operator that is given both sees zeros for these."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(
        cls,
        operator: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = (tuple(args), dict(kwargs or {}))
        device = next(
            leaf.tensor.device for leaf in pytree.tree_leaves(given) if isinstance(leaf, cls)
        )
        args, named = pytree.tree_map(lambda leaf: _zeros_if_missing(leaf, device), given)
        return pytree.tree_map_only(Tensor, cls, operator(*args, **named))


def _zeros_if_missing(leaf: Any, device: torch.device | None = None) -> Any:
    """A tensor that stands for nothing: zeros for one that is absent."""
    if isinstance(leaf, PresentGradient):
        return leaf.tensor
    if isinstance(leaf, MissingGradient):
        return torch.zeros(leaf.meta.shape, dtype=leaf.meta.dtype, device=device)
    return leaf


def prepare_kernels(
    groups: Sequence[CompiledGroup],
    device: str,
    libraries: CompiledLibraries | None,
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
            "no plan of eager's kernels is beside this one: plan with with_eager=True "
            "(in Python fused_kernels=FusedKernelOptions(eager_fallback=True))"
        )
    if wanted and libraries is None:
        raise RuntimeError(
            "the package has no compiled libraries: plan with with_libraries=True "
            "(in Python fused_kernels=FusedKernelOptions(libraries=True))"
        )
    try:
        if not (wanted and libraries and open_libraries(groups, torch.device(device), libraries)):
            compile_groups(groups, torch.device(device))
    except (CompilerError, KernelError) as error:
        if without_compiler != "eager":
            raise type(error)(f"{error}{_alternatives(libraries, eager)}") from error
        peak = eager.PREDICTED_PEAK
        warnings.warn(
            f"{error}; the plan of eager's kernels runs, which takes {peak:,} bytes", stacklevel=3
        )
        return False
    return True


def _alternatives(libraries: CompiledLibraries | None, eager: Any) -> str:
    """What the package has for those without a compiler."""
    found = ["libraries=True"] if libraries is not None else []
    found += ['without_compiler="eager"'] if eager is not None else []
    return f", or load the package with {' or '.join(found)}" if found else ""


def open_libraries(
    groups: Sequence[CompiledGroup], device: torch.device, libraries: CompiledLibraries
) -> bool:
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
        group.kernels[key] = kernel_with_checks(
            group.name, made[group.name], group.outputs, group.place
        )
    return True


def compile_groups(groups: Sequence[CompiledGroup], device: torch.device) -> None:
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
            elif time.monotonic() - told >= PROGRESS_SECONDS:
                told = time.monotonic()
                print(said, file=sys.stderr, flush=True)
            group.compiled(device)
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
