"""Records one training step under checkpointing that saves nothing: ops, times, bytes, storages.

The step runs on the model itself, twice, once for times and once for bytes, and takes the memory of
plain `torch.utils.checkpoint`. Gradients, buffers and random states are then as they were.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from tightfit.schemas.checkpoint_recording import (
    NOT_RECOMPUTED,
    BlockOp,
    CheckpointRecording,
    RecordedBlock,
    SavedStorage,
)
from tightfit.stages.torch_utils.devices import (
    device_of_tensors,
    preserve_random_states,
    synchronize_device,
)
from tightfit.stages.torch_utils.memory_meter import MemorySession, memory_session
from tightfit.stages.torch_utils.operators import draws_random_numbers
from tightfit.stages.torch_utils.selective_checkpoint import (
    IGNORED_OPS,
    inner_block,
    replaced_checkpoints,
)
from tightfit.util.errors import ModelError

LossFunction = Callable[[Any], Tensor]
NEVER = 1 << 60
"""The position of what does not happen in the step."""
_BIAS_GRADIENT = "aten.sum.dim_IntList"
GLOO_RECORDINGS = 6
"""How often a step of several processes on CPUs is recorded."""


@dataclass
class _Storage:
    """A storage that an op made: its bytes, the position at which it was freed, and whether an op
    wrote to it later."""

    size: int
    freed: int = NEVER
    written: bool = False


@dataclass
class _Call:
    """One op that ran. `seconds` are those of this call; `key` is equal for calls that take equal
    time. `objection` says why its outputs cannot be saved."""

    name: str
    seconds: float
    key: tuple[Any, ...]
    random: bool
    objection: str
    outputs: list[_Storage]


@dataclass
class _BlockCalls:
    """The ops of one block, by number: those of its forward and of its recomputation; how many
    forwards there were, and the position at which what the checkpoint holds was freed."""

    forward: list[int] = field(default_factory=list)
    recomputation: list[int] = field(default_factory=list)
    forwards: int = 0
    frame_end: int = NEVER


class StepRecorder(TorchDispatchMode):
    """Notes all ops of a step, those of blocks by their `context_fn`."""

    def __init__(self, session: MemorySession | None, device: torch.device) -> None:
        super().__init__()
        self.session = session
        self.device = device
        self.calls: list[_Call] = []
        self.blocks: dict[str, _BlockCalls] = defaultdict(_BlockCalls)
        self.current: list[int] | None = None
        self.storages: dict[int, _Storage] = {}
        self.references: dict[int, Any] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in IGNORED_OPS:
            return func(*args, **named)
        number = len(self.calls)
        self._mark(f"{number} begins")
        started = time.perf_counter()
        out = func(*args, **named)
        if self.session is None:
            synchronize_device(self.device)
        seconds = time.perf_counter() - started
        self._mark(f"{number} ends")
        self._note(func, args, named, out, seconds)
        return out

    def contexts_of(self, path: str) -> Callable[[], tuple[Any, Any]]:
        """The `context_fn` that notes the ops of a block."""
        block = self.blocks[path]

        def end_frame() -> None:
            block.frame_end = 2 * len(self.calls) - 1

        def contexts() -> tuple[Any, Any]:
            block.forwards += 1
            again = self._within(block.recomputation)
            weakref.finalize(again, end_frame)
            return self._within(block.forward), again

        return contexts

    @contextlib.contextmanager
    def _within(self, numbers: list[int]) -> Iterator[None]:
        outer, self.current = self.current, numbers
        try:
            yield
        finally:
            self.current = outer

    def _mark(self, label: str) -> None:
        if self.session is not None:
            self.session.mark(label)

    def _note(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any, seconds: float) -> None:
        leaves = pytree.tree_leaves((args, kwargs))
        inputs = [local_tensor(x) for x in leaves if isinstance(x, Tensor)]
        outputs = [local_tensor(x) for x in pytree.tree_leaves(out) if isinstance(x, Tensor)]
        known = {x.untyped_storage()._cdata for x in inputs}
        fresh = [self._add_storage(x) for x in outputs if x.untyped_storage()._cdata not in known]
        self._note_writes(func, args, kwargs)
        plain = [x for x in leaves if not isinstance(x, Tensor)]
        shapes = [(x.shape, x.dtype, x.stride()) for x in inputs]
        key = (str(func), tuple(map(str, shapes)), str(plain))
        objection = ""
        if len(fresh) < len(outputs) or any(x.alias_info for x in func._schema.returns):
            objection = "is a view, or writes its input"
        elif func._schema.is_mutable or any(type(x) is not Tensor for x in outputs):
            objection = "writes its input, or gives another kind of tensor"
        elif not outputs:
            objection = "has no tensor as output"
        random = draws_random_numbers(func, args)
        if self.current is not None:
            self.current.append(len(self.calls))
        self.calls.append(_Call(str(func), seconds, key, random, objection, fresh))

    def _add_storage(self, tensor: Tensor) -> _Storage:
        storage = tensor.untyped_storage()
        place = storage._cdata
        if place not in self.storages:
            made = _Storage(storage.nbytes())
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


def record_checkpointed_step(
    model: nn.Module,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    loss: LossFunction | None,
    paths: Sequence[str],
) -> CheckpointRecording:
    """The step with every block checkpointed and nothing saved.

    Args:
        model: Model in the mode in which it is trained.
        args: Positional arguments of its call.
        kwargs: Keyword arguments of its call.
        loss: Makes a scalar of the output; None for gradients of ones for all of its parts.
        paths: Paths of the blocks.

    Raises:
        ModelError: A block runs twice or not at all, writes a buffer, or runs other ops when it is
            recomputed; or the step has no gradient.
    """
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    parameters, buffers = list(model.parameters()), list(model.buffers())
    device = device_of_tensors(parameters, parameters[0].device.type if parameters else "cpu")
    with (
        _preserve_gradients(parameters),
        _preserve_buffers(model, paths),
        preserve_random_states(),
    ):
        timed = _run_recorded(model, (args, kwargs), loss, paths, StepRecorder(None, device))
        recorded, levels = min(
            (
                _record_levels(model, (args, kwargs), loss, paths, device)
                for _ in range(_recordings(device))
            ),
            key=lambda found: found[1].ends[-1],
        )
    _check_calls(recorded, paths)
    seconds = _median_seconds(timed.calls)
    blocks = tuple(_block(model, path, recorded, levels, seconds) for path in paths)
    before = _storage_bytes([*parameters, *buffers, *tensors])
    frame = torch.get_rng_state().nbytes if device.type == "cpu" else 0
    total = sum(seconds.get(call.key, call.seconds) for call in recorded.calls)
    ordered = tuple(sorted(blocks, key=lambda block: block.forward))
    return CheckpointRecording(ordered, levels.most, total, before, frame)


def _storage_bytes(tensors: Sequence[Tensor]) -> int:
    """The bytes of the storages of tensors, each counted once."""
    storages = [local_tensor(x).untyped_storage() for x in tensors]
    return sum({each._cdata: each.nbytes() for each in storages}.values())


def _recordings(device: torch.device) -> int:
    """How often the bytes of a step are recorded. On the CPU threads of gloo free what others
    allocate, and the profiler misses some of that: the recording that ends with the fewest bytes
    missed least. All ranks have to take the same number of steps."""
    several = device.type == "cpu" and distributed.is_available() and distributed.is_initialized()
    return GLOO_RECORDINGS if several else 1


def _record_levels(
    model: nn.Module,
    sample: tuple[Sequence[Any], dict[str, Any]],
    loss: LossFunction | None,
    paths: Sequence[str],
    device: torch.device,
) -> tuple[StepRecorder, _Levels]:
    """The ops of a step, and the bytes at each."""
    _clear_gradients(list(model.parameters()))
    with memory_session(device) as session:
        recorder = StepRecorder(session, device)
        session.mark("step begins")
        recorded = _run_recorded(model, sample, loss, paths, recorder)
        session.mark("step ends")
    return recorded, _Levels.of(session, len(recorded.calls))


def local_tensor(tensor: Tensor) -> Tensor:
    """What a rank has of a distributed tensor; other tensors as they are."""
    local: Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


def _run_recorded(
    model: nn.Module,
    sample: tuple[Sequence[Any], dict[str, Any]],
    loss: LossFunction | None,
    paths: Sequence[str],
    recorder: StepRecorder,
) -> StepRecorder:
    """Runs a step with blocks that are checkpointed, and notes it."""
    args, kwargs = sample
    functions = {
        path: partial(checkpoint, use_reentrant=False, context_fn=recorder.contexts_of(path))
        for path in paths
    }
    with replaced_checkpoints(model, functions), recorder:
        run_backward(model(*args, **kwargs), loss)
    return recorder


def run_backward(output: Any, loss: LossFunction | None) -> None:
    """One backward of a model's output; raises ModelError if nothing has a gradient."""
    if loss is not None:
        value = loss(output)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ModelError("the loss is no tensor of one element with a gradient")
        value.backward()
        return
    leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
    if not leaves:
        raise ModelError("the output of the model has no tensor with a gradient: pass a loss")
    torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])


