"""A stage of a pipeline as a training step of its own: a graph with its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.op_arguments import encode_arguments
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import (
    NO_VALUE,
    Graph,
    GraphOutput,
    GraphValue,
    Op,
    OwnedGradient,
    create_loss_op,
)
from tightfit.schemas.schedule import ScheduleStep
from tightfit.schemas.sequence import NO_BRANCH, ChainOperation
from tightfit.stages.combine.lowering.blocks import lower_to_executions
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.pipeline.assign_ops import StageAssignment, StageOps
from tightfit.stages.simulate.liveness import INFINITE_IN_PLACE_THRESHOLD
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.util.errors import ScheduleError

NO_GUARDS = '{"no_python_backward": false}'
"""Of a stage: its tangents come as they were planned, and the whole model's guards hold."""


def build_stage_graph(graph: Graph, divided: StageAssignment, stage: int) -> Graph:
    """The training step of a stage. Values keep their ids; those that arrive are inputs, or
    tangents where they come late. What its backward hands to others is the gradient of an input
    that nothing reads, which comes behind all values of the graph."""
    part = divided.parts[stage]
    last = stage == len(divided.parts) - 1
    values, storages = _values(graph, part), list(graph.storages)
    gradients = _gradients(graph, divided, part)
    for value in part.backward_outputs:
        owner = len(values)
        values.append(
            replace(
                values[value], id=owner, kind="input", path=f"gradient {value}",
                storage=len(storages), requires_grad=True, offset=0,
            )
        )  # fmt: skip
        storages.append(0)
        gradients.append(OwnedGradient(owner, value))
    _check_gradients(graph, divided, part, gradients)
    outputs = _outputs(graph, part, last, {values[v].id for v in part.arrive})
    ops = _ops(graph, part, outputs)
    read = {value for op in ops for value in op.inputs}
    inputs = [v for v in graph.inputs if v in read] + part.arrive
    values = [
        replace(value, data=b"") if value.data and value.id not in read else value
        for value in values
    ]
    return replace(
        graph,
        model=f"{graph.model}, stage {stage}",
        has_loss=False,
        ops=ops,
        values=values,
        storages=storages,
        inputs=inputs,
        input_constants=["" for _ in inputs],
        outputs=outputs,
        gradients=gradients,
        guards=NO_GUARDS,
    )


def build_stage_schedule(
    graph: Graph, costs: Costs, executions: Sequence[int] | None = None
) -> list[ScheduleStep]:
    """The schedule of a stage as the simulator plays it, of ops in an order (`executions`), each
    once as they were captured where none is given."""
    problem = build_planning_graph(graph, costs)
    order = [node.op for node in problem.nodes] if executions is None else executions
    steps = ScheduleLowering(graph, problem).schedule(
        order, in_place=True, ceiling=INFINITE_IN_PLACE_THRESHOLD
    )
    return simulate(graph, costs, steps).steps


def _values(graph: Graph, part: StageOps) -> list[GraphValue]:
    values = list(graph.values)
    for value in part.arrive:
        values[value] = replace(values[value], kind="input", path=f"value {value}")
    for value in part.late:
        values[value] = replace(values[value], kind="tangent")
    return values


def _gradients(graph: Graph, divided: StageAssignment, part: StageOps) -> list[OwnedGradient]:
    """The gradients that the stage makes alone."""
    own = set(part.backward)
    made = {value for op in own for value in graph.ops[op].outputs}
    split = {shared.value for shared in divided.shared if shared.parts}
    return [
        OwnedGradient(owner, value)
        for owner, values in partial_gradients_by_owner(graph).items()
        for value in values
        if owner not in split and value in made
    ]


def _check_gradients(
    graph: Graph, divided: StageAssignment, part: StageOps, gradients: Sequence[OwnedGradient]
) -> None:
    """Raises ScheduleError where the stage makes a gradient that nobody is given."""
    values = graph.values
    split = {value for shared in divided.shared for value in shared.parts}
    given = {values[gradient.gradient].storage for gradient in gradients}
    given |= {values[value].storage for value in (*part.backward_outputs, *split)}
    made = {
        values[v].storage for op in part.backward for v in graph.ops[op].outputs if v != NO_VALUE
    }
    for gradient in graph.gradients:
        if values[gradient.gradient].storage in made - given:
            path = values[gradient.value].path
            raise ScheduleError(f"no stage hands over the gradient of {path}")


