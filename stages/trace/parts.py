"""What the forward writes into parts of tensors shows where it shows in eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten

_SPLITS = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}


class TrueParts(TorchDispatchMode):
    """Within it the parts that PyTorch's unsafe splits give are known to be views.

    Recurrent cells write into such parts. A capture would take each for a tensor of its own and,
    where it is written, for a dense one. Kernels round by the row that they work on: a part with
    gaps between its rows gets other last bits than a dense tensor.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _SPLITS.get(func, func)(*args, **(kwargs or {}))
