"""Blocks of a model under PyTorch's selective checkpointing, with a set of saved ops for each.

A policy of `torch.utils.checkpoint` is asked for each op of a block's forward; here it goes by the
op's position in the block, and by its operator, which has to be the one that was planned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointWrapper,
    checkpoint_wrapper,
)
from torch.utils.checkpoint import (
    SAC_IGNORED_OPS,
    CheckpointPolicy,
    SelectiveCheckpointContext,
    create_selective_checkpoint_contexts,
)

from tightfit.mismatch import PlanMismatch
from tightfit.util.errors import ConfigError, ModelError

ContextFunction: TypeAlias = Callable[
    [], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]
]
"""What `torch.utils.checkpoint` takes as `context_fn`: makes the contexts of the forward and of its
recomputation."""
IGNORED_OPS = frozenset(SAC_IGNORED_OPS)
"""Ops of which PyTorch asks no policy."""
_REMEDY = "make a policy with tightfit.checkpoint_policy for this model, mode and these arguments"


class SelectiveContexts:
    """The `context_fn` of one block.

    Args:
        path: Path of the block in the model.
        operators: Operators of the block's forward, in order, as "aten.addmm.default".
        saved: Positions in `operators` of the ops whose outputs are saved.

    Raises:
        PlanMismatch: In the forward, if the block runs other operators.

    Example:
        >>> contexts = SelectiveContexts("h.0", ["aten.t.default", "aten.mm.default"], [1])
        >>> checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    """

    def __init__(self, path: str, operators: Sequence[str], saved: Iterable[int]) -> None:
        self.path = path
        self.operators = tuple(operators)
        self.saved = frozenset(saved)
        self.count: int | None = None

    def __call__(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """The contexts of one forward of the block, and of its recomputation."""
        counts: Counter[bool] = Counter()
        self.count = 0

        def decide(
            context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any
        ) -> CheckpointPolicy:
            number = counts[context.is_recompute]
            counts[context.is_recompute] += 1
            if not context.is_recompute:
                self.count = number + 1
                self._check_operator(number, str(op))
            return (
                CheckpointPolicy.MUST_SAVE
                if number in self.saved
                else CheckpointPolicy.PREFER_RECOMPUTE
            )

        return create_selective_checkpoint_contexts(decide)

    def check_count(self, *hook_arguments: Any) -> None:
        """Raises PlanMismatch if the last forward ended before the last operator. It is a forward
        hook of the block's wrapper."""
        count, self.count = self.count, None
        if count is not None and count < len(self.operators) and not torch.compiler.is_compiling():
            raise PlanMismatch(
                f"block {self.path!r} ran {count} operators, and the policy was made for "
                f"{len(self.operators)}: {_REMEDY}"
            )

    def _check_operator(self, number: int, operator: str) -> None:
        if number >= len(self.operators):
            expected = "its end"
        elif operator != self.operators[number]:
            expected = self.operators[number]
        else:
            return
        raise PlanMismatch(
            f"operator {number} of block {self.path!r} is {operator}, and the policy was made for "
            f"{expected}: {_REMEDY}"
        )


def find_blocks(model: nn.Module, blocks: Sequence[str | nn.Module] | None) -> tuple[str, ...]:
    """The paths of the blocks that are checkpointed: those that are named, or the children of each
    outermost ModuleList or Sequential that has two or more of one class.

    Raises ConfigError if a block is not in the model or lies in another, ModelError if none is
    named and the model has no such list.
    """
    paths = {id(module): path for path, module in model.named_modules()}
    if blocks is None:
        found = _repeated_children(model)
        if not found:
            raise ModelError(
                "the model has no ModuleList or Sequential of equal blocks: name the blocks, "
                "blocks=['encoder', 'decoder']"
            )
        return tuple(found)
    known = set(paths.values()) - {""}
    named = [
        paths.get(id(block), "") if isinstance(block, nn.Module) else block for block in blocks
    ]
    for path in named:
        if path not in known:
            raise ConfigError(f"blocks: {path!r} is no submodule of the model")
        if any(path.startswith(f"{other}.") for other in named) or named.count(path) > 1:
            raise ConfigError(f"blocks: {path!r} is named twice, or lies in another block")
    if not named:
        raise ConfigError("blocks: is empty, expected paths of submodules")
    return tuple(named)


def _repeated_children(model: nn.Module) -> list[str]:
    outer: list[str] = []
    found: list[str] = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential):
            continue
        children = list(module)
        if any(path.startswith(f"{other}.") for other in outer) or len(children) < 2:
            continue
        if len({type(child) for child in children}) > 1 or not [*children[0].parameters()]:
            continue
        if path and not isinstance(children[0], nn.Linear):
            outer.append(path)
        found += [f"{path}.{name}".lstrip(".") for name, _ in module.named_children()]
    return found


def check_not_checkpointed(model: nn.Module, paths: Iterable[str]) -> None:
    """Raises ConfigError if a block is sharded, or checkpointed in another way."""
    from torch.distributed.fsdp import FSDPModule

    for path, module in model.named_modules():
        if isinstance(module, CheckpointWrapper):
            raise ConfigError(f"{path!r} is checkpointed already: apply one policy to a model")
        if getattr(module, "gradient_checkpointing", False) is True:
            raise ConfigError(
                "the model checkpoints itself: call model.gradient_checkpointing_disable() first"
            )
    for path in paths:
        if any(isinstance(module, FSDPModule) for module in model.get_submodule(path).modules()):
            raise ConfigError(f"block {path!r} is sharded: apply the policy before fully_shard")


def wrap_blocks(model: nn.Module, contexts: Mapping[str, ContextFunction]) -> None:
    """Puts each block into PyTorch's wrapper that checkpoints it, in place."""
    for path, context_fn in contexts.items():
        wrapper = checkpoint_wrapper(model.get_submodule(path), context_fn=context_fn)
        if isinstance(context_fn, SelectiveContexts):
            wrapper.register_forward_hook(context_fn.check_count)
        _set_submodule(model, path, wrapper)


def unwrap_blocks(model: nn.Module, paths: Iterable[str]) -> None:
    """Takes the blocks out of their wrappers, in place."""
    for path in paths:
        wrapper = model.get_submodule(path)
        if isinstance(wrapper, CheckpointWrapper):
            _set_submodule(model, path, wrapper._checkpoint_wrapped_module)


def _set_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def block_signature(block: nn.Module) -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]:
    """The class of a block, and names and shapes of its parameters."""
    shapes = tuple((name, tuple(value.shape)) for name, value in block.named_parameters())
    return f"{type(block).__module__}.{type(block).__qualname__}", shapes
