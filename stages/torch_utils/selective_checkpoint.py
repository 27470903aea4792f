"""Blocks of a model under PyTorch's selective checkpointing, with a set of saved ops for each.

A policy of `torch.utils.checkpoint` is asked for each op of a block's forward; here it goes by the
op's position in the block, and by its operator, which has to be the one that was planned.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
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
    checkpoint,
    create_selective_checkpoint_contexts,
)

from tightfit.mismatch import PlanMismatch
from tightfit.stages.torch_utils.checkpoint_checks import check_recomputed_inputs
from tightfit.util.errors import ConfigError, ModelError

CheckpointFunction: TypeAlias = Callable[..., Any]
"""Runs a block, given with its arguments, as `torch.utils.checkpoint` does."""
IGNORED_OPS = frozenset(SAC_IGNORED_OPS)
"""Ops of which PyTorch asks no policy."""
_REMEDY = "make a policy with tightfit.checkpoint_policy for this model, mode and these arguments"


class SelectiveContexts:
    """Makes the contexts of one block: see `selective_contexts`.

    Args:
        path: Path of the block in the model.
        operators: Operators of the block's forward, in order, as "aten.addmm.default".
        saved: Positions in `operators` of the ops whose outputs are saved.
        random: Whether the block draws random numbers.

    Raises:
        PlanMismatch: In the forward, if the block runs other operators, or draws random numbers
            within `torch.compile`.

    Example:
        >>> policy = SelectiveContexts("h.0", ["aten.t.default", "aten.mm.default"], [1])
        >>> context_fn = functools.partial(selective_contexts, policy)
        >>> checkpoint(block, x, use_reentrant=False, context_fn=context_fn)
    """

    def __init__(
        self, path: str, operators: Sequence[str], saved: Iterable[int], random: bool = False
    ) -> None:
        self.path = path
        self.random = random
        self.operators = tuple(operators)
        self.saved = frozenset(saved)

    def make(
        self, counts: Counter[bool] | None = None
    ) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """The contexts of one forward of the block, and of its recomputation. `counts` counts the
        operators of this forward at False, and those of its recomputation at True."""
        if self.random and _is_compiled():
            raise PlanMismatch(
                f"block {self.path!r} draws random numbers, and a compiled recomputation may draw "
                "others: leave torch.compile out, or dropout"
            )
        counts = Counter() if counts is None else counts

        def decide(
            context: SelectiveCheckpointContext, op: Any, *args: Any, **kwargs: Any
        ) -> CheckpointPolicy:
            number = counts[context.is_recompute]
            counts[context.is_recompute] += 1
            if not context.is_recompute:
                self._check_operator(number, str(op))
            return (
                CheckpointPolicy.MUST_SAVE
                if number in self.saved
                else CheckpointPolicy.PREFER_RECOMPUTE
            )

        return create_selective_checkpoint_contexts(decide)

    def check_count(self, count: int) -> None:
        """Raises PlanMismatch if a forward ended before the last operator; forwards without
        gradients have no contexts, and count none."""
        if 0 < count < len(self.operators):
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


def _is_compiled() -> bool:
    """Whether torch.compile runs this. Before PyTorch 2.13, only Dynamo knows `is_compiling`, not
    the backends."""
    return torch.compiler.is_compiling() or torch._guards.TracingContext.try_get() is not None


def selective_contexts(
    policy: SelectiveContexts, counts: Counter[bool] | None = None
) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The contexts of one forward of a block. `functools.partial(selective_contexts, policy)` is a
    `context_fn` that `torch.compile` takes, too."""
    return policy.make(counts)


