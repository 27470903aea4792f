"""`combine`: makes the frontier of a strategy."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from schemas.derived import Derived
from schemas.digits import count
from schemas.engines import ENGINES, HIGHS
from schemas.errors import ConfigError
from schemas.machine import machine_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--costs", type=Path, required=True, help="costs.arrow on the device")
    parser.add_argument("--blocks", type=Path, required=True, help="blocks.arrow of the model")
    parser.add_argument("--options", type=Path, required=True, help="options.arrow of the blocks")
    parser.add_argument(
        "--hierarchy", type=Path, help="hierarchy.arrow of the model, for strategies that take it"
    )
    parser.add_argument(
        "--machine", type=machine_path, help="description with a link, for strategies that take one"
    )
    parser.add_argument("--strategy", required=True, help="how to plan, by name")
    parser.add_argument("--workers", type=count, default=1, help="threads that polish at a time")
    parser.add_argument(
        "--given", action="store_true", help="only the strategy's own plans, without polish"
    )
    parser.add_argument(
        "--engine",
        choices=ENGINES,
        default=HIGHS,
        help="what solves the integer programs of the step and of its bound",
    )
    parser.add_argument("--out", type=Path, required=True, help="the frontier to write")


def run(options: argparse.Namespace) -> None:
    """Writes the frontier. Raises ConfigError where the strategy cannot plan the model."""
    from schemas.compiled import tell_compiling
    from schemas.frontier import write_frontier
    from schemas.options import clock_of
    from schemas.telling import Printing
    from stages.combine.inputs import Inputs
    from stages.combine.polish.anneal import cool
    from stages.combine.strategies.registry import strategy as strategy_of

    strategy = strategy_of(options.strategy)
    about = replace(strategy.about, baseline=strategy.about.baseline or options.given)
    files = (options.graph, options.costs, options.blocks, options.options, options.hierarchy)
    if about.links and options.machine is None:
        raise ConfigError(
            f"{about.name} sends what waits to another memory: name a machine with a link to one "
            "(`tightfit machine` measures that of this one)"
        )
    machine = options.machine if about.links else None
    given = Inputs.read(*files, machine, options.engine)
    if about.sends and given.step.link is not None:
        _check_speed(options.options, given.step.link.speed)
    if said := strategy.supports(given.step):
        raise ConfigError(f"{about.name} cannot plan {given.graph.model}: {said}")
    if not about.baseline:
        tell_compiling(cool)
    telling = Printing(f"{given.graph.model}: {about.name}", "budgets")
    found = given.frontier(strategy, about, options.workers, telling)
    if about.solved:
        found = replace(found, clock=clock_of(options.options))
    write_frontier(options.out, found)


def _check_speed(path: Path, speed: str) -> None:
    """Raises ConfigError where options were made for another link, or for none."""
    from schemas.options import speed_of

    if speed_of(path) != speed:
        made = f"a link of {speed_of(path)}" if speed_of(path) else "no link"
        raise ConfigError(
            f"{path}: was made for {made}, and the machine's is one of {speed}: make them with "
            "`solve --machine`"
        )


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    read = [options.graph, options.costs, options.blocks, options.options]
    read += [path for path in (options.hierarchy, options.machine) if path is not None]
    settings = {"strategy": options.strategy, "engine": options.engine}
    settings |= {"given": True} if options.given else {}
    return [Derived([options.out], read, settings)]
