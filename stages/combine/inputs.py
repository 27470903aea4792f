"""What a frontier is made of, read from its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.blocks import read_blocks
from schemas.costs import Costs, read_costs
from schemas.frontier import Frontier
from schemas.graph import GRAPH, Graph, read_graph
from schemas.options import read_options
from schemas.store import read
from stages.combine.frontier import frontier
from stages.combine.polish.polisher import Report
from stages.combine.strategies.registry import strategy as strategy_of
from stages.combine.strategies.strategy import About, Strategy, TrainingStep
from stages.replay.condense import condense


@dataclass(frozen=True)
class Inputs:
    """A graph with its digest, its costs, and its training step as strategies see it."""

    graph: Graph
    digest: str
    costs: Costs
    step: TrainingStep

    @classmethod
    def read(cls, graph: Path, costs: Path, blocks: Path, options: Path | None) -> Inputs:
        """Reads them; without options only plans that take none can be made."""
        traced, paid = read_graph(graph), read_costs(costs)
        found = {} if options is None else read_options(options)
        step = TrainingStep(condense(traced, paid), read_blocks(blocks), found)
        return cls(traced, read(graph, GRAPH).digest, paid, step)

    def frontier(
        self,
        strategy: Strategy,
        about: About,
        workers: int = 1,
        report: Report | None = None,
    ) -> Frontier:
        """The frontier of a strategy that supports the step, made as `about` says."""
        [keep_all] = strategy_of("unplanned").candidates(self.step)
        return frontier(
            self.graph,
            self.digest,
            self.costs,
            self.step.problem,
            about,
            strategy.candidates(self.step),
            keep_all,
            workers,
            report,
        )
