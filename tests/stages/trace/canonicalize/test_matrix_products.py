"""Products of matrices, which are not run to learn where their results lie."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch

from tightfit.stages.trace.canonicalize.layout import MATRIX_PRODUCTS, tensor_placement

aten = torch.ops.aten

Layout = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS: dict[str, Layout] = {
    "plain": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.mT.contiguous().mT,
    "every second": lambda tensor: torch.stack([tensor, tensor], -1)[..., 0],
    "expanded": lambda tensor: tensor[..., :1, :].expand(tensor.shape),
}


@pytest.mark.parametrize("target", MATRIX_PRODUCTS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int64])
def test_what_a_product_makes_is_contiguous(
    target: torch._ops.OpOverload, dtype: torch.dtype
) -> None:
    batch = (3,) if "bmm" in str(target) else ()
    added = "add" in str(target)
    shapes = [(8, 8, 8), (1, 8, 1), (5, 1, 4), (1, 1, 1), (4, 0, 3), (16, 3, 1)]
    for rows, inner, columns in shapes:
        operands = [torch.ones(*batch, rows, inner), torch.ones(*batch, inner, columns)]
        operands = [torch.ones(*batch, rows, columns), *operands] if added else operands
        for layouts in itertools.product(LAYOUTS.values(), repeat=len(operands)):
            given = [lie(one.to(dtype)) for lie, one in zip(layouts, operands, strict=True)]
            made = target(*given)
            assert tensor_placement(made) == tensor_placement(
                torch.empty(*batch, rows, columns, dtype=dtype)
            )
