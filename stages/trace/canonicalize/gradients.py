"""Makes each gradient a tensor that autograd takes over as it is.

`AccumulateGrad` keeps the gradient that it is given as the parameter's `.grad` when nobody else
holds it and its strides are the parameter's; otherwise it copies. Here copies are explicit calls.
"""

from __future__ import annotations

from typing import Any

import torch

from tightfit.stages.trace.canonicalize.layout import (
    fake_mode_of,
    fills_storage,
    is_dense,
    run_on_fake_tensors,
    storage_key,
)
from tightfit.stages.trace.program import CapturedProgram, OperatorCall, Variable

aten = torch.ops.aten


def insert_gradient_copies(program: CapturedProgram) -> None:
    """Inserts copies where a gradient shares its storage with what the caller holds or with another
    gradient, is part of a larger storage, or has other strides than its parameter. A gradient is
    copied, too, where it is a view of what was made before the part of the sum that it is added to,
    or is read when the next part, which is added to it, is there.
    """
    held = [*program.fixed, *program.inputs.values(), *program.tangents.values(), *program.outputs]
    taken = {storage_key(variable.fake) for variable in held}
    makers = _ProducerIndex(program)
    for owner, parts in reversed(list(program.gradients.items())):
        before = -1
        for number, gradient in enumerate(parts):
            steals = (
                storage_key(gradient.fake) not in taken
                and fills_storage(gradient.fake)
                and obeys_layout_contract(gradient.fake, owner.fake)
                and (number == 0 or makers.storage_position(gradient) >= before)
                and not makers.is_read_behind(gradient, parts[number + 1 : number + 2])
            )
            if not steals:
                gradient = parts[number] = _copy_gradient(makers, gradient, owner, before)
            taken.add(storage_key(gradient.fake))
            before = makers.storage_position(gradient) if len(parts) > 1 else before


class _ProducerIndex:
    """The calls of a program that make and read its variables, and their positions while it
    grows."""

    def __init__(self, program: CapturedProgram) -> None:
        self.program = program
        self._of: dict[Variable, OperatorCall] = {}
        self._of_storage: dict[Any, OperatorCall] = {}
        self._places: dict[OperatorCall, int] = {}
        self._readers: dict[Any, list[OperatorCall]] = {}
        self._note(program.calls)

    def of(self, variable: Variable) -> OperatorCall | None:
        """The call that makes a variable."""
        return self._of.get(variable)

    def place(self, call: OperatorCall | None) -> int:
        """The position of a call, -1 for none."""
        if not self._places:
            self._places = {each: place for place, each in enumerate(self.program.calls)}
        return -1 if call is None else self._places[call]

    def storage_position(self, variable: Variable) -> int:
        """The position of the call that makes a variable's storage."""
        return self.place(self._of_storage.get(storage_key(variable.fake)))

    def is_read_behind(self, variable: Variable, following: list[Variable]) -> bool:
        """Whether calls read a variable's storage behind the one that makes another variable's; not
        if there is no other."""
        key = storage_key(variable.fake)
        return any(
            self.place(call) > self.storage_position(other)
            for other in following
            for call in self._readers.get(key, ())
        )

    def insert(self, place: int, calls: list[OperatorCall]) -> None:
        """Puts calls into the program."""
        self.program.calls[place:place] = calls
        self._places = {}
        self._note(calls)

    def _note(self, calls: list[OperatorCall]) -> None:
        for call in calls:
            for output in call.made():
                self._of.setdefault(output, call)
                self._of_storage.setdefault(storage_key(output.fake), call)
            for read in call.inputs():
                self._readers.setdefault(storage_key(read.fake), []).append(call)


def obeys_layout_contract(gradient: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True when AccumulateGrad accepts the gradient's strides (accumulate_grad.h)."""
    if not is_dense(parameter):
        return gradient.is_contiguous()
    return all(
        mine == other if size != 1 else mine != 0
        for size, mine, other in zip(
            gradient.shape, gradient.stride(), parameter.stride(), strict=True
        )
    )


def _copy_gradient(
    makers: _ProducerIndex, gradient: Variable, owner: Variable, before: int
) -> Variable:
    """Adds the calls that copy a gradient with its owner's strides, after the call at the position
    `before`, and returns the copy."""
    maker = makers.of(gradient)
    place = max(makers.program.forward, before + 1, makers.place(maker) + 1)
    calls = layout_copy_calls(gradient, owner.fake)
    mode = fake_mode_of(makers.program)
    for call in calls:
        if maker is not None:
            call.module, call.source = maker.module, maker.source
        run_on_fake_tensors(call, mode)
    makers.insert(place, calls)
    return calls[-1].made()[0]


def layout_copy_calls(gradient: Variable, like: torch.Tensor) -> list[OperatorCall]:
    """Calls that copy a tensor with the order of dimensions of another one."""
    contiguous = {"memory_format": torch.contiguous_format}
    if not is_dense(like) or like.is_contiguous():
        return [_unary_call(aten.clone.default, gradient, kwargs=contiguous)]
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        last = {"memory_format": torch.channels_last}
        return [_unary_call(aten.clone.default, gradient, kwargs=last)]
    order = sorted(range(like.dim()), key=like.stride, reverse=True)
    back = [order.index(dim) for dim in range(like.dim())]
    permuted = _unary_call(aten.permute.default, gradient, order)
    copy = _unary_call(aten.clone.default, permuted.made()[0], kwargs=contiguous)
    return [permuted, copy, _unary_call(aten.permute.default, copy.made()[0], back)]


def _unary_call(
    target: torch._ops.OpOverload,
    source: Variable,
    *args: list[int],
    kwargs: dict[str, Any] | None = None,
) -> OperatorCall:
    result = Variable("intermediate", source.fake)
    return OperatorCall(target, (source, *args), kwargs or {}, [result])
