"""PyTorch as it starts: states that a caller may have changed are out of the way while ops are
measured and groups compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch._C import _len_torch_function_stack
from torch.overrides import _pop_mode_temporarily
from torch.utils._python_dispatch import _disable_current_modes


@contextmanager
def plain_state() -> Iterator[None]:
    """PyTorch as it starts: no gradients, no autocast, no modes of the caller, no default device,
    and float32 as the default dtype. What it was before comes back at the end."""
    dtype = torch.get_default_dtype()
    with ExitStack() as stack:
        for _ in range(_len_torch_function_stack()):
            stack.enter_context(_pop_mode_temporarily())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        for device in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(device, enabled=False))
        torch.set_default_dtype(torch.float32)
        stack.callback(torch.set_default_dtype, dtype)
        yield
