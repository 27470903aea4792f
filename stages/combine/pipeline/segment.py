"""A stage of a pipeline as a training step of its own: a graph with its schedule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tightfit.schemas.arguments import encode_arguments
from tightfit.schemas.contributions import contributions
from tightfit.schemas.costs import Costs
from tightfit.schemas.errors import ScheduleError
from tightfit.schemas.graph import NONE, Graph, Op, Output, OwnedGradient, Value, loss_op
from tightfit.schemas.schedule import Step
from tightfit.stages.combine.pipeline.division import Divided, Part
from tightfit.stages.combine.schedule.opening import Opener
from tightfit.stages.replay.condense import condense
from tightfit.stages.replay.line import FASTEST
from tightfit.stages.replay.referee import replay

NO_GUARDS = '{"plain_backward": false}'
"""Of a stage: its tangents come as they were planned, and the whole model's guards hold."""


def segment_graph(graph: Graph, divided: Divided, stage: int) -> Graph:
    """The training step of a stage. Values keep their ids; those that arrive are inputs, or
    tangents where they come late. What its backward hands to others is the gradient of an input
    that nothing reads, which comes behind all values of the graph."""
    part = divided.parts[stage]
    last = stage == len(divided.parts) - 1
    values, storages = _values(graph, part), list(graph.storages)
    gradients = _gradients(graph, divided, part)
    for value in part.hands:
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


def segment_steps(
    graph: Graph, costs: Costs, executions: Sequence[int] | None = None
) -> list[Step]:
    """The schedule of a stage as the referee plays it, of ops in an order (`executions`), each once
    as they were captured where none is given."""
    problem = condense(graph, costs)
    order = [node.op for node in problem.nodes] if executions is None else executions
    steps = Opener(graph, problem).schedule(order, in_place=True, ceiling=FASTEST)
    return replay(graph, costs, steps).steps


def _values(graph: Graph, part: Part) -> list[Value]:
    values = list(graph.values)
    for value in part.arrive:
        values[value] = replace(values[value], kind="input", path=f"value {value}")
    for value in part.late:
        values[value] = replace(values[value], kind="tangent")
    return values


def _gradients(graph: Graph, divided: Divided, part: Part) -> list[OwnedGradient]:
    """The gradients that the stage makes alone."""
    own = set(part.backward)
    made = {value for op in own for value in graph.ops[op].outputs}
    split = {shared.value for shared in divided.shared if shared.parts}
    return [
        OwnedGradient(owner, value)
        for owner, values in contributions(graph).items()
        for value in values
        if owner not in split and value in made
    ]


def _check_gradients(
    graph: Graph, divided: Divided, part: Part, gradients: Sequence[OwnedGradient]
) -> None:
    """Raises ScheduleError where the stage makes a gradient that nobody is given."""
    values = graph.values
    split = {value for shared in divided.shared for value in shared.parts}
    given = {values[gradient.gradient].storage for gradient in gradients}
    given |= {values[value].storage for value in (*part.hands, *split)}
    made = {values[v].storage for op in part.backward for v in graph.ops[op].outputs if v != NONE}
    for gradient in graph.gradients:
        if values[gradient.gradient].storage in made - given:
            path = values[gradient.value].path
            raise ScheduleError(f"no stage hands over the gradient of {path}")


def _outputs(graph: Graph, part: Part, last: bool, arriving: set[int]) -> list[Output]:
    """What leaves after the forward, with the tangents that come after it."""
    leaving = list(part.leaves)
    if last:
        found = dict.fromkeys(graph.output_values())
        leaving += [value for value in found if value not in leaving]
    carrying = [value for value in leaving if value not in arriving]
    if part.late and not carrying:
        raise ScheduleError("a stage goes backward without a forward")
    partners = carrying + carrying[:1] * len(part.late)
    outputs = [Output(partners[at], late, "") for at, late in enumerate(part.late)]
    return outputs + [
        Output(value, NONE, "") for value in leaving if value not in partners[: len(part.late)]
    ]


def _ops(graph: Graph, part: Part, outputs: Sequence[Output]) -> list[Op]:
    """The ops of a stage, numbered anew, with a loss between its forward and its backward."""
    read = list(dict.fromkeys(output.value for output in outputs))
    arguments = encode_arguments([{"value": value} for value in read], {})
    loss = loss_op(0, arguments, read, list(part.late))
    forward = [graph.ops[op] for op in part.forward]
    backward = [replace(graph.ops[op], phase="backward") for op in part.backward]
    return [replace(op, id=place) for place, op in enumerate((*forward, loss, *backward))]
