"""`tightfit chain --machine` with a link to the host: plans a chain of which something leaves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tightfit.schemas.derived import Derived
from tightfit.schemas.errors import ConfigError

if TYPE_CHECKING:
    from tightfit.schemas.budget import Budget
    from tightfit.schemas.chain import Chain
    from tightfit.schemas.plan import Plan
    from tightfit.stages.combine.offload.plans import LinkedChain, LinkedPlan


def run_offload(options: argparse.Namespace) -> None:
    """Writes sequence.arrow, lanes.arrow and plan.json of a chain with a link to the host into the
    folder `options.out`, and prints the verdict; a budget too small gives the verdict "infeasible"
    and an empty sequence.

    Raises ConfigError or ArtifactError when an option or a file is not what it should be.
    """
    from tightfit.schemas import store
    from tightfit.schemas.budget import parse_budget
    from tightfit.schemas.chain import CHAIN, read_chain
    from tightfit.schemas.lanes import write_lanes
    from tightfit.schemas.link import host_link
    from tightfit.schemas.machine import read_machine
    from tightfit.schemas.plan import write_plan
    from tightfit.schemas.sequence import write_sequence
    from tightfit.schemas.words import told
    from tightfit.stages.combine.chain.ways import ways_of_chain
    from tightfit.stages.combine.offload.plans import LinkedChain
    from tightfit.stages.combine.offload.registry import planner

    _check(options)
    path = options.chain[0]
    chain = read_chain(path)
    link = host_link(read_machine(options.machine), options.machine)
    plans = LinkedChain(planner(options.strategy), ways_of_chain(chain), link, options.slots)
    plan, chosen = plan_offload(chain, plans, options.strategy, parse_budget(options.budget))
    digest = store.read(path, CHAIN).digest
    write_sequence(options.out / "sequence.arrow", chosen.sequence if chosen else [], digest)
    write_lanes(options.out / "lanes.arrow", chosen.replay.steps if chosen else [], digest)
    write_plan(options.out / "plan.json", plan)
    print(told(plan.verdict, plan.sentence))


def derived_offload(options: argparse.Namespace) -> list[Derived]:
    """What `run_offload` made of what."""
    names = ("sequence.arrow", "lanes.arrow", "plan.json")
    settings = {name: getattr(options, name) for name in ("strategy", "budget", "slots")}
    read = [*options.chain, options.machine]
    return [Derived([options.out / name for name in names], read, settings)]


def plan_offload(
    chain: Chain, plans: LinkedChain, strategy: str, budget: Budget
) -> tuple[Plan, LinkedPlan | None]:
    """The plan of a chain with a link for a budget, with its sequence; None where the budget is
    too small. Raises ConfigError where the budget is more than the device has."""
    from tightfit.schemas.plan import Plan, PlanCost, Transfers, gap_of
    from tightfit.stages.combine.chain.cli import ROUNDING, fixed_bytes_of_chains
    from tightfit.stages.combine.offload.plans import infeasible_sentence

    fixed, keep_all = fixed_bytes_of_chains([chain]), plans.keep_all
    size = budget.total(fixed.inputs + fixed.gradients + fixed.outputs, keep_all.peak)
    if size > plans.link.memory:
        raise ConfigError(
            f"--budget {budget.text}: that is {size:,} bytes, and {plans.link.device} has "
            f"{int(plans.link.memory):,}"
        )
    kept, solver = PlanCost(keep_all.seconds, keep_all.peak), strategy
    chosen = plans.within(size)
    if chosen is None:
        smallest = plans.smallest_budget
        reason = infeasible_sentence(plans, size)
        sentence = f"{reason}; the smallest budget known to work is {smallest:,} bytes."
        refusal = Plan(
            strategy, budget.text, size, size, "infeasible", sentence[0].upper() + sentence[1:],
            smallest_budget=smallest, keep_all=kept, fixed=fixed, solver=solver,
        )  # fmt: skip
        return refusal, None
    bound = min(plans.bound(size), chosen.seconds)
    optimal = chosen.seconds <= bound * (1 + ROUNDING)
    played, gap = chosen.replay, gap_of(chosen.seconds, bound)
    lost = played.waited + played.overhead
    plan = Plan(
        strategy,
        budget.text,
        size,
        size,
        "optimal" if optimal else "feasible",
        _sentence(plans, chosen, size, gap, optimal),
        time=chosen.seconds,
        peak=chosen.peak,
        lower_bound=bound,
        gap=0.0 if optimal else gap,
        optimal_in=_class(plans)[1] if optimal else "",
        before_polish=PlanCost(chosen.seconds, chosen.peak),
        keep_all=kept,
        fixed=fixed,
        recomputed=chosen.recomputed,
        recomputed_time=max(0.0, chosen.seconds - keep_all.seconds - lost),
        solver=solver,
        transfers=Transfers(played.left, played.returned, played.host_peak, played.waited),
    )
    return plan, chosen


def _class(plans: LinkedChain) -> tuple[str, str]:
    """What the bound of the plans holds for: one of the sequences, and all of them."""
    if plans.link.bandwidth == 0 and plans.planner.about.recomputes:
        return "persistent sequence", "persistent sequences of the chain"
    if plans.planner.about.recomputes:
        return "sequence with transfers", "sequences of the chain with transfers"
    return (
        "sequence that runs nothing again",
        "sequences of the chain with transfers that run nothing again",
    )


def _sentence(plans: LinkedChain, chosen: LinkedPlan, size: int, gap: float, optimal: bool) -> str:
    extra = chosen.seconds / plans.keep_all.seconds - 1 if plans.keep_all.seconds else 0.0
    fits = f"The sequence fits {size:,} bytes with {extra:.1%} more time than keeping everything"
    if optimal:
        return f"{fits}; no {_class(plans)[0]} is faster."
    return f"{fits}; no {_class(plans)[0]} is more than {gap:.1%} faster."


def _check(options: argparse.Namespace) -> None:
    """Raises ConfigError where an option lacks, or is not for chains with a link."""
    for name in ("machine", "budget"):
        if getattr(options, name) is None:
            raise ConfigError(f"chain --strategy {options.strategy} needs --{name}")
    if len(options.chain) != 1:
        raise ConfigError(f"--strategy {options.strategy} plans one chain, and no join")
    for name in ("options", "period", "weight_copies", "buffers", "inside", "k", "engine"):
        if getattr(options, name) is not None:
            flag = name.replace("_", "-")
            raise ConfigError(f"--strategy {options.strategy} takes no --{flag}")
    if options.slots < 1:
        raise ConfigError(f"--slots {options.slots}: expected 1 or more")
