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

from tightfit.schemas.graph.fused_groups import (
    GROUP_DIGEST_DIGITS,
    GroupBody,
    group_body_digest,
    serialize_group_body,
)
from tightfit.stages.runtime.call_context import default_torch_state
from tightfit.stages.runtime.kernels.aot_libraries import load_aot_library
from tightfit.stages.runtime.kernels.compile import (
    CompilerError,
    InPlaceKernel,
    KernelError,
    TensorForm,
    kernel_folder,
    kernel_with_checks,
    load_inductor,
    pin_inductor_config,
    raise_kernel_errors,
    trace_function,
    zeros_of_form,
)
from tightfit.stages.torch_utils.fused_group_operators import (
    body_file_name,
    evaluate_body,
    group_kernel,
    tensor_forms,
)
from tightfit.util.progress import ProgressCallback

_SETTINGS = {
    "cpp_wrapper": True,
    "aot_inductor.package": True,
    "aot_inductor.enable_line_tables": False,
}


def compile_libraries(
    bodies: Mapping[str, tuple[GroupBody, InPlaceKernel | None]],
    device: torch.device,
    report: ProgressCallback | None = None,
) -> bytes:
    """One file (.pt2) with the library of each body, by name, in place where it writes over an
    input. `report` is told how many are done,
    of how many.

    Raises CompilerError where nothing can be compiled, or libraries not for this device;
    KernelError, in a sentence, where a body cannot, or its library has other bits than its kernel.
    """
    if device.type != "cpu":
        raise CompilerError(f"compiled libraries travel for the CPU alone, not for {device.type}")
    pack = _load_aotinductor()[1]
    with tempfile.TemporaryDirectory() as temporary:
        file = Path(temporary) / "libraries.pt2"
        made = {}
        with kernel_folder(device) as folder:
            for number, (name, (body, over)) in enumerate(sorted(bodies.items())):
                if report is not None:
                    report(number, len(bodies), "")
                place = _compile_once(body, over, device, folder)
                made[name] = [str(path) for path in sorted(place.iterdir())]
            pack(str(file), made)
        for name, (body, over) in bodies.items():
            _compare_with_kernel(
                f"the group {name}", load_aot_library(file, name), body, over, device
            )
        return file.read_bytes()


def _load_aotinductor() -> tuple[Any, Any]:
    """What sets inductor to libraries, and what packs them; raises CompilerError where a build of
    PyTorch lacks them."""
    load_inductor()
    try:
        from torch._inductor.package import package_aoti
        from torch._inductor.virtualized import V

        return V.set_aot_compilation, package_aoti
    except (ImportError, AttributeError) as error:
        raise CompilerError(
            f"PyTorch {torch.__version__} has no AOTInductor of the form that libraries need"
        ) from error


def _compile_once(
    body: GroupBody, over: InPlaceKernel | None, device: torch.device, folder: Path
) -> Path:
    """The folder with the files of a body's library, compiled unless it is there."""
    done = folder / "libraries" / body_file_name(body, over)
    if done.is_dir():
        return done
    done.parent.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=done.parent))
    try:
        _compile_library(body, over, device, fresh)
        try:
            fresh.replace(done)
        except OSError:
            if not done.is_dir():
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return done


def _compile_library(
    body: GroupBody, over: InPlaceKernel | None, device: torch.device, folder: Path
) -> None:
    """Compiles a body into the files of a folder."""
    compile_inner, _ = load_inductor()
    ahead_of_time, _ = _load_aotinductor()
    from torch._inductor import config

    digest = group_body_digest(serialize_group_body(body))
    inputs, outputs = tensor_forms(body.inputs), tensor_forms(body.forms)
    with tempfile.TemporaryDirectory(dir=folder.parent) as place:
        settings = {**_SETTINGS, "aot_inductor.output_path": place}
        with (
            pin_inductor_config(device),
            default_torch_state(),
            raise_kernel_errors(f"the library of the group {digest[:GROUP_DIGEST_DIGITS]}"),
        ):
            traced, fakes = trace_function(
                lambda *given: evaluate_body(body, given), inputs, outputs, device, over
            )
            with ahead_of_time(True), config.patch(settings):
                compiled = compile_inner(traced, fakes, cpp_wrapper=True)
            for file in compiled.filename:
                shutil.copy(os.fspath(file), folder)


def _compare_with_kernel(
    name: str,
    library: Callable[..., Any],
    body: GroupBody,
    over: InPlaceKernel | None,
    device: torch.device,
) -> None:
    """Raises KernelError where a library has other bits than the kernel of its body."""
    runs = (
        group_kernel(body, device, over),
        kernel_with_checks(name, library, tensor_forms(body.forms), over),
    )
    theirs, mine = (
        run(
            [
                _random_tensor(form, device, seed)
                for seed, form in enumerate(tensor_forms(body.inputs))
            ]
        )
        for run in runs
    )
    same = len(mine) == len(theirs) and all(map(_same_bits, mine, theirs))
    if not same:
        raise KernelError(f"the library of {name} has other bits than its kernel: plan without")


def _same_bits(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are alike in form and bits, those of what is no number too."""
    if one.shape != other.shape or one.stride() != other.stride() or one.dtype != other.dtype:
        return False
    pairs = (tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other))
    return torch.equal(*pairs) if one.numel() else True


def _random_tensor(form: TensorForm, device: torch.device, seed: int) -> Tensor:
    """A tensor of a form with seeded numbers in it."""
    numbers = torch.randn(form.shape, generator=torch.Generator().manual_seed(seed))
    return zeros_of_form(form, device).copy_(numbers)
