"""Runs a capture whose sizes are symbols on tensors without memory of numbers as sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from tightfit.stages.trace.canonicalize.layout import storage_key
from tightfit.stages.trace.constant_folding import hint_size


class SizePropagator:
    """The graph of a symbolic capture, whose nodes are given the tensors of some sizes.

    A program that is built of the graph then is the one of these sizes: its nodes for sizes are
    numbers. Inputs that share memory in the capture do so afterwards.
    """

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        self.inputs = [
            (node, node.meta.get("val")) for node in graph.graph.find_nodes(op="placeholder")
        ]

    def run(self, sizes: Mapping[str, int]) -> None:
        """Gives each node the tensors, numbers or tuples of these that it has at some sizes, by the
        names of dimensions."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        storages: dict[Any, torch.Tensor] = {}
        given = [self._input(value, sizes, mode, storages) for _, value in self.inputs]
        with mode, torch.no_grad():
            _Recorder(self.graph, mode).run(*given)

    def _input(
        self,
        value: Any,
        sizes: Mapping[str, int],
        mode: FakeTensorMode,
        storages: dict[Any, torch.Tensor],
    ) -> Any:
        """What stands for an input at some sizes; `storages` are those of inputs before."""
        if not isinstance(value, torch.Tensor):
            return value
        shape = [size_at(size, sizes) for size in value.shape]
        strides = [size_at(step, sizes) for step in value.stride()]
        with mode, torch.no_grad():
            known = storages.get(storage_key(value))
            if known is not None and known.dtype == value.dtype:
                return known.as_strided(shape, strides, hint_size(value.storage_offset()))
            made = torch.empty_strided(shape, strides, dtype=value.dtype, device=value.device)
        storages[storage_key(value)] = made
        return made


class _Recorder(fx.Interpreter):
    """Runs a graph and takes note of what each node gives."""

    def __init__(self, graph: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(graph)
        self.mode = mode

    def run_node(self, n: fx.Node) -> Any:
        """Runs a node; tensors of the model that it reads are without memory then."""
        result = super().run_node(n)
        if n.op == "get_attr" and isinstance(result, torch.Tensor):
            result = self.mode.from_tensor(result)
        n.meta["val"] = result
        return result


def size_at(size: int | torch.SymInt, sizes: Mapping[str, int]) -> int:
    """A size of a symbolic capture where the dimensions have these sizes, by name."""
    if not isinstance(size, torch.SymInt):
        return size
    names = size.node.shape_env.names
    return int(size.node.expr.xreplace({symbol: sizes[name] for symbol, name in names.items()}))


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
