"""Makes each gradient a tensor that autograd takes over as it is.

`AccumulateGrad` keeps the gradient that it is given as the parameter's `.grad` when nobody else
holds it and its strides are the parameter's; otherwise it copies. Here copies are explicit calls.
"""

from __future__ import annotations

from typing import Any

import torch

from tightfit.stages.trace.layout import (
    fake_mode_of,
    fills_its_storage,
    is_dense,
    run_fake,
    storage_of,
)
from tightfit.stages.trace.program import Call, Program, Variable

aten = torch.ops.aten


def own_gradients(program: Program) -> None:
    """Inserts copies where a gradient shares its storage with what the caller holds or with another
    gradient, is part of a larger storage, or has other strides than its parameter. A gradient is
    copied, too, where it is a view of what was made before the part of the sum that it is added to.
    """
    held = [*program.fixed, *program.inputs.values(), *program.tangents.values(), *program.outputs]
    taken = {storage_of(variable.fake) for variable in held}
    makers = _Makers(program)
    for owner, parts in reversed(list(program.gradients.items())):
        before = -1
        for number, gradient in enumerate(parts):
            steals = (
                storage_of(gradient.fake) not in taken
                and fills_its_storage(gradient.fake)
                and obeys_layout_contract(gradient.fake, owner.fake)
                and (number == 0 or makers.place_of_storage(gradient) >= before)
            )
            if not steals:
                gradient = parts[number] = _copy(makers, gradient, owner, before)
            taken.add(storage_of(gradient.fake))
            before = makers.place_of_storage(gradient) if len(parts) > 1 else before


class _Makers:
    """The calls of a program that make its variables, and their positions while it grows."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self._of: dict[Variable, Call] = {}
        self._of_storage: dict[Any, Call] = {}
        self._places: dict[Call, int] = {}
        self._note(program.calls)

    def of(self, variable: Variable) -> Call | None:
        """The call that makes a variable."""
        return self._of.get(variable)

    def place(self, call: Call | None) -> int:
        """The position of a call, -1 for none."""
        if not self._places:
            self._places = {each: place for place, each in enumerate(self.program.calls)}
        return -1 if call is None else self._places[call]

    def place_of_storage(self, variable: Variable) -> int:
        """The position of the call that makes a variable's storage."""
        return self.place(self._of_storage.get(storage_of(variable.fake)))

    def insert(self, place: int, calls: list[Call]) -> None:
        """Puts calls into the program."""
        self.program.calls[place:place] = calls
        self._places = {}
        self._note(calls)

    def _note(self, calls: list[Call]) -> None:
        for call in calls:
            for output in call.made():
                self._of.setdefault(output, call)
                self._of_storage.setdefault(storage_of(output.fake), call)


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


def _copy(makers: _Makers, gradient: Variable, owner: Variable, before: int) -> Variable:
    """Adds the calls that copy a gradient with its owner's strides, after the call at the position
    `before`, and returns the copy."""
    maker = makers.of(gradient)
    place = max(makers.program.forward, before + 1, makers.place(maker) + 1)
    calls = copy_calls(gradient, owner.fake)
    mode = fake_mode_of(makers.program)
    for call in calls:
        if maker is not None:
            call.module, call.source = maker.module, maker.source
        run_fake(call, mode)
    makers.insert(place, calls)
    return calls[-1].made()[0]


def copy_calls(gradient: Variable, like: torch.Tensor) -> list[Call]:
    """Calls that copy a tensor with the order of dimensions of another one."""
    contiguous = {"memory_format": torch.contiguous_format}
    if not is_dense(like) or like.is_contiguous():
        return [_call(aten.clone.default, gradient, kwargs=contiguous)]
    if like.dim() == 4 and like.is_contiguous(memory_format=torch.channels_last):
        last = {"memory_format": torch.channels_last}
        return [_call(aten.clone.default, gradient, kwargs=last)]
    order = sorted(range(like.dim()), key=like.stride, reverse=True)
    back = [order.index(dim) for dim in range(like.dim())]
    permuted = _call(aten.permute.default, gradient, order)
    copy = _call(aten.clone.default, permuted.made()[0], kwargs=contiguous)
    return [permuted, copy, _call(aten.permute.default, copy.made()[0], back)]


def _call(
    target: torch._ops.OpOverload,
    source: Variable,
    *args: list[int],
    kwargs: dict[str, Any] | None = None,
) -> Call:
    result = Variable("intermediate", source.fake)
    return Call(target, (source, *args), kwargs or {}, [result])
