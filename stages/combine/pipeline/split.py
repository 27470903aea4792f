"""From a planned allocation to what the ranks of a pipeline run, with the memory of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.schemas.graph.training_graph import LOSS_TARGET, Graph, Op
from tightfit.schemas.pipeline import PipelineSchedule, PipelineStage, RankAction
from tightfit.schemas.pipeline_pattern import PipelinePattern
from tightfit.schemas.pipeline_plan import PipelinePlan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.pipeline.assign_ops import StageAssignment, divide_step
from tightfit.stages.combine.pipeline.rank_schedule import rank_actions
from tightfit.stages.combine.pipeline.stage_graph import (
    all_or_nothing_options,
    build_stage_graph,
    build_stage_schedule,
    stage_executions,
)
from tightfit.stages.combine.pipeline.unsupported import check_loss
from tightfit.stages.simulate.pipeline_rank_memory import (
    RankOverhead,
    simulate_ranks,
    stage_memory_trace,
)
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.errors import ConfigError, ScheduleError


@dataclass(frozen=True)
class PlannedPipeline:
    """What was planned: figures, pattern, and the sequence of stages that compute again with the
    options of blocks that it names."""

    plan: PipelinePlan
    pattern: PipelinePattern
    sequence: Sequence[ChainOperation] = ()
    options: Mapping[str, list[BlockOption]] | None = None


@dataclass(frozen=True)
class SplitPipeline:
    """A pipeline with the graphs and the schedules of its stages, in their order."""

    pipeline: PipelineSchedule
    graphs: list[Graph]
    schedules: list[list[ScheduleStep]]


def split_pipeline(
    graph: Graph,
    digest: str,
    costs: Costs,
    blocks: Blocks,
    planned: PlannedPipeline,
    microbatches: int,
) -> SplitPipeline:
    """Splits a step over the devices of a plan, those with stages in the plan's order.

    Raises ModelError for a step that has no loss to begin its backward with, or that cannot be
    divided; ConfigError where the plan is not of these blocks; ScheduleError where a rank takes
    more memory than it has.
    """
    plan = planned.plan
    _check_plan(graph, blocks, plan)
    used = {stage.device for stage in plan.stages}
    devices = [device for device in plan.devices if device.device in used]
    ranks = {device.device: rank for rank, device in enumerate(devices)}
    divided = divide_step(graph, blocks, plan.stages, ranks)
    numbers = range(1, len(plan.stages) + 1)
    graphs = [build_stage_graph(graph, divided, number) for number in numbers]
    runs = _executions(graph, costs, blocks, planned, divided)
    schedules = [
        build_stage_schedule(one, costs, run) for one, run in zip(graphs, runs, strict=True)
    ]
    stages = [
        PipelineStage(stage.stage, ranks[stage.device], stage.first, stage.last, _draws_random(one))
        for stage, one in zip(plan.stages, graphs, strict=True)
    ]
    rank_of = [stage.rank for stage in stages]
    actions = rank_actions(planned.pattern, microbatches, rank_of, divided.parcels, divided.shared)
    if any(stage.draws for stage in stages):
        actions = [[RankAction("draw", 0, 0), *rows] for rows in actions]
    pipeline = PipelineSchedule(
        model=graph.model,
        graph=digest,
        devices=[device.device for device in devices],
        memory=[device.memory for device in devices],
        microbatches=microbatches,
        stages=stages,
        parcels=divided.parcels,
        shared=divided.shared,
        actions=actions,
        fixed=[_fixed_bytes(graph, graphs, rank_of, rank) for rank in range(len(devices))],
    )
    segments = [
        stage_memory_trace(one, steps) for one, steps in zip(graphs, schedules, strict=True)
    ]
    played = simulate_ranks(
        pipeline, graph, [segments[0], *segments], extra_rank_memory(graph, costs, stages, divided)
    )
    _check_memory(played, graph, graphs, plan)
    return SplitPipeline(played, graphs, schedules)


def infeasible_pipeline(graph: Graph, digest: str, microbatches: int) -> SplitPipeline:
    """The pipeline of an infeasible plan of a step: it has no ranks."""
    nothing = PipelineSchedule(
        graph.model, digest, [], [], microbatches, stages=[], parcels=[], shared=[], actions=[]
    )
    return SplitPipeline(nothing, [], [])


def _check_plan(graph: Graph, blocks: Blocks, plan: PipelinePlan) -> None:
    if plan.status == "infeasible":
        raise ConfigError(f"there is no pipeline to split: {plan.message}")
    if not plan.stages or plan.stages[-1].last != len(blocks.blocks) + 1:
        raise ConfigError(
            f"the plan is of a chain with {plan.stages[-1].last if plan.stages else 0} positions, "
            f"the blocks are one of {len(blocks.blocks) + 1}"
        )
    if graph.device != "cpu":
        raise ConfigError(
            "pipelines run on CPUs so far, and the graph was traced for " + graph.device
        )
    check_loss(graph)


def _executions(
    graph: Graph, costs: Costs, blocks: Blocks, planned: PlannedPipeline, divided: StageAssignment
) -> list[list[int] | None]:
    """What each stage runs, None where every op runs once."""
    count = len(planned.plan.stages)
    if not planned.sequence:
        return [None] * count
    problem = build_planning_graph(graph, costs)
    options = planned.options or all_or_nothing_options(blocks)
    return [
        stage_executions(
            graph,
            problem,
            blocks,
            options,
            [operation for operation in planned.sequence if operation.branch == stage],
            divided.parts[stage],
        )
        for stage in range(1, count + 1)
    ]


def _draws_random(graph: Graph) -> bool:
    return any(op.random for op in graph.ops)


def _fixed_bytes(graph: Graph, graphs: Sequence[Graph], rank_of: Sequence[int], rank: int) -> int:
    """The bytes of the parameters and buffers that a rank's stages read."""
    own = [one for one, where in zip(graphs, rank_of, strict=True) if where == rank]
    storages = {
        graph.values[value].storage
        for one in own
        for op in one.ops
        for value in op.inputs
        if graph.values[value].kind in ("parameter", "buffer")
    }
    return sum(graph.storages[storage] for storage in storages)


