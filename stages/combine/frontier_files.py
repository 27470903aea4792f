"""Makes the frontier of a strategy from files: what `combine` writes, and `select` goes on to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tightfit.schemas.frontier import Frontier
from tightfit.util.budget import FRONTIER_BUDGETS
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine
from tightfit.util.strategies import BUDGET_SLOTS


@dataclass(frozen=True)
class FrontierFiles:
    """What a frontier is made of: graph, costs, blocks with their options, and a hierarchy or the
    description of a machine for strategies that take one. The `engine` solves the integer programs
    of the step, and dynamic programs cut the memory into so many `slots`."""

    graph: Path
    costs: Path
    blocks: Path
    options: Path
    hierarchy: Path | None = None
    machine: Path | None = None
    engine: SolverEngine = HIGHS_ENGINE
    slots: int = BUDGET_SLOTS

    def check(self) -> None:
        """Raises ArtifactError or ConfigError where one of them cannot be read."""
        from tightfit.schemas.block_options import read_block_options
        from tightfit.schemas.blocks import read_blocks
        from tightfit.schemas.hierarchy import read_hierarchy
        from tightfit.schemas.machine import read_machine

        read_blocks(self.blocks)
        read_block_options(self.options)
        if self.hierarchy is not None:
            read_hierarchy(self.hierarchy)
        if self.machine is not None:
            read_machine(self.machine)

    def frontier(
        self,
        name: str,
        progress: StageProgress,
        given: bool = False,
        workers: int = 1,
        budgets: int = FRONTIER_BUDGETS,
    ) -> Frontier:
        """The frontier of a strategy by name, of its own plans alone where these are asked for as
        `given`, else for at most so many `budgets`. Raises ConfigError where the strategy cannot
        plan the model, or takes a link and there is none, or another one than its options were made
        for."""
        from tightfit.schemas.block_options import clock_limited_solves
        from tightfit.stages.combine.frontier_inputs import FrontierInputs
        from tightfit.stages.combine.local_search.precompile import compile_search
        from tightfit.stages.combine.strategies.strategy import load_strategy as strategy_of

        strategy = strategy_of(name)
        about = replace(strategy.about, baseline=strategy.about.baseline or given)
        if about.links and self.machine is None:
            raise ConfigError(
                f"{name} sends what waits to an offload target: name a machine with a link to one "
                "(`tightfit machine` measures that of this one)"
            )
        files = (self.graph, self.costs, self.blocks, self.options, self.hierarchy)
        machine = self.machine if about.links else None
        read = FrontierInputs.read(*files, machine, self.engine)
        read = replace(read, step=replace(read.step, slots=self.slots))
        about = replace(about, optimal_in=about.optimal_class(self.slots))
        if about.uses_link_options and read.step.link is not None:
            _check_link_speed(self.options, read.step.link.speed)
        if said := strategy.supports(read.step):
            raise ConfigError(f"{name} cannot plan {read.graph.model}: {said}")
        if not about.baseline:
            compile_search(progress.note, transfers=about.links)
        progress.begin(f"{read.graph.model}: {name}", "budgets")
        found = read.frontier(strategy, about, workers, progress.report, budgets)
        return (
            replace(found, timed_out_solves=clock_limited_solves(self.options))
            if about.uses_solved_options
            else found
        )


def _check_link_speed(path: Path, speed: str) -> None:
    """Raises ConfigError where options were made for another link, or for none."""
    from tightfit.schemas.block_options import options_link_speed

    if options_link_speed(path) != speed:
        made = f"a link of {options_link_speed(path)}" if options_link_speed(path) else "no link"
        raise ConfigError(
            f"{path}: was made for {made}, and the machine's is one of {speed}: make them with "
            "`solve --machine`"
        )
