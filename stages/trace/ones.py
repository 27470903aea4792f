"""Questions of a forward to masks that mask nothing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tightfit.stages.device.factory import Built
from tightfit.stages.device.masks import leaves_of_ones
from tightfit.stages.device.trees import called, flatten, read_tree
from tightfit.stages.trace.as_eager import replaced
from tightfit.stages.trace.refusals import looks

_TRACING = "is_tracing"


def shorter_way(built: Built, error: Exception) -> str:
    """What is said besides of a capture's error where a forward may look for inputs of ones."""
    if built.ones or not looks(error):
        return ""
    paths = read_tree(flatten(built.samples[0])[1]).paths("input")
    names = [called(paths[leaf]) for leaf in leaves_of_ones(built)]
    if not names:
        return ""
    return f"; where it looks whether {' or '.join(names)} is all ones, plan with ones=True"


@contextlib.contextmanager
def looking_through(supposed: Callable[[torch.Tensor], bool]) -> Iterator[None]:
    """Within it transformers looks at the masks of which something is supposed, as in eager.

    Such a model asks whether it is traced before it looks at a mask, and then takes no shortcut for
    one that masks nothing.
    """
    with contextlib.ExitStack() as stack:
        for name, module in [*sys.modules.items()]:
            if name.startswith("transformers.") and _TRACING in vars(module):
                stack.enter_context(replaced(module, _TRACING, _looks(supposed)))
        yield


def _looks(supposed: Callable[[torch.Tensor], bool]) -> Callable[[Any], Callable[..., bool]]:
    def wrap(is_tracing: Callable[..., bool]) -> Callable[..., bool]:
        def answer(tensor: Any = None) -> bool:
            if isinstance(tensor, torch.Tensor) and supposed(tensor):
                return False
            return is_tracing(tensor)

        return answer

    return wrap
