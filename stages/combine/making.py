"""Makes the frontier of a strategy from files: what `combine` writes, and `choose` goes on to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from tightfit.schemas.engines import HIGHS, Engine
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.frontier import BUDGETS, Frontier


@dataclass(frozen=True)
class Makings:
    """What a frontier is made of: graph, costs, blocks with their options, and a hierarchy or the
    description of a machine for strategies that take one. The `engine` solves the integer programs
    of the step."""

    graph: Path
    costs: Path
    blocks: Path
    options: Path
    hierarchy: Path | None = None
    machine: Path | None = None
    engine: Engine = HIGHS

    def check(self) -> None:
        """Raises ArtifactError or ConfigError where one of them cannot be read."""
        from tightfit.schemas.blocks import read_blocks
        from tightfit.schemas.hierarchy import read_hierarchy
        from tightfit.schemas.machine import read_machine
        from tightfit.schemas.options import read_options

        read_blocks(self.blocks)
        read_options(self.options)
        if self.hierarchy is not None:
            read_hierarchy(self.hierarchy)
        if self.machine is not None:
            read_machine(self.machine)

    def frontier(
        self, name: str, given: bool = False, workers: int = 1, budgets: int = BUDGETS
    ) -> Frontier:
        """The frontier of a strategy by name, of its own plans alone where these are asked for as
        `given`, else for at most so many `budgets`. Raises ConfigError where the strategy cannot
        plan the model, or takes a link and there is none, or another one than its options were made
        for."""
        from tightfit.schemas.compiled import tell_compiling
        from tightfit.schemas.options import clock_of
        from tightfit.schemas.telling import Printing
        from tightfit.stages.combine.inputs import Inputs
        from tightfit.stages.combine.polish.anneal import cool
        from tightfit.stages.combine.strategies.registry import strategy as strategy_of

        strategy = strategy_of(name)
        about = replace(strategy.about, baseline=strategy.about.baseline or given)
        if about.links and self.machine is None:
            raise ConfigError(
                f"{name} sends what waits to another memory: name a machine with a link to one "
                "(`tightfit machine` measures that of this one)"
            )
        files = (self.graph, self.costs, self.blocks, self.options, self.hierarchy)
        read = Inputs.read(*files, self.machine if about.links else None, self.engine)
        if about.sends and read.step.link is not None:
            _check_speed(self.options, read.step.link.speed)
        if said := strategy.supports(read.step):
            raise ConfigError(f"{name} cannot plan {read.graph.model}: {said}")
        if not about.baseline:
            tell_compiling(cool)
        report = Printing(f"{read.graph.model}: {name}", "budgets")
        found = read.frontier(strategy, about, workers, report, budgets)
        return replace(found, clock=clock_of(self.options)) if about.solved else found


def _check_speed(path: Path, speed: str) -> None:
    """Raises ConfigError where options were made for another link, or for none."""
    from tightfit.schemas.options import speed_of

    if speed_of(path) != speed:
        made = f"a link of {speed_of(path)}" if speed_of(path) else "no link"
        raise ConfigError(
            f"{path}: was made for {made}, and the machine's is one of {speed}: make them with "
            "`solve --machine`"
        )
