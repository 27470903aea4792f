"""Lets a model that checkpoints itself run without: a plan decides anew what is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import checkpoint


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
        places = {
            "CheckpointFunction": reentrant,
            "_checkpoint_without_reentrant_generator": self.once,
        }
        originals = {name: getattr(checkpoint, name) for name in places}
        for name, plain in places.items():
            setattr(checkpoint, name, plain)
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(checkpoint, name, original)
