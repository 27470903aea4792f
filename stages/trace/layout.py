"""Gives every variable of a program the shape, strides and storage that it has when really run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from schemas.errors import ModelError
from stages.trace.program import Call, Program, Variable

aten = torch.ops.aten

Tangents = Callable[[list[torch.Tensor]], list[torch.Tensor | None]]


def fake_mode_of(program: Program) -> FakeTensorMode:
    """The mode that the program's tensors belong to."""
    for variable in (*program.fixed, *program.inputs.values()):
        if isinstance(variable.fake, FakeTensor):
            return variable.fake.fake_mode
    raise ModelError("the model has neither parameters nor tensors among its inputs")


def lay_out(program: Program, tangents: Tangents) -> None:
    """Runs the program on fake tensors in its order, the loss after `program.forward` calls.

    `tangents` gives the gradients of the outputs, None for one without. A `view` that the true
    strides do not allow becomes a copy and a view, as `reshape` would do it.
    """
    forward, backward = program.calls[: program.forward], program.calls[program.forward :]
    with fake_mode_of(program), torch.no_grad():
        laid_out = _run_all(forward)
        program.forward = len(laid_out)
        gradients = tangents([output.fake for output in program.outputs])
        for number, variable in program.tangents.items():
            gradient = gradients[number]
            assert gradient is not None
            variable.fake = gradient
        program.calls = laid_out + _run_all(backward)


def _run_all(calls: list[Call]) -> list[Call]:
    laid_out = []
    for call in calls:
        if call.target is aten.view.default:
            laid_out.extend(_contiguous_for_view(call))
        run_fake(call)
        laid_out.append(call)
    return laid_out


def run_fake(call: Call) -> None:
    """Runs one call on its variables' fake tensors and gives its outputs theirs."""
    args, kwargs = pytree.tree_map(
        lambda leaf: leaf.fake if isinstance(leaf, Variable) else leaf, (call.args, call.kwargs)
    )
    results = pytree.tree_leaves(call.target(*args, **kwargs))
    if call.writes:
        return
    if len(results) != len(call.outputs):
        raise ModelError(f"the operator {call.target} returns another number of results when run")
    for output, result in zip(call.outputs, results, strict=True):
        if output is not None:
            assert isinstance(result, torch.Tensor)
            output.fake = result


def _contiguous_for_view(call: Call) -> list[Call]:
    source, shape = call.args[0], call.args[1]
    with contextlib.suppress(RuntimeError, ValueError):
        aten.view.default(source.fake, shape)
        return []
    copy = Call(
        aten.clone.default,
        (source,),
        {"memory_format": torch.contiguous_format},
        [Variable("intermediate", source.fake)],
        call.module,
        call.source,
    )
    run_fake(copy)
    call.args = (copy.outputs[0], shape)
    return [copy]


def fills_its_storage(tensor: torch.Tensor) -> bool:
    """True when the tensor's elements are all of its storage, each once."""
    return (
        tensor.storage_offset() == 0
        and tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()
        and is_dense(tensor)
    )


def is_dense(tensor: torch.Tensor) -> bool:
    """True when the tensor is non-overlapping and dense, in whatever order of dimensions."""
    expected = 1
    sizes = sorted(
        (stride, size)
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if size > 1
    )
    for stride, size in sizes:
        if stride != expected:
            return False
        expected *= size
    return True


def storage_of(tensor: torch.Tensor) -> Any:
    """What tells storages apart."""
    return tensor.untyped_storage()._cdata
