"""Lets a model that checkpoints itself run without: a plan decides anew what is kept."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils import checkpoint


class _Plain:
    """Takes the place of PyTorch's reentrant checkpoint."""

    @staticmethod
    def apply(run: Callable[..., Any], preserve_random_state: bool, *args: Any) -> Any:
        """What the function gives, kept as any other."""
        return run(*args)


def _once(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Takes the place of what surrounds PyTorch's checkpoint that is not reentrant."""
    yield


@contextlib.contextmanager
def without_checkpoints() -> Iterator[None]:
    """Within it `torch.utils.checkpoint` calls the function that it is given, and no more."""
    places = {"CheckpointFunction": _Plain, "_checkpoint_without_reentrant_generator": _once}
    originals = {name: getattr(checkpoint, name) for name in places}
    for name, plain in places.items():
        setattr(checkpoint, name, plain)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(checkpoint, name, original)
