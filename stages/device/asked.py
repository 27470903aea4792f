"""What a forward may ask of a tensor that is not its shape, strides, dtype, device or gradient.

The file travels with a generated package and needs only PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

_KINDS = {"_is_param", "_is_buffer"}
FACTS: dict[str, tuple[Callable[[torch.Tensor], bool], str]] = {
    "leaf": (lambda tensor: tensor.is_leaf, "was computed by autograd, and is no leaf"),
    "view": (lambda tensor: not tensor._is_view(), "is a view of another tensor"),
    "strides": (lambda tensor: True, "has other strides"),
    "offset": (
        lambda tensor: tensor.storage_offset() == 0,
        "does not begin where its storage begins",
    ),
    "hooks": (
        lambda tensor: not (tensor._backward_hooks or tensor._post_accumulate_grad_hooks),
        "has a hook",
    ),
    "conjugate": (lambda tensor: not tensor.is_conj(), "is conjugated as it is read"),
    "negative": (lambda tensor: not tensor.is_neg(), "is negated as it is read"),
    "zero": (lambda tensor: not tensor._is_zerotensor(), "is a zero without memory"),
    "pinned": (lambda tensor: not tensor.is_pinned(), "lies in pinned memory"),
    "shared": (
        lambda tensor: tensor.device.type != "cpu" or not tensor.is_shared(),
        "lies in memory that processes share",
    ),
    "kind": (
        lambda tensor: type(tensor) is torch.Tensor and not _KINDS.intersection(vars(tensor)),
        "is a parameter, a buffer or of a class of its own",
    ),
}
"""What holds of a tensor that was just made, with what is said of one of which it does not."""
