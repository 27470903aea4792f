"""Gives every variable of a program the shape, strides and storage that it has when really run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from tightfit.stages.runtime.operators import (
    RNN_BACKWARD,
    RNN_LAYER,
    RNN_WORKSPACE,
    rnn_workspace_bytes,
)
from tightfit.stages.torch_utils.devices import device_of_tensors, preserve_random_states
from tightfit.stages.torch_utils.fake_kernel_fixes import attention_seeds, norm_output_dtypes
from tightfit.stages.trace.program import CapturedProgram, OperatorCall, Variable
from tightfit.util.errors import ModelError

aten = torch.ops.aten

_SCATTERS = (
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
)

_NORMS = {aten.native_group_norm.default: (0,), aten.native_group_norm_backward.default: (0, 1)}
"""The operands that a norm reads in a form of its own."""

MATRIX_PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
"""Operators that are not run to learn their places, as the work of one is large: what they make is
contiguous, whatever they read."""

OutputGradientsFunction = Callable[[list[torch.Tensor]], list[torch.Tensor | None]]

PROBE_BYTES = 256 * 2**20
"""Operators whose operands and results take more than this are not run to learn their places,
unless a trace is asked for with another number."""

StoragePlacement = tuple[tuple[int, ...], int, int]
"""Strides and offset of a tensor, in elements, and the bytes of its storage."""


def fake_mode_of(program: CapturedProgram) -> FakeTensorMode:
    """The mode that the program's tensors belong to."""
    for variable in (*program.fixed, *program.inputs.values()):
        if isinstance(variable.fake, FakeTensor):
            return variable.fake.fake_mode
    raise ModelError("the model has neither parameters nor tensors among its inputs")


def propagate_layouts(
    program: CapturedProgram,
    tangents: OutputGradientsFunction,
    layout: LayoutPropagator | None = None,
) -> None:
    """Runs the program on fake tensors in its order, the loss after `program.forward` calls.

    `tangents` gives the gradients of the outputs, None for one without. A `view` that the true
    strides do not allow becomes a copy and a view, as `reshape` would do it.
    """
    layout = layout or LayoutPropagator(fake_mode_of(program))
    _move_constants_to_device(program, layout.mode)
    forward, backward = program.calls[: program.forward], program.calls[program.forward :]
    laid_out = layout.run_all(forward)
    laid_out += layout.restore_outputs(program)
    program.forward = len(laid_out)
    with layout.mode, torch.no_grad():
        gradients = tangents([output.fake for output in program.outputs])
    for number, variable in program.tangents.items():
        gradient = gradients[number]
        assert gradient is not None
        variable.fake = gradient
    program.calls = laid_out + layout.run_all(backward)


def device_of_step(program: CapturedProgram, kind: str) -> torch.device:
    """The device of a kind that parameters, buffers and inputs are on."""
    known = [*program.fixed, *program.inputs.values()]
    return device_of_tensors(
        (variable.fake for variable in known if variable.kind != "constant"), kind
    )


def _move_constants_to_device(program: CapturedProgram, mode: FakeTensorMode) -> None:
    """Puts constants of the CPU on the device of the step, where a plan keeps them."""
    known = [*program.fixed, *program.inputs.values()]
    kinds = [variable.fake.device.type for variable in known if variable.kind != "constant"]
    if "cuda" not in kinds:
        return
    device = device_of_step(program, "cuda")
    for variable in program.fixed:
        like = variable.fake
        if variable.kind == "constant" and like.device.type == "cpu":
            variable.on_host = True
            with mode:
                variable.fake = torch.empty_strided(
                    like.shape, like.stride(), dtype=like.dtype, device=device
                )


_WINDOW_FUNCTIONS = "_window."
"""Of operators that make windows, which lie in a storage of an element more, without operands."""


@dataclass
class MendedCalls:
    """The numbers of the calls of a program whose results were found to lie elsewhere than fake
    ones; once `complete`, the same program of other sizes looks at these alone. Calls of more than
    `probe_bytes` are not looked at before."""

    numbers: set[int] = field(default_factory=set)
    complete: bool = False
    probe_bytes: int = PROBE_BYTES

    def may_be(self, number: int) -> bool:
        """Whether a call may be one of them."""
        return not self.complete or number in self.numbers


