"""`chain`: plans a chain, or the branches of a join, that come as files, without a model; with a
machine, a chain with a link to the host, or a pipeline."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.schemas.machine import machine_path
from tightfit.stages.combine.chain_offload.command import offload_lineage_entries, run_offload
from tightfit.stages.combine.pipeline.plan_command import (
    add_pipeline_arguments,
    check_no_pipeline,
    pipeline_lineage_entries,
    run_pipeline,
)
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ArtifactError, ConfigError
from tightfit.util.strategies import ALLOCATORS, CHAIN_STRATEGIES, OFFLOADERS, STRATEGIES

if TYPE_CHECKING:
    from tightfit.schemas.block_options import BlockOption
    from tightfit.schemas.chain import Chain
    from tightfit.schemas.plan import BaselineBytes, Plan
    from tightfit.stages.combine.chain.frontier import ChainPlan, ChainPlans
    from tightfit.stages.combine.chain_offload.planner import ChainOffloadPlans
    from tightfit.stages.combine.strategies.strategy import ChainStrategy
    from tightfit.util.budget import Budget

TIME_TOLERANCE = 1e-9
"""Relative difference of two sums of the same times in another order."""

MIN_MODEL_BYTES = 10**6
"""Bytes that a chain takes at least if its sizes are those of a model, and no small numbers."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--chain",
        type=Path,
        required=True,
        action="append",
        help="the chain to plan; several are the branches of a join, and end in the same loss",
    )
    parser.add_argument("--options", type=Path, help="options.arrow of its blocks")
    parser.add_argument("--strategy", required=True, help=_strategy_help())
    parser.add_argument(
        "--budget", help="the memory to stay within, such as 8GiB, 145MB, 50%% or min"
    )
    parser.add_argument(
        "--machine",
        type=machine_path,
        help="the .json of the devices to plan a pipeline on, or of the one to offload from",
    )
    parser.add_argument("--slots", type=int, default=500, help="memory slots of the program")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write into")
    add_pipeline_arguments(parser)


def _strategy_help() -> str:
    """The strategies by what they plan."""
    own = ", ".join(name for name in CHAIN_STRATEGIES if name in STRATEGIES)
    return (
        f"how to plan, by name: {own}; with a link to the host in --machine: "
        f"{', '.join(OFFLOADERS)}; for pipelines over the devices of --machine: "
        f"{', '.join(ALLOCATORS)}"
    )


def run(options: argparse.Namespace) -> None:
    """Writes sequence.arrow and plan.json of a chain or a join into the folder `options.out`, or
    pattern.arrow and plan.json of a pipeline, and prints the status.

    A budget too small gives the status "infeasible" and an empty sequence. Raises ConfigError or
    ArtifactError when an option or a file is not what it should be.
    """
    if options.strategy not in CHAIN_STRATEGIES:
        known = " or ".join(CHAIN_STRATEGIES)
        raise ConfigError(f"--strategy {options.strategy}: a chain is planned by {known}")
    if options.strategy in OFFLOADERS:
        run_offload(options)
        return
    if options.machine is not None:
        run_pipeline(options)
        return
    if options.strategy in ALLOCATORS:
        raise ConfigError(f"--strategy {options.strategy} plans a pipeline, and needs --machine")
    check_no_pipeline(options)
    if options.budget is None:
        raise ConfigError("chain needs --budget, or --machine for a pipeline")
    from tightfit.schemas import store
    from tightfit.schemas.block_options import read_block_options
    from tightfit.schemas.chain import CHAIN, describe_loss_difference, read_chain
    from tightfit.schemas.plan import write_plan
    from tightfit.schemas.sequence import write_sequence
    from tightfit.util.command_line import print_plan_status

    strategy = _load_strategy(options)
    chains = [read_chain(path) for path in options.chain]
    for path, chain in zip(options.chain[1:], chains[1:], strict=True):
        if said := describe_loss_difference(path, chain, options.chain[0], chains[0]):
            raise ArtifactError(said)
    blocks = read_block_options(options.options) if strategy.about.uses_solved_options else None
    frontier = _build_frontier(strategy, chains, blocks, options.slots)
    budget = parse_chain_budget(options.budget)
    plan, chosen = plan_chain(chains, frontier, options.strategy, budget)
    digests = " ".join(store.read(path, CHAIN).digest for path in options.chain)
    write_sequence(options.out / "sequence.arrow", chosen.sequence if chosen else [], digests)
    write_plan(options.out / "plan.json", plan)
    print_plan_status(plan.status, plan.message, options)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    if options.strategy in OFFLOADERS:
        return offload_lineage_entries(options)
    if options.machine is not None:
        return pipeline_lineage_entries(options)
    solved = _load_strategy(options).about.uses_solved_options
    read = [*options.chain, *([options.options] if solved else [])]
    settings = {name: getattr(options, name) for name in ("strategy", "budget", "slots")}
    return [
        LineageEntry([options.out / "sequence.arrow", options.out / "plan.json"], read, settings)
    ]


