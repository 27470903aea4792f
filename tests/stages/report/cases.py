"""A small model's results as the other stages write them: layers of mm and gelu."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tightfit.schemas.actions import Compute
from tightfit.schemas.block_options import BlockOption, write_block_options
from tightfit.schemas.blocks import Block, Blocks, planning_graph_digest, write_blocks
from tightfit.schemas.costs import Costs, OpCost, ProfileDevice, op_cost_key, write_costs
from tightfit.schemas.frontier import Frontier, ParetoPoint, pareto_points, write_frontier
from tightfit.schemas.graph.op_arguments import encode_arguments
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.schemas.graph.training_graph import (
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    GraphOutput,
    GraphValue,
    Op,
    OwnedGradient,
    Phase,
    ValueKind,
    write_graph,
)
from tightfit.schemas.measurement import (
    Measurement,
    TimelinePoint,
    write_measurement,
    write_memory_timeline,
)
from tightfit.schemas.plan import BaselineBytes, Plan, write_plan
from tightfit.schemas.plan import PlanCost as Figures
from tightfit.schemas.schedule import ScheduleStep, write_schedule
from tightfit.schemas.sequence import ChainOperation, write_sequence
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import SimulationResult, simulate

WIDE, WEIGHT = 1_000_000, 250_000
"""Bytes of an activation and of a parameter."""

SECONDS = {"mm": 0.004, "gelu": 0.001, "gelu_backward": 0.002, "loss": 0.0}


class Maker:
    """Collects values and ops, one storage a value."""

    def __init__(self) -> None:
        self.values: list[GraphValue] = []
        self.storages: list[int] = []
        self.ops: list[Op] = []

    def value(self, size: int, kind: ValueKind = "intermediate", path: str = "") -> int:
        index = len(self.values)
        self.values.append(
            GraphValue(index, kind, [size], [1], 0, "uint8", index, path, [], kind == "parameter")
        )
        self.storages.append(size)
        return index

    def op(self, name: str, phase: Phase, inputs: list[int], size: int, module: str) -> int:
        kind: ValueKind = "tangent" if phase == "loss" else "intermediate"
        output = self.value(size, kind)
        target = LOSS_TARGET if phase == "loss" else f"aten.{name}.default"
        arguments = encode_arguments([{"value": value} for value in inputs], {})
        source = f"{module or 'model'}.py:7"
        self.ops.append(
            Op(
                len(self.ops),
                target,
                phase,
                arguments,
                inputs,
                [output],
                [],
                [],
                False,
                phase != "loss",
                module,
                source,
            )
        )
        return output


def small_graph(layers: int = 3, model: str = "small", module: str = "h.{}") -> Graph:
    """`layers` layers of x -> gelu(mm(x, w)), their loss and their backward."""
    make = Maker()
    x = make.value(WIDE, "input", "x")
    weights = [
        make.value(WEIGHT, "parameter", f"{module.format(layer)}.weight") for layer in range(layers)
    ]
    read, sums = [x], []
    for layer, weight in enumerate(weights):
        name = module.format(layer)
        sums.append(make.op("mm", "forward", [read[-1], weight], WIDE, f"{name}.proj"))
        read.append(make.op("gelu", "forward", [sums[-1]], WIDE, f"{name}.act"))
    tangent = make.op("loss", "loss", [read[-1]], WIDE, "")
    incoming, gradients = tangent, {}
    for layer in reversed(range(layers)):
        name = module.format(layer)
        inner = make.op("gelu_backward", "backward", [incoming, sums[layer]], WIDE, f"{name}.act")
        gradients[weights[layer]] = make.op(
            "mm", "backward", [inner, read[layer]], WEIGHT, f"{name}.proj"
        )
        if layer:
            incoming = make.op("mm", "backward", [inner, weights[layer]], WIDE, f"{name}.proj")
    return Graph(
        model=model,
        device="cpu",
        torch="2.13.0",
        has_loss=False,
        ops=make.ops,
        values=make.values,
        storages=make.storages,
        inputs=[x],
        input_constants=[""],
        outputs=[GraphOutput(read[-1], tangent, "")],
        gradients=[OwnedGradient(weight, gradient) for weight, gradient in gradients.items()],
        input_tree="",
        output_tree="",
        guards="{}",
    )


def small_costs(graph: Graph) -> Costs:
    """Times by the kind of op; an op's memory is that of its output."""
    rows = []
    for op in graph.ops:
        made = sum(graph.storages[value] for value in op.outputs)
        name = op.target.split(".")[1]
        rows.append(
            OpCost(
                op_cost_key(graph, op), op.target, NO_VALUE, SECONDS[name], 0.0, made + 10_000, made
            )
        )
    return Costs(rows, ProfileDevice("cpu", "a machine", "a build", 2, "measured"))


