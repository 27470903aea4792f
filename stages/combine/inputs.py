"""What a frontier is made of, read from its files."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tightfit.schemas.blocks import read_blocks
from tightfit.schemas.costs import Costs, read_costs
from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.frontier import BUDGETS, Frontier
from tightfit.schemas.graph import GRAPH, Graph, read_graph
from tightfit.schemas.hierarchy import read_hierarchy
from tightfit.schemas.link import HostLink, host_link
from tightfit.schemas.machine import read_machine
from tightfit.schemas.options import read_options
from tightfit.schemas.store import read
from tightfit.schemas.telling import Report
from tightfit.stages.combine.frontier import Subject, frontier
from tightfit.stages.combine.given import check_blocks, check_options
from tightfit.stages.combine.strategies.registry import strategy as strategy_of
from tightfit.stages.combine.strategies.strategy import About, Strategy, TrainingStep
from tightfit.stages.replay.condense import condense


@dataclass(frozen=True)
class Inputs:
    """A graph with its digest, its costs, and its training step as strategies see it."""

    graph: Graph
    digest: str
    costs: Costs
    step: TrainingStep

    @classmethod
    def read(
        cls,
        graph: Path,
        costs: Path,
        blocks: Path,
        options: Path | None,
        hierarchy: Path | None = None,
        machine: Path | None = None,
        engine: Engine = HIGHS,
    ) -> Inputs:
        """Reads them; without options, hierarchy or machine only plans that take none can be made.
        Raises ConfigError where a machine has no link to another memory, ArtifactError where blocks
        or options say other costs."""
        traced, paid = read_graph(graph), read_costs(costs)
        chain = read_blocks(blocks)
        found = {} if options is None else read_options(options)
        problem = condense(traced, paid)
        check_blocks(chain, problem, str(blocks))
        check_options(chain.problems, found, str(options))
        clusters = None if hierarchy is None else read_hierarchy(hierarchy)
        link = None if machine is None else link_of_step(machine, traced)
        step = TrainingStep(problem, chain, found, clusters, link, traced, engine)
        return cls(traced, read(graph, GRAPH).digest, paid, step)

    def frontier(
        self,
        strategy: Strategy,
        about: About,
        workers: int = 1,
        report: Report | None = None,
        budgets: int = BUDGETS,
    ) -> Frontier:
        """The frontier of a strategy that supports the step, made as `about` says, for at most so
        many `budgets`."""
        [keep_all] = strategy_of("unplanned").candidates(self.step)
        step = self.step
        link = step.link if about.links else None
        subject = Subject(self.graph, self.digest, self.costs, step.problem, link, step.engine)
        candidates = strategy.candidates(self.step)
        return frontier(subject, about, candidates, keep_all, workers, report, budgets)


def link_of_step(machine: Path, graph: Graph) -> HostLink:
    """The link of a machine that a step on its device takes."""
    return replace(host_link(read_machine(machine), machine), device=graph.device)
