"""Operators that the original runs by a library's kernels where the plan has others."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch import nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.schemas.graph import Graph
from tightfit.stages.device.factory import Sample
from tightfit.stages.validate.step import Stepper, forget_gradients

KERNELS = {
    "aten.cudnn_batch_norm.default": (
        "aten.cudnn_batch_norm.default",
        "aten._batch_norm_with_update_functional.default",
    ),
    "aten._cudnn_rnn.default": (),
}
"""What eager calls of cuDNN, and the operators of a plan that run the same kernels."""


def of_libraries(graph: Graph, module: nn.Module, stepper: Stepper, sample: Sample) -> list[str]:
    """The operators of a library that a step of the original runs more often than a step of the
    graph runs their kernels. The module's buffers change."""
    noting = _Noting()
    with noting:
        stepper.run(module, sample)
    forget_gradients(module, sample)
    planned = Counter(op.target for op in graph.ops if op.phase == "forward")
    return [
        name
        for name, same in KERNELS.items()
        if noting.seen[name] > sum(planned[target] for target in same)
    ]


class _Noting(TorchDispatchMode):
    """Counts the operators that run below autograd."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))