def run_selectively(
    policy: SelectiveContexts, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Takes the place of `torch.utils.checkpoint` in a block's wrapper: what the block gives, whose
    operators have to be those of the policy."""
    if torch.compiler.is_compiling():
        context_fn = partial(selective_contexts, policy)
        return checkpoint(function, *args, use_reentrant=False, context_fn=context_fn, **kwargs)
    counts: Counter[bool] = Counter()
    output = checkpoint(
        check_recomputed_inputs(policy.path, function, args, kwargs),
        *args,
        use_reentrant=False,
        context_fn=partial(selective_contexts, policy, counts),
        **kwargs,
    )
    policy.check_count(counts[False])
    return output


def run_plainly(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Takes the place of `torch.utils.checkpoint` in the wrapper of a block that keeps all."""
    return function(*args, **kwargs)


def find_blocks(model: nn.Module, blocks: Sequence[str | nn.Module] | None) -> tuple[str, ...]:
    """The paths of the blocks that are checkpointed: those that are named, or the children of each
    outermost ModuleList, ModuleDict or Sequential that has two or more of one class.

    Raises ConfigError if a block is not in the model or lies in another, ModelError if none is
    named and the model has no such list.
    """
    if isinstance(blocks, str):
        raise ConfigError(f"blocks: is a str, expected a list of them: blocks=[{blocks!r}]")
    if blocks is not None and any(block is model or block == "" for block in blocks):
        raise ConfigError("blocks: names the model itself, expected submodules of it")
    paths = {id(module): path for path, module in model.named_modules()}
    if blocks is None:
        found = _repeated_children(model)
        if not found:
            raise ModelError(
                "the model has no ModuleList, ModuleDict or Sequential of equal blocks: name the "
                "blocks, blocks=['encoder', 'decoder']"
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
        if not isinstance(module, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        children = list(module.children())
        if any(path.startswith(f"{other}.") for other in outer) or len(children) < 2:
            continue
        kinds = {type(inner_block(child)) for child in children}
        if len(kinds) > 1 or not [*children[0].parameters()]:
            continue
        if kinds <= {nn.ModuleList, nn.ModuleDict}:  # which have no forward
            continue
        if path and not isinstance(children[0], nn.Linear):
            outer.append(path)
        found += [f"{path}.{name}".lstrip(".") for name, _ in module.named_children()]
    return found


def check_checkpoints(model: nn.Module, paths: Iterable[str]) -> None:
    """Raises ConfigError if a model checkpoints in a way that a policy cannot replace, or a block
    is sharded before it is checkpointed."""
    from torch.distributed.fsdp import FSDPModule

    known = list(paths)
    for path, module in model.named_modules():
        if isinstance(module, CheckpointWrapper) and path not in known:
            raise ConfigError(f"{path!r} is checkpointed, and is none of the policy's blocks")
        if getattr(module, "gradient_checkpointing", False) is True:
            raise ConfigError(
                "the model checkpoints itself: call model.gradient_checkpointing_disable() first"
            )
    for path in known:
        block = model.get_submodule(path)
        inside = inner_block(block).modules()
        if any(isinstance(module, FSDPModule) for module in inside):
            raise ConfigError(
                f"block {path!r} is sharded: apply the policy, or PyTorch's checkpoint_wrapper, "
                "before fully_shard"
            )


def inner_block(block: nn.Module) -> nn.Module:
    """A block without the wrapper that checkpoints it."""
    inner = block._checkpoint_wrapped_module if isinstance(block, CheckpointWrapper) else block
    assert isinstance(inner, nn.Module)
    return inner


def set_checkpoints(model: nn.Module, functions: Mapping[str, CheckpointFunction | None]) -> None:
    """Puts each block into PyTorch's wrapper, in place, or takes the one that it is in, and lets a
    function take the place of `torch.utils.checkpoint` there. For None a block is taken out of its
    wrapper, unless that is sharded."""
    from torch.distributed.fsdp import FSDPModule

    for path, function in functions.items():
        block = model.get_submodule(path)
        if not isinstance(block, CheckpointWrapper):
            if function is not None:
                _set_submodule(model, path, checkpoint_wrapper(block, checkpoint_fn=function))
        elif function is None and not isinstance(block, FSDPModule):
            _set_submodule(model, path, inner_block(block))
        else:
            wrapper: Any = block
            wrapper.checkpoint_fn = run_plainly if function is None else function


@contextlib.contextmanager
def replaced_checkpoints(
    model: nn.Module, functions: Mapping[str, CheckpointFunction]
) -> Iterator[None]:
    """Within it functions take the place of `torch.utils.checkpoint` in blocks; see
    `set_checkpoints`. Afterwards all is as it was."""
    blocks = {path: model.get_submodule(path) for path in functions}
    before = {
        path: block.checkpoint_fn if isinstance(block, CheckpointWrapper) else None
        for path, block in blocks.items()
    }
    set_checkpoints(model, functions)
    try:
        yield
    finally:
        set_checkpoints(model, before)


def _set_submodule(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)


def block_signature(block: nn.Module) -> tuple[str, tuple[tuple[str, tuple[int, ...]], ...]]:
    """The class of a block, and names and shapes of its parameters."""
    inner = inner_block(block)
    shapes = tuple((name, tuple(value.shape)) for name, value in inner.named_parameters())
    return f"{type(inner).__module__}.{type(inner).__qualname__}", shapes
