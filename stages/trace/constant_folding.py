"""Values of a forward that hang on no input, worked out beside the tensors without data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from tightfit.stages.torch_utils.custom_operators import TORCH_NAMESPACES
from tightfit.stages.trace.code_inspection import caller_location

_MAX_ELEMENTS = 1 << 24
"""Larger tensors are not worked out."""
MAX_ASSUMED_ELEMENTS = 1 << 16
"""Nor are larger ones that hang on an input or a buffer."""
_INTEGER_DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_ARRAY_READS = ("tolist", "numpy", "__array__")
"""Calls that give all numbers of a tensor to Python."""
_RANDOM_TAG = torch.Tag.nondeterministic_seeded
_STATISTICS = slice(3, 5)
"""Where operators of batch norm have the statistics that they write, as not all schemas say."""
aten = torch.ops.aten

Origin = int | str
"""What a value hangs on: the number of an input leaf, or the path of a buffer."""


class ConstantFolder:
    """The true contents of tensors that were made from nothing but constants.

    Each operator whose operands are all known runs again on them, writes and views included, so
    that true tensors share memory where the captured ones do. Tensors that the model finds in an
    attribute are constants, but for its `own`: parameters, buffers and inputs, by their storages.
    `every` takes tensors of all sizes. The contents of inputs and buffers may be assumed: what is
    made of these is worked out beside the rest, and `find` does not give it. What Python asks of a
    tensor is answered if that hangs on no input, or on inputs that are `ones`, with `relying`:
    `relied_inputs` and `relied_buffers` have those that answers hang on, `asked` the inputs of
    questions that are not answered.
    """

    def __init__(
        self, every: bool = False, relying: bool = False, own: Iterable[torch.Tensor] = ()
    ) -> None:
        self.every = every
        self.relying = relying
        self.ones: set[int] = set()
        self.relied_inputs: set[int] = set()
        self.relied_buffers: dict[str, str] = {}
        self.asked: set[int] = set()
        self._own = {_storage_id(tensor) for tensor in own}
        self._most = MAX_ASSUMED_ELEMENTS
        self._true = WeakTensorKeyDictionary()
        self._hanging = WeakTensorKeyDictionary()

    def find(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The true tensor, None where it is not known or assumed."""
        return None if tensor in self._hanging else self._true.get(tensor)

    def current_contents(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The true tensor, whatever it hangs on; None where it is not known."""
        return self._true.get(tensor)

    def counts_up(self, tensor: torch.Tensor) -> bool:
        """True where a known tensor's last dimension counts up by one."""
        true = self.find(tensor)
        if true is None:
            return False
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return bool((true.diff(dim=-1) == 1).all())

    def assume_contents(
        self, tensor: torch.Tensor, origin: Origin, contents: torch.Tensor | None
    ) -> None:
        """Assumes the contents of an input or a buffer; without any, that it holds only ones."""
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            if contents is None:
                shape = [hint_size(size) for size in tensor.shape]
                self._true[tensor] = torch.ones(shape, dtype=tensor.dtype)
            elif isinstance(origin, str):
                self._true[tensor] = contents.detach().clone()
            else:
                self._true[tensor] = contents.to("cpu", copy=True)
        if contents is None and isinstance(origin, int):
            self.ones.add(origin)
        self._hanging[tensor] = frozenset((origin,))
        if isinstance(origin, int):
            self._most = max(self._most, 2 * hint_size(tensor.numel()))

    def can_answer(self, tensor: torch.Tensor) -> bool:
        """Whether Python is answered what it asks of a tensor that hangs on inputs of which
        something is assumed."""
        leaves = self._inputs_of(tensor)
        answered = self.relying and bool(leaves) and leaves <= self.ones
        if not answered:
            self.asked.update(leaves)
        return answered

    def _inputs_of(self, tensor: torch.Tensor) -> set[int]:
        return {one for one in self._hanging.get(tensor, ()) if isinstance(one, int)}

    def answer(self, *tensors: Any) -> list[torch.Tensor] | None:
        """The true tensors of which Python asks for the data, None where it gets no answer."""
        found = [true for tensor in tensors if (true := self._known(tensor)) is not None]
        if len(found) < len(tensors):
            return None
        hanging = [tensor for tensor in tensors if self._inputs_of(tensor)]
        if not all([self.can_answer(tensor) for tensor in hanging]):
            return None
        for origin in (one for tensor in tensors for one in self._hanging.get(tensor, ())):
            if isinstance(origin, str):
                self.relied_buffers.setdefault(origin, caller_location())
            else:
                self.relied_inputs.add(origin)
        return found

    def answer_call(self, func: Any, args: tuple[Any, ...]) -> Any:
        """What a call that takes all numbers of a tensor gives to Python, None if not known."""
        asks = getattr(func, "__name__", "") in _ARRAY_READS and args
        if not asks or not isinstance(args[0], torch.Tensor):
            return None
        found = self.answer(args[0])
        if found is None:
            return None
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return func(found[0].clone(), *args[1:])

    def wrap_tolist(self, tolist: Callable[..., Any]) -> Callable[..., Any]:
        """A tensor's `tolist` that is answered, where that can be."""

        def answered(tensor: torch.Tensor) -> Any:
            found = self.answer(tensor)
            if found is None:
                return tolist(tensor)
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                return found[0].tolist()

        return answered

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Takes note of an operator that ran, with what it gave."""
        if getattr(func, "_schema", None) is None:
            return
        given = nested_tensors((args, kwargs))
        written = _written_tensors(func, args, kwargs)
        trues = [self._known(tensor) for tensor in given]
        leaves: frozenset[Origin] = frozenset().union(
            *(self._hanging.get(tensor, ()) for tensor in given)
        )
        made = nested_tensors(result)
        if (
            func.namespace not in TORCH_NAMESPACES
            or any(true is None for true in trues)
            or _RANDOM_TAG in func.tags
            or not (made or written)
            or not self._is_small(made, leaves)
        ):
            self._forget(_storages([self._true.get(tensor) for tensor in written]))
            return
        if written and leaves:
            self._hang(_storages([self._true.get(tensor) for tensor in written]), leaves)
        try:
            found = nested_tensors(self.compute(func, args, kwargs))
            for tensor, true in zip(made, found, strict=True):
                self._true[tensor] = true
                if leaves:
                    self._hanging[tensor] = leaves | self._hanging.get(tensor, frozenset())
        except Exception:
            self._forget(_storages([self._true.get(tensor) for tensor in written]))

    def compute(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What an operator gives on the true tensors."""
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda leaf: self._true.get(leaf), (args, kwargs)
        )
        args, kwargs = pytree.tree_map_only(torch.SymInt, hint_size, (args, kwargs))
        with _disable_current_modes(), torch.no_grad():
            return func(*args, **kwargs)

    def _known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The true tensor; that of one with data that is not the model's own is a copy of it."""
        true = self._true.get(tensor)
        if true is not None or type(tensor) not in (torch.Tensor, nn.Parameter):
            return true
        if torch._is_functional_tensor(tensor) or tensor.device.type == "meta":
            return None
        if tensor.numel() > _MAX_ELEMENTS or _storage_id(tensor) in self._own:
            return None
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            self._true[tensor] = tensor.detach().clone()
        return self._true.get(tensor)

    def _is_small(self, made: list[torch.Tensor], leaves: frozenset[Origin]) -> bool:
        if self.every:
            return True
        if any(isinstance(origin, int) for origin in leaves):
            return all(
                tensor.dtype in _INTEGER_DTYPES and hint_size(tensor.numel()) <= self._most
                for tensor in made
            )
        most = MAX_ASSUMED_ELEMENTS if leaves else _MAX_ELEMENTS
        return all(hint_size(tensor.numel()) <= most for tensor in made)

    def _forget(self, storages: set[int]) -> None:
        """Forgets all tensors on these storages, which something unknown was written into."""
        for tensor in self._on(storages):
            del self._true[tensor]

    def _hang(self, storages: set[int], leaves: frozenset[Origin]) -> None:
        """All tensors on these storages hang on these inputs and buffers, too."""
        for tensor in self._on(storages):
            self._hanging[tensor] = leaves | self._hanging.get(tensor, frozenset())

    def _on(self, storages: set[int]) -> list[torch.Tensor]:
        if not storages:
            return []
        return [
            tensor
            for tensor, true in self._true.items()
            if true.untyped_storage()._cdata in storages
        ]


def hint_size(size: int | torch.SymInt) -> int:
    """A size of the sample: of a symbolic one its hint, which says nothing of other sizes."""
    return size.node.hint if isinstance(size, torch.SymInt) else size


def nested_tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors among the leaves of a tree."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _storages(tensors: list[torch.Tensor | None]) -> set[int]:
    return {tensor.untyped_storage()._cdata for tensor in tensors if tensor is not None}


def _storage_id(tensor: torch.Tensor) -> int:
    with _disable_current_modes(), torch._C.DisableTorchFunction(), contextlib.suppress(Exception):
        return tensor.untyped_storage()._cdata
    return 0


def _written_tensors(func: Any, args: Any, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that an operator writes into."""
    found = [
        given
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        for given in (args[number] if number < len(args) else kwargs.get(argument.name),)
    ]
    if "batch_norm" in func._schema.name:
        found += args[_STATISTICS]
    return nested_tensors(found)
