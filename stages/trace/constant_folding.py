"""Integers of a forward that hang on no input, worked out beside the tensors without data."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

_MAX_ELEMENTS = 1 << 16
"""Larger tensors are not worked out."""
_RANDOM_NAMES = ("rand", "normal", "bernoulli", "multinomial", "poisson", "empty", "exponential")
_INTEGER_DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_SCALAR_READS = ("__bool__", "__int__", "__float__", "__index__", "item")
"""Calls that give a number of a tensor to Python."""


class ConstantFolder:
    """The true contents of small integer tensors that were made from nothing but constants.

    Each call whose operands are all known is done again on them, in-place calls and views
    included, so that true tensors share memory where the captured ones do. `every` takes tensors of
    all sizes and dtypes. The contents of inputs may be supposed: what is made of these and of
    constants is worked out beside the rest, and `find` does not give it. Where all inputs that a
    tensor hangs on are `ones`, and with `relying`, questions of Python to it are answered: `relied`
    has the inputs that answers hang on, `asked` those of questions that are not answered.
    """

    def __init__(self, every: bool = False, relying: bool = False) -> None:
        self.every = every
        self.relying = relying
        self.ones: set[int] = set()
        self.relied_inputs: set[int] = set()
        self.asked: set[int] = set()
        self._most = _MAX_ELEMENTS
        self._true = WeakTensorKeyDictionary()
        self._hanging = WeakTensorKeyDictionary()

    def find(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The true tensor, None where it is not known."""
        return None if tensor in self._hanging else self._true.get(tensor)

    def counts_up(self, tensor: torch.Tensor) -> bool:
        """True where a known tensor's last dimension counts up by one."""
        true = self.find(tensor)
        if true is None:
            return False
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return bool((true.diff(dim=-1) == 1).all())

    def assume_contents(
        self, tensor: torch.Tensor, leaf: int, contents: torch.Tensor | None
    ) -> None:
        """Supposes the contents of an input; without any, that it holds only ones."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            ones = torch.ones(tensor.shape, dtype=tensor.dtype)
            self._true[tensor] = ones if contents is None else contents.to("cpu", copy=True)
        if contents is None:
            self.ones.add(leaf)
        self._hanging[tensor] = frozenset((leaf,))
        self._most = max(self._most, 2 * tensor.numel())

    def can_answer(self, tensor: torch.Tensor) -> bool:
        """Whether Python is answered what it asks of a tensor that hangs on inputs of which
        something is supposed."""
        leaves = self._hanging.get(tensor, frozenset())
        answered = self.relying and bool(leaves) and leaves <= self.ones
        if not answered:
            self.asked.update(leaves)
        return answered

    def answer(self, func: Any, args: tuple[Any, ...]) -> Any:
        """What a call gives to Python of a tensor of which something is supposed, else None."""
        asks = getattr(func, "__name__", "") in _SCALAR_READS and args
        if not asks or not isinstance(args[0], torch.Tensor) or not self.can_answer(args[0]):
            return None
        self.relied_inputs.update(self._hanging[args[0]])
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return func(self._true[args[0]])

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Takes note of a call that was made, with what it gave."""
        name = str(getattr(func, "__name__", ""))
        given = _tensors((args, kwargs))
        made = _tensors(result)
        writes = _writes(name, kwargs)
        known = [self._true.get(tensor) for tensor in given]
        if any(true is None for true in known):
            if writes:
                self._forget(_storages(known))
            return
        small = all(
            tensor.dtype in _INTEGER_DTYPES and tensor.numel() <= self._most for tensor in made
        )
        if not (small or self.every):
            return
        if not (made or writes) or any(word in name for word in _RANDOM_NAMES):
            return
        true_args, true_kwargs = pytree.tree_map(
            lambda leaf: self._true.get(leaf) if isinstance(leaf, torch.Tensor) else leaf,
            (args, kwargs),
        )
        leaves = frozenset().union(*(self._hanging.get(tensor, ()) for tensor in given))
        if writes and leaves:
            self._hang(_storages(known), leaves)
        with contextlib.suppress(Exception), _disable_current_modes(), torch.no_grad():
            for tensor, true in zip(made, _tensors(func(*true_args, **true_kwargs)), strict=True):
                self._true[tensor] = true
                if leaves:
                    self._hanging[tensor] = leaves | self._hanging.get(tensor, frozenset())

    def _forget(self, storages: set[int]) -> None:
        """Forgets all tensors on these storages, which something unknown was written into."""
        for tensor in self._on(storages):
            del self._true[tensor]

    def _hang(self, storages: set[int], leaves: frozenset[int]) -> None:
        """All tensors on these storages hang on these inputs, too."""
        for tensor in self._on(storages):
            self._hanging[tensor] = leaves | self._hanging.get(tensor, frozenset())

    def _on(self, storages: set[int]) -> list[torch.Tensor]:
        return [
            tensor
            for tensor, true in self._true.items()
            if true.untyped_storage()._cdata in storages
        ]


def _storages(tensors: list[torch.Tensor | None]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors if tensor is not None}


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _writes(name: str, kwargs: dict[str, Any]) -> bool:
    """True for calls that change an operand."""
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place or "out" in kwargs or name in ("__setitem__", "__set__", "copy_")
