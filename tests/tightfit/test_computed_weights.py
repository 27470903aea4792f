"""Models with layers whose weight a hook computes at each call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import tightfit
from tests.tightfit.conftest import SETTINGS


def _pruned(layer: nn.Linear) -> nn.Module:
    prune.l1_unstructured(layer, "weight", 0.5)
    return prune.random_unstructured(layer, "bias", 0.5)


def _pruned_twice(layer: nn.Linear) -> nn.Module:
    return prune.random_structured(_pruned(layer), "weight", 0.5, dim=0)


def _model(compute: Callable[[nn.Linear], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), compute(nn.Linear(8, 4))).train()


def _trained(model: nn.Module) -> list[torch.Tensor]:
    """The state, and the outputs on the way, of a few steps."""
    torch.manual_seed(2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    outputs = []
    for _ in range(3):
        outputs.append(model(torch.randn(5, 6)))
        outputs[-1].square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*outputs, *model.parameters(), *model.buffers()]


@pytest.mark.sample(2)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    "compute", [_pruned, _pruned_twice, nn.utils.weight_norm, nn.utils.spectral_norm]
)
def test_a_computed_weight_is_planned(
    compute: Callable[[nn.Linear], nn.Module], store: Path
) -> None:
    model, original = _model(compute), _model(compute)
    fitted, _ = tightfit.plan(
        model, (torch.randn(5, 6),), budget="min", store=store, progress=False, **SETTINGS
    )
    assert all(map(torch.equal, _trained(fitted), _trained(original)))
    with torch.no_grad():
        x = torch.randn(5, 6)
        assert torch.equal(fitted.eval()(x), original.eval()(x))
