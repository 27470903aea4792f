"""Which unit of a pipeline runs which op, and what they make for each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tightfit.schemas.blocks import Blocks
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import BASELINE_KINDS, LOSS_TARGET, Graph, Op
from tightfit.schemas.pipeline import (
    BACKWARD,
    FORWARD,
    LOSS,
    SUM,
    PipelineTransfer,
    PipelineUnit,
    SharedGradient,
)
from tightfit.schemas.pipeline_plan import PlannedStage
from tightfit.stages.combine.pipeline.unsupported import check_step
from tightfit.util.errors import ModelError


@dataclass
class StageOps:
    """A stage's share of the step: ids of ops of the graph in their order, `forward` and
    `backward`, views and what runs in every stage included. Values `arrive` before its forward or
    come `late`, before its backward. For others the stage `leaves` values by its forward and
    `hands` them by its backward."""

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    arrive: list[int] = field(default_factory=list)
    late: list[int] = field(default_factory=list)
    leaves: list[int] = field(default_factory=list)
    backward_outputs: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class StageAssignment:
    """Parts by stage, from 1 on (entry 0 is empty), with the parcels between units and the
    gradients that several ranks share."""

    parts: list[StageOps]
    parcels: list[PipelineTransfer]
    shared: list[SharedGradient]


def divide_step(
    graph: Graph, blocks: Blocks, stages: Sequence[PlannedStage], ranks: Mapping[str, int]
) -> StageAssignment:
    """Divides a graph by the stages of a plan; `ranks` are those of devices.

    A stage has the nodes of its blocks. Views, and what no gradient reaches and several blocks
    read, are made anew in every stage that reads them; all else that a stage reads and another
    makes is a parcel, a whole storage at a time. Raises ModelError, in a sentence, for a step that
    cannot be divided so that it computes what it computes in one process.
    """
    division = _StepDivider(graph, blocks, stages, ranks)
    check_step(graph, division.units)
    for stage in range(1, len(stages) + 1):
        division.read(stage)
    return division.divided()


class _StepDivider:
    def __init__(
        self,
        graph: Graph,
        blocks: Blocks,
        stages: Sequence[PlannedStage],
        ranks: Mapping[str, int],
    ) -> None:
        self.graph, self.stages, self.ranks = graph, stages, ranks
        self.last = len(stages)
        self.units = _units(blocks, stages)
        self.views = graph.view_ops()
        self.maker = graph.makers()
        self.parts = [StageOps() for _ in range(self.last + 1)]
        self.takers: dict[int, list[PipelineUnit]] = {}
        self.gradients = [gradient.gradient for gradient in graph.gradients]

    def read(self, stage: int) -> None:
        """Finds all that a stage runs and what it takes of others."""
        graph, part = self.graph, self.parts[stage]
        own = {op for op, unit in self.units.items() if unit[0] == stage and unit[1] != LOSS}
        forward = {op for op in own if graph.ops[op].phase == FORWARD}
        wanted = [value for op in sorted(own) for value in graph.ops[op].inputs]
        wanted += [part for part in self.gradients if self._node(part).id in own]
        if stage == self.last:
            wanted += graph.output_values()
        added = self._closure(stage, wanted, own)
        late = set(part.late)
        for op in sorted(added):
            behind = graph.ops[op].phase == BACKWARD or not late.isdisjoint(graph.ops[op].inputs)
            if behind:
                late.update(graph.ops[op].outputs)
            else:
                forward.add(op)
        part.forward = sorted(forward)
        part.backward = sorted((own | added) - forward)

    def _closure(self, stage: int, wanted: Iterable[int], own: set[int]) -> set[int]:
        """The ops that a stage runs beside its own nodes; what others make arrives."""
        graph, added = self.graph, set()
        pending, seen = list(wanted), set()
        while pending:
            value = pending.pop()
            op = self.maker.get(value)
            if value in seen or graph.values[value].kind in BASELINE_KINDS or op is None:
                continue
            seen.add(value)
            if op.id in own or op.id in added:
                continue
            unit = self.units.get(op.id)
            if unit is None:
                added.add(op.id)
                pending += op.inputs
            else:
                self._arrive(stage, value, unit)
        return added

    def _arrive(self, stage: int, value: int, maker: PipelineUnit) -> None:
        self._check_whole(value)
        ahead = maker[1] == FORWARD and maker[0] < stage
        part = self.parts[stage]
        (part.arrive if ahead else part.late).append(value)
        self.takers.setdefault(value, []).append((stage, FORWARD if ahead else BACKWARD))

    def _check_whole(self, value: int) -> None:
        """A parcel is a storage, of which one value is all."""
        graph = self.graph
        storage = graph.values[value].storage
        others = [
            other
            for other, op in self.maker.items()
            if graph.values[other].storage == storage and op.id not in self.views and other != value
        ]
        if others and self.maker[value].target == LOSS_TARGET:
            raise ModelError(
                f"{graph.model}: the loss gives gradients of several outputs in one memory, as a "
                "sum of sums does: let each have its own, as by mean() in place of sum()"
            )
        if others or graph.values[value].offset or graph.values[value].device:
            raise ModelError(
                f"{graph.model}: {self.maker[value].target} makes a tensor that is a part of "
                "another one and goes to another stage: cut it in another place"
            )

    def divided(self) -> StageAssignment:
        """The parts with the parcels between them."""
        shared = self._shared()
        self._check_gradients(shared)
        parcels = []
        for value, takers in sorted(self.takers.items()):
            maker = self.units[self.maker[value].id]
            part = self.parts[maker[0]]
            if maker[1] != LOSS:
                (part.leaves if maker[1] == FORWARD else part.backward_outputs).append(value)
            size = self.graph.storages[self.graph.values[value].storage]
            parcels.append(PipelineTransfer(value, maker, sorted(set(takers)), size))
        for part in self.parts:
            for values in (part.arrive, part.late, part.leaves, part.backward_outputs):
                values[:] = sorted(set(values))
        return StageAssignment(self.parts, parcels, shared)

    def _check_gradients(self, shared: Sequence[SharedGradient]) -> None:
        """A gradient is handed over by the stage that made it, and read by nobody else."""
        split = {value for one in shared for value in one.parts}
        for value in self.gradients:
            takers = set(self.takers.get(self._base(value), []))
            if len(takers) > (value in split):
                raise ModelError(
                    f"{self.graph.model}: the gradient of a parameter is read by another stage "
                    "than the one that makes it: cut it in another place"
                )

    def _shared(self) -> list[SharedGradient]:
        """Parameters that several ranks read, or whose gradient comes from several stages."""
        readers: dict[int, set[int]] = {}
        for stage, part in enumerate(self.parts):
            for op in (*part.forward, *part.backward):
                for value in self.graph.ops[op].inputs:
                    readers.setdefault(value, set()).add(self.rank(stage))
        found = []
        for owner, values in partial_gradients_by_owner(self.graph).items():
            stages = [self.units[self._node(value).id][0] for value in values]
            root = min(stages)
            ranks = sorted(readers.get(owner, set()) - {self.rank(root)})
            parts = []
            if len(set(stages)) > 1:
                parts = values
                for value in values:
                    self._check_whole(self._base(value))
                    self.takers.setdefault(self._base(value), []).append((root, SUM))
            if ranks or parts:
                found.append(SharedGradient(owner, root, parts, [self.rank(root), *ranks]))
        return found

    def _node(self, value: int) -> Op:
        return self.maker[self._base(value)]

    def _base(self, value: int) -> int:
        """The value that a view is one of."""
        op = self.maker[value]
        while op.id in self.views:
            storage = self.graph.values[value].storage
            value = next(v for v in op.inputs if self.graph.values[v].storage == storage)
            op = self.maker[value]
        return value

    def rank(self, stage: int) -> int:
        """The rank of a stage."""
        return self.ranks[self.stages[stage - 1].device]


def _units(blocks: Blocks, stages: Sequence[PlannedStage]) -> dict[int, PipelineUnit]:
    """The unit of each node that one stage runs."""
    found: dict[int, PipelineUnit] = {blocks.loss: (len(stages), LOSS)}
    for number, stage in enumerate(stages, start=1):
        for position in range(stage.first, min(stage.last, len(blocks.blocks)) + 1):
            block = blocks.blocks[position - 1]
            found.update((op, (number, FORWARD)) for op in block.forward)
            found.update((op, (number, BACKWARD)) for op in block.backward)
    return found
