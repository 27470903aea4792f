"""The planning view of a training step: nodes that run, storages that take memory.

A node is an op that makes storages or writes buffers, together with the views of what it makes. A
node is named by its position in the list, which is the order PyTorch runs them in. A whole graph
and one of its blocks are both problems.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

from tightfit.schemas.arrow_fields import (
    boolean_field,
    integer_field,
    integer_list_field,
    number_field,
    record_list_field,
    text_field,
)
from tightfit.schemas.graph.training_graph import Phase


@dataclass(frozen=True)
class InPlaceVariant:
    """An in-place form of a node: it overwrites `storage` with the node's first output."""

    storage: int
    seconds: float
    peak: int


@dataclass(frozen=True)
class RecomputeVariant:
    """How a node runs again where that differs from its first run: the storages it then reads and
    makes, and its costs. The repeat overwrites nothing."""

    inputs: list[int]
    outputs: list[int]
    seconds: float
    peak: int

    @property
    def reuses(self) -> list[InPlaceVariant]:
        """No in-place forms."""
        return []

    @property
    def least_seconds(self) -> float:
        """The seconds that it takes."""
        return self.seconds


@dataclass(frozen=True)
class PlanningNode:
    """One op with its costs. `inputs` and `outputs` are storages that the step itself allocates;
    `peak` is bytes above what is live before it, outputs included. `op` is the op's id in the
    graph. A random node that runs again restores the state saved before its first run. A node
    that is not repeatable runs exactly once. `repeat` is None where it runs again as it did
    first."""

    op: int
    phase: Phase
    seconds: float
    peak: int
    inputs: list[int]
    outputs: list[int]
    reuses: list[InPlaceVariant]
    random: bool
    repeatable: bool
    repeat: RecomputeVariant | None = None

    def form(self, repeated: bool) -> PlanningNode | RecomputeVariant:
        """What a run reads, makes, costs and may overwrite."""
        return self if self.repeat is None or not repeated else self.repeat

    @property
    def least_seconds(self) -> float:
        """The seconds that a first run takes at least, in place or not."""
        return min([self.seconds, *(reuse.seconds for reuse in self.reuses)])

    @property
    def least_peak(self) -> int:
        """The bytes above what is live before it that a first run needs at least."""
        return min([self.peak, *(reuse.peak for reuse in self.reuses)])

    @property
    def lasting(self) -> list[int]:
        """The outputs of the first run that no further run makes."""
        return [storage for storage in self.outputs if storage not in self.form(True).outputs]


@dataclass(frozen=True)
class RecomputeAlternative:
    """Another form of further runs of the node at a position, which a plan may take in place of
    the node's own: the op of the graph that it is, and what it reads, makes and costs. It makes no
    more than the node, whose own further runs make all that its first one makes."""

    node: int
    op: int
    form: RecomputeVariant


@dataclass(frozen=True)
class PlanningStorage:
    """Bytes made by the node `producer` (-1: given from outside, for a block).

    `held` storages stay to the end of the step once made, because the caller holds them: outputs,
    and tangents where no loss is traced. A `gradient` stays to the end too, or is freed as soon
    as it is handed over when `.grad` is already there.
    """

    bytes: int
    producer: int
    held: bool
    gradient: bool

    @property
    def stays(self) -> bool:
        """Whether no use is its last one."""
        return self.held or self.gradient