def keep_all(graph: Graph) -> list[int]:
    """Every op once."""
    return [op.id for op in graph.ops]


def run_again(graph: Graph) -> list[int]:
    """The mm of every layer but the last runs again right before its gelu's backward; the last
    layer's sum stays."""
    forward = {op.outputs[0]: op.id for op in graph.ops if op.phase == "forward"}
    order = []
    last = max(forward.values()) - 1
    for op in graph.ops:
        if "gelu_backward" in op.target and forward[op.inputs[1]] != last:
            order.append(forward[op.inputs[1]])
        order.append(op.id)
    return order


def played(graph: Graph, costs: Costs, executions: list[int]) -> SimulationResult:
    """The schedule of a sequence of executions, simulated."""
    opener = ScheduleLowering(graph, build_planning_graph(graph, costs))
    return simulate(graph, costs, opener.schedule(executions, False))


def small_blocks(graph: Graph) -> Blocks:
    """A block a layer."""
    layers = sum(op.phase == "forward" for op in graph.ops) // 2
    problem = PlanningGraph(
        [
            PlanningNode(0, "forward", 0.004, WIDE, [], [0], [], False, True),
            PlanningNode(1, "forward", 0.001, WIDE, [0], [1], [], False, True),
            PlanningNode(2, "loss", 0.0, 0, [1], [], [], False, False),
            PlanningNode(3, "backward", 0.002, WIDE, [0, 1], [], [], False, True),
        ],
        [PlanningStorage(WIDE, 0, False, False), PlanningStorage(WIDE, 1, False, False)],
        0,
    )
    digest = planning_graph_digest(problem)
    backward = {op.inputs[1]: op.id for op in graph.ops if "gelu_backward" in op.target}
    blocks = []
    for layer in range(layers):
        first = 2 * layer
        made = graph.ops[first].outputs[0], graph.ops[first + 1].outputs[0]
        blocks.append(
            Block(
                digest,
                f"h.{layer}",
                [first, first + 1],
                [backward[made[0]]],
                [],
                list(made),
                [],
                [],
                [],
                [],
                WIDE,
                WIDE,
                WIDE,
                WEIGHT,
                0,
            )
        )
    loss = next(op.id for op in graph.ops if op.phase == "loss")
    return Blocks(graph.model, [], 0.0, 0, loss, 0.0, WIDE, blocks, {digest: problem})


def small_options(blocks: Blocks) -> list[BlockOption]:
    """Option 0 and one that keeps everything, for each distinct block."""
    return [
        BlockOption(
            digest, number, label, WIDE, 2 * WIDE, 4 * WIDE, 0.005, 0.006, 0.0, [0, 1], backward
        )
        for digest in blocks.distinct
        for number, (label, backward) in enumerate([("nothing", []), ("keeps everything", [3])])
    ]


def plan_of(
    graph: Graph,
    costs: Costs,
    strategy: str,
    budget: str,
    budget_bytes: int | None,
    result: SimulationResult | None,
) -> Plan:
    """A plan's figures; no `result` is an infeasible budget."""
    everything = played(graph, costs, keep_all(graph))
    kinds = ("parameter", "input")
    parameters, inputs = (
        sum(graph.storages[v.storage] for v in graph.values if v.kind == kind) for kind in kinds
    )
    fixed = BaselineBytes(parameters, parameters, 0, inputs, WIDE)
    total = None if budget_bytes is None else budget_bytes + parameters + inputs
    figures = Figures(everything.seconds, everything.peak)
    return Plan(
        strategy=strategy,
        budget=budget,
        budget_total=total,
        budget_bytes=budget_bytes,
        status="infeasible" if result is None else "feasible",
        message="a message of the plan",
        time=None if result is None else result.seconds,
        peak=None if result is None else result.peak,
        lower_bound=None if result is None else 0.95 * result.seconds,
        gap=None if result is None else 0.05,
        optimal_in="" if result is None else "sequences of options",
        smallest_budget=9_000_000,
        before_local_search=None if result is None else figures,
        keep_all=figures,
        baseline=fixed,
        recomputed=0 if result is None else result.repeated,
        recomputed_time=0.0 if result is None else result.repeated_seconds,
        solver="local search",
    )


