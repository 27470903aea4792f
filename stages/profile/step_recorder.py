"""Notes the operators of a training step: times, outputs, and when their storages are freed."""

from __future__ import annotations

import contextlib
import itertools
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.stages.torch_utils.devices import synchronize_device
from tightfit.stages.torch_utils.memory_meter import MemorySession
from tightfit.stages.torch_utils.operators import draws_random_numbers
from tightfit.stages.torch_utils.selective_checkpoint import IGNORED_OPS

_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d")
"""Namespaces of operators that communicate."""
NEVER = 1 << 60
"""The position of what does not happen in the step."""


@dataclass
class RecordedStorage:
    """A storage that an op made: its bytes, the position at which it was freed, and whether an op
    wrote to it later."""

    size: int
    freed: int = NEVER
    written: bool = False


@dataclass
class RecordedCall:
    """One op that ran. `seconds` are those of this call; `key` is equal for calls that take equal
    time. `objection` says why its outputs cannot be saved. `collective`
    says whether several ranks may run it together. `awaited_bytes` are those that
    collectives hold until this op, which is the first to wait for them."""

    name: str
    seconds: float
    key: tuple[Any, ...]
    random: bool
    objection: str
    outputs: list[RecordedStorage]
    collective: bool = False
    awaited_bytes: int = 0


@dataclass
class BlockCalls:
    """The ops of one block, by number: those of its forward and of its recomputation; how many
    forwards there were, the position at which its recomputation began (None without a backward),
    and the one at which what the checkpoint holds was freed."""

    forward: list[int] = field(default_factory=list)
    recomputation: list[int] = field(default_factory=list)
    forwards: int = 0
    recomputation_start: int | None = None
    frame_end: int = NEVER


class StepRecorder(TorchDispatchMode):
    """Notes all ops of a step, those of blocks by their `context_fn`."""

    def __init__(self, session: MemorySession | None, device: torch.device) -> None:
        super().__init__()
        self.session = session
        self.device = device
        self.calls: list[RecordedCall] = []
        self.blocks: dict[str, BlockCalls] = defaultdict(BlockCalls)
        self.current: list[int] | None = None
        self.storages: dict[int, RecordedStorage] = {}
        self.references: dict[int, Any] = {}
        self.held_by_collectives: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in IGNORED_OPS:
            return func(*args, **named)
        number = len(self.calls)
        awaited = self._awaited_bytes(args, named)
        self._mark(f"{number} begins")
        started = time.perf_counter()
        out = func(*args, **named)
        if self.session is None:
            synchronize_device(self.device)
        seconds = time.perf_counter() - started
        self._mark(f"{number} ends")
        self._note(func, args, named, out, seconds)
        self.calls[-1].awaited_bytes = awaited
        return out

    def contexts_of(self, path: str) -> Callable[[], tuple[Any, Any]]:
        """The `context_fn` that notes the ops of a block."""
        block = self.blocks[path]

        def end_frame() -> None:
            block.frame_end = 2 * len(self.calls) - 1

        def contexts() -> tuple[Any, Any]:
            block.forwards += 1
            again = self._recomputation_of(block)
            weakref.finalize(again, end_frame)
            return self._within(block.forward), again

        return contexts

    @contextlib.contextmanager
    def _recomputation_of(self, block: BlockCalls) -> Iterator[None]:
        block.recomputation_start = 2 * len(self.calls) - 1
        with self._within(block.recomputation):
            yield

    @contextlib.contextmanager
    def _within(self, numbers: list[int]) -> Iterator[None]:
        outer, self.current = self.current, numbers
        try:
            yield
        finally:
            self.current = outer

    def _awaited_bytes(self, args: Any, kwargs: dict[str, Any]) -> int:
        """The bytes that collectives hold whose results an op is the first to use."""
        found = 0
        for x in pytree.tree_leaves((args, kwargs)):
            local = getattr(x, "_local_tensor", x)
            if isinstance(local, AsyncCollectiveTensor) and not local.completed:
                place = local.elem.untyped_storage()._cdata
                found += self.held_by_collectives.get(place, 0)
        return found

    def _mark(self, label: str) -> None:
        if self.session is not None:
            self.session.mark(label)

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, seconds: float) -> None:
        leaves = pytree.tree_leaves((args, kwargs))
        inputs = [local_tensor(x) for x in leaves if isinstance(x, Tensor)]
        given = [x for x in pytree.tree_leaves(out) if isinstance(x, Tensor)]
        outputs = [local_tensor(x) for x in given]
        known = {x.untyped_storage()._cdata for x in inputs}
        fresh = [self._add_storage(x) for x in outputs if x.untyped_storage()._cdata not in known]
        communicates = getattr(func, "namespace", "") in _COLLECTIVES
        if fresh and communicates:
            self._note_collective(inputs, outputs)
        plain = [x for x in leaves if not isinstance(x, Tensor)]
        shapes = [(x.shape, x.dtype, x.stride()) for x in inputs]
        key = (str(func), tuple(map(str, shapes)), str(plain))
        random, objection = False, ""
        if not isinstance(func, torch._ops.OpOverload):
            objection = "is a higher-order operator"
        else:
            self._note_writes(func, args, kwargs)
            random = draws_random_numbers(func, args)
            objection = _saving_objection(func, len(fresh) < len(outputs), given)
        if self.current is not None:
            self.current.append(len(self.calls))
        # An op on distributed tensors communicates if their layouts do not fit.
        collective = communicates or any(hasattr(x, "_local_tensor") for x in (*leaves, *given))
        self.calls.append(
            RecordedCall(str(func), seconds, key, random, objection, fresh, collective)
        )

    def _note_collective(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Notes what a collective holds until something waits for it: its inputs, and with gloo on
        the CPU a buffer of its outputs."""
        buffers = [*inputs, *outputs] if self.device.type == "cpu" else inputs
        size = sum(x.untyped_storage().nbytes() for x in buffers)
        for x in outputs:
            self.held_by_collectives[x.untyped_storage()._cdata] = size

    def _add_storage(self, tensor: Tensor) -> RecordedStorage:
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place not in self.storages:
            made = RecordedStorage(storage.nbytes())
            self.storages[place] = made
            free = self._free
            self.references[place] = weakref.ref(storage, lambda _: free(place))
        return self.storages[place]

    def _free(self, place: int) -> None:
        self.storages.pop(place).freed = 2 * len(self.calls) - 1
        del self.references[place]

    def _note_writes(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        arguments = func._schema.arguments
        for argument, given in itertools.chain(
            zip(arguments, args, strict=False),
            ((each, kwargs[each.name]) for each in arguments if each.name in kwargs),
        ):
            if argument.alias_info is None or not argument.alias_info.is_write:
                continue
            for tensor in pytree.tree_leaves(given):
                if isinstance(tensor, Tensor):
                    known = self.storages.get(local_tensor(tensor).untyped_storage()._cdata)
                    if known is not None:
                        known.written = True


def _saving_objection(
    func: torch._ops.OpOverload, old_storages: bool, outputs: list[Tensor]
) -> str:
    """Why the outputs of an op cannot be saved; "" if they can."""
    if old_storages or any(each.alias_info for each in func._schema.returns):
        return "is a view, or writes its input"
    if func._schema.is_mutable or any(type(local_tensor(each)) is not Tensor for each in outputs):
        return "writes its input, or gives another kind of tensor"
    return "" if outputs else "has no tensor as output"


def local_tensor(tensor: Tensor) -> Tensor:
    """What a rank has of a distributed tensor, and what a collective writes; other tensors as they
    are."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local.elem if isinstance(local, AsyncCollectiveTensor) else local