def extra_rank_memory(
    graph: Graph, costs: Costs, stages: Sequence[PipelineStage], divided: StageAssignment
) -> RankOverhead:
    """What a rank takes beside its programs."""
    op = next(op for op in graph.ops if op.target == LOSS_TARGET)
    cost = costs.of(graph, op)
    left = _item_bytes(graph, op)
    draws = {
        stage.stage: max(
            _draw_bytes(graph, costs, graph.ops[number])
            for number in divided.parts[stage.stage].forward
            if graph.ops[number].random
        )
        for stage in stages
        if stage.draws
    }
    return RankOverhead(max(cost.peak, cost.net + left), left, costs.random_state().net, draws)


def _item_bytes(graph: Graph, loss: Op) -> int:
    """The bytes of a scalar of the dtype of what the loss differentiates."""
    return max((DTYPE_BYTES[graph.values[value].dtype] for value in loss.outputs), default=0)


def _draw_bytes(graph: Graph, costs: Costs, op: Op) -> int:
    """The most that drawing ahead for an op takes: its operands without contents, and its run."""
    taken = costs.of(graph, op).peak
    for value in (graph.values[each] for each in set(op.inputs)):
        steps = zip(value.shape, value.strides, strict=True)
        reach = 1 + sum((size - 1) * stride for size, stride in steps)
        taken += reach * DTYPE_BYTES[value.dtype] if 0 not in value.shape else 0
    return taken


def _check_memory(
    pipeline: PipelineSchedule, graph: Graph, graphs: Sequence[Graph], plan: PipelinePlan
) -> None:
    for rank, name in enumerate(pipeline.devices):
        needed = pipeline.fixed[rank] + pipeline.peaks[rank]
        if needed > pipeline.memory[rank]:
            known = next(device.peak for device in plan.devices if device.device == name)
            raise ScheduleError(
                f"rank {rank} ({name}) takes {needed} bytes of {pipeline.memory[rank]}, where the "
                f"chain of the plan counts {known}: plan with less memory a device"
            )
