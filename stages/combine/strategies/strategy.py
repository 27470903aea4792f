"""What a strategy is: one file that makes plans of a training step, and a line in
`schemas/strategies.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tightfit.schemas.actions import Action, Run
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.graph import Graph
from tightfit.schemas.hierarchy import Hierarchy
from tightfit.schemas.link import HostLink
from tightfit.schemas.options import Option
from tightfit.schemas.problem import Problem
from tightfit.schemas.sequence import Operation
from tightfit.schemas.strategies import About
from tightfit.stages.combine.chain.frontier import ChainPlans
from tightfit.stages.combine.chain.ways import Ways


@dataclass(frozen=True)
class TrainingStep:
    """A training step as strategies see it: the condensed graph, its blocks, the options of each
    distinct block by digest, and its hierarchy of clusters. Where plans may take a link to another
    memory, the link and the graph itself, for the values that may take it. The `engine` solves the
    integer programs that a strategy writes of the whole step."""

    problem: Problem
    blocks: Blocks
    options: Mapping[str, list[Option]]
    hierarchy: Hierarchy | None = None
    link: HostLink | None = None
    graph: Graph | None = None
    engine: Engine = HIGHS


@dataclass(frozen=True)
class Candidate:
    """A plan of a strategy: what it does in order (`actions`), what that is in positions of its
    chain (`sequence`), and how it was found (`origin`).

    An `optimal` one is so in the class that the strategy is optimal in, for every budget that is
    too small for the next faster candidate. Opening a plan adds what follows from the rest: views,
    frees, random states and gradients. Where `ceiling` is given, bytes within which it was made,
    ops may run in place as `stages.replay.line` says of one.
    """

    actions: list[Action]
    sequence: list[Operation]
    origin: str
    optimal: bool = False
    ceiling: int = 0

    @property
    def executions(self) -> list[int]:
        """The ops that it runs, as ids of the graph."""
        return [action.op for action in self.actions if isinstance(action, Run)]


class Strategy(Protocol):
    """A way to plan a training step."""

    @property
    def about(self) -> About:
        """What is known of it."""

    def supports(self, step: TrainingStep) -> str:
        """ "" where it can plan a step, else why it cannot, as a clause for the user."""

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """The strategy's plans of a step, at least one."""


class ChainStrategy(Strategy, Protocol):
    """A way to plan that takes chains from files, too."""

    def plans_of_chain(self, ways: Ways, slots: int) -> ChainPlans:
        """The plans of a chain, by a table of so many slots where there is one."""
