"""Compiles the bodies of groups to libraries that run where there is no compiler (AOTInductor).

A library is native code for one build of PyTorch, one processor and one number of threads. It is
made from the same FX graph as a kernel that is compiled where it runs; that it has the bits of this
one is looked at here. What is compiled is kept in inductor's folder, beside kernels (see
`kernels`).
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tightfit.schemas.groups import DIGITS, Body, body_digest, body_text
from tightfit.stages.device.evaluate import evaluate
from tightfit.stages.device.groups import file_name, forms_of, kernel
from tightfit.stages.device.kernels import (
    CompilerError,
    Form,
    KernelError,
    Over,
    checked_kernel,
    inductor,
    kernel_folder,
    pinned,
    refusing,
    traced_function,
    zeros_of,
)
from tightfit.stages.device.opened import open_library
from tightfit.stages.device.plain import plain_state

_SETTINGS = {
    "cpp_wrapper": True,
    "aot_inductor.package": True,
    "aot_inductor.enable_line_tables": False,
}
Report = Callable[[int, int], None]


def compile_libraries(
    bodies: Mapping[str, tuple[Body, Over | None]],
    device: torch.device,
    report: Report = lambda done, total: None,
) -> bytes:
    """One file (.pt2) with the library of each body, by name, in place where it writes over an
    input. `report` is told how many are done,
    of how many.

    Raises CompilerError where nothing can be compiled, or libraries not for this device;
    KernelError, in a sentence, where a body cannot, or its library has other bits than its kernel.
    """
    if device.type != "cpu":
        raise CompilerError(f"compiled libraries travel for the CPU alone, not for {device.type}")
    pack = _aotinductor()[1]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "libraries.pt2"
        made = {}
        with kernel_folder(device) as folder:
            for number, (name, (body, over)) in enumerate(sorted(bodies.items())):
                report(number, len(bodies))
                place = _library(body, over, device, folder)
                made[name] = [str(path) for path in sorted(place.iterdir())]
            pack(str(file), made)
        for name, (body, over) in bodies.items():
            _compare(f"the group {name}", open_library(file, name), body, over, device)
        return file.read_bytes()


def _aotinductor() -> tuple[Any, Any]:
    """What sets inductor to libraries, and what packs them; raises CompilerError where a build of
    PyTorch lacks them."""
    inductor()
    try:
        from torch._inductor.package import package_aoti
        from torch._inductor.virtualized import V

        return V.set_aot_compilation, package_aoti
    except (ImportError, AttributeError) as error:
        raise CompilerError(
            f"PyTorch {torch.__version__} has no AOTInductor of the form that libraries need"
        ) from error


def _library(body: Body, over: Over | None, device: torch.device, folder: Path) -> Path:
    """The folder with the files of a body's library, compiled unless it is there."""
    done = folder / "libraries" / file_name(body, over)
    if done.is_dir():
        return done
    done.parent.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=done.parent))
    try:
        _compile(body, over, device, fresh)
        try:
            fresh.replace(done)
        except OSError:
            if not done.is_dir():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return done


def _compile(body: Body, over: Over | None, device: torch.device, folder: Path) -> None:
    """Compiles a body into the files of a folder."""
    compile_inner, _ = inductor()
    ahead_of_time, _ = _aotinductor()
    from torch._inductor import config

    digest = body_digest(body_text(body))
    inputs, outputs = forms_of(body.inputs), forms_of(body.forms)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        settings = {**_SETTINGS, "aot_inductor.output_path": place}
        with pinned(device), plain_state(), refusing(f"the library of the group {digest[:DIGITS]}"):
            traced, fakes = traced_function(
                lambda *given: evaluate(body, given), inputs, outputs, device, over
            )
            with ahead_of_time(True), config.patch(settings):
                compiled = compile_inner(traced, fakes, cpp_wrapper=True)
            for file in compiled.filename:
                shutil.copy(os.fspath(file), folder)


def _compare(
    name: str, library: Callable[..., Any], body: Body, over: Over | None, device: torch.device
) -> None:
    """Raises KernelError where a library has other bits than the kernel of its body."""
    runs = (
        kernel(body, device, over),
        checked_kernel(name, library, forms_of(body.forms), over),
    )
    theirs, mine = (
        run([_drawn(form, device, seed) for seed, form in enumerate(forms_of(body.inputs))])
        for run in runs
    )
    same = len(mine) == len(theirs) and all(map(_same, mine, theirs))
    if not same:
        raise KernelError(f"the library of {name} has other bits than its kernel: plan without")


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are alike in form and bits, those of what is no number too."""
    if one.shape != other.shape or one.stride() != other.stride() or one.dtype != other.dtype:
        return False
    pairs = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(*pairs) if one.numel() else True


def _drawn(form: Form, device: torch.device, seed: int) -> Tensor:
    """A tensor of a form with seeded numbers in it."""
    numbers = torch.randn(form.shape, generator=torch.Generator().manual_seed(seed))
    return zeros_of(form, device).copy_(numbers)
