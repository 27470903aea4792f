"""Modules and functions of PyTorch, each planned and compared with eager, bit for bit."""

from __future__ import annotations

import contextlib
import copy
import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.generate.plans import backward, check_equal, fresh, generated, traced
from tests.stages.trace.sweep import CASES
from tightfit.util.errors import ModelError

REFUSED = {
    "AdaptiveLogSoftmax": "nonzero.* depends on the data of a tensor",
    "BN momentum none": "the model has momentum=None",
    "Emb maxnorm": "writes.* to its parameter 'weight'.*max_norm of an embedding",
    "GaussianNLLLoss none": "gaussian_nll_loss.* looks at the data of a tensor",
    "GaussianNLLLoss mean": "gaussian_nll_loss.* looks at the data of a tensor",
    "GaussianNLLLoss sum": "gaussian_nll_loss.* looks at the data of a tensor",
    "CTC": "_ctc_loss.* depends on the data of a tensor: leave this loss out of the model",
    "prod": "looks for zeros",
    "unique": "_unique2.* depends on the data of a tensor",
    "nonzero": "nonzero.* depends on the data of a tensor: indexing by a mask",
}
"""What cannot be planned, and what is said of it."""
REFUSED_UNDER = {
    "autocast": {
        "affine_grid": "enabled=False",
        "Bilinear": "enabled=False",
        "det": "doesn't handle types other than float",
    }
}
KINDS = ("float32", "float64", "autocast")
RUNS = [
    (kind, name)
    for place, name in enumerate(CASES)
    for number, kind in enumerate(KINDS)
    if place % len(KINDS) == number or name in REFUSED_UNDER.get(kind, {})
]
"""Each case in one kind, and in those in which it is refused."""


@pytest.mark.sample(4, "kind")
@pytest.mark.parametrize(("kind", "name"), RUNS)
def test_a_plan_gives_what_eager_gives(kind: str, name: str, tmp_path: Path) -> None:
    make, args = CASES[name]
    torch.manual_seed(0)
    model = make()
    around: Any = contextlib.nullcontext
    if kind == "float64":
        model.double()
        args = tuple(arg.double() if arg.is_floating_point() else arg for arg in args)
    elif kind == "autocast":
        around = functools.partial(torch.autocast, "cpu", torch.bfloat16)
    refusal = REFUSED_UNDER.get(kind, {}).get(name) or REFUSED.get(name)
    if refusal:
        with pytest.raises(ModelError, match=refusal), around():
            traced((model, (args, {})))
        return
    with around():
        graph, _ = traced((model, (args, {})))
    planned = generated(graph, tmp_path).load(copy.deepcopy(model))
    for seed in range(2):
        steps = []
        for module in (planned, model):
            sample: Any = fresh((args, {}))
            torch.manual_seed(seed)
            with around():
                output = module(*sample[0])
            backward(output)
            steps.append((module, output, sample))
        check_equal(*steps)
