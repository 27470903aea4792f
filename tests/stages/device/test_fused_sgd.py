"""PyTorch's fused SGD on a CPU, whose momenta of two bytes an element are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stages.device.disk import FOLDER
from stages.device.optimiser import in_backward


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momenta_that_are_not_reproducible_are_refused(
    dtype: torch.dtype, momentum: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path))
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
