"""What a frontier is made of, read from its files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tightfit.schemas.block_options import BlockOption, read_block_options
from tightfit.schemas.blocks import Block, Blocks, read_blocks
from tightfit.schemas.costs import Costs, read_costs
from tightfit.schemas.frontier import TIME_TOLERANCE, Frontier
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode
from tightfit.schemas.graph.training_graph import GRAPH, NO_VALUE, Graph, read_graph
from tightfit.schemas.hierarchy import read_hierarchy
from tightfit.schemas.link import HostLink, read_host_link
from tightfit.schemas.machine import read_machine
from tightfit.schemas.store import read
from tightfit.stages.combine.frontier import FrontierProblem, build_frontier
from tightfit.stages.combine.strategies.strategy import PlanningProblem, Strategy, StrategyInfo
from tightfit.stages.combine.strategies.strategy import load_strategy as strategy_of
from tightfit.stages.simulate.block import BlockSchedule, simulate_block
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.util.budget import FRONTIER_BUDGETS
from tightfit.util.errors import ArtifactError
from tightfit.util.progress import ProgressCallback
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine


def check_blocks(chain: Blocks, problem: PlanningGraph, where: str) -> None:
    """Raises ArtifactError where a block runs an op that the step lacks, or at another cost."""
    nodes = {node.op: node for node in problem.nodes}
    for part in (chain, *chain.branches):
        for block in part.blocks:
            for op, local in _block_ops(block, part.distinct[block.digest]):
                node = nodes.get(op)
                if node is None:
                    raise ArtifactError(
                        f"{where}: the blocks run ops that are none of the graph's: make them of it"
                    )
                if _node_cost(local, part.distinct[block.digest]) != _node_cost(node, problem):
                    raise ArtifactError(
                        f"{where}: op {op} takes {local.seconds:g} s and {local.peak:,} bytes in "
                        f"the blocks, and by the costs {node.seconds:g} s and {node.peak:,} bytes: "
                        "make the blocks with these costs, and their options"
                    )


def check_options(
    problems: Mapping[str, PlanningGraph], options: Mapping[str, Sequence[BlockOption]], where: str
) -> None:
    """Raises ArtifactError where an option of a block runs nodes that the block lacks, in an order
    that it cannot run in, or costs something else than it says."""
    for digest, problem in problems.items():
        for option in options.get(digest, []):
            what = f"{where}: option {option.option} of block {digest[:12]}"
            _check_option_nodes(option, problem, what)
            run = BlockSchedule(tuple(option.forward), tuple(option.backward))
            try:
                found = simulate_block(problem, run)
            except ValueError as error:
                raise ArtifactError(f"{what} cannot be run, {error}") from error
            # What is computed again later keeps the states that it draws from.
            states = 0 if option.option else problem.state_bytes * _count_random_nodes(problem)
            sizes = (found.save + states, found.forward_peak + states, found.backward_peak)
            output = sum(problem.nodes[node].form(True).seconds for node in option.output_only)
            times = (found.forward_seconds, found.backward_seconds, output)
            said = (option.save, option.forward_peak, option.backward_peak)
            taken = (option.forward_seconds, option.backward_seconds, option.output_seconds)
            if said != sizes or not all(map(_is_close, taken, times)):
                raise ArtifactError(
                    f"{what} says {_format_figures(said, taken)}, and the simulator finds "
                    f"{_format_figures(sizes, times)}"
                )


def _block_ops(block: Block, problem: PlanningGraph) -> Iterator[tuple[int, PlanningNode]]:
    """The ops of a block with their nodes, but for its own loss."""
    for op, node in zip([*block.forward, NO_VALUE, *block.backward], problem.nodes, strict=True):
        if node.phase != "loss":
            yield op, node


def _node_cost(node: PlanningNode, problem: PlanningGraph) -> tuple[float, int]:
    """The seconds of a node, and its bytes beside what it makes, of which a block may not count
    all."""
    return node.seconds, node.peak - sum(problem.storages[s].bytes for s in node.outputs)


def _check_option_nodes(option: BlockOption, problem: PlanningGraph, what: str) -> None:
    last = max([*option.forward, *option.backward], default=0)
    if last >= len(problem.nodes):
        raise ArtifactError(f"{what} runs node {last}, the block has {len(problem.nodes)}")
    made = {s for node in problem.nodes[: problem.loss] for s in node.outputs}
    if not made.issuperset(option.leaves):
        raise ArtifactError(f"{what} lets leave what the forward of the block does not make")


def _count_random_nodes(problem: PlanningGraph) -> int:
    return sum(node.random for node in problem.nodes[: problem.loss])


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TIME_TOLERANCE)


def _format_figures(sizes: Sequence[int], times: Sequence[float]) -> str:
    """Sizes and times of an option in words."""
    bytes_of = ", ".join(f"{size:,}" for size in sizes)
    return f"{bytes_of} bytes and {', '.join(f'{time:g}' for time in times)} s"


@dataclass(frozen=True)
class FrontierInputs:
    """A graph with its digest, its costs, and its training step as strategies see it."""

    graph: Graph
    digest: str
    costs: Costs
    step: PlanningProblem

    @classmethod
    def read(
        cls,
        graph: Path,
        costs: Path,
        blocks: Path,
        options: Path | None,
        hierarchy: Path | None = None,
        machine: Path | None = None,
        engine: SolverEngine = HIGHS_ENGINE,
    ) -> FrontierInputs:
        """Reads them; without options, hierarchy or machine only plans that take none can be made.
        Raises ConfigError where a machine has no link to an offload target, ArtifactError where
        blocks or options say other costs."""
        traced, paid = read_graph(graph), read_costs(costs)
        chain = read_blocks(blocks)
        found = {} if options is None else read_block_options(options)
        problem = build_planning_graph(traced, paid)
        check_blocks(chain, problem, str(blocks))
        check_options(chain.problems, found, str(options))
        clusters = None if hierarchy is None else read_hierarchy(hierarchy)
        link = None if machine is None else read_step_link(machine, traced)
        step = PlanningProblem(problem, chain, found, clusters, link, traced, engine)
        return cls(traced, read(graph, GRAPH).digest, paid, step)

    def frontier(
        self,
        strategy: Strategy,
        about: StrategyInfo,
        workers: int = 1,
        report: ProgressCallback | None = None,
        budgets: int = FRONTIER_BUDGETS,
    ) -> Frontier:
        """The frontier of a strategy that supports the step, made as `about` says, for at most so
        many `budgets`."""
        [keep_all] = strategy_of("keep_all").candidates(self.step)
        step = self.step
        link = step.link if about.links else None
        subject = FrontierProblem(
            self.graph, self.digest, self.costs, step.problem, link, step.engine
        )
        candidates = strategy.candidates(self.step)
        return build_frontier(subject, about, candidates, keep_all, workers, report, budgets)


def read_step_link(machine: Path, graph: Graph) -> HostLink:
    """The link of a machine that a step on its device takes."""
    return replace(read_host_link(read_machine(machine), machine), device=graph.device)