def _outputs(graph: Graph, part: StageOps, last: bool, arriving: set[int]) -> list[GraphOutput]:
    """What leaves after the forward, with the tangents that come after it."""
    leaving = list(part.leaves)
    if last:
        found = dict.fromkeys(graph.output_values())
        leaving += [value for value in found if value not in leaving]
    carrying = [value for value in leaving if value not in arriving]
    if part.late and not carrying:
        raise ScheduleError("a stage goes backward without a forward")
    partners = carrying + carrying[:1] * len(part.late)
    outputs = [GraphOutput(partners[at], late, "") for at, late in enumerate(part.late)]
    return outputs + [
        GraphOutput(value, NO_VALUE, "")
        for value in leaving
        if value not in partners[: len(part.late)]
    ]


def _ops(graph: Graph, part: StageOps, outputs: Sequence[GraphOutput]) -> list[Op]:
    """The ops of a stage, numbered anew, with a loss between its forward and its backward."""
    read = list(dict.fromkeys(output.value for output in outputs))
    arguments = encode_arguments([{"value": value} for value in read], {})
    loss = create_loss_op(0, arguments, read, list(part.late))
    forward = [graph.ops[op] for op in part.forward]
    backward = [replace(graph.ops[op], phase="backward") for op in part.backward]
    return [replace(op, id=place) for place, op in enumerate((*forward, loss, *backward))]


def stage_executions(
    graph: Graph,
    problem: PlanningGraph,
    blocks: Blocks,
    options: Mapping[str, list[BlockOption]],
    sequence: Sequence[ChainOperation],
    part: StageOps,
) -> list[int]:
    """The ops that a stage runs, by their numbers in its own graph, for the operations of its
    sequence; `graph` and `problem` are those of the whole model.

    The forward of a stage ends with the first forward of its last position.
    """
    count = len(blocks.blocks)
    own = [
        replace(operation, branch=NO_BRANCH) for operation in sequence if operation.block <= count
    ]
    last = max((operation.block for operation in own), default=0)
    split = 1 + next(
        (
            place
            for place, operation in enumerate(own)
            if operation.block == last and operation.action.startswith("F")
        ),
        -1,
    )
    whole = [*own[:split], ChainOperation("loss", count + 1), *own[split:]]
    runs = lower_to_executions(problem, blocks, options, whole)[len(blocks.prelude) :]
    number = {op: place for place, op in enumerate((*part.forward, blocks.loss, *part.backward))}
    # What every stage that reads it makes anew runs ahead of all else.
    ahead = [op for op in (*part.forward, *part.backward) if op in set(blocks.prelude)]
    return [number[op] for op in _drop_repeats(graph, (*ahead, *runs), set(part.leaves))]


def _drop_repeats(graph: Graph, runs: Iterable[int], leaves: set[int]) -> list[int]:
    """The runs without further ones of ops whose outputs leave the stage, which stay."""
    found: list[int] = []
    seen: set[int] = set()
    for op in runs:
        if op not in seen or leaves.isdisjoint(graph.ops[op].outputs):
            found.append(op)
        seen.add(op)
    return found


def all_or_nothing_options(blocks: Blocks) -> dict[str, list[BlockOption]]:
    """For each block running it without keeping anything, and keeping everything."""
    found = {}
    for block in blocks.blocks:
        size = len(block.forward)
        forward, backward = range(size), range(size + 1, size + 1 + len(block.backward))
        nothing = BlockOption(
            block.digest, 0, "", 0, 0, 0, 0.0, 0.0, 0.0, forward=[*forward], backward=[]
        )
        found[block.digest] = [nothing, replace(nothing, option=1, backward=[*backward])]
    return found
