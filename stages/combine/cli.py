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
    from schemas.frontier import write_frontier
    from schemas.store import header
    from stages.combine.inputs import Inputs
    from stages.combine.strategies.registry import strategy as strategy_of

    strategy = strategy_of(options.strategy)
    about = strategy.about
    given = Inputs.read(options.graph, options.costs, options.blocks, options.options)
    if said := strategy.supports(given.step):
        raise ConfigError(f"{about.name} cannot plan {given.graph.model}: {said}")
    found = given.frontier(strategy, about, options.workers)
    if about.solved:
        found = replace(found, clock=int(header(options.options).metadata.get("clock", "0")))
    write_frontier(options.out, found)


def made(options: argparse.Namespace) -> list[Made]:
    """What `run` made of what."""
    read = [options.graph, options.costs, options.blocks, options.options]
    return [Made([options.out], read, {"strategy": options.strategy})]
