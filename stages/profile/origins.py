"""Operands with a domain: taken from the ops that make them, where plain fills are refused.

Some ops raise on contents that a model never gives them: a logarithm of the likelihood of what is
no probability, the factor of a matrix that is not positive definite. Each attempt below fills the
operands in another way; the first that the op accepts is the one it is measured with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from tightfit.schemas.arguments import decode_arguments
from tightfit.schemas.graph import LOSS_TARGET, NONE, Graph, Op, Value
from tightfit.stages.device.operators import decode, resolve
from tightfit.stages.profile.operands import (
    Fill,
    extent,
    make_operands,
    make_tensor,
    normal,
    positive,
    unit,
)

Attempt = Callable[[], dict[int, Tensor]]
"""Makes the operands of an op, by value id."""

REFUSALS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
"""What an op raises that does not take its operands."""

LEVELS = 8
"""How far back the ops that make operands are followed."""

LEAST_ROOM = 64 << 20
"""Bytes that the operands of ops that make operands may always take together."""


def attempts(
    graph: Graph, op: Op, overload: OpOverload, device: torch.device, room: int
) -> Iterator[Attempt]:
    """Ways to make the operands of an op, the ordinary one first.

    Plain fills: normal, from the unit interval, positive definite. Then what the ops give that
    make the operands, run on each of these fills, with at most `room` bytes at a time.
    """
    fills: tuple[Fill | None, ...] = (None, unit, positive)
    for fill in fills:
        yield lambda fill=fill: make_operands(graph, op, overload, device, fill)  # type: ignore[misc]
    yield lambda: _definite_operands(graph, op, overload, device)
    for fill in fills:
        origins = _Origins(graph, device, fill or normal, max(room, LEAST_ROOM))
        yield lambda origins=origins: origins.operands(op)  # type: ignore[misc]


def _define(tensor: Tensor) -> None:
    """Makes the matrices in a tensor symmetric and positive definite, where they are square."""
    square = tensor.dim() > 1 and tensor.shape[-1] == tensor.shape[-2]
    if not square or not (tensor.is_floating_point() or tensor.is_complex()):
        return
    size = tensor.shape[-1]
    eye = torch.eye(size, dtype=tensor.dtype, device=tensor.device)
    tensor.copy_((tensor + tensor.mH) / (4 * size) + eye)


def _definite_operands(
    graph: Graph, op: Op, overload: OpOverload, device: torch.device
) -> dict[int, Tensor]:
    operands = make_operands(graph, op, overload, device, unit)
    for operand in operands.values():
        _define(operand)
    return operands


class _Origins:
    """Makes values by running the ops that make them, from fills where these are not followed."""

    def __init__(self, graph: Graph, device: torch.device, fill: Fill, room: int) -> None:
        self.graph = graph
        self.device = device
        self.fill = fill
        self.room = room
        self.makers = {
            value: op
            for op in graph.ops
            for value in op.outputs
            if value != NONE and op.target != LOSS_TARGET and not op.writes
        }
        self.made: dict[int, Tensor] = {}

    def operands(self, op: Op) -> dict[int, Tensor]:
        """The operands of an op, each in a storage of its own."""
        for value in op.inputs:
            self.make(value, LEVELS)
        return {
            value: laid_out(self.made[value], self.graph.values[value], self.device)
            for value in op.inputs
        }

    def make(self, number: int, levels: int) -> None:
        """Makes a value and, where it is made by an op, what that reads."""
        if number in self.made:
            return
        value, maker = self.graph.values[number], self.makers.get(number)
        if value.kind == "constant":
            self.made[number] = constant(value, self.device)
        elif maker is None or levels == 0 or self.taken() + _bytes(self.graph, maker) > self.room:
            self.made[number] = self.plain(value)
        else:
            for operand in maker.inputs:
                self.make(operand, levels - 1)
            self.run(maker)
            if number not in self.made:
                self.made[number] = self.plain(value)

    def plain(self, value: Value) -> Tensor:
        return make_tensor(value, self.fill, self.device)

    def run(self, maker: Op) -> None:
        """Keeps what an op gives; nothing where it does not take its operands."""
        args, kwargs = decode_arguments(maker.arguments)
        try:
            results = resolve(maker.target)(
                *[decode(argument, self.made) for argument in args],
                **{name: decode(argument, self.made) for name, argument in kwargs.items()},
            )
        except REFUSALS:
            return
        leaves = pytree.tree_leaves(results)
        for number, result in zip(maker.outputs, leaves, strict=True):
            if number != NONE and isinstance(result, Tensor):
                self.made.setdefault(number, result)

    def taken(self) -> int:
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in self.made.values()}
        return sum(storage.nbytes() for storage in storages.values())


def constant(value: Value, device: torch.device) -> Tensor:
    """The tensor that a constant of the graph holds."""
    dtype = getattr(torch, value.dtype)
    data = bytearray(value.data)
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(value.shape).to(device)


def laid_out(operand: Tensor, value: Value, device: torch.device) -> Tensor:
    """A copy of a tensor in a storage of its own, with the shape and strides of a value."""
    tensor = make_tensor(value, normal, device)
    target, source = tensor, operand.reshape(value.shape)
    for dimension, stride in enumerate(value.strides):
        if stride == 0 and value.shape[dimension] > 1:
            target, source = target.narrow(dimension, 0, 1), source.narrow(dimension, 0, 1)
    target.copy_(source)
    return tensor


def _bytes(graph: Graph, op: Op) -> int:
    """Bytes of what an op reads and makes."""
    values = [graph.values[value] for value in {*op.inputs, *op.outputs} - {NONE}]
    return sum(extent(value) * getattr(torch, value.dtype).itemsize for value in values)
