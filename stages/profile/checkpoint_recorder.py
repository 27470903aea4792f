"""Records one training step under checkpointing that saves nothing: ops, times, bytes, storages.

The step runs on the model itself, twice, once for times and once for bytes, and takes the memory of
plain `torch.utils.checkpoint`. Gradients, buffers and random states are then as they were.
"""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

from tightfit.schemas.checkpoint_recording import (
    NOT_RECOMPUTED,
    BlockOp,
    CheckpointRecording,
    RecordedBlock,
    SavedStorage,
)
from tightfit.stages.profile.step_recorder import (
    BlockCalls,
    RecordedCall,
    StepRecorder,
    local_tensor,
)
from tightfit.stages.torch_utils.checkpoint_checks import RecordedInputs
from tightfit.stages.torch_utils.devices import (
    device_of_tensors,
    preserve_all_random_states,
)
from tightfit.stages.torch_utils.memory_meter import MemorySession, memory_session
from tightfit.stages.torch_utils.selective_checkpoint import (
    inner_block,
    replaced_checkpoints,
)
from tightfit.util.errors import ModelError

LossFunction = Callable[[Any], Tensor]
_BIAS_GRADIENT = "aten.sum.dim_IntList"
GLOO_RECORDINGS = 6
"""How often a step of several processes on CPUs is recorded."""


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
    leaves = [*parameters, *(x for x in tensors if x.requires_grad and x.is_leaf)]
    device = device_of_tensors(parameters, parameters[0].device.type if parameters else "cpu")
    with (
        _preserve_gradients(leaves),
        _preserve_buffers(model, paths),
        preserve_all_random_states(),
    ):
        timed = _run_recorded(model, (args, kwargs), loss, paths, StepRecorder(None, device))
        recordings = []
        for _ in range(_recording_count(device)):
            _clear_gradients(leaves)
            recordings.append(_record_levels(model, (args, kwargs), loss, paths, device))
        recorded, levels = min(recordings, key=lambda found: found[1].ends[-1])
    _check_calls(recorded, paths)
    seconds = _median_seconds(timed.calls)
    blocks = tuple(_recorded_block(model, path, recorded, levels, seconds) for path in paths)
    before = _storage_bytes([*parameters, *buffers, *tensors])
    frame = torch.get_rng_state().nbytes if device.type == "cpu" else 0
    total = sum(seconds.get(call.key, call.seconds) for call in recorded.calls)
    ordered = tuple(sorted(blocks, key=lambda block: block.forward))
    return CheckpointRecording(ordered, levels.most, total, before, frame)


def _storage_bytes(tensors: Sequence[Tensor]) -> int:
    """The bytes of the storages of tensors, each counted once."""
    storages = [local_tensor(x).untyped_storage() for x in tensors]
    return sum({each._cdata: each.nbytes() for each in storages}.values())


def _recording_count(device: torch.device) -> int:
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
    with memory_session(device) as session:
        recorder = StepRecorder(session, device)
        session.mark("step begins")
        recorded = _run_recorded(model, sample, loss, paths, recorder)
        session.mark("step ends")
    return recorded, _Levels.of(session, len(recorded.calls))


def _run_recorded(
    model: nn.Module,
    sample: tuple[Sequence[Any], dict[str, Any]],
    loss: LossFunction | None,
    paths: Sequence[str],
    recorder: StepRecorder,
) -> StepRecorder:
    """Runs a step with blocks that are checkpointed, and notes it."""
    args, kwargs = sample
    inputs = RecordedInputs()
    functions = {
        path: partial(
            inputs.run,
            path,
            partial(checkpoint, use_reentrant=False, context_fn=recorder.contexts_of(path)),
        )
        for path in paths
    }
    with replaced_checkpoints(model, functions), recorder:
        run_backward(model(*args, **kwargs), loss, inputs.check_before_backward)
    return recorder


