"""Makes plans for tests: sequences of executions, packages on disk, comparisons with the model."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.combine.lowering.schedule import lower_to_schedule
from tightfit.stages.generate.package import build_package, write_directory, zero_time_costs
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.trace import trace

PLAN = {
    "strategy": "keep_all",
    "budget": "50%",
    "budget_bytes": 1000,
    "status": "feasible",
    "message": "",
    "peak": 1000,
    "time": 0.5,
}

_numbers = itertools.count()


def built_of(made: Sequence[Any], label: str = "model") -> BuiltModel:
    """What a factory returned, as the stages take it."""
    model, sample, *rest = made
    return BuiltModel(model, [sample], rest[0] if rest else None, label=label)


def keep_all(graph: Graph) -> list[int]:
    """Every op once, in captured order."""
    return [op.id for op in graph.ops if not graph.is_view(op)]


def recompute(graph: Graph, seed: int, share: float = 0.5) -> list[int]:
    """A valid sequence that forgets a part of the forward's storages after the forward, and some
    again after a use, and recomputes them where they are next read."""
    chance = random.Random(seed)
    maker = {
        graph.values[value].storage: op
        for op in graph.ops
        if not graph.is_view(op)
        for value in op.outputs
        if value >= 0
    }
    fixed = graph.baseline_storages()
    loss = next(op for op in graph.ops if op.phase == "loss")
    live: set[int] = set()
    sequence: list[int] = []
    held = {graph.values[output.value].storage for output in graph.outputs if output.value >= 0}

    def need(op_id: int) -> None:
        op = graph.ops[op_id]
        for value in op.inputs:
            storage = graph.values[value].storage
            if storage not in fixed and storage not in live:
                need(maker[storage].id)
        sequence.append(op.id)
        live.update(graph.values[value].storage for value in op.outputs if value >= 0)

    def forget() -> None:
        for storage in sorted(live - held):
            op = maker[storage]
            made = {graph.values[value].storage for value in op.outputs if value >= 0}
            droppable = op.phase == "forward" and op.repeatable and not made & held
            if droppable and chance.random() < share:
                live.difference_update(made)

    for op in graph.ops:
        if graph.is_view(op):
            continue
        if op.id > loss.id and chance.random() < 0.1:
            forget()
        need(op.id)
        if op.id == loss.id:
            forget()
    return sequence


def load_package(directory: Path) -> ModuleType:
    """Imports a package from a directory under a name of its own."""
    name = f"generated_{next(_numbers)}"
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def generated(
    graph: Graph,
    directory: Path,
    executions: Sequence[int] | None = None,
    in_place: bool = False,
    costs: Costs | None = None,
) -> ModuleType:
    """The package that runs a sequence of executions, every op once where none is given."""
    costs = costs or zero_time_costs(graph)
    sequence = keep_all(graph) if executions is None else executions
    steps = simulate(graph, costs, lower_to_schedule(graph, costs, sequence, in_place)).steps
    write_directory(directory, build_package(graph, steps, PLAN))
    return load_package(directory)


def traced(made: Sequence[Any], label: str = "model") -> tuple[Graph, BuiltModel]:
    """The graph of what a factory returned."""
    built = built_of(made, label)
    return trace(built, label), built


def same(one: Any, other: Any) -> bool:
    """Bit for bit, with the same dtype, shape and strides; other leaves are equal."""
    if not isinstance(one, torch.Tensor) or not isinstance(other, torch.Tensor):
        return type(one) is type(other) and one == other
    if (one.shape, one.dtype, one.stride()) != (other.shape, other.dtype, other.stride()):
        return False
    flat = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other)]
    return torch.equal(*flat)


def backward(output: Any, seed: int = 3) -> None:
    """Sends gradients, equal for equal outputs, back from all leaves that take one."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    roots = list({id(leaf): leaf for leaf in leaves if leaf.requires_grad}.values())
    generator = torch.Generator().manual_seed(seed)
    tangents = [
        torch.empty_like(root).copy_(torch.randn(root.shape, generator=generator)) for root in roots
    ]
    torch.autograd.backward(roots, tangents)


def fresh(sample: Any) -> Any:
    """A copy of (args, kwargs) whose tensors have no gradient yet."""
    return pytree.tree_map(
        lambda leaf: (
            leaf.detach().clone().requires_grad_(leaf.requires_grad)
            if isinstance(leaf, torch.Tensor)
            else leaf
        ),
        sample,
    )


def step(model: torch.nn.Module, sample: Any, seed: int = 7) -> tuple[Any, Any]:
    """One training step from a seed; the output and the sample with its gradients."""
    args, kwargs = sample = fresh(sample)
    torch.manual_seed(seed)
    output = model(*args, **kwargs)
    backward(output)
    return output, sample


def check_equal(planned: Any, original: Any) -> None:
    """Asserts that two steps on twin models left everything bit for bit equal.

    Each is (model, output, sample).
    """
    (model, output, sample), (twin, expected, given) = planned, original
    leaves, tree = pytree.tree_flatten(output)
    wanted, wanted_tree = pytree.tree_flatten(expected)
    assert tree == wanted_tree and type(output) is type(expected)
    assert all(same(*pair) for pair in zip(leaves, wanted, strict=True))
    assert [getattr(leaf, "requires_grad", None) for leaf in leaves] == [
        getattr(leaf, "requires_grad", None) for leaf in wanted
    ]
    parameters = dict(twin.named_parameters())
    for name, parameter in model.named_parameters():
        assert same(parameter.grad, parameters[name].grad), name
    buffers = dict(twin.named_buffers())
    for name, buffer in model.named_buffers():
        assert same(buffer, buffers[name]), name
    for one, other in zip(pytree.tree_leaves(sample), pytree.tree_leaves(given), strict=True):
        if isinstance(one, torch.Tensor):
            assert same(one.grad, other.grad)


def compare(
    module: ModuleType, built: BuiltModel, steps: int = 2, zero: bool = False
) -> torch.nn.Module:
    """Trains a planned copy of the model beside the model itself and asserts equality of all;
    gradients accumulate unless `zero`. Returns the planned module."""
    twin = copy.deepcopy(built.model)
    planned = module.load(copy.deepcopy(built.model))
    for number in range(steps):
        output, sample = step(planned, built.samples[0], number)
        state = torch.get_rng_state()
        expected, given = step(twin, built.samples[0], number)
        assert torch.equal(state, torch.get_rng_state())
        check_equal((planned, output, sample), (twin, expected, given))
        if zero:
            planned.zero_grad()
            twin.zero_grad()
    return planned
