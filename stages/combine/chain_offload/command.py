"""`tightfit chain --machine` with a link to the host: plans a chain of which something leaves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tightfit.stages.combine.pipeline.plan_command import PIPELINE_OPTIONS
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from tightfit.schemas.chain import Chain
    from tightfit.schemas.plan import Plan
    from tightfit.stages.combine.chain_offload.planner import ChainOffloadPlan, ChainOffloadPlans
    from tightfit.util.budget import Budget


def run_offload(options: argparse.Namespace) -> None:
    """Writes sequence.arrow, streams.arrow and plan.json of a chain with a link to the host into
    the folder `options.out`, and prints the status; a budget too small gives the status
    "infeasible" and an empty sequence.

    Raises ConfigError or ArtifactError when an option or a file is not what it should be.
    """
    from tightfit.schemas import store
    from tightfit.schemas.chain import CHAIN, read_chain
    from tightfit.schemas.link import read_host_link
    from tightfit.schemas.machine import read_machine
    from tightfit.schemas.operation_timeline import write_operation_timeline
    from tightfit.schemas.plan import write_plan
    from tightfit.schemas.sequence import write_sequence
    from tightfit.stages.combine.chain.command import parse_chain_budget
    from tightfit.stages.combine.chain.options import build_chain_problem
    from tightfit.stages.combine.chain_offload.planner import ChainOffloadPlans, load_planner
    from tightfit.util.command_line import print_plan_status

    _check_options(options)
    path = options.chain[0]
    chain = read_chain(path)
    link = read_host_link(read_machine(options.machine), options.machine)
    plans = ChainOffloadPlans(
        load_planner(options.strategy), build_chain_problem(chain), link, options.slots
    )
    budget = parse_chain_budget(options.budget)
    plan, chosen = plan_chain_offload(chain, plans, options.strategy, budget)
    digest = store.read(path, CHAIN).digest
    write_sequence(options.out / "sequence.arrow", chosen.sequence if chosen else [], digest)
    write_operation_timeline(
        options.out / "streams.arrow", chosen.simulation.steps if chosen else [], digest
    )
    write_plan(options.out / "plan.json", plan)
    print_plan_status(plan.status, plan.message, options)


def offload_lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run_offload` made of what."""
    names = ("sequence.arrow", "streams.arrow", "plan.json")
    settings = {name: getattr(options, name) for name in ("strategy", "budget", "slots")}
    read = [*options.chain, options.machine]
    return [LineageEntry([options.out / name for name in names], read, settings)]


def plan_chain_offload(
    chain: Chain, plans: ChainOffloadPlans, strategy: str, budget: Budget
) -> tuple[Plan, ChainOffloadPlan | None]:
    """The plan of a chain with a link for a budget, with its sequence; None where the budget is
    too small. Raises ConfigError where the budget is more than the device has."""
    from tightfit.schemas.plan import Plan, PlanCost, TransferTotals, optimality_gap
    from tightfit.stages.combine.chain.command import (
        TIME_TOLERANCE,
        chain_baseline_bytes,
        chain_budget_bytes,
    )
    from tightfit.stages.combine.chain_offload.planner import infeasible_message

    fixed, keep_all = chain_baseline_bytes([chain]), plans.keep_all
    size = chain_budget_bytes(budget, fixed, plans)
    if size > plans.link.memory:
        raise ConfigError(
            f"--budget {budget.text}: that is {size:,} bytes, and {plans.link.device} has "
            f"{int(plans.link.memory):,}"
        )
    kept, solver = PlanCost(keep_all.seconds, keep_all.peak), strategy
    chosen = plans.within(size)
    if chosen is None:
        smallest = plans.smallest_budget
        reason = infeasible_message(plans, size)
        sentence = f"{reason}; the smallest budget known to work is {smallest:,} bytes."
        refusal = Plan(
            strategy, budget.text, size, size, "infeasible", sentence[0].upper() + sentence[1:],
            smallest_budget=smallest, keep_all=kept, baseline=fixed, solver=solver,
        )  # fmt: skip
        return refusal, None
    bound = min(plans.bound(size), chosen.seconds)
    optimal = chosen.seconds <= bound * (1 + TIME_TOLERANCE)
    played, gap = chosen.simulation, optimality_gap(chosen.seconds, bound)
    lost = played.waited + played.overhead
    plan = Plan(
        strategy,
        budget.text,
        size,
        size,
        "optimal" if optimal else "feasible",
        _status_message(plans, chosen, size, gap, optimal),
        time=chosen.seconds,
        peak=chosen.peak,
        lower_bound=bound,
        gap=0.0 if optimal else gap,
        optimal_in=_sequence_class(plans)[1] if optimal else "",
        before_local_search=PlanCost(chosen.seconds, chosen.peak),
        keep_all=kept,
        baseline=fixed,
        recomputed=chosen.recomputed,
        recomputed_time=max(0.0, chosen.seconds - keep_all.seconds - lost),
        solver=solver,
        transfers=TransferTotals(played.left, played.returned, played.host_peak, played.waited),
    )
    return plan, chosen


def _sequence_class(plans: ChainOffloadPlans) -> tuple[str, str]:
    """What the bound of the plans holds for: one of the sequences, and all of them."""
    if plans.link.bandwidth == 0 and plans.planner.about.recomputes:
        return "persistent sequence", "persistent sequences of the chain"
    if plans.planner.about.recomputes:
        return "sequence with transfers", "sequences of the chain with transfers"
    return (
        "sequence that runs nothing again",
        "sequences of the chain with transfers that run nothing again",
    )


def _status_message(
    plans: ChainOffloadPlans, chosen: ChainOffloadPlan, size: int, gap: float, optimal: bool
) -> str:
    extra = chosen.seconds / plans.keep_all.seconds - 1 if plans.keep_all.seconds else 0.0
    fits = f"The sequence fits {size:,} bytes with {extra:.1%} more time than keeping everything"
    if optimal:
        return f"{fits}; no {_sequence_class(plans)[0]} is faster."
    return f"{fits}; no {_sequence_class(plans)[0]} is more than {gap:.1%} faster."


def _check_options(options: argparse.Namespace) -> None:
    """Raises ConfigError where an option lacks, or is not for chains with a link."""
    for name in ("machine", "budget"):
        if getattr(options, name) is None:
            raise ConfigError(f"chain --strategy {options.strategy} needs --{name}")
    if len(options.chain) != 1:
        raise ConfigError(f"--strategy {options.strategy} plans one chain, and no join")
    for name in ("options", *PIPELINE_OPTIONS):
        if getattr(options, name) is not None:
            flag = name.replace("_", "-")
            raise ConfigError(f"--strategy {options.strategy} takes no --{flag}")
    if options.slots < 1:
        raise ConfigError(f"--slots {options.slots}: expected 1 or more")
