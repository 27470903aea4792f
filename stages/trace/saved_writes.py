"""Which written buffers autograd saves for the backward, so that eager raises an error if another
forward writes them before the backward runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import fx

_STATISTICS_BACKWARD = ("native_batch_norm_backward", "batch_norm_backward", "cudnn_batch_norm")
"""Operators that are given running statistics and, in training, do not look at them."""


def find_saved_writes(
    graph: fx.GraphModule, writes: Mapping[str, fx.Node], tangents: Iterable[fx.Node]
) -> list[str]:
    """The names of the written buffers that the backward reads, as they are after the write.

    `writes` has the new value of each written buffer, `tangents` are the gradients of the outputs.
    """
    backward = set(tangents)
    read = set()
    for node in graph.graph.nodes:
        if node.op != "call_function" or not backward.intersection(node.all_input_nodes):
            continue
        backward.add(node)
        if not str(node.target).removeprefix("aten.").startswith(_STATISTICS_BACKWARD):
            read |= {_storage(each) for each in node.all_input_nodes if each not in backward}
    read.discard(None)
    return [name for name, node in writes.items() if _storage(node) in read]


def _storage(node: fx.Node) -> object:
    value = node.meta.get("val")
    return value.untyped_storage()._cdata if isinstance(value, torch.Tensor) else None
