"""Several threads plan at once: PyTorch can be traced and measured by one of them at a time."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import tightfit
from tests.tightfit.conftest import SETTINGS, gradients, tower


def test_threads_plan_one_after_the_other(store: Path) -> None:
    models = [tower(depth=depth) for depth in (3, 4, 3)]
    x = torch.linspace(-1, 1, 1024).view(64, 16)
    wanted = [gradients(copy.deepcopy(model), x) for model in models]

    def planned(model: torch.nn.Module) -> torch.nn.Module:
        options = {**SETTINGS, "store": store, "progress": False}
        return tightfit.plan(model, (x,), budget="90%", **options)[0]

    with ThreadPoolExecutor(len(models)) as threads:
        fitted = list(threads.map(planned, models))
    for module, expected in zip(fitted, wanted, strict=True):
        assert all(map(torch.equal, gradients(module, x), expected))
