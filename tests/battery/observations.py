"""What a use saw of a module, and how two such trails compare."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


class Trail:
    """Named observations in order; tensors are kept as they were when they were seen."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []

    def say(self, name: str, thing: Any) -> None:
        """Adds a thing, or all leaves of a structure of things."""
        self.entries.extend((name + path, leaf) for path, leaf in _leaves("", thing))

    def difference(self, other: Trail) -> str:
        """The first observation that another trail does not have so; "" where all are equal, or
        one of them ended before the other did."""
        for (mine, left), (theirs, right) in zip(self.entries, other.entries, strict=False):
            if mine != theirs:
                return f"{mine} where eager has {theirs}"
            said = _difference(left, right)
            if said:
                return f"{mine}: {said}"
        return ""


@dataclasses.dataclass(frozen=True)
class Seen:
    """A tensor as it was."""

    data: Tensor
    strides: tuple[int, ...]
    requires_grad: bool


def _leaves(path: str, thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, Tensor):
        kept = thing.detach()
        kept = kept.clone() if kept.layout == torch.strided else kept.to_dense().clone()
        yield path, Seen(kept, _strides(thing), thing.requires_grad)
    elif isinstance(thing, dict):
        yield path, f"{_name(thing)} of {list(thing)}"
        for key, item in thing.items():
            yield from _leaves(f"{path}[{key!r}]", item)
    elif isinstance(thing, (list, tuple)):
        yield path, f"{_name(thing)} of {len(thing)}"
        for key, item in enumerate(thing):
            yield from _leaves(f"{path}[{key}]", item)
    elif dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        yield path, _name(thing)
        for field in dataclasses.fields(thing):
            yield from _leaves(f"{path}.{field.name}", getattr(thing, field.name))
    elif isinstance(thing, (bool, int, float, complex, str, type(None))):
        yield path, f"{_name(thing)} {thing!r}"
    else:
        yield path, _name(thing)


def _name(thing: Any) -> str:
    return type(thing).__name__


def _strides(tensor: Tensor) -> tuple[int, ...]:
    """Strides without those that mean nothing."""
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return ()
    return tuple(
        stride if size != 1 else 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _difference(mine: Any, theirs: Any) -> str:
    if not (isinstance(mine, Seen) and isinstance(theirs, Seen)):
        if mine == theirs:
            return ""
        return f"{_short(mine)} where eager has {_short(theirs)}"
    one, two = mine.data, theirs.data
    if (one.dtype, one.shape) != (two.dtype, two.shape):
        return f"{_short(mine)} where eager has {_short(theirs)}"
    if not same_bits(one, two):
        gap = (one.to(torch.complex128) - two.to(torch.complex128)).abs()
        return f"differs by up to {gap.max().item():g}"
    if mine.strides != theirs.strides:
        return f"has strides {mine.strides} where eager has {theirs.strides}"
    if mine.requires_grad != theirs.requires_grad:
        return f"requires_grad is {mine.requires_grad} where eager has {theirs.requires_grad}"
    return ""


def same_bits(one: Tensor, two: Tensor) -> bool:
    """Equal bytes, where NaN of any kind equals NaN; fake tensors have none to compare."""
    fake = [isinstance(tensor, FakeTensor) for tensor in (one, two)]
    if any(fake):
        return all(fake)
    left, right = (t.contiguous().reshape(-1) for t in (one, two))
    if torch.equal(left.view(torch.uint8), right.view(torch.uint8)):
        return True
    if not (left.is_floating_point() or left.is_complex()):
        return False
    nan = left.isnan()
    if not nan.any() or not torch.equal(nan, right.isnan()):
        return False
    return torch.equal(left[~nan].view(torch.uint8), right[~nan].view(torch.uint8))


def _short(thing: Any) -> str:
    if isinstance(thing, Seen):
        return f"a {str(thing.data.dtype).removeprefix('torch.')} {list(thing.data.shape)}"
    return str(thing)