@contextlib.contextmanager
def _preserve_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Within it parameters have no gradients; afterwards those that they had."""
    kept = [parameter.grad for parameter in parameters]
    _clear_gradients(parameters)
    try:
        yield
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


def _clear_gradients(parameters: Sequence[nn.Parameter]) -> None:
    for parameter in parameters:
        parameter.grad = None


@contextlib.contextmanager
def _preserve_buffers(model: nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """Afterwards buffers are as before; raises ModelError if one of a block was written."""
    kept = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    written: list[str] = []
    try:
        yield
    finally:
        for name, buffer in model.named_buffers():
            if name in kept and not torch.equal(kept[name], buffer):
                written.append(name)
                with torch.no_grad():
                    buffer.copy_(kept[name])
    inside = tuple(f"{path}." for path in paths)
    for name in written:
        if name.startswith(inside):
            raise ModelError(
                f"a block changes its buffer {name!r} in each forward, which checkpointing does "
                "twice: leave the block out (blocks=[...]), or plan the model with tightfit.plan"
            )


@dataclass(frozen=True)
class _Levels:
    """For each position the most bytes beyond those before the step, and, of positions within ops,
    those that are left at its end. Between ops `most` are those that are left when the next one
    begins, since what is freed there is freed first."""

    most: list[int]
    ends: list[int]

    @classmethod
    def of(cls, session: MemorySession, count: int) -> _Levels:
        """Those of a session that has ended, in which so many ops ran."""
        known = session.mark_usages()
        start = known["step begins"].live
        most, ends = [], []
        for number in range(count):
            following = f"{number + 1} begins" if number + 1 < count else "step ends"
            at_end, left = known[f"{number} ends"], known[following].live - start
            most += [at_end.peak - start, left]
            ends += [at_end.live - start, left]
        return cls(most, ends)


def _median_seconds(calls: Sequence[_Call]) -> dict[tuple[Any, ...], float]:
    """The seconds of each kind of call."""
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for call in calls:
        times[call.key].append(call.seconds)
    return {key: statistics.median(values) for key, values in times.items()}


def _check_calls(recorder: StepRecorder, paths: Sequence[str]) -> None:
    for path in paths:
        block = recorder.blocks[path]
        if block.forwards != 1:
            raise ModelError(
                f"block {path!r} runs {block.forwards} times in a step, expected once: name other "
                "blocks, blocks=[...]"
            )
        names = [
            [recorder.calls[n].name for n in part] for part in (block.forward, block.recomputation)
        ]
        if not names[1] or names[0][: len(names[1])] != names[1]:
            raise ModelError(
                f"block {path!r} runs other operators when it is recomputed, or none has a gradient"
            )


def _block(
    model: nn.Module,
    path: str,
    recorder: StepRecorder,
    levels: _Levels,
    seconds: dict[tuple[Any, ...], float],
) -> RecordedBlock:
    """A block with what saving each of its ops costs and saves."""
    calls = recorder.blocks[path]
    ops: list[BlockOp] = []
    for place, number in enumerate(calls.forward):
        call = recorder.calls[number]
        if place >= len(calls.recomputation):
            ops.append(BlockOp(call.name, random=call.random, objection=NOT_RECOMPUTED))
            continue
        second = calls.recomputation[place]
        outputs = call.outputs + recorder.calls[second].outputs
        objection = call.objection
        if any(each.written for each in outputs):
            objection = objection or "is changed in place"
        storages = tuple(
            SavedStorage(each.size, each.freed, 2 * second)
            for each in call.outputs
            if each.size and each.freed < 2 * second
        )
        ops.append(
            BlockOp(
                call.name,
                seconds.get(call.key, call.seconds),
                2 * second,
                levels.most[2 * second] - levels.ends[2 * second],
                call.random,
                objection,
                storages,
            )
        )
    block = inner_block(model.get_submodule(path))
    size = _storage_bytes([x for x in block.parameters() if x.requires_grad])
    end = 2 * calls.recomputation[-1] + 1
    return RecordedBlock(
        path,
        tuple(ops),
        size,
        (2 * calls.forward[0], 2 * calls.forward[-1] + 1),
        (2 * calls.recomputation[0], end),
        tuple(_kept_storages(recorder, calls, end)),
        calls.frame_end,
        _bias_bytes(recorder, calls),
    )


def _bias_bytes(recorder: StepRecorder, block: _BlockCalls) -> int:
    """The most bytes that a sum over rows makes in the backward of a block."""
    behind = recorder.calls[block.recomputation[-1] + 1 : block.frame_end // 2 + 1]
    sums = [call for call in behind if call.name == _BIAS_GRADIENT]
    return max((each.size for call in sums for each in call.outputs), default=0)


def _kept_storages(recorder: StepRecorder, block: _BlockCalls, end: int) -> Iterator[SavedStorage]:
    """The storages of a recomputation that are there after it, and are freed between the forward
    and it."""
    for first, second in zip(block.forward, block.recomputation, strict=False):
        pairs = zip(recorder.calls[first].outputs, recorder.calls[second].outputs, strict=True)
        for made, again in pairs:
            if made.size and again.freed > end and made.freed < 2 * second:
                yield SavedStorage(made.size, made.freed, 2 * second)
