"""A small model whose step has something to plan, one store for all tests of a module, blocks that
are solved in this process, and traces that tests share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from tightfit import SolverOptions
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.combine.bounds import lower_bounds
from tightfit.stages.combine.milp import SolverLimits
from tightfit.stages.solve import worker
from tightfit.stages.torch_utils.input_masks import all_ones_leaves, binary_mask_leaves
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace import trace as tracing
from tightfit.util.errors import TightfitError

SETTINGS: dict[str, Any] = {"solver": SolverOptions(peak_levels=2, save_levels=2, jobs=1)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def loose_bounds() -> Iterator[None]:
    """What no plan goes below is proven with less work, where no test asks how close it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lower_bounds, "SolverLimits", partial(SolverLimits, nodes=1, checks=4))
        yield


@pytest.fixture(autouse=True, scope="module")
def _brief_search(brief_search: None) -> None:
    """No test of this folder asks how good a plan is."""


@pytest.fixture(autouse=True, scope="module")
def _solved_here() -> Iterator[None]:
    """Blocks are solved in this process; `tests/stages/solve`, the workflow and the crash solve
    them in processes of their own."""

    def run(workers: object, task: str, environment: object) -> tuple[int, str]:
        try:
            worker._solve(json.loads(task))
        except TightfitError as error:
            return 1, str(error)
        return 0, ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightfit.stages.solve.option_store._Workers.run", run)
        yield


@pytest.fixture(scope="module")
def traced_once() -> Iterator[None]:
    """What is traced again in the tests of a module, as one model in each of them, is traced once:
    for modules whose tests are about plans, and whose models are told apart by what `_described`
    says of them."""
    known: dict[object, Graph] = {}
    trace = tracing.trace

    def once(built: BuiltModel, *given: Any, **options: Any) -> Graph:
        if any(type(weight) is not torch.nn.Parameter for weight in built.model.parameters()):
            return trace(built, *given, **options)
        key = _described(built), built.loss, f"{given} {options}"
        if key not in known:
            known[key] = trace(built, *given, **options)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tracing, "trace", once)
        yield


def _described(built: BuiltModel) -> str:
    """A model, its tensors and modes, and its samples."""
    model = built.model
    first: dict[int, str] = {}
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    tensors = [(first.setdefault(id(one), name), name, _form(one)) for name, one in named]
    leaves, tree = pytree.tree_flatten(built.samples)
    place = {id(leaf): number for number, leaf in reversed([*enumerate(leaves)])}
    modes = [module.training for module in model.modules()]
    given = [(_form(leaf), place[id(leaf)]) for leaf in leaves]
    casts = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
    masks = all_ones_leaves(built), binary_mask_leaves(built)
    around = (built.label, built.ones, built.mixed, masks, casts)
    return repr((type(model), str(model), tensors, modes, around, tree, given))


def _form(one: Any) -> object:
    """How a tensor lies in memory, or what another value is."""
    if not isinstance(one, torch.Tensor):
        return type(one), one
    lies = (tuple(one.shape), one.stride(), one.storage_offset(), one.dtype, one.device)
    return type(one), one.requires_grad, one._base is None, *lies


class Tower(torch.nn.Module):
    """Layers whose activations take more than their parameters."""

    def __init__(self, width: int = 16, depth: int = 3) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)).sigmoid()
        return x.square().mean()


def tower(seed: int = 0, **sizes: int) -> Tower:
    torch.manual_seed(seed)
    return Tower(**sizes).train()


def gradients(model: torch.nn.Module, *args: Any, **kwargs: Any) -> list[torch.Tensor]:
    """Those of the parameters after one step on the sum of the output."""
    model.zero_grad()
    model(*args, **kwargs).sum().backward()
    return [weight.grad for weight in model.parameters() if weight.grad is not None]
