"""PyTorch's databases of operators: OpInfo, functions of autograd and custom operators.

An operator is planned within a module that multiplies each input that requires a gradient by one,
and takes the sine of each output: what it saves then is what can be recomputed, and its inputs keep
their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.battery.case import Case
from tests.conformance.suite import Group, Suite, copy_inputs, seed_everything

DTYPES = (torch.float32, torch.bfloat16)


class OperatorModule(nn.Module):
    """An operator between two pointwise ones; `finish` makes its output one whose gradients are
    defined, as the database says."""

    def __init__(
        self, operator: Callable[..., Any], finish: Callable[[Any], Any], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.operator, self.finish = operator, finish
        self.scale = nn.Parameter(torch.ones((), dtype=dtype))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = pytree.tree_map(self.scaled, (args, kwargs))
        output = self.finish(self.operator(*args, **kwargs))
        return pytree.tree_map(self.bounded, output)

    def scaled(self, leaf: Any) -> Any:
        return leaf * self.scale if isinstance(leaf, Tensor) and leaf.requires_grad else leaf

    def bounded(self, leaf: Any) -> Any:
        return leaf.sin() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def operator_cases(info: Any, dtype: torch.dtype, seed: int) -> list[Case]:
    """A case for each sample input that the database has of an operator."""
    seed_everything(seed)
    samples = list(info.sample_inputs("cpu", dtype, requires_grad=True, set_seed=False))
    return [_case(info, dtype, number, sample) for number, sample in enumerate(samples)]


def _case(info: Any, dtype: torch.dtype, number: int, sample: Any) -> Case:
    module = partial(OperatorModule, info.op, sample.output_process_fn_grad, dtype)
    inputs = ((sample.input, *sample.args), dict(sample.kwargs))
    return Case(str(number), module, lambda _: copy_inputs(inputs))


def groups_of(infos: Iterable[Any], namespaces: tuple[str, ...] = ()) -> list[Group]:
    """A group for each operator and dtype in which the database has gradients."""
    return [
        Group(
            f"{info.name}{'.' if info.variant_test_name else ''}{info.variant_test_name} "
            f"{str(dtype).removeprefix('torch.')}",
            partial(operator_cases, info, dtype),
            namespaces,
        )
        for dtype in DTYPES
        for info in infos
        if info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    ]


def _opinfo() -> list[Group]:
    from torch.testing._internal.common_methods_invocations import op_db

    return groups_of(op_db, ("torch_nn",))


def _functions() -> list[Group]:
    from torch.testing._internal.autograd_function_db import autograd_function_db

    return groups_of(autograd_function_db)


def _custom_operators() -> list[Group]:
    from torch.testing._internal.custom_op_db import custom_op_db

    return groups_of(custom_op_db, ("_torch_testing",))


OPERATOR_SUITES = (
    Suite("opinfo", _opinfo),
    Suite("autograd_function_db", _functions),
    Suite("custom_op_db", _custom_operators),
)
