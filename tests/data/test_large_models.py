"""The large models have their published sizes, and are made without memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from data import large_models
from tightfit.stages.torch_utils.model_factory import fake_tensor_mode

PUBLISHED = [
    (large_models.gpt2_xl, 1_557_611_200, torch.float32, (8, 1024)),
    (large_models.llama3_8b, 8_030_261_248, torch.bfloat16, (8, 4096)),
]


@pytest.mark.parametrize(("factory", "count", "dtype", "shape"), PUBLISHED)
def test_published_sizes(
    factory: Any, count: int, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    with fake_tensor_mode():
        model, (args, kwargs) = factory()
        parameters = list(model.parameters())
        assert sum(parameter.numel() for parameter in parameters) == count
        assert {parameter.dtype for parameter in parameters} == {dtype}
        assert tuple((args or kwargs["input_ids"][None])[0].shape) == shape
        assert model.training