@dataclass(frozen=True)
class PlanningGraph:
    """Nodes in graph order, exactly one of phase "loss" in a whole step; storages by index.

    `state_bytes` is the size of one saved random state. `alternatives` are forms beside those of
    the nodes. In a sequence of runs the position of the k-th of them is k behind the last node's.
    """

    nodes: list[PlanningNode]
    storages: list[PlanningStorage]
    state_bytes: int
    alternatives: list[RecomputeAlternative] = field(default_factory=list)

    @property
    def plain(self) -> PlanningGraph:
        """The problem without alternatives."""
        return replace(self, alternatives=[]) if self.alternatives else self

    @property
    def positions(self) -> range:
        """The positions of nodes and, behind them, of alternatives."""
        return range(len(self.nodes) + len(self.alternatives))

    def is_alternative(self, position: int) -> bool:
        """Whether a position is one of an alternative."""
        return position >= len(self.nodes)

    def node_at(self, position: int) -> int:
        """The position of the node that runs where a sequence has a position."""
        beyond = position - len(self.nodes)
        return position if beyond < 0 else self.alternatives[beyond].node

    def op_at(self, position: int) -> int:
        """The id of the op that runs there."""
        beyond = position - len(self.nodes)
        return self.nodes[position].op if beyond < 0 else self.alternatives[beyond].op

    def variant_at(self, position: int, repeated: bool) -> PlanningNode | RecomputeVariant:
        """What a run there reads, makes, costs and may overwrite."""
        beyond = position - len(self.nodes)
        if beyond >= 0:
            return self.alternatives[beyond].form
        return self.nodes[position].form(repeated)

    @cached_property
    def loss(self) -> int:
        """The position of the loss."""
        return next(index for index, node in enumerate(self.nodes) if node.phase == "loss")

    @cached_property
    def staying(self) -> frozenset[int]:
        """The storages that stay."""
        return frozenset(index for index, storage in enumerate(self.storages) if storage.stays)

    @cached_property
    def sizes(self) -> list[int]:
        """The bytes of each storage."""
        return [storage.bytes for storage in self.storages]

    @cached_property
    def again(self) -> list[list[int]]:
        """For each storage the positions of what makes it again."""
        found: list[list[int]] = [[] for _ in self.storages]
        for position in self.positions:
            if self.is_alternative(position) or self.can_recompute(self.nodes[position]):
                for storage in self.variant_at(position, True).outputs:
                    found[storage].append(position)
        return found

    @cached_property
    def readers(self) -> list[list[int]]:
        """For each storage the positions of the nodes that read it in their first run."""
        found: list[list[int]] = [[] for _ in self.storages]
        for position, node in enumerate(self.nodes):
            for storage in node.inputs:
                found[storage].append(position)
        return found

    def can_recompute(self, node: PlanningNode) -> bool:
        """Whether a node can run again: nothing of what it then makes has to stay."""
        return node.repeatable and self.staying.isdisjoint(node.form(True).outputs)

    def with_recompute_nodes(self, nodes: list[PlanningNode]) -> PlanningGraph:
        """The problem with other nodes, of which the first runs read and make the same."""
        other = replace(self, nodes=nodes)
        # What hangs on first runs alone is not found out again.
        vars(other).update(
            loss=self.loss, staying=self.staying, readers=self.readers, sizes=self.sizes
        )
        return other

    def is_local_to(self, storage: int, part: Collection[int]) -> bool:
        """Whether a part of the nodes makes a storage and nothing else needs it."""
        found = self.storages[storage]
        readers = self.readers[storage]
        return not found.stays and found.producer in part and all(r in part for r in readers)

    def ancestors(self, storages: Iterable[int], among: Collection[int] | None = None) -> set[int]:
        """The positions of the nodes that storages are made of, directly or not; only of those
        `among` some, where given."""
        found: set[int] = set()
        pending = list(storages)
        while pending:
            maker = self.storages[pending.pop()].producer
            if maker >= 0 and maker not in found and (among is None or maker in among):
                found.add(maker)
                pending += self.nodes[maker].inputs
        return found


PLANNING_GRAPH_FIELDS = (
    record_list_field(
        "nodes",
        integer_field("op"),
        text_field("phase"),
        number_field("seconds"),
        integer_field("peak"),
        integer_list_field("inputs"),
        integer_list_field("outputs"),
        record_list_field(
            "reuses", integer_field("storage"), number_field("seconds"), integer_field("peak")
        ),
        boolean_field("random"),
        boolean_field("repeatable"),
        record_list_field(
            "repeat",
            integer_list_field("inputs"),
            integer_list_field("outputs"),
            number_field("seconds"),
            integer_field("peak"),
        ),
    ),
    record_list_field(
        "storages",
        integer_field("bytes"),
        integer_field("producer"),
        boolean_field("held"),
        boolean_field("gradient"),
    ),
    integer_field("state_bytes"),
)
"""Arrow fields of a problem, for artifacts that hold one; `repeat` is a list of at most one."""
