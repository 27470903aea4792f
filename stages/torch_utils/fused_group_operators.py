"""Groups as operators of this process: `torch.ops.tightfit.group.d<digest>`.

A group is registered from its body, whose digest its name holds, and compiled when it first runs.
On tensors without memory it is run by ATen, call by call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tightfit.schemas.graph.fused_groups import (
    GROUP_DIGEST_DIGITS,
    GroupBody,
    GroupTensor,
    group_body_digest,
    in_place_output,
    is_fused_group,
    read_group_body,
    serialize_group_body,
)
from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.runtime.kernels.compile import (
    InPlaceKernel,
    Kernel,
    TensorForm,
    build_key,
    compile_function,
    kernel_folder,
    zeros_of_form,
)
from tightfit.stages.torch_utils.operators import decode_argument, resolve
from tightfit.util.errors import ArtifactError


def evaluate_body(body: GroupBody, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs of a body, in its order, on tensors of the forms that it names; raises
    ArtifactError, before anything runs, where it names an operator that is not there or one that
    writes over an argument."""
    operators = [_functional_operator(call.target) for call in body.calls]
    values: dict[int, Any] = dict(enumerate(inputs))
    for call, operator in zip(body.calls, operators, strict=True):
        args, kwargs = decode_arguments(call.arguments)
        given = [decode_argument(argument, values) for argument in args]
        named = {name: decode_argument(argument, values) for name, argument in kwargs.items()}
        made = operator(*given, **named)
        results = made if isinstance(made, list | tuple) else [made]
        for value, result in zip(call.outputs, results, strict=True):
            if value != NO_VALUE:
                values[value] = result
    return [values[value] for value in body.outputs]


def _functional_operator(target: str) -> OpOverload:
    operator = resolve(target)
    if operator._schema.is_mutable:
        raise ArtifactError(f"a group names {target}, which writes over its arguments")
    return operator


_libraries: list[torch.library.Library] = []
"""One a group: PyTorch ends a process badly that lets go of one library of many operators."""
_bodies: dict[str, GroupBody] = {}
_kernels: dict[tuple[str, str, InPlaceKernel | None], Kernel] = {}
_running: dict[tuple[str, str, int], Kernel] = {}


def register_groups(graph: Graph) -> None:
    """Makes the groups of a graph operators that `stages.torch_utils.operators.resolve` finds;
    raises ArtifactError where a group is not what its name says."""
    for op in graph.all_ops:
        if is_fused_group(op.target):
            body = read_group_body(op)
            if op.target not in _bodies:
                _register_group(op.target, body)


def compile_body(
    body: GroupBody, device: torch.device, over: InPlaceKernel | None = None
) -> Kernel:
    """The kernel of a body on a device, in place where it writes `over` an input; see
    `compile_function`."""
    digest = group_body_digest(serialize_group_body(body))
    name = f"the group {digest[:GROUP_DIGEST_DIGITS]}"
    inputs, outputs = tensor_forms(body.inputs), tensor_forms(body.forms)
    made = compile_function(
        name, lambda *given: evaluate_body(body, given), inputs, outputs, device, over
    )
    with kernel_folder(device) as folder:
        mark = _compiled_marker(folder, body, over)
        mark.parent.mkdir(exist_ok=True)
        mark.touch()
    return made


def is_body_compiled(
    body: GroupBody, device: torch.device, over: InPlaceKernel | None = None
) -> bool:
    """Whether a body has been compiled for a device by this build, into the folder of its kernels,
    in place where it writes `over` an input; raises CompilerError where there is no such folder."""
    with kernel_folder(device) as folder:
        return _compiled_marker(folder, body, over).exists()


def _compiled_marker(folder: Path, body: GroupBody, over: InPlaceKernel | None) -> Path:
    """The empty file that says so."""
    return folder / "compiled" / body_file_name(body, over)


def body_file_name(body: GroupBody, over: InPlaceKernel | None) -> str:
    """The name of what is compiled of a body, in place where it writes `over` an input."""
    place = "" if over is None else f"-{over.input}-{over.output}"
    return f"{group_body_digest(serialize_group_body(body))}{place}"


def tensor_forms(leaves: Iterable[GroupTensor]) -> list[TensorForm]:
    """What kernels take and make, as they are told."""
    return [
        TensorForm(tuple(leaf.shape), tuple(leaf.strides), leaf.offset, leaf.dtype)
        for leaf in leaves
    ]


def fill_form(form: TensorForm, fill: Callable[[Tensor], Tensor], device: torch.device) -> Tensor:
    """A tensor of a form, with contents; what is no floating-point number is zero or one, such a
    number of one byte is any."""
    tensor = zeros_of_form(form, device)
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    whole = tensor.as_strided((size,), (1,), 0)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        whole.view(torch.uint8).random_(0, 256)
    elif tensor.is_floating_point():
        fill(whole)
    else:
        whole.copy_(torch.rand(size, device=device) < 0.5)
    return tensor


def group_kernel(
    body: GroupBody, device: torch.device, over: InPlaceKernel | None = None
) -> Kernel:
    """The kernel of a body on a device, in place where it writes `over` an input; compiled once in
    a process for a number of threads."""
    key = build_key(device), group_body_digest(serialize_group_body(body)), over
    if key not in _kernels:
        _kernels[key] = compile_body(body, device, over)
    return _kernels[key]


def in_place_group_kernel(graph: Graph, op: Op, value: int, device: torch.device) -> Kernel:
    """The kernel of a group that writes over the input `value`; raises ArtifactError where it
    cannot lie there."""
    output = in_place_output(graph, op, value)
    if output is None:
        raise ArtifactError(f"op {op.id} ({op.target}) cannot overwrite value {value}")
    return group_kernel(read_group_body(op), device, InPlaceKernel(op.inputs.index(value), output))


def _register_group(target: str, body: GroupBody) -> None:
    name = target.removeprefix("tightfit.")
    takes = ", ".join(f"Tensor a{number}" for number in range(len(body.inputs)))
    gives = ", ".join(["Tensor"] * len(body.outputs))
    gives = gives if len(body.outputs) == 1 else f"({gives})"
    library = torch.library.Library("tightfit", "FRAGMENT")
    library.define(f"{name}({takes}, *, str? body=None) -> {gives}")

    def shown(outputs: list[Tensor]) -> Any:
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    def compiled(*given: Tensor, body: str | None = None) -> Any:
        return shown(_run_group(target, given))

    def formed(*given: Tensor, body: str | None = None) -> Any:
        return shown(_meta_outputs(_bodies[target], given))

    for key in ("CPU", "CUDA"):
        library.impl(name, compiled, key)
    library.impl(name, formed, "Meta")
    _libraries.append(library)
    _bodies[target] = body


def _meta_outputs(body: GroupBody, given: tuple[Tensor, ...]) -> list[Tensor]:
    """The outputs of a body on tensors without memory, with the strides that it gives them and the
    dtypes: without memory, statistics of half precision are told as CUDA makes them. What a kernel
    makes is compared with its forms when it is compiled."""
    return [
        torch.empty_strided(
            made.shape, form.strides, dtype=getattr(torch, form.dtype), device=made.device
        )
        for made, form in zip(evaluate_body(body, given), body.forms, strict=True)
    ]


def _run_group(target: str, given: tuple[Tensor, ...]) -> list[Tensor]:
    device = given[0].device
    key = target, device.type, torch.get_num_threads()
    if key not in _running:
        _running[key] = group_kernel(_bodies[target], torch.device(device.type))
    return _running[key](given)
