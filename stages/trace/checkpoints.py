"""Lets a model that checkpoints itself run without: a plan decides anew what is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import checkpoint

from stages.trace.as_eager import replaced


class Checkpoints:
    """What is known of a forward's checkpoints: whether there were `any`."""

    def __init__(self) -> None:
        self.any = False

    def run(self, function: Callable[..., Any], preserve_random_state: bool, *args: Any) -> Any:
        """Takes the place of PyTorch's reentrant checkpoint: what the function gives, kept as any
        other."""
        self.any = True
        return function(*args)

    def once(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """Takes the place of what surrounds PyTorch's checkpoint that is not reentrant."""
        self.any = True
        yield

    @contextlib.contextmanager
    def left_out(self) -> Iterator[None]:
        """Within it `torch.utils.checkpoint` calls the function that it is given, and no more."""
        reentrant = type("CheckpointFunction", (), {"apply": staticmethod(self.run)})
        with (
            replaced(checkpoint, "CheckpointFunction", lambda _: reentrant),
            replaced(checkpoint, "_checkpoint_without_reentrant_generator", lambda _: self.once),
        ):
            yield