def run_backward(
    output: Any, loss: LossFunction | None, check: Callable[[], None] = lambda: None
) -> None:
    """One backward of a model's output, after a check that is called before it; raises ModelError
    if nothing has a gradient."""
    if loss is not None:
        value = loss(output)
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            raise ModelError("the loss is no tensor of one element with a gradient")
        check()
        value.backward()
        return
    leaves = [x for x in pytree.tree_leaves(output) if isinstance(x, Tensor) and x.requires_grad]
    if not leaves:
        raise ModelError("the output of the model has no tensor with a gradient: pass a loss")
    check()
    torch.autograd.backward(leaves, [torch.ones_like(leaf) for leaf in leaves])


@contextlib.contextmanager
def _preserve_gradients(leaves: Sequence[Tensor]) -> Iterator[None]:
    """Within it parameters and inputs have no gradients; afterwards those that they had."""
    kept = [leaf.grad for leaf in leaves]
    _clear_gradients(leaves)
    try:
        yield
    finally:
        for leaf, gradient in zip(leaves, kept, strict=True):
            leaf.grad = gradient


def _clear_gradients(leaves: Sequence[Tensor]) -> None:
    for leaf in leaves:
        leaf.grad = None


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


def _median_seconds(calls: Sequence[RecordedCall]) -> dict[tuple[Any, ...], float]:
    """The seconds of each kind of call."""
    times: dict[tuple[Any, ...], list[float]] = defaultdict(list)
    for call in calls:
        times[call.key].append(call.seconds)
    return {key: statistics.median(values) for key, values in times.items()}


def _check_calls(recorder: StepRecorder, paths: Sequence[str]) -> None:
    trained = [path for path in paths if recorder.blocks[path].recomputation_start is not None]
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
        if block.recomputation_start is None:
            raise ModelError(
                f"block {path!r} has no backward (frozen, or its output is not in the loss): name "
                f"the blocks that have one, blocks={trained}"
            )
        if names[0][: len(names[1])] != names[1]:
            raise ModelError(f"block {path!r} runs other operators when it is recomputed")


def _recorded_block(
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
            ops.append(
                BlockOp(
                    call.name,
                    random=call.random,
                    collective=call.collective,
                    objection=NOT_RECOMPUTED,
                )
            )
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
        if awaited := recorder.calls[second].awaited_bytes:
            # If it does not run again, the next to wait is the backward.
            storages += (SavedStorage(awaited, 2 * second, calls.frame_end),)
        ops.append(
            BlockOp(
                call.name,
                seconds.get(call.key, call.seconds),
                2 * second,
                levels.most[2 * second] - levels.ends[2 * second],
                call.random,
                call.collective,
                objection,
                storages,
            )
        )
    block = inner_block(model.get_submodule(path))
    size = _storage_bytes([x for x in block.parameters() if x.requires_grad])
    again = calls.recomputation
    # A block that keeps only its inputs, as one convolution, recomputes nothing.
    start = 2 * again[0] if again else calls.recomputation_start
    end = 2 * again[-1] + 1 if again else start
    assert start is not None and end is not None
    return RecordedBlock(
        path,
        tuple(ops),
        size,
        (2 * calls.forward[0], 2 * calls.forward[-1] + 1),
        (start, end),
        tuple(_kept_storages(recorder, calls, end)),
        calls.frame_end,
        _bias_bytes(recorder, calls, end),
    )


def _bias_bytes(recorder: StepRecorder, block: BlockCalls, end: int) -> int:
    """The most bytes that a sum over rows makes in the backward of a block."""
    behind = recorder.calls[(end + 1) // 2 : block.frame_end // 2 + 1]
    sums = [call for call in behind if call.name == _BIAS_GRADIENT]
    return max((each.size for call in sums for each in call.outputs), default=0)


def _kept_storages(recorder: StepRecorder, block: BlockCalls, end: int) -> Iterator[SavedStorage]:
    """The storages of a recomputation that are there after it, and are freed between the forward
    and it."""
    for first, second in zip(block.forward, block.recomputation, strict=False):
        pairs = zip(recorder.calls[first].outputs, recorder.calls[second].outputs, strict=True)
        for made, again in pairs:
            if made.size and again.freed > end and made.freed < 2 * second:
                yield SavedStorage(made.size, made.freed, 2 * second)
