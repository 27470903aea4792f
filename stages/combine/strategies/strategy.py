"""What a strategy is: one file that makes plans of a training step, and a line in
`tightfit/util/strategies.py`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from tightfit.schemas.actions import Action, OpAction
from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.hierarchy import Hierarchy
from tightfit.schemas.link import HostLink
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.chain.frontier import ChainPlans
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.util.command_line import find_registered
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine
from tightfit.util.strategies import (
    BUDGET_SLOTS,
    STRATEGIES,
    StrategyInfo,
    load_strategy_module,
)


@dataclass(frozen=True)
class PlanningProblem:
    """A training step as strategies see it: the condensed graph, its blocks, the options of each
    distinct block by digest, and its hierarchy of clusters. Where plans may take a link to another
    memory, the link and the graph itself, for the values that may take it. The `engine` solves the
    integer programs that a strategy writes of the whole step, and dynamic programs cut the memory
    into so many `slots`."""

    problem: PlanningGraph
    blocks: Blocks
    options: Mapping[str, list[BlockOption]]
    hierarchy: Hierarchy | None = None
    link: HostLink | None = None
    graph: Graph | None = None
    engine: SolverEngine = HIGHS_ENGINE
    slots: int = BUDGET_SLOTS


@dataclass(frozen=True)
class Candidate:
    """A plan of a strategy: what it does in order (`actions`), what that is in positions of its
    chain (`sequence`), and how it was found (`origin`).

    An `optimal` one is so in the class that the strategy is optimal in, for every budget that is
    too small for the next faster candidate. Opening a plan adds what follows from the rest: views,
    frees, random states and gradients. Where `ceiling` is given, bytes within which it was made,
    ops may run in place as `stages.simulate.liveness` says of one.
    """

    actions: list[Action]
    sequence: list[ChainOperation]
    origin: str
    optimal: bool = False
    ceiling: int = 0

    @property
    def executions(self) -> list[int]:
        """The ops that it runs, as ids of the graph."""
        return [action.op for action in self.actions if isinstance(action, OpAction)]


class Strategy(Protocol):
    """A way to plan a training step."""

    @property
    def about(self) -> StrategyInfo:
        """What is known of it."""

    def supports(self, step: PlanningProblem) -> str:
        """ "" where it can plan a step, else why it cannot, as a clause for the user."""

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        """The strategy's plans of a step, at least one."""


class ChainStrategy(Strategy, Protocol):
    """A way to plan that takes chains from files, too: one at a time if it plans `chains`, the
    branches of a join if it `plans_joins`."""

    def plans_of_chain(self, ways: ChainProblem, slots: int) -> ChainPlans:
        """The plans of a chain, by a table of so many slots where there is one."""


def load_strategy(name: str) -> Strategy:
    """The strategy of that name; raises ConfigError when there is none."""
    about = find_registered("strategy", name, STRATEGIES)
    return cast(Strategy, load_strategy_module(about, __package__ or ""))


def load_chain_strategy(name: str) -> ChainStrategy:
    """The strategy of that name, which plans chains from files; raises ConfigError when it does
    not."""
    known = [name for name, about in STRATEGIES.items() if about.chains or about.plans_joins]
    if name not in known:
        raise ConfigError(f"--strategy {name}: a chain is planned by {' or '.join(known)}")
    return cast(ChainStrategy, load_strategy(name))
