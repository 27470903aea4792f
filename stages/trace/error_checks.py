"""Has operators of linear algebra look for errors themselves while a model is captured.

Eager runs `linalg.inv(x)` as an operator that says where it failed, and another one that raises for
that. The second one makes nothing, so that a plan would leave it out.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

aten = torch.ops.aten


def _checked_cholesky(matrix: Tensor, *, upper: bool = False) -> Tensor:
    return aten.linalg_cholesky_ex.default(matrix, upper=upper, check_errors=True)[0]


def _checked_inverse(matrix: Tensor) -> Tensor:
    return aten.linalg_inv_ex.default(matrix, check_errors=True)[0]


def _checked_solution(matrix: Tensor, right: Tensor, *, left: bool = True) -> Tensor:
    return aten.linalg_solve_ex.default(matrix, right, left=left, check_errors=True)[0]


def _checked_lu_factors(matrix: Tensor, *, pivot: bool = True) -> tuple[Tensor, Tensor]:
    factors, pivots, _ = aten.linalg_lu_factor_ex.default(matrix, pivot=pivot, check_errors=True)
    return factors, pivots


def _checked_tensor_inverse(tensor: Tensor, ind: int = 2) -> Tensor:
    rows, columns = tensor.shape[:ind], tensor.shape[ind:]
    size = math.prod(columns)
    return _checked_inverse(tensor.reshape(size, size)).reshape(*columns, *rows)


_CHECKING: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.linalg_cholesky.default: _checked_cholesky,
    aten.linalg_inv.default: _checked_inverse,
    aten.linalg_solve.default: _checked_solution,
    aten.linalg_lu_factor.default: _checked_lu_factors,
    aten.linalg_tensorinv.default: _checked_tensor_inverse,
}
"""What runs in place of operators that are two in eager, one of which raises errors."""


@contextlib.contextmanager
def check_errors_in_operators() -> Iterator[None]:
    """Within it such operators are captured as one that raises the error of eager."""
    key = DispatchKey.CompositeImplicitAutograd
    before = {overload: overload.py_kernels.get(key) for overload in _CHECKING}
    for overload, kernel in _CHECKING.items():
        overload.py_kernels[key] = kernel
        overload._dispatch_cache.clear()
    try:
        yield
    finally:
        for overload, known in before.items():
            if known is None:
                del overload.py_kernels[key]
            else:
                overload.py_kernels[key] = known
            overload._dispatch_cache.clear()
