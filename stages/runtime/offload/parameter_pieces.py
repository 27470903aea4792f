"""Parameters in pieces, and where in an offload target an optimizer's states of each piece lie."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

_ALIGNED = 64


@dataclass(frozen=True, eq=False)
class ParameterPiece:
    """Elements `begin` to `end` of a parameter as its storage has them. The `states` states of a
    piece lie in the offload target from `place` on, `stride` bytes each."""

    parameter: int
    begin: int
    end: int
    place: int
    stride: int
    states: int
    last: bool

    @property
    def size(self) -> int:
        """The bytes of all its states."""
        return self.stride * self.states


def states_per_parameter(kind: type[torch.optim.Optimizer], group: dict[str, Any]) -> int:
    """How many tensors of a parameter's size an optimizer keeps of each, 0 for one not known."""
    if kind is torch.optim.SGD:
        return 1 if group["momentum"] else 0
    return 3 if group["amsgrad"] else 2


def split_into_pieces(
    parameters: Sequence[torch.Tensor],
    states: Sequence[int],
    piece_bytes: int,
    behind: Sequence[Collection[int]] = (),
) -> list[list[ParameterPiece]]:
    """The pieces of each parameter, of `piece_bytes` at most, one after the other; those of some
    numbers have their places `behind` all others, and each such set behind the one before it."""

    def turn(number: int) -> int:
        return max((n for n, own in enumerate(behind, 1) if number in own), default=0)

    place = 0
    pieces: list[list[ParameterPiece]] = [[] for _ in parameters]
    for number in sorted(range(len(parameters)), key=turn):
        parameter, count, own = parameters[number], states[number], pieces[number]
        whole = parameter.numel()
        most = max(piece_bytes // parameter.element_size() // _ALIGNED, 1) * _ALIGNED
        for begin in range(0, max(whole, 1), most):
            end = min(begin + most, whole)
            stride = -(-(end - begin) * parameter.element_size() // _ALIGNED) * _ALIGNED
            own.append(ParameterPiece(number, begin, end, place, stride, count, end == whole))
            place += stride * count
    return pieces


def flat_view(tensor: torch.Tensor) -> torch.Tensor:
    """All elements of a dense tensor in the order of its storage, without autograd."""
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether each element of a tensor has one place, and there are no others between these."""
    return torch.empty_like(tensor, device="meta").stride() == tensor.stride()


def overlapping_pairs(tensors: Sequence[torch.Tensor]) -> Iterator[tuple[int, int]]:
    """The pairs of dense tensors that share bytes, by position."""
    spans = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size(), number)
        for number, tensor in enumerate(tensors)
        if tensor.numel()
    )
    for one, other in pairwise(spans):
        if other[0] < one[1]:
            yield one[2], other[2]


def byte_view(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor whose elements are dense, in the order of its storage."""
    return flat_view(tensor).view(torch.uint8)
