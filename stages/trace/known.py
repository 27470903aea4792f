"""Integers of a forward that hang on no input, worked out beside the tensors without data."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

_MOST = 1 << 16
"""Larger tensors are not worked out."""
_DRAWING = ("rand", "normal", "bernoulli", "multinomial", "poisson", "empty", "exponential")
_INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


class Known:
    """The true contents of small integer tensors that were made from nothing but constants.

    Each call whose operands are all known is done again on them, in-place calls and views
    included, so that true tensors share memory where the captured ones do. `every` takes tensors of
    all sizes and dtypes.
    """

    def __init__(self, every: bool = False) -> None:
        self.every = every
        self._true = WeakTensorKeyDictionary()

    def find(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The true tensor, None where it is not known."""
        return self._true.get(tensor)

    def count_up(self, tensor: torch.Tensor) -> bool:
        """True where a known tensor's last dimension counts up by one."""
        true = self.find(tensor)
        if true is None:
            return False
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return bool((true.diff(dim=-1) == 1).all())

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Takes note of a call that was made, with what it gave."""
        name = str(getattr(func, "__name__", ""))
        given = _tensors((args, kwargs))
        made = _tensors(result)
        known = [self.find(tensor) for tensor in given]
        if any(true is None for true in known):
            if _writes(name, kwargs):
                self._forget({t.untyped_storage()._cdata for t in known if t is not None})
            return
        small = all(tensor.dtype in _INTEGERS and tensor.numel() <= _MOST for tensor in made)
        if not (small or self.every):
            return
        if not (made or _writes(name, kwargs)) or any(word in name for word in _DRAWING):
            return
        true_args, true_kwargs = pytree.tree_map(
            lambda leaf: self.find(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            (args, kwargs),
        )
        with contextlib.suppress(Exception), _disable_current_modes(), torch.no_grad():
            for tensor, true in zip(made, _tensors(func(*true_args, **true_kwargs)), strict=True):
                self._true[tensor] = true

    def _forget(self, storages: set[int]) -> None:
        """Forgets all tensors on these storages, which something unknown was written into."""
        for tensor, true in list(self._true.items()):
            if true.untyped_storage()._cdata in storages:
                del self._true[tensor]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    """True for calls that change an operand."""
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or "out" in kwargs or name in ("__setitem__", "__set__", "copy_")
