"""The planning view of a training step: nodes that run, storages that take memory.

A node is an op that makes storages or writes buffers, together with the views of what it makes.
It is named by its position in the list, which is the order PyTorch runs them in. A whole graph
and one of its blocks are both problems.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from schemas.arrow import flag, integer, integers, number, records, text
from schemas.graph import Phase


@dataclass(frozen=True)
class Reuse:
    """An in-place form of a node: it overwrites `storage` with the node's first output."""

    storage: int
    seconds: float
    peak: int


@dataclass(frozen=True)
class Repeat:
    """How a node runs again where that differs from its first run: the storages it then reads and
    makes, and its costs."""

    inputs: list[int]
    outputs: list[int]
    seconds: float
    peak: int


@dataclass(frozen=True)
class Node:
    """One op with its costs. `inputs` and `outputs` are storages that the step itself allocates;
    `peak` is bytes above what is live before it, outputs included. `op` is the op's id in the
    graph. A random node that runs again restores the state saved before its first run. A node
    that is not repeatable runs exactly once. `repeat` is None where it runs again as it did first;
    in the artifacts of blocks it always does."""

    op: int
    phase: Phase
    seconds: float
    peak: int
    inputs: list[int]
    outputs: list[int]
    reuses: list[Reuse]
    random: bool
    repeatable: bool
    repeat: Repeat | None = None

    def reads(self, repeated: bool) -> list[int]:
        """The storages that a run reads."""
        return self.inputs if self.repeat is None or not repeated else self.repeat.inputs

    def makes(self, repeated: bool) -> list[int]:
        """The storages that a run makes."""
        return self.outputs if self.repeat is None or not repeated else self.repeat.outputs


@dataclass(frozen=True)
class Storage:
    """Bytes made by the node `producer` (-1: given from outside, for a block).

    `held` storages stay to the end of the step once made, because the caller holds them: outputs,
    and tangents where no loss is traced. A `gradient` stays to the end too, or is freed as soon
    as it is handed over when `.grad` is already there.
    """

    bytes: int
    producer: int
    held: bool
    gradient: bool


@dataclass(frozen=True)
class Problem:
    """Nodes in graph order, exactly one of phase "loss" in a whole step; storages by index.

    `state_bytes` is the size of one saved random state.
    """

    nodes: list[Node]
    storages: list[Storage]
    state_bytes: int

    @cached_property
    def loss(self) -> int:
        """The position of the loss."""
        return next(index for index, node in enumerate(self.nodes) if node.phase == "loss")


PROBLEM_FIELDS = (
    records(
        "nodes",
        integer("op"),
        text("phase"),
        number("seconds"),
        integer("peak"),
        integers("inputs"),
        integers("outputs"),
        records("reuses", integer("storage"), number("seconds"), integer("peak")),
        flag("random"),
        flag("repeatable"),
    ),
    records("storages", integer("bytes"), integer("producer"), flag("held"), flag("gradient")),
    integer("state_bytes"),
)
"""Arrow fields of a problem, for artifacts that hold one."""
