"""The state of PyTorch in which the ops of a step are measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from tightfit.schemas.graph import Graph


@contextmanager
def trained_state(graph: Graph) -> Iterator[None]:
    """The caller's state as it is in a training step of the graph: gradients on, autocast as it
    was when the graph was traced."""
    autocast = json.loads(graph.guards).get("autocast", {"enabled": False})
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if autocast["enabled"]:
            dtype = getattr(torch, autocast["dtype"])
            stack.enter_context(torch.autocast(graph.device, dtype=dtype))
        else:
            stack.enter_context(torch.autocast(graph.device, enabled=False))
        yield
