"""Plans for tests whose graphs say what the trace read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.stages.generate.plans import built_of
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.trace import trace


def traced_watched(made: Sequence[Any], label: str = "model") -> tuple[Graph, BuiltModel]:
    """The graph of what a factory returned, with what was watched in its guards.

    Raises ModelError where the forward does what a plan would not do.
    """
    built = built_of(made, label)
    return trace(built, label), built


def is_planned(output: torch.Tensor) -> bool:
    """True when a planned step made the output."""
    return output.grad_fn is not None and "_ReturnOutput" in output.grad_fn.name()