class LayoutPropagator:
    """Runs calls on fake tensors, and mends strides and sizes that fake tensors get wrong.

    Some operators give other strides than their fake versions (batch normalization of a transposed
    tensor), some larger storages (a mean in the memory of what it is the mean of). Distinct calls
    are therefore run once, on ones (indices on zeros).
    """

    def __init__(self, mode: FakeTensorMode, mended: MendedCalls | None = None) -> None:
        self.mode = mode
        self.mended = MendedCalls() if mended is None else mended
        self.count = 0
        self.probed: dict[str, list[StoragePlacement | None] | None] = {}
        self.copied: dict[Variable, Variable] = {}

    def run_all(self, calls: list[OperatorCall]) -> list[OperatorCall]:
        """Runs calls in order and returns them with the copies that views turned out to need."""
        laid_out = []
        for call in calls:
            laid_out += self.copies(call)
            self.run(call)
            laid_out.append(call)
        return laid_out

    def copies(self, call: OperatorCall) -> list[OperatorCall]:
        """The copies that a call turned out to need, which it then reads."""
        if call.target in _NORMS:
            return self.copies_of_norm(call)
        contiguous = torch.contiguous_format
        return [self.copy_operand(call, 0, contiguous)] if self.needs_copy(call) else []

    def copies_of_norm(self, call: OperatorCall) -> list[OperatorCall]:
        """The copies that a group norm reads on the CPU, where its operands turned out to lie in no
        form that it takes: eager makes them ahead of it, and its backward reads them again."""
        made = []
        for place in _NORMS[call.target]:
            source = call.args[place]
            form = suggest_memory_format(source.fake)
            if source.fake.device.type != "cpu" or source.fake.is_contiguous(memory_format=form):
                continue
            if source in self.copied:
                call.args = (*call.args[:place], self.copied[source], *call.args[place + 1 :])
                call.forget_inputs()
                continue
            made.append(self.copy_operand(call, place, form))
            self.copied[source] = call.args[place]
        return made

    def restore_outputs(self, program: CapturedProgram) -> list[OperatorCall]:
        """What the outputs need after the forward to lie as the model's own do."""
        return []

    def run(self, call: OperatorCall) -> None:
        """Runs a call and gives its outputs their true strides."""
        run_on_fake_tensors(call, self.mode)
        if call.target is aten.view.default:
            _restride(call)
            return
        operands = call.inputs()
        if call.target in MATRIX_PRODUCTS or (
            not operands and _WINDOW_FUNCTIONS not in str(call.target)
        ):
            return
        shared = {storage_key(operand.fake) for operand in operands}
        made = call.made()
        if call.writes or any(storage_key(output.fake) in shared for output in made):
            return
        number, self.count = self.count, self.count + 1
        if not self.mended.may_be(number):
            return
        size = sum(variable.fake.untyped_storage().nbytes() for variable in {*operands, *made})
        if size > self.mended.probe_bytes and not self.mended.complete:
            return
        places = self.measured_placements(call)
        if places is None:
            return
        for output, place in zip(call.outputs, places, strict=True):
            if output is not None and place is not None and place != tensor_placement(output.fake):
                output.fake = self.placed(output.fake, place)
                self.mended.numbers.add(number)

    def placed(self, like: torch.Tensor, place: StoragePlacement) -> torch.Tensor:
        """A fake tensor like another one, at another place of a storage of its own."""
        stride, offset, size = place
        with self.mode:
            memory = torch.empty(size // like.element_size(), dtype=like.dtype, device=like.device)
            return memory.as_strided(like.shape, stride, offset)

    def measured_placements(self, call: OperatorCall) -> list[StoragePlacement | None] | None:
        """The place of each result of really running the call, None where it cannot be run."""
        key = str((call.target, pytree.tree_map(_signature, (call.args, call.kwargs))))
        if key not in self.probed:
            self.probed[key] = _probe(call)
        return self.probed[key]

    def needs_copy(self, call: OperatorCall) -> bool:
        """True for a view that its operand's strides do not allow, and for an operator that would
        copy its operand's whole storage to change a part of it."""
        if call.target in _SCATTERS:
            return not fills_storage(call.args[0].fake)
        if call.target is not aten.view.default:
            return False
        with contextlib.suppress(RuntimeError, ValueError), self.mode:
            aten.view.default(call.args[0].fake, call.args[1])
            return False
        return True

    def copy_operand(
        self, call: OperatorCall, place: int, form: torch.memory_format
    ) -> OperatorCall:
        """A copy of an operand, of a form, which the call then reads."""
        source = call.args[place]
        result = Variable("intermediate", source.fake)
        formed = {"memory_format": form}
        copy = OperatorCall(
            aten.clone.default, (source,), formed, [result], call.module, call.source
        )
        run_on_fake_tensors(copy, self.mode)
        call.args = (*call.args[:place], result, *call.args[place + 1 :])
        call.forget_inputs()
        return copy


def _restride(view: OperatorCall) -> None:
    """Gives a view its true strides: where a size is 1, those of fake tensors can be others."""
    source, [result] = view.args[0].fake, view.made()
    like = torch.empty_strided(source.shape, source.stride(), device="meta", dtype=source.dtype)
    strides = like.view(result.fake.shape).stride()
    if strides != result.fake.stride():
        shape, offset = result.fake.shape, result.fake.storage_offset()
        with source.fake_mode, torch.no_grad():
            result.fake = source.as_strided(shape, strides, offset)


def run_on_fake_tensors(call: OperatorCall, mode: FakeTensorMode) -> None:
    """Runs one call on its variables' fake tensors and gives its outputs theirs."""
    args, kwargs = pytree.tree_map(
        lambda leaf: leaf.fake if isinstance(leaf, Variable) else leaf, (call.args, call.kwargs)
    )
    with mode, torch.no_grad():
        results = pytree.tree_leaves(call.target(*args, **kwargs))
    if call.writes:
        return
    if len(results) != len(call.outputs):
        raise ModelError(f"the operator {call.target} returns another number of results when run")
    for output, result in zip(call.outputs, results, strict=True):
        if output is None:
            continue
        if result.layout != torch.strided:
            place = f"{call.source}: " if call.source else ""
            raise ModelError(
                f"{place}{call.target} makes a tensor that is not strided, "
                "as sparse gradients are: plan it with dense ones (sparse=False)"
            )
        output.fake = result
    for number, dtype in norm_output_dtypes(call.target._schema.name, args).items():
        _set_dtype(call.outputs[number], dtype, mode)
    for number, seed in attention_seeds(call.target, args, kwargs).items():
        _set_shape_like(call.outputs[number], seed, mode)
    if str(call.target) == RNN_LAYER:
        _set_workspace(call, mode, args)
    elif str(call.target) == RNN_BACKWARD:
        _separate_storages(call, mode)


def _set_dtype(output: Variable | None, dtype: torch.dtype, mode: FakeTensorMode) -> None:
    if output is not None and output.fake.dtype != dtype:
        with mode:
            output.fake = torch.empty_like(output.fake, dtype=dtype)


def _set_shape_like(output: Variable | None, like: torch.Tensor, mode: FakeTensorMode) -> None:
    """Gives a result the shape, dtype and device of a real one."""
    if output is not None:
        with mode:
            output.fake = torch.empty(like.shape, dtype=like.dtype, device=like.device)


def _separate_storages(call: OperatorCall, mode: FakeTensorMode) -> None:
    """Gives each result a storage of its own."""
    for output in call.made():
        like = output.fake
        with mode:
            output.fake = torch.empty_strided(
                like.shape, like.stride(), dtype=like.dtype, device=like.device
            )


def _set_workspace(call: OperatorCall, mode: FakeTensorMode, args: tuple[Any, ...]) -> None:
    """Gives a recurrent layer the workspace that its fake version leaves empty."""
    workspace = call.outputs[RNN_WORKSPACE]
    if workspace is not None:
        size = rnn_workspace_bytes(args)
        with mode:
            workspace.fake = torch.empty(size, dtype=torch.uint8, device=workspace.fake.device)


def tensor_placement(tensor: torch.Tensor) -> StoragePlacement:
    """Where a tensor lies in its storage, and how large that is."""
    size = tensor.untyped_storage().nbytes()
    return tuple(tensor.stride()), int(tensor.storage_offset()), size


def _probe(call: OperatorCall) -> list[StoragePlacement | None] | None:
    """Runs a call on ones; an operator that refuses them keeps the places of its fake version, as
    do results that share a storage with each other or with an operand."""

    def operand(leaf: Any) -> Any:
        if not isinstance(leaf, Variable):
            return leaf
        like = leaf.fake
        last = sum(
            (size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True)
        )
        one = like.is_floating_point() or like.is_complex()
        memory = torch.full((max(last + 1, 0),), int(one), dtype=like.dtype, device=like.device)
        return memory.as_strided(like.shape, like.stride())

    args, kwargs = pytree.tree_map(operand, (call.args, call.kwargs))
    try:
        with preserve_random_states(), torch.no_grad():
            results = pytree.tree_leaves(call.target(*args, **kwargs))
    except (RuntimeError, IndexError, ValueError, TypeError):
        return None
    tensors = [result for result in results if isinstance(result, torch.Tensor)]
    operands = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if type(leaf) is torch.Tensor]
    apart = {storage_key(tensor) for tensor in tensors} - {storage_key(leaf) for leaf in operands}
    shared = len(apart) < len(tensors)
    return [
        tensor_placement(result) if isinstance(result, torch.Tensor) and not shared else None
        for result in results
    ]


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, Variable):
        return str((tuple(leaf.fake.shape), leaf.fake.stride(), leaf.fake.dtype))
    return str(leaf)


def fills_storage(tensor: torch.Tensor) -> bool:
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


def storage_key(tensor: torch.Tensor) -> Any:
    """What tells storages apart."""
    return tensor.untyped_storage()._cdata
