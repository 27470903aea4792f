"""The dtypes of what normalizations give on the CPU; their fake versions say those of CUDA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tightfit.stages.torch_utils.devices import preserve_random_states

_FORWARD = (
    "aten::_native_batch_norm_legit",
    "aten::_native_batch_norm_legit_functional",
    "aten::_native_batch_norm_legit_no_training",
    "aten::native_batch_norm",
    "aten::native_group_norm",
    "aten::native_layer_norm",
)
_RUNNING = "aten::_native_batch_norm_legit_functional"
_BACKWARD = "aten::native_group_norm_backward"


def norm_output_dtypes(name: str, args: Sequence[Any]) -> dict[int, torch.dtype]:
    """The dtypes of some results, by their number, of an operator called with `args`.

    Means and deviations are in single precision where operands of several precisions meet, else
    in the input's; running statistics keep their own (ATen, native/cpu/mixed_data_type.h).
    """
    if name not in (*_FORWARD, _BACKWARD) or args[0].device.type != "cpu":
        return {}
    tensors = [leaf for leaf in args if isinstance(leaf, torch.Tensor)]
    if name == _BACKWARD:
        return {0: args[1].dtype}
    mixed = len({tensor.dtype for tensor in tensors}) > 1
    kept = torch.float32 if mixed else tensors[0].dtype
    running = {3: args[3].dtype, 4: args[4].dtype} if name == _RUNNING else {}
    return {1: kept, 2: kept, **running}


SEED_OUTPUTS = {
    "aten::_scaled_dot_product_flash_attention": (6, 7),
    "aten::_scaled_dot_product_efficient_attention": (2, 3),
    "aten::_scaled_dot_product_cudnn_attention": (6, 7),
    "aten::_flash_attention_forward": (2, 3),
    "aten::_efficient_attention_forward": (2, 3),
    "aten::_cudnn_attention_forward": (6, 7),
}
"""Which results of an operator are the seed and the offset."""


def attention_seeds(
    call: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[int, torch.Tensor]:
    """The seed and the offset that an operator really leaves, by the number of the result.

    `call` is the operator, `args` and `kwargs` hold its operands as tensors without memory; it is
    run once on operands of one sequence and one head. Empty for other operators, on the CPU, and
    where the run is refused.
    """
    numbers = SEED_OUTPUTS.get(call._schema.name, ())
    if not numbers or args[0].device.type != "cuda":
        return {}

    try:
        results = run_small_attention(call, args, kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return {}
    return {number: results[number] for number in numbers}


def run_small_attention(
    call: Any, args: Sequence[Any], kwargs: dict[str, Any]
) -> Sequence[torch.Tensor]:
    """The results of an operator that is really run, on smaller operands."""
    with preserve_random_states(), torch.no_grad():
        return call(*(shrink_operand(leaf) for leaf in args), **kwargs)


def shrink_operand(leaf: Any) -> Any:
    """Zeros in place of an operand, with one sequence and one head, which leaves the same seeds;
    the strides are the operand's, since kernels ask for alignment."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    shape = (1, 1, *leaf.shape[2:]) if leaf.dim() == 4 else tuple(leaf.shape)
    extent = 1 + sum(stride * (size - 1) for size, stride in zip(shape, leaf.stride(), strict=True))
    base = torch.zeros(extent, dtype=leaf.dtype, device=leaf.device)
    return base.as_strided(shape, leaf.stride())
