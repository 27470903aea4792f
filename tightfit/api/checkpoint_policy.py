"""Policies of PyTorch's selective checkpointing that keep a training step within a budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tightfit.util.budget import DEFAULT_BUDGET, parse_plan_budget
from tightfit.util.command_line import format_duration
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tightfit.schemas.checkpoint_recording import CheckpointRecording
    from tightfit.stages.combine.checkpoint_program import SavedOps
    from tightfit.stages.torch_utils.selective_checkpoint import SelectiveContexts


@dataclass(frozen=True)
class BlockPolicy:
    """What one block saves.

    Attributes:
        path: Path of the block in the model.
        signature: Class of the block, and names and shapes of its parameters.
        operators: Operators of the block's forward, in order, as "aten.addmm.default".
        saved: Positions in `operators` of those whose outputs are saved; None if the block is not
            checkpointed and keeps all that its backward reads.
        random: Whether the block draws random numbers.
    """

    path: str
    signature: tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]
    operators: tuple[str, ...]
    saved: tuple[int, ...] | None
    random: bool

    def contexts(self) -> SelectiveContexts:
        """What makes the contexts of one forward, and checks its operators."""
        from tightfit.stages.torch_utils.selective_checkpoint import SelectiveContexts

        return SelectiveContexts(self.path, self.operators, self.saved or (), self.random)

    def context_fn(self) -> Callable[[], Any]:
        """The `context_fn` of this block for `torch.utils.checkpoint`, of a block that is not
        checkpointed one that saves nothing.

        Example:
            >>> context_fn = policy.blocks[0].context_fn()
            >>> checkpoint(block, x, use_reentrant=False, context_fn=context_fn)
        """
        from tightfit.stages.torch_utils.selective_checkpoint import selective_contexts

        return partial(selective_contexts, self.contexts())


@dataclass(frozen=True)
class ActivationCheckpointPolicy:
    """Which ops of each block are saved, with the step's predicted bytes and seconds.

    Attributes:
        blocks: Policies of the blocks, in the order in which they run.
        peak: Most bytes of the step beyond parameters, buffers and inputs.
        total: The same with parameters, buffers and inputs.
        seconds: Predicted time of a forward with its backward.
        bound: Time in seconds that no policy for the same blocks is below within the budget, by the
            same times of ops.
        recompute_all_seconds: Predicted time if nothing is saved.
        recompute_none_seconds: Predicted time without checkpointing.
        siblings: Paths of the modules beside the blocks in their lists that are no blocks.

    Example:
        >>> policy = tightfit.checkpoint_policy(model, (tokens,), budget="8GiB")
        >>> policy.apply(model)
    """

    blocks: tuple[BlockPolicy, ...]
    peak: int
    total: int
    seconds: float
    bound: float
    recompute_all_seconds: float
    recompute_none_seconds: float
    siblings: tuple[str, ...] = ()

    def apply(self, model: nn.Module) -> nn.Module:
        """Checkpoints the blocks of a model, in place, by PyTorch's `checkpoint_wrapper`.

        Call it before `fully_shard`, `torch.compile` or `DistributedDataParallel`, unless the
        blocks are in PyTorch's wrapper already: then the policy takes the place of what these do.

        Args:
            model: The model that the policy was made for, or one of the same code and shapes.

        Returns:
            The model.

        Raises:
            ConfigError: The model lacks a block, has another one in its place, is sharded without
                PyTorch's wrapper, or is checkpointed in another way.

        Example:
            >>> policy.apply(model)
            >>> for block in model.layers:
            ...     fully_shard(block)
        """
        from tightfit.stages.torch_utils.selective_checkpoint import (
            block_signature,
            check_checkpoints,
            run_selectively,
            set_checkpoints,
        )

        known = dict(model.named_modules())
        for block in self.blocks:
            if block.path not in known:
                raise ConfigError(f"the model has no block {block.path!r}, which the policy is for")
        paths = [block.path for block in self.blocks]
        for path in _find_siblings(model, paths):
            if path not in self.siblings:
                raise ConfigError(
                    f"the model has a module {path!r} beside the blocks, which that of the policy "
                    "had not: make a policy for this model"
                )
        check_checkpoints(model, paths)
        for block in self.blocks:
            if block_signature(known[block.path]) != block.signature:
                raise ConfigError(
                    f"block {block.path!r} has another class or other parameters than the one that "
                    "the policy was made for: make a policy for this model"
                )
        functions: dict[str, Callable[..., Any] | None] = {
            block.path: None if block.saved is None else partial(run_selectively, block.contexts())
            for block in self.blocks
        }
        set_checkpoints(model, functions)
        return model

    def summary(self) -> str:
        """The policy for people: bytes, seconds, and what is saved in which blocks.

        Example:
            >>> print(policy.summary())
        """
        least = self.recompute_none_seconds or 1.0
        lines = [
            f"memory: {self.total:,} bytes, {self.peak:,} of them beyond parameters, buffers and "
            "inputs",
            f"time: {format_duration(self.seconds)} predicted, {self.seconds / least:.2f} times "
            f"that without checkpointing; nothing saved takes "
            f"{self.recompute_all_seconds / least:.2f} times, and no policy of these blocks less "
            f"than {self.bound / least:.2f} times",
        ]
        for block in self.blocks:
            if block.saved is None:
                lines.append(f"{block.path}: is not checkpointed")
                continue
            names = [block.operators[number].split(".")[1] for number in block.saved]
            counts = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
            lines.append(f"{block.path}: saves {', '.join(counts) or 'nothing'}")
        return "\n".join(lines)


def checkpoint_policy(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    budget: str | int = DEFAULT_BUDGET,
    *,
    loss: Callable[[Any], Tensor] | None = None,
    blocks: Sequence[str | nn.Module] | None = None,
) -> ActivationCheckpointPolicy:
    """Decides which ops each block saves, so that the step of a checkpointed model fits a budget.

    The step runs twice on the model, under checkpointing that saves nothing: that takes the least
    memory of this mechanism. Gradients, buffers and random states are then as they were.

    Args:
        model: Model, in the mode and on the device in which it is trained.
        args: Positional arguments of a call.
        kwargs: Keyword arguments of the call.
        budget: Bytes of the whole step with parameters, gradients and inputs: a size ("8GiB"), a
            number of bytes, "min" for the peak with nothing saved, or a share ("50%") of what the
            peak without checkpointing is above that. States of the optimizer are not counted.
        loss: Makes a scalar of the model's output. Without it the step goes backward from gradients
            of ones for all outputs, and the bytes of a loss are not counted.
        blocks: Paths of the submodules to checkpoint, or these. By default the children of each
            ModuleList, ModuleDict or Sequential that has two or more of one class.

    Returns:
        The policy.

    Raises:
        ConfigError: The budget is too small, or a block is none.
        ModelError: A block cannot be checkpointed: it changes a buffer, draws from Python's or
            NumPy's random numbers, has an argument that is changed in place, has no backward, runs
            twice, or runs other ops when it is recomputed.

    Example:
        >>> policy = tightfit.checkpoint_policy(model, (tokens,), budget="8GiB", loss=loss_function)
        >>> print(policy.summary())
        >>> policy.apply(model)
    """
    from tightfit.stages.combine.checkpoint_program import (
        WHOLE_BLOCK,
        fastest_policy,
        saved_peak,
    )
    from tightfit.stages.profile.checkpoint_recorder import record_checkpointed_step
    from tightfit.stages.profile.shared_recording import share_recording
    from tightfit.stages.torch_utils.selective_checkpoint import (
        check_checkpoints,
        find_blocks,
    )

    if not isinstance(args, list | tuple):
        raise ConfigError(
            f"args: is a {type(args).__name__}, expected a tuple of the call's arguments: (x,)"
        )
    wanted = parse_plan_budget(budget, "checkpoint_policy: budget")
    paths = find_blocks(model, blocks)
    check_checkpoints(model, paths)
    shared = share_recording(record_checkpointed_step(model, args, kwargs or {}, loss, paths))
    recording = shared.recording
    least, before = saved_peak(recording, []), recording.bytes_before
    if wanted.is_min:
        limit = least
    elif wanted.size is not None:
        limit = wanted.size - before
    else:
        whole = [(index, WHOLE_BLOCK) for index in range(len(paths))]
        limit = wanted.total(least, saved_peak(recording, whole))
    found = shared.first_of_ranks(lambda: fastest_policy(recording, limit))
    if found is None:
        raise ConfigError(
            f"checkpoint_policy: budget: {budget} is below what the step takes with nothing saved, "
            f"{before + least:,} bytes: ask for that, or for 'min', or name smaller blocks"
        )
    return _build_policy(model, recording, found)


def _build_policy(
    model: nn.Module, recording: CheckpointRecording, found: SavedOps
) -> ActivationCheckpointPolicy:
    from tightfit.stages.torch_utils.selective_checkpoint import block_signature

    blocks = tuple(
        BlockPolicy(
            block.path,
            block_signature(model.get_submodule(block.path)),
            tuple(op.name for op in block.ops),
            saved,
            any(op.random for op in block.ops),
        )
        for block, saved in zip(recording.blocks, found.blocks, strict=True)
    )
    again = sum(block.seconds for block in recording.blocks)
    return ActivationCheckpointPolicy(
        blocks,
        found.peak,
        recording.bytes_before + found.peak,
        found.seconds,
        found.bound,
        recording.seconds,
        recording.seconds - again,
        _find_siblings(model, [block.path for block in blocks]),
    )


def _find_siblings(model: nn.Module, blocks: Sequence[str]) -> tuple[str, ...]:
    """The paths of the modules beside blocks, in the same parents, that are no blocks."""
    parents = dict.fromkeys(path.rpartition(".")[0] for path in blocks)
    children = (
        ".".join(filter(None, (parent, name)))
        for parent in parents
        for name, _ in model.get_submodule(parent).named_children()
    )
    return tuple(path for path in children if path not in blocks)
