"""Where attention on CUDA leaves the seeds of its random numbers.

The kernels say it only when they run: the memory-efficient one leaves them on the host unless a
CUDA graph is captured, the flash one on the device, as uint64 since PyTorch 2.7 (ATen,
native/transformers/cuda/attention.cu). The kernels' fake versions put all of them on the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tightfit.stages.device.devices import kept_random_states

SEEDS = {
    "aten::_scaled_dot_product_flash_attention": (6, 7),
    "aten::_scaled_dot_product_efficient_attention": (2, 3),
    "aten::_scaled_dot_product_cudnn_attention": (6, 7),
    "aten::_flash_attention_forward": (2, 3),
    "aten::_efficient_attention_forward": (2, 3),
    "aten::_cudnn_attention_forward": (6, 7),
}
"""Which results of an operator are the seed and the offset."""


def seeds_of(call: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[int, torch.Tensor]:
    """The seed and the offset that an operator really leaves, by the number of the result.

    `call` is the operator, `args` and `kwargs` hold its operands as tensors without memory; it is
    run once on operands of one sequence and one head. Empty for other operators, on the CPU, and
    where the run is refused.
    """
    numbers = SEEDS.get(call._schema.name, ())
    if not numbers or args[0].device.type != "cuda":
        return {}

    try:
        results = run(call, args, kwargs)
    except (RuntimeError, IndexError, ValueError, TypeError):
        return {}
    return {number: results[number] for number in numbers}


def run(call: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[torch.Tensor]:
    """The results of an operator that is really run, on smaller operands."""
    with kept_random_states(), torch.no_grad():
        return call(*(smaller(leaf) for leaf in args), **kwargs)


def smaller(leaf: Any) -> Any:
    """Zeros in place of an operand, with one sequence and one head, which leaves the same seeds;
    the strides are the operand's, since kernels ask for alignment."""
    if not isinstance(leaf, torch.Tensor):
        return leaf
    shape = (1, 1, *leaf.shape[2:]) if leaf.dim() == 4 else tuple(leaf.shape)
    extent = 1 + sum(stride * (size - 1) for size, stride in zip(shape, leaf.stride(), strict=True))
    base = torch.zeros(extent, dtype=leaf.dtype, device=leaf.device)
    return base.as_strided(shape, leaf.stride())
