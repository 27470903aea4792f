"""Takes memory of a GPU ahead of the first step, in one piece.

PyTorch's allocator keeps the segment of what was given back, and serves the steps from it: pieces
of one segment join again when they are free, those of several do not. How many bytes make a step
reserve less is found when it is planned, by playing the allocator on paper.
"""

from __future__ import annotations

import contextlib

import torch

from .call_context import disable_function_modes


class Preallocation:
    """So many bytes, taken once on each device and given back at once; 0 for none."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.taken: set[torch.device] = set()

    def take(self, device: torch.device) -> None:
        """Takes the bytes of a GPU where they were not taken yet; where it has no such piece, its
        steps are served as they come."""
        if not self.size or device.type != "cuda" or device in self.taken:
            return
        self.taken.add(device)
        with contextlib.suppress(torch.OutOfMemoryError), disable_function_modes():
            preallocate(self.size, device)


def preallocate(size: int, device: torch.device) -> None:
    """Takes bytes of a device and gives them back."""
    torch.empty(size, dtype=torch.uint8, device=device)
