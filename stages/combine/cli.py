"""`combine`: makes the frontier of a strategy."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from schemas.errors import ConfigError
from schemas.made import Made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--costs", type=Path, required=True, help="costs.arrow on the device")
    parser.add_argument("--blocks", type=Path, required=True, help="blocks.arrow of the model")
    parser.add_argument("--options", type=Path, required=True, help="options.arrow of the blocks")
    parser.add_argument("--strategy", required=True, help="how to plan, by name")
    parser.add_argument("--workers", type=int, default=1, help="threads that polish at a time")
    parser.add_argument("--out", type=Path, required=True, help="the frontier to write")


def run(options: argparse.Namespace) -> None:
    """Writes the frontier. Raises ConfigError where the strategy cannot plan the model."""
    from schemas.blocks import read_blocks
    from schemas.costs import read_costs
    from schemas.frontier import write_frontier
    from schemas.graph import GRAPH, read_graph
    from schemas.options import read_options
    from schemas.store import header, read
    from stages.combine.frontier import frontier
    from stages.combine.strategies.registry import strategy as strategy_of
    from stages.combine.strategies.strategy import TrainingStep
    from stages.replay.condense import condense

    strategy = strategy_of(options.strategy)
    graph, costs = read_graph(options.graph), read_costs(options.costs)
    problem = condense(graph, costs)
    step = TrainingStep(problem, read_blocks(options.blocks), read_options(options.options))
    if said := strategy.supports(step):
        raise ConfigError(f"{strategy.about.name} cannot plan {graph.model}: {said}")
    [keep_all] = strategy_of("unplanned").candidates(step)
    candidates, about = strategy.candidates(step), strategy.about
    digest = read(options.graph, GRAPH).digest
    made = frontier(graph, digest, costs, problem, about, candidates, keep_all, options.workers)
    if about.solved:
        made = replace(made, clock=int(header(options.options).metadata.get("clock", "0")))
    write_frontier(options.out, made)


def made(options: argparse.Namespace) -> list[Made]:
    """What `run` made of what."""
    read = [options.graph, options.costs, options.blocks, options.options]
    return [Made([options.out], read, {"strategy": options.strategy})]
