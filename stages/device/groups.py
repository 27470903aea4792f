"""Groups as operators of this process: `torch.ops.tightfit.group.d<digest>`.

A group is registered from its body, whose digest its name holds, and compiled when it first runs.
On tensors without memory it is run by ATen, call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.graph import Graph, Op
from tightfit.schemas.groups import (
    DIGITS,
    Body,
    Leaf,
    body_digest,
    body_of,
    body_text,
    is_group,
    overwritten_output,
)
from tightfit.stages.device.evaluate import evaluate
from tightfit.stages.device.kernels import (
    Form,
    Kernel,
    Over,
    build_key,
    compile_function,
    kernel_folder,
    zeros_of,
)

_libraries: list[torch.library.Library] = []
"""One a group: PyTorch ends a process badly that lets go of one library of many operators."""
_bodies: dict[str, Body] = {}
_kernels: dict[tuple[str, str, Over | None], Kernel] = {}
_running: dict[tuple[str, str, int], Kernel] = {}


def register_groups(graph: Graph) -> None:
    """Makes the groups of a graph operators that `stages.device.operators.resolve` finds; raises
    ArtifactError where a group is not what its name says."""
    for op in graph.all_ops:
        if is_group(op.target):
            body = body_of(op)
            if op.target not in _bodies:
                _register(op.target, body)


def compile_body(body: Body, device: torch.device, over: Over | None = None) -> Kernel:
    """The kernel of a body on a device, in place where it writes `over` an input; see
    `compile_function`."""
    digest = body_digest(body_text(body))
    name = f"the group {digest[:DIGITS]}"
    inputs, outputs = forms_of(body.inputs), forms_of(body.forms)
    made = compile_function(
        name, lambda *given: evaluate(body, given), inputs, outputs, device, over
    )
    with kernel_folder(device) as folder:
        mark = _mark(folder, body, over)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    return made


def is_compiled(body: Body, device: torch.device, over: Over | None = None) -> bool:
    """Whether a body has been compiled for a device by this build, into the folder of its kernels,
    in place where it writes `over` an input; raises CompilerError where there is no such folder."""
    with kernel_folder(device) as folder:
        return _mark(folder, body, over).exists()


def _mark(folder: Path, body: Body, over: Over | None) -> Path:
    """The empty file that says so."""
    return folder / "compiled" / file_name(body, over)


def file_name(body: Body, over: Over | None) -> str:
    """The name of what is compiled of a body, in place where it writes `over` an input."""
    place = "" if over is None else f"-{over.input}-{over.output}"
    return f"{body_digest(body_text(body))}{place}"


def forms_of(leaves: Iterable[Leaf]) -> list[Form]:
    """What kernels take and make, as they are told."""
    return [
        Form(tuple(leaf.shape), tuple(leaf.strides), leaf.offset, leaf.dtype) for leaf in leaves
    ]


def filled(form: Form, fill: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """A tensor of a form, with contents; what is no floating-point number is zero or one, such a
    number of one byte is any."""
    tensor = zeros_of(form, device)
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.as_strided((size,), (1,), 0)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        whole.view(torch.uint8).random_(0, 256)
    elif tensor.is_floating_point():
        fill(whole)
    else:
        whole.copy_(torch.rand(size, device=device) < 0.5)
    return tensor


def kernel(body: Body, device: torch.device, over: Over | None = None) -> Kernel:
    """The kernel of a body on a device, in place where it writes `over` an input; compiled once in
    a process for a number of threads."""
    key = build_key(device), body_digest(body_text(body)), over
    if key not in _kernels:
        _kernels[key] = compile_body(body, device, over)
    return _kernels[key]


def kernel_over(graph: Graph, op: Op, value: int, device: torch.device) -> Kernel:
    """The kernel of a group that writes over the input `value`; raises ArtifactError where it
    cannot lie there."""
    output = overwritten_output(graph, op, value)
    if output is None:
        raise ArtifactError(f"op {op.id} ({op.target}) cannot overwrite value {value}")
    return kernel(body_of(op), device, Over(op.inputs.index(value), output))


def _register(target: str, body: Body) -> None:
    name = target.removeprefix("tightfit.")
    takes = ", ".join(f"Tensor a{number}" for number in range(len(body.inputs)))
    gives = ", ".join(["Tensor"] * len(body.outputs))
    gives = gives if len(body.outputs) == 1 else f"({gives})"
    library = torch.library.Library("tightfit", "FRAGMENT")
    library.define(f"{name}({takes}, *, str? body=None) -> {gives}")

    def shown(outputs: list[Tensor]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compiled(*given: Tensor, body: str | None = None) -> Any:
        return shown(_run(target, given))

    def formed(*given: Tensor, body: str | None = None) -> Any:
        return shown(_formed(_bodies[target], given))

    for key in ("CPU", "CUDA"):
        library.impl(name, compiled, key)
    library.impl(name, formed, "Meta")
    _libraries.append(library)
    _bodies[target] = body


def _formed(body: Body, given: tuple[Tensor, ...]) -> list[Tensor]:
    """The outputs of a body on tensors without memory, with the strides that it gives them and the
    dtypes: without memory, statistics of half precision are told as CUDA makes them. What a kernel
    makes is compared with its forms when it is compiled."""
    return [
        torch.empty_strided(
            made.shape, form.strides, dtype=getattr(torch, form.dtype), device=made.device
        )
        for made, form in zip(evaluate(body, given), body.forms, strict=True)
    ]


def _run(target: str, given: tuple[Tensor, ...]) -> list[Tensor]:
    device = given[0].device
    key = target, device.type, torch.get_num_threads()
    if key not in _running:
        _running[key] = kernel(_bodies[target], torch.device(device.type))
    return _running[key](given)
