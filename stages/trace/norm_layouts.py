"""How the results of normalizations really lie in memory, while a model is captured, and of which
type those of recurrent layers are.

Batch normalization of a transposed tensor gives a contiguous one on the CPU, and its fake version
one with the strides of its operand. What runs behind it chooses by strides: a linear layer with a
bias is one kernel for a contiguous operand and two, of other bits, for another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tightfit.stages.torch_utils.devices import preserve_random_states

_NORMS = frozenset(
    "_native_batch_norm_legit _native_batch_norm_legit_functional native_batch_norm "
    "_native_batch_norm_legit_no_training native_batch_norm_backward native_group_norm "
    "native_group_norm_backward native_layer_norm native_layer_norm_backward".split()
)
_FLOAT32_RESULTS = "mkldnn_rnn_layer_backward"
"""An operator whose fake version gives other types before PyTorch 2.13, those of its operands."""
_PROBE_SIZE = 3
"""The size of a dimension of an operand on which an operator is run, unless it has less."""


@contextlib.contextmanager
def use_real_norm_layouts(mode: FakeTensorMode) -> Iterator[None]:
    """Within it the results of normalizations on the CPU have the order of strides under a fake
    mode that they have when really run, and those of the backward of an LSTM their type."""
    dispatch = mode.dispatch

    def dispatch_norm(call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = dispatch(call, types, args, kwargs or {})
        name = call._schema.name.removeprefix("aten::")
        if name == _FLOAT32_RESULTS:
            with mode:
                return pytree.tree_map_only(torch.Tensor, torch.Tensor.float, results)
        if name in _NORMS and _has_other_order(args):
            return _reorder_results(call, args, kwargs or {}, results, mode)
        return results

    mode.dispatch = dispatch_norm  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        del mode.dispatch


def _has_other_order(args: Any) -> bool:
    """Whether an operand on the CPU has its dimensions in another order than a contiguous one."""
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    return all(tensor.device.type == "cpu" for tensor in tensors) and any(
        dimension_order(tensor) != tuple(range(tensor.dim())) for tensor in tensors
    )


def dimension_order(tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of a tensor from the largest stride to the smallest, those of one element as
    in a contiguous tensor."""
    strides = [_size_hint(stride) for stride in tensor.stride()]
    for dimension in reversed(range(tensor.dim())):
        if _size_hint(tensor.shape[dimension]) == 1:
            behind = [*strides[dimension + 1 :], 1]
            strides[dimension] = behind[0]
    return tuple(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))


def _size_hint(size: Any) -> int:
    return size if isinstance(size, int) else size.node.hint


def _reorder_results(call: Any, args: Any, kwargs: Any, results: Any, mode: FakeTensorMode) -> Any:
    """The results, each with the order of dimensions that the operator gives on small operands of
    the same orders; as they are where it does not take these."""
    try:
        with _disable_current_modes(), preserve_random_states(), torch.no_grad():
            small_args, small_kwargs = pytree.tree_map(_small_operand, (args, kwargs))
            real = pytree.tree_leaves(call(*small_args, **small_kwargs))
    except (RuntimeError, IndexError, ValueError, TypeError):
        return results
    leaves, tree = pytree.tree_flatten(results)
    for place, (fake, small) in enumerate(zip(leaves, real, strict=True)):
        if not isinstance(fake, torch.Tensor) or not isinstance(small, torch.Tensor):
            continue
        if dimension_order(fake) != dimension_order(small):
            with mode:
                leaves[place] = torch.empty_permuted(
                    fake.shape, dimension_order(small), dtype=fake.dtype, device=fake.device
                )
    return pytree.tree_unflatten(leaves, tree)


def _small_operand(leaf: Any) -> Any:
    """Ones in place of an operand, of few elements, in its order of dimensions."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    shape = [min(_size_hint(size), _PROBE_SIZE) for size in leaf.shape]
    memory = torch.empty_permuted(shape, dimension_order(leaf), dtype=leaf.dtype)
    return memory.fill_(1)
