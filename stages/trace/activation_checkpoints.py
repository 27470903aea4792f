"""Lets a model that checkpoints itself run without: a plan decides anew what is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.stages.torch_utils.operators import draws_random_numbers
from tightfit.stages.trace.capture_patches import patch_attribute
from tightfit.stages.trace.code_inspection import caller_location, short_path


class ActivationCheckpoints:
    """What is known of the checkpoints of a model's forward: whether there were `any`, why a step
    without them may be another one (`causes`, each a clause with its remedy), and those that give
    no gradients (`ungraded`, "file:line" each)."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.any = False
        self.causes: dict[str, None] = {}
        self.ungraded: dict[str, None] = {}

    def run(self, function: Callable[..., Any], preserve_random_state: bool, *args: Any) -> Any:
        """Takes the place of PyTorch's reentrant checkpoint: what the function gives, kept as any
        other. Where no tensor that it is given requires a gradient nothing in it gets one."""
        self.any = True
        if not any(isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args):
            if torch.is_grad_enabled():
                self.ungraded[short_path(caller_location())] = None
            with torch.no_grad():
                return function(*args)
        with self.watched(preserve_random_state, caller_location()):
            return function(*args)

    def once(
        self, function: Any, preserve_random_state: bool = True, *args: Any, **kwargs: Any
    ) -> Iterator[None]:
        """Takes the place of what surrounds PyTorch's checkpoint that is not reentrant."""
        self.any = True
        with self.watched(preserve_random_state, caller_location()):
            yield

    @contextlib.contextmanager
    def watched(self, preserve_random_state: bool, place: str) -> Iterator[None]:
        """Within it what PyTorch would do otherwise when it runs the function again is noted."""
        running = _CheckpointEffectsMode(self.model)
        with running:
            yield
        at = f"checkpoint() at {short_path(place)}"
        if running.draws and not preserve_random_state:
            self.causes[
                f"{at} has preserve_rng_state=False and draws random numbers, so that PyTorch "
                "draws others when it runs it again, and its gradients are not those of its "
                "outputs: leave preserve_rng_state=False out"
            ] = None
        for name in running.written:
            self.causes[
                f"{at} changes the buffer {name!r} in place, which PyTorch does once more when it "
                "runs it again: leave that checkpoint() out, in whose place the plan comes"
            ] = None

    @contextlib.contextmanager
    def disable_checkpointing(self) -> Iterator[None]:
        """Within it `torch.utils.checkpoint` calls the function that it is given, and no more."""
        reentrant = type("CheckpointFunction", (), {"apply": staticmethod(self.run)})
        with (
            patch_attribute(checkpoint, "CheckpointFunction", lambda _: reentrant),
            patch_attribute(
                checkpoint, "_checkpoint_without_reentrant_generator", lambda _: self.once
            ),
        ):
            yield


def missing_gradient_message(place: str) -> str:
    """What is said of a checkpoint that gives no gradients."""
    return (
        f"checkpoint() at {place} has use_reentrant=True and inputs that need no gradient, so that "
        "PyTorch gives none to what it runs: for gradients give it use_reentrant=False"
    )


class _CheckpointEffectsMode(TorchDispatchMode):
    """Notes whether random numbers are drawn, and which buffers of a model are written."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.names = {id(buffer): name for name, buffer in model.named_buffers()}
        self.draws = False
        self.written: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        self.draws |= draws_random_numbers(func, args)
        for argument, given in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                names = map(self.names.get, map(id, pytree.tree_leaves(given)))
                self.written += [name for name in names if name is not None]
        return func(*args, **named)
