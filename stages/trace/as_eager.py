"""Lets the capture see the operators that eager PyTorch runs.

Some operators have a decomposition in Python that only tracing uses, with other roundings and
far more temporaries; and models ask whether they are being exported, to go another way. What is
replaced here is put back afterwards; where a PyTorch or a transformers has none of it, all stays
as it is.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey

_RESAMPLING = (
    "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
    "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
    "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"
).split()
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)
_PACKED = "find_packed_sequence_indices"


@contextlib.contextmanager
def whole_operators() -> Iterator[None]:
    """Within it resampling is one operator forward and one backward."""
    hidden = []
    for overload in _overloads(_RESAMPLING):
        kernels = getattr(overload, "py_kernels", {})
        hidden.append((overload, {key: kernels.pop(key) for key in _KEYS if key in kernels}))
        _forget_choice(overload)
    try:
        yield
    finally:
        for overload, kernels in hidden:
            if kernels:
                overload.py_kernels.update(kernels)
            _forget_choice(overload)


def _overloads(names: list[str]) -> Iterator[torch._ops.OpOverload]:
    for packet in (getattr(torch.ops.aten, name, None) for name in names):
        if packet is not None:
            yield from (getattr(packet, overload) for overload in packet.overloads())


def _forget_choice(overload: torch._ops.OpOverload) -> None:
    """Lets the operator look again which of its kernels to run."""
    getattr(overload, "_dispatch_cache", {}).clear()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Within it a model that asks is told that it is being compiled, since it cannot look at the
    data of its tensors; PyTorch's own code is told that it is not, and does what eager does."""

    def asked(question: Callable[[], bool]) -> Callable[[], bool]:
        def answer() -> bool:
            asking = sys._getframe(1).f_globals.get("__name__", "")
            return question() or asking.partition(".")[0] != "torch"

        return answer

    with _replaced(torch.compiler, "is_compiling", asked):
        yield


@contextlib.contextmanager
def packed_sequences(count_up: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Within it transformers masks packed sequences where eager does.

    transformers looks whether the tokens' positions are those of several packed sequences, which
    need a mask; of tensors without data it cannot know and always makes one. `count_up`
    says of positions that hang on no input whether they follow one another.
    """
    masking = sys.modules.get("transformers.masking_utils")
    if not hasattr(masking, _PACKED):
        yield
        return

    def looking(find_packed: Callable[[torch.Tensor], Any]) -> Callable[..., Any]:
        def find(positions: torch.Tensor) -> Any:
            return None if count_up(positions) else find_packed(positions)

        return find

    with _replaced(masking, _PACKED, looking):
        yield


@contextlib.contextmanager
def _replaced(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, wrap(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
