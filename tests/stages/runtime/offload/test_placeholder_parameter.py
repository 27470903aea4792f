"""Parameters that are away compute with nothing, by whichever way they are asked."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.stages.runtime.offload.test_parameter_store import model, store_of
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE
from tightfit.stages.runtime.offload.step_context import StepContext


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))


@pytest.mark.filterwarnings("ignore:To copy construct")
@pytest.mark.parametrize("within", [False, True])
def test_what_goes_around_the_class_computes_with_nothing(within: bool) -> None:
    """Between steps and `within` one, where some values are on the device."""
    module = model()
    store = store_of(module, there=[2])
    visit = StepContext(store) if within else None
    if visit is not None:
        visit.prefetch(4)
        visit.wait(4)
    weights: list[Any] = [module[1].weight, module[2].weight]
    for path, weight in zip(("1", "2"), weights, strict=True):
        for use in (
            lambda w: w.as_subclass(torch.Tensor),
            lambda w: w.numpy(),
            lambda w: pickle.dumps(w),
            lambda w: copy.deepcopy(w),
            lambda w: torch.from_dlpack(w),
            lambda w: np.asarray(w),
            lambda w: nn.functional.linear(input=torch.ones(1), weight=w),
        ):
            with pytest.raises(
                RuntimeError, match=rf"{path}\.weight are in an offload target: use"
            ):
                use(weight)
        with pytest.raises(RuntimeError, match="weakref"):
            torch.utils.swap_tensors(weight, nn.Parameter(torch.zeros(weight.shape)))
        for alias in (
            torch.Tensor.as_subclass(weight, torch.Tensor).detach(),
            torch.tensor(weight).detach(),
            torch.Tensor._make_subclass(torch.Tensor, weight),
        ):
            assert type(alias) is torch.Tensor and alias.shape == weight.shape
            for compute in (
                lambda a: a + 1,
                lambda a: a * torch.ones(a.shape),
                lambda a: a.sum(),
                lambda a: a.norm(),
                lambda a: a.flatten()[0].item(),
                lambda a: a.float(),
                lambda a: a.numpy(),
                lambda a: torch.zeros(a.shape).copy_(a),
                lambda a: a.copy_(torch.ones(a.shape)),
                lambda a: torch.equal(a, torch.ones(a.shape)),
                lambda a: nn.functional.linear(torch.ones(2, a.shape[-1]), a.flatten(0, -2)),
            ):
                with pytest.raises((RuntimeError, TypeError)):
                    compute(alias)
        assert weight.dtype == torch.float32 and weight.element_size() == weight.itemsize == 4
        assert weight.nbytes == 4 * weight.numel() and weight.is_floating_point()
        weight.grad = torch.ones(weight.shape)
        assert weight.grad.dtype == torch.float32
        with pytest.raises(RuntimeError, match="dtype"):
            weight.grad = torch.ones(weight.shape, dtype=torch.float64)
    if visit is not None:
        visit.end_step()
    store.close()
    torch.utils.swap_tensors(module[0].bias, nn.Parameter(torch.zeros(40)))
    assert module[0].bias.eq(0).all()  # type: ignore[operator]


def test_a_gradient_lies_as_its_parameter_does_where_it_is_there() -> None:
    module = nn.ParameterList([torch.arange(12.0).view(3, 4).t()])
    store = store_of(module)
    module[0].grad = torch.arange(12.0).view(4, 3)
    found = module[0].grad
    assert found is not None and found.stride() == (1, 4)
    assert found is module[0].grad and torch.equal(found, torch.arange(12.0).view(4, 3))
    store.close()


class Handing(torch.autograd.Function):
    """Hands a gradient over, as a slice of a backward does."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return torch.zeros(())

    @staticmethod
    def backward(ctx: Any, token: torch.Tensor) -> Any:
        return ctx.gradient, None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64])
def test_gradients_are_of_the_dtype_of_the_parameter(dtype: torch.dtype) -> None:
    module = nn.ParameterList([torch.ones(4, 3, dtype=dtype)])
    store, gradient = store_of(module), torch.full((4, 3), 2, dtype=dtype)
    own: Any = module[0]
    own.grad = gradient.clone()
    for _ in range(2):
        visit = StepContext(store)
        value: Any = Handing.apply(own, gradient)
        value.backward()
        visit.end_step()
    assert own.grad.dtype == own.grad_dtype == dtype and torch.equal(own.grad, 3 * gradient)
    store.close()
    assert torch.equal(own, torch.ones(4, 3, dtype=dtype))
