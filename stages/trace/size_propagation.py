"""Gives the nodes of a capture whose sizes are symbols tensors without memory of other sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from tightfit.stages.trace.canonicalize.layout import storage_key
from tightfit.stages.trace.constant_folding import hint_size


@dataclass(frozen=True)
class _SymbolicTensor:
    """A tensor of a capture: its storage, by a key, with its bytes, and where it lies there; sizes
    are numbers or expressions."""

    storage: Any
    nbytes: Any
    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    dtype: torch.dtype
    device: torch.device
    conjugate: bool
    negative: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _SymbolicTensor:
        """A tensor without memory as it was captured."""
        return cls(
            storage_key(tensor),
            _size_expression(tensor.untyped_storage().nbytes()),
            tuple(map(_size_expression, tensor.shape)),
            tuple(map(_size_expression, tensor.stride())),
            _size_expression(tensor.storage_offset()),
            tensor.dtype,
            tensor.device,
            tensor.is_conj(),
            tensor.is_neg(),
        )


@dataclass(frozen=True)
class _SymbolicNumber:
    """A number of a capture that depends on sizes, and the type that it has in Python."""

    expression: sympy.Expr
    kind: type[int] | type[float] | type[bool]


class SizePropagator:
    """The graph of a symbolic capture, whose nodes are given the tensors of some sizes.

    A program that is built of the graph then is the one of these sizes: its nodes for sizes are
    numbers. Tensors that share memory in the capture do so afterwards.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self.names: dict[sympy.Symbol, str] = {}
        self.values = [
            (node, pytree.tree_map(self._describe, node.meta["val"]))
            for node in graph.graph.nodes
            if "val" in node.meta
        ]

    def _describe(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            if isinstance(value, FakeTensor) and value.fake_mode.shape_env is not None:
                self.names = value.fake_mode.shape_env.names  # type: ignore[attr-defined]
            return _SymbolicTensor.of(value)
        kind = _NUMBERS.get(type(value))
        return value if kind is None else _SymbolicNumber(value.node._expr, kind)

    def run(self, sizes: Mapping[str, int]) -> None:
        """Gives each node the tensors, numbers or tuples of these that it has at some sizes, by the
        names of dimensions."""
        tensors = _TensorsAtSizes({symbol: sizes[name] for symbol, name in self.names.items()})
        for node, value in self.values:
            node.meta["val"] = pytree.tree_map(tensors.at, value)


class _TensorsAtSizes:
    """Makes tensors without memory of the sizes that symbols have."""

    def __init__(self, sizes: Mapping[sympy.Symbol, int]) -> None:
        self.sizes = sizes
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.storages: dict[Any, torch.Tensor] = {}
        self.numbers: dict[Any, int] = {}

    def at(self, value: Any) -> Any:
        """What a value of the capture is at these sizes."""
        if isinstance(value, _SymbolicTensor):
            return self._tensor(value)
        if isinstance(value, _SymbolicNumber):
            return value.kind(value.expression.xreplace(self.sizes))
        return value

    def _tensor(self, like: _SymbolicTensor) -> torch.Tensor:
        if like.storage not in self.storages:
            size = self._size(like.nbytes)
            self.storages[like.storage] = torch.empty(size, dtype=torch.uint8, device="meta")
        memory = self.storages[like.storage].untyped_storage()
        meta = torch.empty(0, dtype=like.dtype, device="meta").set_(
            memory,
            self._size(like.offset),
            tuple(map(self._size, like.shape)),
            tuple(map(self._size, like.strides)),
        )
        torch._C._set_conj(meta, like.conjugate)
        torch._C._set_neg(meta, like.negative)
        return FakeTensor(self.mode, meta, like.device)

    def _size(self, size: Any) -> int:
        if isinstance(size, int):
            return size
        if size not in self.numbers:
            self.numbers[size] = int(size.xreplace(self.sizes))
        return self.numbers[size]


_NUMBERS: dict[type, Any] = {torch.SymBool: bool, torch.SymFloat: float, torch.SymInt: int}


def _size_expression(size: int | torch.SymInt) -> Any:
    return size.node._expr if isinstance(size, torch.SymInt) else size


def hint_tensors(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors without memory whose sizes are the hints of those of symbolic ones."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, torch.no_grad():
        return [
            torch.empty_strided(
                [*map(hint_size, one.shape)],
                [*map(hint_size, one.stride())],
                dtype=one.dtype,
                device=one.device,
            )
            for one in tensors
        ]
