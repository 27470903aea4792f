"""Optimizers that are refused, and parameters whose gradients or places do not do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.runtime.offload.test_backward_optimizer import model, train
from tightfit.stages.runtime.offload.backward_optimizer import in_backward
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momenta_that_are_not_reproducible_are_refused(dtype: torch.dtype, momentum: float) -> None:
    torch.manual_seed(0)
    start = torch.randn(64, dtype=dtype)
    plain, own = (start.clone().requires_grad_() for _ in range(2))
    given = torch.optim.SGD([own], lr=0.1, momentum=momentum, fused=True)
    if momentum and dtype.itemsize == 2:
        with pytest.raises(
            RuntimeError, match=rf"wrong momenta of {dtype} on a CPU: .* fused=False"
        ):
            in_backward(given)
        return
    expected = torch.optim.SGD([plain], lr=0.1, momentum=momentum, fused=True)
    found = in_backward(given)
    for parameter, optimizer in ((plain, expected), (own, found)) * 3:
        parameter.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert torch.equal(plain, own)


def test_what_cannot_be_is_refused() -> None:
    own = model()
    with pytest.raises(RuntimeError, match=r"RMSprop is not known .* SGD, Adam, AdamW of torch"):
        in_backward(torch.optim.RMSprop(own.parameters()))
    with pytest.raises(RuntimeError, match="differentiable=True"):
        in_backward(torch.optim.AdamW(own.parameters(), differentiable=True))
    hooked = torch.optim.AdamW(own.parameters())
    hooked.register_step_post_hook(lambda *_: None)
    with pytest.raises(RuntimeError, match="hooks on its step"):
        in_backward(hooked)
    shared = torch.zeros(8)
    overlapping = [shared[:5].requires_grad_(), shared[4:].requires_grad_()]
    with pytest.raises(RuntimeError, match=r"shapes \(5,\) and \(4,\), share memory"):
        in_backward(torch.optim.SGD(overlapping, lr=0.1))
    with pytest.raises(RuntimeError, match="are not dense"):
        in_backward(torch.optim.SGD([torch.zeros(8)[::2].requires_grad_()], lr=0.1))
    with pytest.raises(RuntimeError, match="no offload target"):
        in_backward(torch.optim.SGD([torch.zeros(8, device="meta").requires_grad_()], lr=0.1))


def test_sparse_gradients_are_refused() -> None:
    embedding = nn.Embedding(5, 3, sparse=True)
    optimizer = in_backward(torch.optim.SGD(embedding.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="sparse gradient"):
        embedding(torch.tensor([1])).sum().backward()
    assert optimizer.param_groups


@pytest.mark.parametrize("other", [torch.Tensor.double, lambda t: t.t().contiguous().t()])
def test_parameters_that_lie_otherwise_are_refused(other: Any) -> None:
    own = model()
    found = in_backward(torch.optim.AdamW(own.parameters()))
    train(own, found, steps=1)
    parameter = next(own.parameters())
    parameter.data = other(parameter.data)
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(RuntimeError, match="another dtype, layout or device"):
        found.step()
    with pytest.raises(RuntimeError, match="another dtype, layout or device"):
        found.state_dict()
