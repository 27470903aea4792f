"""A plan may rest on it that an input holds nothing but ones, and compares that at each call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.tightfit.conftest import SETTINGS, gradients
from tightfit import ModelError, PlanMismatch


class Masked(torch.nn.Module):
    """Takes the mean of rows; where none is masked, a shorter way that has other last bits."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        out: torch.Tensor = self.layer(x).tanh().sigmoid()
        kept = None if mask is None else mask[:, :, None].to(torch.bool)
        if kept is None or bool((kept == torch.ones(1, dtype=torch.bool)).all()):
            return out.mean()
        return (out * kept.to(out.dtype)).sum() / kept.to(out.dtype).sum()


X = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(1))
ONES = torch.ones(4, 6, dtype=torch.long)
SOME = ONES.tril()


def plan(store: Path, model: torch.nn.Module, *masks: torch.Tensor, **options: Any) -> Any:
    samples = [((X,), {"mask": mask}) for mask in masks]
    settings = {**SETTINGS, "store": store, "budget": "100%", "progress": False, **options}
    return tightfit.plan(model, samples=samples, **settings)[0]


def same(model: torch.nn.Module, fitted: torch.nn.Module, mask: torch.Tensor) -> bool:
    x = X * 0.5
    outputs = torch.equal(model(x, mask=mask), fitted(x, mask=mask))
    expected = gradients(model, x, mask=mask)
    return outputs and all(map(torch.equal, expected, gradients(fitted, x, mask=mask)))


def test_the_shorter_way_is_planned_and_guarded(store: Path) -> None:
    model = Masked().train()
    fitted = plan(store, model, ONES, assume_all_ones_masks=True)
    assert same(model, fitted, torch.ones_like(ONES))
    for mask in (SOME, ONES * 2):
        with pytest.raises(PlanMismatch, match=r"more than ones.*; plan with .*ones=False"):
            fitted(X, mask=mask)


def test_with_false_the_refusal_names_it(store: Path) -> None:
    with pytest.raises(
        ModelError, match="whether mask is all ones, plan with assume_all_ones_masks=True"
    ):
        plan(store, Masked().train(), ONES, assume_all_ones_masks=False)
    with pytest.raises(ModelError) as refused:
        plan(store, Masked().train(), SOME, assume_all_ones_masks=True)
    assert "assume_all_ones_masks" not in str(refused.value)


def test_what_cannot_be_planned_for_any_mask_is_planned_for_ones(store: Path) -> None:
    model = Masked().train()
    fitted = plan(store, model, ONES)
    assert same(model, fitted, ONES)
    with pytest.raises(PlanMismatch, match=r"mask holds more than ones"):
        fitted(X, mask=SOME)


class Counting(Masked):
    """Adds the mask to what it keeps, where none is masked."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        assert mask is not None
        kept = torch.zeros(1, dtype=torch.long)
        view = kept[:]
        kept += mask[:1, 0]
        out: torch.Tensor = self.layer(x).tanh()
        return out.mean() if int(view.sum()) == 1 else out.sum()


def test_what_is_written_into_constants_is_guarded_too(store: Path) -> None:
    model = Counting().train()
    fitted = plan(store, model, ONES, assume_all_ones_masks=True)
    assert same(model, fitted, ONES)
    with pytest.raises(PlanMismatch, match="mask holds more than ones"):
        fitted(X, mask=SOME.flip(0) * 3)


def test_ones_is_true_or_false(store: Path) -> None:
    with pytest.raises(tightfit.ConfigError, match="masks is 1, expected True, False or None"):
        plan(store, Masked(), ONES, assume_all_ones_masks=1)
