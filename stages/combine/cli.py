"""`python -m stages combine`: makes a frontier, chooses from one, or plans a chain."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from schemas.errors import ConfigError
from schemas.frontier import Frontier, read_frontier, write_frontier
from schemas.graph import GRAPH, read_graph
from schemas.made import Made
from schemas.sequence import write_sequence
from schemas.store import header, read
from stages.combine.chain.cli import add_chain_arguments, needs_options, run_chain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the three uses: --chain, --frontier, or neither."""
    parser.add_argument("--graph", type=Path, help="graph.arrow of the model")
    parser.add_argument("--costs", type=Path, help="costs.arrow of the model on the device")
    parser.add_argument("--blocks", type=Path, help="blocks.arrow, to make a frontier")
    parser.add_argument("--frontier", type=Path, help="frontier.arrow, to choose a plan from it")
    parser.add_argument("--workers", type=int, default=1, help="threads that polish at a time")
    parser.add_argument("--out", type=Path, required=True, help="frontier.arrow, or a folder")
    add_chain_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Writes frontier.arrow, or sequence.arrow, schedule.arrow and plan.json into a folder."""
    if options.chain is not None:
        run_chain(options)
        return
    _require(options, "graph", "costs")
    if options.frontier is not None:
        _require(options, "budget")
        _choose(options)
    else:
        _require(options, "blocks", "options", "strategy")
        _make(options)


def made(options: argparse.Namespace) -> list[Made]:
    """What `run` made of what."""
    if options.chain is not None:
        read = [options.chain, *([options.options] if needs_options(options) else [])]
        settings = {name: getattr(options, name) for name in ("strategy", "budget", "slots")}
        return [Made(_files(options.out, "sequence.arrow", "plan.json"), read, settings)]
    read = [options.graph, options.costs]
    if options.frontier is None:
        settings = {"strategy": options.strategy}
        return [Made([options.out], [*read, options.blocks, options.options], settings)]
    names = ("sequence.arrow", "schedule.arrow", "plan.json")
    settings = {"budget": options.budget}
    return [Made(_files(options.out, *names), [*read, options.frontier], settings)]


def _files(folder: Path, *names: str) -> list[Path]:
    return [folder / name for name in names]


def _require(options: argparse.Namespace, *names: str) -> None:
    missing = [f"--{name}" for name in names if getattr(options, name) is None]
    if missing:
        raise ConfigError(f"combine needs {', '.join(missing)} here")


def _make(options: argparse.Namespace) -> None:
    from schemas.blocks import read_blocks
    from schemas.costs import read_costs
    from schemas.options import read_options
    from stages.combine.frontier import frontier
    from stages.combine.strategies.registry import strategy as strategy_of
    from stages.combine.strategies.strategy import Step
    from stages.replay.condense import condense

    strategy = strategy_of(options.strategy)
    graph, costs = read_graph(options.graph), read_costs(options.costs)
    problem = condense(graph, costs)
    step = Step(problem, read_blocks(options.blocks), read_options(options.options))
    if said := strategy.supports(step):
        raise ConfigError(f"{strategy.about.name} cannot plan {graph.model}: {said}")
    [keep_all] = strategy_of("unplanned").candidates(step)
    candidates, about = strategy.candidates(step), strategy.about
    digest = read(options.graph, GRAPH).digest
    made = frontier(graph, digest, costs, problem, about, candidates, keep_all, options.workers)
    if about.solved:
        clock = header(options.options).metadata.get("clock", "0")
        made = replace(made, clock=int(clock))
    write_frontier(options.out, made)


def _choose(options: argparse.Namespace) -> None:
    from schemas.costs import read_costs
    from schemas.plan import write_plan
    from schemas.schedule import write_schedule
    from stages.combine.choose import choose
    from stages.replay.condense import condense

    graph, costs = read_graph(options.graph), read_costs(options.costs)
    made = read_frontier(options.frontier)
    digest = _same_graph(options, made)
    plan, point, steps = choose(graph, costs, condense(graph, costs), made, options.budget)
    write_sequence(options.out / "sequence.arrow", [] if point is None else point.sequence)
    write_schedule(options.out / "schedule.arrow", steps, digest)
    write_plan(options.out / "plan.json", plan)


def _same_graph(options: argparse.Namespace, made: Frontier) -> str:
    digest = read(options.graph, GRAPH).digest
    if made.graph != digest:
        raise ConfigError(f"{options.frontier}: was made for another graph than {options.graph}")
    return digest
