"""Plain arguments that a forward does not look at may have other values at a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated
from tests.stages.runtime.guards.guarded_plans import traced_watched
from tightfit.stages.generate.graph_guards import unread_arguments
from tightfit.util.errors import ArtifactError

Use = Callable[[torch.Tensor, Any], Any]
RATES = [1.0] * 4


class Counted(nn.Module):
    """Is given the number of the step, and does something with it."""

    def __init__(self, use: Use) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.use = use

    def forward(self, x: torch.Tensor, step: Any = 0) -> Any:
        return self.use(self.layer(x), step)


def _passed(x: torch.Tensor, step: Any) -> torch.Tensor:
    held = {"step": [step]}
    return _nothing(x, **held)


def _nothing(x: torch.Tensor, step: Any) -> torch.Tensor:
    return x.relu() if step is not None else x


@pytest.mark.parametrize("use", [lambda x, step: x * 2, _passed])
@pytest.mark.parametrize("first", [3, 0.5, "first"])
def test_what_nobody_looks_at_may_change(use: Use, first: Any, tmp_path: Path) -> None:
    model, x = Counted(use), torch.randn(2, 3)
    graph, _ = traced_watched((model, ((x, first), {})))
    planned = generated(graph, tmp_path / "module").load(model)
    other = {3: 9, 0.5: 0.25, "first": "second"}[first]
    assert torch.equal(planned(x, other), use(model.layer(x), other))
    with pytest.raises(RuntimeError, match="the plan was made for"):
        planned(x, True)
    with pytest.raises(RuntimeError, match="the plan was made for"):
        planned(x, None)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, step: x * 2 if step > 1000 else x,
        lambda x, step: x * 2 if step % 7 == 6 else x,
        lambda x, step: x * RATES[step],
        lambda x, step: x * math.cos(step),
        lambda x, step: x + step,
        lambda x, step: torch.full((3,), step) + x,
        lambda x, step: x * len(range(step)),
        lambda x, step: (x, step),
        lambda x, step: x if type(step) is int else x * 2,
        lambda x, step: x if isinstance(step, int) else x * 2,
        lambda x, step: x * len(f"{step}"),
        lambda x, step: x * {3: 1.0}.get(step, 2.0),
        lambda x, step: x * (2 if step else 1),
        lambda x, step: x.sum(dim=step - 2),
    ],
)
def test_what_somebody_looks_at_is_compared(use: Use, tmp_path: Path) -> None:
    model, x = Counted(use), torch.randn(2, 3)
    graph, _ = traced_watched((model, ((x, 3), {})))
    planned = generated(graph, tmp_path / "module").load(model)
    with pytest.raises(RuntimeError, match="step is 2, the plan was made for 3"):
        planned(x, 2)


def test_a_graph_that_names_other_leaves_is_refused() -> None:
    graph, _ = traced_watched((Counted(lambda x, step: x), ((torch.randn(2, 3), 3), {})))
    assert unread_arguments(graph) == [1]
    for wrong in ("[0]", "[2]", "1", '["1"]'):
        doctored = replace(
            graph, guards=graph.guards.replace('"unused_inputs": [1]', f'"unused_inputs": {wrong}')
        )
        with pytest.raises(ArtifactError, match="guards"):
            unread_arguments(doctored)
