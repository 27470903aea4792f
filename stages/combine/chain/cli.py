"""`chain`: plans a chain that comes as a file, without a model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from schemas.errors import ConfigError
from schemas.made import Made

if TYPE_CHECKING:
    from schemas.budget import Budget
    from schemas.chain import Chain
    from schemas.plan import Fixed, Plan
    from stages.combine.chain.frontier import ChainFrontier, ChainPlan

EXACT = "persistent sequences of the chain"
ROUNDING = 1e-9
"""Relative difference of two sums of the same times in another order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--chain", type=Path, required=True, help="the chain to plan")
    parser.add_argument("--options", type=Path, help="options.arrow of its blocks")
    parser.add_argument("--strategy", required=True, help="how to plan, by name")
    parser.add_argument(
        "--budget", required=True, help="the memory to stay within, such as 8GiB, 145MB or 50%%"
    )
    parser.add_argument("--slots", type=int, default=500, help="memory slots of the program")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")


def run(options: argparse.Namespace) -> None:
    """Writes sequence.arrow and plan.json of a chain into the folder `options.out`.

    A budget too small gives the verdict "infeasible" and an empty sequence. Raises ConfigError or
    ArtifactError when an option or a file is not what it should be.
    """
    from schemas import store
    from schemas.budget import parse_budget
    from schemas.chain import CHAIN, read_chain
    from schemas.options import read_options
    from schemas.plan import write_plan
    from schemas.sequence import write_sequence
    from stages.combine.chain.frontier import ChainFrontier
    from stages.combine.chain.links import links_of_chain

    solved = _needs_options(options)
    chain = read_chain(options.chain)
    blocks = read_options(options.options) if solved else None
    frontier = ChainFrontier(links_of_chain(chain, blocks), options.slots)
    plan, chosen = plan_chain(chain, frontier, options.strategy, parse_budget(options.budget))
    digest = store.read(options.chain, CHAIN).digest
    write_sequence(options.out / "sequence.arrow", chosen.sequence if chosen else [], digest)
    write_plan(options.out / "plan.json", plan)


def made(options: argparse.Namespace) -> list[Made]:
    """What `run` made of what."""
    read = [options.chain, *([options.options] if _needs_options(options) else [])]
    settings = {name: getattr(options, name) for name in ("strategy", "budget", "slots")}
    return [Made([options.out / "sequence.arrow", options.out / "plan.json"], read, settings)]


def plan_chain(
    chain: Chain, frontier: ChainFrontier, strategy: str, budget: Budget
) -> tuple[Plan, ChainPlan | None]:
    """The plan of a chain for a budget, with its sequence; None where the budget is too small.

    The budget counts all that the chain counts, its input included. The lower bound is that of
    persistent sequences.
    """
    from schemas.plan import Cost, Plan, gap_of

    fixed = fixed_bytes(chain)
    keep_all = frontier.keep_all
    size = budget.total(fixed.inputs + fixed.gradients + fixed.outputs, keep_all.peak)
    solver = f"dynamic program, {frontier.slots} slots"
    kept = Cost(keep_all.seconds, keep_all.peak)
    chosen = frontier.within(size)
    if chosen is None:
        sentence = (
            f"No persistent sequence fits {size} bytes; "
            f"the smallest budget that works is {frontier.smallest_budget} bytes."
        )
        refusal = Plan(
            strategy, budget.text, size, size, "infeasible", sentence,
            smallest_budget=frontier.smallest_budget, keep_all=kept, fixed=fixed, solver=solver,
        )  # fmt: skip
        return refusal, None
    bound = _lower_bound(frontier, size)
    optimal_in = _optimal_in(frontier, size, chosen, bound)
    gap = gap_of(chosen.seconds, bound)
    plan = Plan(
        strategy,
        budget.text,
        size,
        size,
        "optimal" if optimal_in else "feasible",
        _sentence(frontier, size, chosen, gap, optimal_in),
        time=chosen.seconds,
        peak=chosen.peak,
        lower_bound=bound,
        gap=gap,
        optimal_in=optimal_in,
        before_polish=Cost(chosen.seconds, chosen.peak),
        keep_all=kept,
        fixed=fixed,
        recomputed=chosen.recomputed,
        recomputed_time=chosen.seconds - keep_all.seconds,
        solver=solver,
    )
    return plan, chosen


def fixed_bytes(chain: Chain) -> Fixed:
    """The bytes of a chain that no plan changes."""
    from schemas.plan import Fixed

    return Fixed(
        parameters=sum(position.weight for position in chain.positions),
        gradients=sum(position.grad for position in chain.positions),
        buffers=0,
        inputs=chain.a_0,
        outputs=chain.positions[-1].a,
    )


def _needs_options(options: argparse.Namespace) -> bool:
    """Whether the strategy takes the options of blocks; raises ConfigError where a setting is
    amiss."""
    from stages.combine.strategies.registry import chain_strategies, strategy

    known = chain_strategies()
    if options.strategy not in known:
        raise ConfigError(
            f"--strategy {options.strategy}: a chain is planned by {' or '.join(known)}"
        )
    solved = strategy(options.strategy).about.solved
    if solved and options.options is None:
        raise ConfigError(f"chain --strategy {options.strategy} needs --options")
    if options.slots < 1:
        raise ConfigError(f"--slots {options.slots}: expected 1 or more")
    return solved


def _lower_bound(frontier: ChainFrontier, budget: int) -> float:
    """The seconds that no persistent sequence within the budget beats."""
    if budget >= frontier.keep_all.peak:
        return frontier.keep_all.seconds
    return frontier.bound(budget)


def _optimal_in(frontier: ChainFrontier, budget: int, chosen: ChainPlan, bound: float) -> str:
    """The class in which a plan is proven optimal, "" where it is not: its bound is reached, or
    the optimum of the dynamic program's rounded chain is."""
    if chosen.seconds <= bound * (1 + ROUNDING):
        return EXACT
    if chosen.seconds <= frontier.rounded(budget) * (1 + ROUNDING):
        return f"{EXACT} at {frontier.slots} slots"
    return ""


def _sentence(
    frontier: ChainFrontier, budget: int, chosen: ChainPlan, gap: float, optimal_in: str
) -> str:
    extra = chosen.seconds / frontier.keep_all.seconds - 1 if frontier.keep_all.seconds else 0.0
    fits = f"The sequence fits {budget} bytes with {extra:.1%} more time than keeping everything"
    if optimal_in == EXACT:
        return f"{fits}; no persistent sequence is faster."
    return f"{fits}; no persistent sequence is more than {gap:.1%} faster."
