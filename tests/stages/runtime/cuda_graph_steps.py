"""Planned modules that run as CUDA graphs on doubles of these, beside their originals."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from tests.stages.generate.plans import (
    check_equal,
    generated,
    step,
    traced,
)
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.model_factory import BuiltModel

ROWS = torch.linspace(-1, 1, 48).reshape(8, 6)


def made(model: nn.Module, at: Path, *args: Any, **kwargs: Any) -> tuple[ModuleType, BuiltModel]:
    """The package of a plan that keeps everything, which may be run as CUDA graphs on the CPU."""
    graph, built = traced((model.train(), (args or (ROWS,), kwargs)))
    return package_of(graph, at), built


def package_of(graph: Graph, at: Path) -> ModuleType:
    """Such a package of a graph."""
    module = generated(graph, at / "module", in_place=True)
    unrefused(module)
    return module


def unrefused(module: ModuleType) -> None:
    """Lets a package for the CPU be loaded as CUDA graphs."""
    wrapping: Any = sys.modules[f"{module.__name__}.runtime.planned_module"]
    wrapping.cuda_graph_obstacle = lambda step, interface: ""


def twins(small: tuple[ModuleType, BuiltModel]) -> tuple[nn.Module, nn.Module, Any]:
    """A planned module as CUDA graphs and its original, with a sample."""
    module, built = small
    planned = module.load(copy.deepcopy(built.model), cuda_graphs=True)
    return planned, copy.deepcopy(built.model), built.samples[0]


def both(planned: nn.Module, original: nn.Module, sample: Any, seed: int) -> None:
    """A step of each, which are equal bit for bit and draw as many numbers."""
    sample = ((sample[0][0] + seed, *sample[0][1:]), sample[1])
    mine = step(planned, sample, seed)
    state = torch.get_rng_state()
    theirs = step(original, sample, seed)
    assert torch.equal(state, torch.get_rng_state())
    check_equal((planned, *mine), (original, *theirs))