def measurement_of(plan: Plan, **changes: object) -> Measurement:
    """A measurement that bears the plan out, with `changes`."""
    time = plan.time or 0.0
    found = Measurement(
        model="small", device="cpu", strategy=plan.strategy, budget=plan.budget,
        budget_bytes=plan.budget_bytes or 0, status=plan.status, message=plan.message,
        gap=plan.gap, predicted_peak=plan.peak, measured_peak=plan.peak,
        original_peak=plan.keep_all.peak, accumulate_peak=plan.peak,
        original_accumulate_peak=plan.keep_all.peak, predicted_allocated=None, allocated_peak=None,
        predicted_reserved=None, reserved_peak=None, cuda_context=None,
        budget_total=plan.budget_total,
        predicted_time=time,
        measured_time=time, original_time=plan.keep_all.time,
        time_ratio=time / plan.keep_all.time, time_ratio_first_quartile=1.0,
        time_ratio_third_quartile=1.4, pairs=15, output_difference=0.0, gradient_difference=0.0,
        buffer_difference=0.0, bits_equal=True, within_budget=True, peak_as_predicted=True,
        plan_seconds=12.0,
    )  # fmt: skip
    return replace(found, **changes)  # type: ignore[arg-type]


def write_point(
    folder: Path, plan: Plan, steps: list[ScheduleStep], measured: Measurement | None
) -> None:
    """What stands in the folder of one plan."""
    write_plan(folder / "plan.json", plan)
    write_schedule(folder / "schedule.arrow", steps)
    write_sequence(
        folder / "sequence.arrow",
        [ChainOperation("F", 1, 1), ChainOperation("B", 1)] if steps else [],
    )
    if measured is not None:
        write_measurement(folder / "measurement.arrow", measured)
        line = [TimelinePoint("planned", 2 * step.end, step.live) for step in steps]
        write_memory_timeline(folder / "memory_timeline.arrow", line)


def write_results(folder: Path, graph: Graph) -> None:
    """A whole run of one model: keep_all, and rockmate at a budget that fits, at one whose
    measurement is missing, and at one that is too small."""
    costs, blocks = small_costs(graph), small_blocks(graph)
    write_graph(folder / "graph.arrow", graph)
    write_costs(folder / "costs.arrow", costs)
    write_blocks(folder / "blocks.arrow", blocks)
    write_block_options(folder / "options.arrow", small_options(blocks))
    everything = played(graph, costs, keep_all(graph))
    again = played(graph, costs, run_again(graph))
    points = {
        "keep_all": [_point(everything, keep_all(graph))],
        "rockmate": pareto_points(
            [_point(everything, keep_all(graph)), _point(again, run_again(graph))]
        ),
    }
    for strategy, chosen in points.items():
        frontier = Frontier(
            strategy, graph.model, "", everything.peak, everything.seconds, 3_000_000, 0.03, "",
            chosen,
        )  # fmt: skip
        write_frontier(folder / strategy / "frontier.arrow", frontier)
    plan = plan_of(graph, costs, "keep_all", "none", None, everything)
    write_point(folder / "keep_all" / "none", plan, everything.steps, measurement_of(plan))
    for budget, room, result in (
        ("50%", again.peak, again),
        ("90%", everything.peak + 1000, everything),
        ("10%", 1_000_000, None),
    ):
        plan = plan_of(graph, costs, "rockmate", budget, room, result)
        measured = measurement_of(plan) if budget == "50%" else None
        steps = result.steps if result else []
        write_point(folder / "rockmate" / budget.replace("%", "pct"), plan, steps, measured)


def _point(result: SimulationResult, executions: list[int]) -> ParetoPoint:
    return ParetoPoint(
        peak=result.peak,
        seconds=result.seconds,
        strategy_peak=result.peak,
        strategy_seconds=result.seconds,
        local_search=False,
        in_place=False,
        in_place_threshold=0,
        actions=[Compute(op) for op in executions],
        sequence=[],
        origin="",
    )
