"""What cutting a step needs to know beyond nodes and storages: where gradients flow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import takewhile

from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph

_DIFFERENTIABLE = ("float", "bfloat", "complex")
_NORM = "batch_norm"
"""In the names of operators whose further outputs are statistics, which no gradient reaches."""
_ADDITIONS = ("aten.add.Tensor", "aten.clone.default", "aten._to_copy.default")


@dataclass(frozen=True)
class GradientFlow:
    """A step with its gradient flow.

    `problem` is the whole step. `glue` are the forward storages that tie blocks together when
    they cross from one to the next. `pure` are the nodes whose outputs no gradient and no random
    number reaches, so that they can run once, ahead of everything. `parameter_uses` gives, for
    the storage of each final gradient, the forward nodes that read its parameter or input.
    `partial` are storages that the backward only adds up to such a final gradient. `modules` are
    the paths of the submodules that the nodes come from. Gradients reach the storages `flowing`.
    """

    problem: PlanningGraph
    connecting_storages: frozenset[int]
    pure: frozenset[int]
    parameter_uses: dict[int, list[int]]
    partial: frozenset[int]
    modules: list[tuple[str, ...]]
    differentiable_storages: frozenset[int]


def analyze_gradient_flow(graph: Graph, problem: PlanningGraph) -> GradientFlow:
    """The gradient flow of a step: `problem` is the graph condensed."""
    flowing = _differentiable_values(graph)
    pure = _pure_nodes(problem, flowing)
    glue = {
        storage
        for position in range(problem.loss)
        if position not in pure
        for storage in problem.nodes[position].outputs
    }
    modules = [tuple(filter(None, graph.ops[node.op].module.split("."))) for node in problem.nodes]
    return GradientFlow(
        problem=problem,
        connecting_storages=frozenset(glue),
        pure=pure,
        parameter_uses=_parameter_uses(graph, problem),
        partial=partial_gradients(problem, _additions(graph, problem)),
        modules=modules,
        differentiable_storages=frozenset(flowing),
    )


def common_module_path(paths: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The longest path that all of the given paths begin with."""
    paths = list(paths)
    steps = takewhile(lambda step: len(set(step)) == 1, zip(*paths, strict=False))
    return tuple(step[0] for step in steps)


def _differentiable_values(graph: Graph) -> set[int]:
    """Storages with a value that depends on something whose gradient is wanted."""
    flowing = {gradient.value for gradient in graph.gradients}
    for op in graph.ops:
        if op.phase == "forward" and not flowing.isdisjoint(op.inputs):
            shown = op.outputs[:1] if _NORM in op.target else op.outputs
            made = (value for value in shown if value != NO_VALUE)
            flowing |= {v for v in made if graph.values[v].dtype.startswith(_DIFFERENTIABLE)}
    return {graph.values[value].storage for value in flowing}


def _pure_nodes(problem: PlanningGraph, flowing: set[int]) -> frozenset[int]:
    pure: set[int] = set()
    made_pure: set[int] = set()
    for position, node in enumerate(problem.nodes[: problem.loss]):
        if (
            node.repeatable
            and not node.random
            and node.outputs
            and made_pure.issuperset(node.inputs)
            and flowing.isdisjoint(node.outputs)
        ):
            pure.add(position)
            made_pure.update(node.outputs)
    return frozenset(pure)


def _parameter_uses(graph: Graph, problem: PlanningGraph) -> dict[int, list[int]]:
    position = {node.op: index for index, node in enumerate(problem.nodes)}
    readers: dict[int, list[int]] = {}
    for op in graph.ops:
        if op.phase == "forward" and op.id in position:
            for storage in {graph.values[value].storage for value in op.inputs}:
                readers.setdefault(storage, []).append(position[op.id])
    uses: dict[int, list[int]] = {}
    for owner, parts in partial_gradients_by_owner(graph).items():
        found = sorted(readers.get(graph.values[owner].storage, []))
        made = [graph.values[part].storage for part in parts]
        if len(parts) == 1:
            uses[made[0]] = found
        elif len(parts) == len(found):
            uses.update((part, [use]) for part, use in zip(made, reversed(found), strict=True))
        else:
            uses[made[-1]] = found[:1]
    return uses


def partial_gradients(problem: PlanningGraph, additions: frozenset[int]) -> frozenset[int]:
    """What only additions and copies (positions `additions`) read whose results are final
    gradients or read in the same way."""
    readers = [[p for p in found if p > problem.loss] for found in problem.readers]
    partial: set[int] = set()
    for position in range(len(problem.nodes) - 1, problem.loss, -1):
        for storage in problem.nodes[position].outputs:
            if readers[storage] and all(
                reader in additions
                and all(
                    made in partial or (problem.storages[made].gradient and not readers[made])
                    for made in problem.nodes[reader].outputs
                )
                for reader in readers[storage]
            ):
                partial.add(storage)
    return frozenset(partial)


def _additions(graph: Graph, problem: PlanningGraph) -> frozenset[int]:
    return frozenset(
        position
        for position, node in enumerate(problem.nodes)
        if graph.ops[node.op].target in _ADDITIONS
    )
