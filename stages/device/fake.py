"""Building models without memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode


@contextlib.contextmanager
def without_memory() -> Iterator[FakeTensorMode]:
    """A mode in which tensors are made without memory, and modules can still be converted.

    `module.to(...)`, `.bfloat16()` and the like replace parameters in place, which fake tensors
    refuse; within this mode they put new parameters in the old ones' places, tied ones together.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    # Copies of tensors are of this mode, too.
    mode.__deepcopy__ = lambda _: mode  # type: ignore[attr-defined]
    original = nn.Module._apply
    nn.Module._apply = _converter()  # type: ignore[method-assign]
    try:
        with mode:
            yield mode
    finally:
        nn.Module._apply = original  # type: ignore[method-assign]


def _converter() -> Callable[..., nn.Module]:
    replaced: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def convert(tensor: torch.Tensor, function: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if id(tensor) not in replaced:
            with torch.no_grad():
                new = function(tensor)
            if isinstance(tensor, nn.Parameter):
                new = nn.Parameter(new, tensor.requires_grad)
            replaced[id(tensor)] = (tensor, new)
        return replaced[id(tensor)][1]

    def apply(
        module: nn.Module, function: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
    ) -> nn.Module:
        for submodule in module.modules() if recurse else [module]:
            for tensors in (submodule._parameters, submodule._buffers):
                for name, tensor in tensors.items():
                    if tensor is not None:
                        tensors[name] = convert(tensor, function)
        return module

    return apply
