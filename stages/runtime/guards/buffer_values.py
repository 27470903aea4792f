"""Buffers of whose values the forward asks, as for a flag: compared at each call.

The file travels with a generated package and needs only PyTorch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .compare import ModelDifference, encodings_match
from .encode import encode_value


def encode_buffer_value(path: str, buffer: torch.Tensor) -> list[Any]:
    """What is compared of a buffer: its path, its value as `encode_value` writes it, and the value
    in words."""
    return [path, encode_value(buffer), describe_value(buffer)]


def describe_value(buffer: torch.Tensor) -> str:
    """The value of a buffer in a sentence, "" if it has many elements."""
    return str(buffer.detach().reshape(()).item()) if buffer.numel() == 1 else ""


class BufferValueGuard:
    """Compares the values of buffers, those at `paths` of a model, with what a plan rests on."""

    def __init__(self, entries: Sequence[Any], paths: Sequence[str]) -> None:
        numbers = {path: number for number, path in enumerate(paths)}
        self.entries = [
            (numbers[path.rpartition(".")[0]], path.rpartition(".")[2], path, expected, said)
            for path, expected, said in entries
        ]
        self.seen: list[tuple[torch.Tensor, int] | None] = [None] * len(self.entries)

    def check(self, modules: Sequence[torch.nn.Module]) -> None:
        """Raises ModelDifference where a buffer has another value than the plan was made with."""
        for place, (number, name, path, expected, said) in enumerate(self.entries):
            buffer = modules[number]._buffers.get(name)
            seen = self.seen[place]
            if buffer is None or (
                seen is not None and seen[0] is buffer and seen[1] == buffer._version
            ):
                continue
            if not encodings_match(expected, encode_value(buffer)):
                found = describe_value(buffer) if said else "of other values"
                raise ModelDifference(
                    f"the forward asks for the value of the buffer {path}, which is {found}, the "
                    f"plan was made with {said or 'its values then'}"
                )
            self.seen[place] = buffer, buffer._version


def is_buffer_value(item: Any) -> bool:
    """Whether an entry has the form that `encode_buffer_value` gives."""
    return (
        isinstance(item, list)
        and len(item) == 3
        and isinstance(item[0], str)
        and isinstance(item[1], list)
        and isinstance(item[2], str)
    )