def _build_frontier(
    strategy: ChainStrategy,
    chains: Sequence[Chain],
    blocks: dict[str, list[BlockOption]] | None,
    slots: int,
) -> ChainPlans:
    """The plans of a chain, or of a join where there are several."""
    if len(chains) == 1:
        from tightfit.stages.combine.chain.options import build_chain_problem

        return strategy.plans_of_chain(build_chain_problem(chains[0], blocks), slots)
    from tightfit.stages.combine.join.frontier import JoinFrontier
    from tightfit.stages.combine.join.problem import build_join_problem

    return JoinFrontier(build_join_problem(chains, blocks), slots)


def plan_chain(
    chains: Sequence[Chain], frontier: ChainPlans, strategy: str, budget: Budget
) -> tuple[Plan, ChainPlan | None]:
    """The plan of a chain, or of the branches of a join, for a budget, with its sequence; None
    where the budget is too small.

    The budget counts all that the chains count, their inputs included. The lower bound is that of
    persistent sequences, or of nested ones of a join.
    """
    from tightfit.schemas.plan import Plan, PlanCost, optimality_gap
    from tightfit.stages.combine.chain.frontier import SEQUENCE_CLASSES

    fixed = chain_baseline_bytes(chains)
    kind = frontier.kind
    keep_all = frontier.keep_all
    size = chain_budget_bytes(budget, fixed, frontier)
    solver = frontier.solver
    kept = PlanCost(keep_all.seconds, keep_all.peak)
    chosen = frontier.within(size)
    if chosen is None:
        sentence = (
            f"No {kind} sequence fits {size:,} bytes; "
            f"the smallest budget that works is {frontier.smallest_budget:,} bytes."
        )
        refusal = Plan(
            strategy, budget.text, size, size, "infeasible", sentence,
            smallest_budget=frontier.smallest_budget, keep_all=kept, baseline=fixed, solver=solver,
        )  # fmt: skip
        return refusal, None
    bound = _lower_bound(frontier, size, chosen)
    optimal_in = _proven_class(SEQUENCE_CLASSES[kind], frontier, size, chosen, bound)
    gap = optimality_gap(chosen.seconds, bound)
    plan = Plan(
        strategy,
        budget.text,
        size,
        size,
        "optimal" if optimal_in else "feasible",
        _status_message(kind, frontier, size, chosen, gap, optimal_in),
        time=chosen.seconds,
        peak=chosen.peak,
        lower_bound=bound,
        gap=gap,
        optimal_in=optimal_in,
        before_local_search=PlanCost(chosen.seconds, chosen.peak),
        keep_all=kept,
        baseline=fixed,
        recomputed=chosen.recomputed,
        recomputed_time=chosen.seconds - keep_all.seconds,
        solver=solver,
    )
    return plan, chosen


