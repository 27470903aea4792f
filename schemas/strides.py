"""How the elements of a tensor lie in its storage."""

from __future__ import annotations

from collections.abc import Sequence


def is_contiguous(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie one after the other in the order of their dimensions."""
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return True