def chain_baseline_bytes(chains: Sequence[Chain]) -> BaselineBytes:
    """The bytes of chains with one loss that no plan changes."""
    from tightfit.schemas.plan import BaselineBytes

    loss = chains[0].positions[-1]
    rows = [position for chain in chains for position in chain.positions[:-1]] + [loss]
    return BaselineBytes(
        parameters=sum(position.weight for position in rows),
        gradients=sum(position.grad for position in rows),
        buffers=0,
        inputs=sum(chain.a_0 for chain in chains),
        outputs=loss.a,
    )


def parse_chain_budget(written: str) -> Budget:
    """The budget of a chain, whose sizes can be a few bytes."""
    from tightfit.util.budget import MIN_BUDGET, Budget, parse_budget

    return Budget(MIN_BUDGET) if written == MIN_BUDGET else parse_budget(written, "--budget")


def chain_budget_bytes(
    budget: Budget, fixed: BaselineBytes, plans: ChainPlans | ChainOffloadPlans
) -> int:
    """The bytes of a budget for chains, of which some are `fixed`; for "min" the least that their
    plans work with."""
    from tightfit.util.budget import require_unit

    if budget.is_min:
        return plans.smallest_budget
    if plans.keep_all.peak >= MIN_MODEL_BYTES:
        require_unit(budget, "--budget")
    return budget.total(fixed.inputs + fixed.gradients + fixed.outputs, plans.keep_all.peak)


def _load_strategy(options: argparse.Namespace) -> ChainStrategy:
    """The strategy by name; raises ConfigError where a setting is amiss."""
    from tightfit.stages.combine.strategies.strategy import load_chain_strategy

    strategy = load_chain_strategy(options.strategy)
    if strategy.about.uses_solved_options and options.options is None:
        raise ConfigError(f"chain --strategy {options.strategy} needs --options")
    if len(options.chain) > 1 and not strategy.about.plans_joins:
        raise ConfigError(f"--strategy {options.strategy} plans one chain, and no join")
    if len(options.chain) == 1 and not strategy.about.chains:
        raise ConfigError(
            f"--strategy {options.strategy} plans several chains that end in one loss: give "
            "--chain more than once"
        )
    if options.slots < 1:
        raise ConfigError(f"--slots {options.slots}: expected 1 or more")
    return strategy


def _lower_bound(frontier: ChainPlans, budget: int, chosen: ChainPlan) -> float:
    """The seconds that no sequence of the class within the budget beats."""
    if budget >= frontier.keep_all.peak and chosen.seconds <= frontier.keep_all.seconds:
        return frontier.keep_all.seconds
    return frontier.bound(budget)


def _proven_class(
    exact: str, frontier: ChainPlans, budget: int, chosen: ChainPlan, bound: float
) -> str:
    """The class in which a plan is proven optimal, "" where it is not: its bound is reached, or
    the optimum of the dynamic program's rounded sizes is."""
    if chosen.seconds <= bound * (1 + TIME_TOLERANCE):
        return exact
    if chosen.seconds <= frontier.rounded(budget) * (1 + TIME_TOLERANCE):
        return f"{exact} at {frontier.slots} slots"
    return ""


def _status_message(
    kind: str,
    frontier: ChainPlans,
    budget: int,
    chosen: ChainPlan,
    gap: float,
    optimal_in: str,
) -> str:
    from tightfit.stages.combine.chain.frontier import SEQUENCE_CLASSES

    extra = chosen.seconds / frontier.keep_all.seconds - 1 if frontier.keep_all.seconds else 0.0
    fits = f"The sequence fits {budget:,} bytes with {extra:.1%} more time than keeping everything"
    if optimal_in == SEQUENCE_CLASSES[kind]:
        return f"{fits}; no {kind} sequence is faster."
    rounded = f", and none at {frontier.slots} slots is faster" if optimal_in else ""
    return f"{fits}; no {kind} sequence is more than {gap:.1%} faster{rounded}."
