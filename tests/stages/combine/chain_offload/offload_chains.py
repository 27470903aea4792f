"""Chains with a link that tests plan."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from hypothesis import strategies as st

from tests.stages.combine.chains import chains
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.chain.options import ChainProblem, build_chain_problem
from tightfit.stages.combine.chain_offload.fractional_transfers import (
    FluidChain,
    initial_fluid_states,
)
from tightfit.stages.combine.chain_offload.lower_bound import total_compute_seconds
from tightfit.stages.combine.chain_offload.planner import ChainOffloadPlans, load_planner

SLOTS = 500


def plan_offload_chain(name: str, ways: ChainProblem, link: HostLink | float) -> ChainOffloadPlans:
    """A planner for a chain and a link, or a shared one of a bandwidth."""
    given = link if isinstance(link, HostLink) else HostLink(link)
    return ChainOffloadPlans(load_planner(name), ways, given, SLOTS)


def offload_shares(ways: ChainProblem, positions: tuple[int, ...]) -> list[float]:
    """1 for those positions, 0 for all others."""
    return [float(position in positions) for position in range(len(ways))]


def min_fluid_seconds(ways: ChainProblem, budget: int, bandwidth: float) -> float:
    """The least seconds with fractional communications, over all sets of what leaves."""
    sets = (s for size in range(len(ways) + 1) for s in combinations(range(len(ways)), size))
    seconds = (fluid_seconds(ways, budget, bandwidth, offload_shares(ways, s)) for s in sets)
    return min(seconds, default=math.inf)


@st.composite
def offload_chains(draw: st.DrawFn, longest: int = 4) -> tuple[ChainProblem, HostLink, int]:
    """A chain, a link with a bandwidth, and a budget, often too small to keep everything."""
    ways = build_chain_problem(draw(chains(longest)))
    bandwidth = draw(st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, 1e9]))
    link = HostLink(
        bandwidth,
        draw(st.sampled_from([0.0, 0.25])),
        draw(st.booleans()),
        overhead=draw(st.sampled_from([0.0, 0.125])),
        overhead_per_byte=draw(st.sampled_from([0.0, 0.0625])),
    )
    peak = plan_offload_chain("offload_greedy", ways, link).keep_all.peak
    return ways, link, draw(st.integers(max(1, peak // 3), peak + 2))


def fluid_seconds(
    ways: ChainProblem, budget: int, bandwidth: float, shares: Sequence[float]
) -> float:
    """The seconds of a chain whose positions' inputs leave for those `shares` (of position 0, the
    chain's input, first), infinite where the budget is too small."""
    chain = FluidChain(ways, budget, bandwidth)
    states = initial_fluid_states()
    for position, share in enumerate(shares, start=1):
        states = chain.step(position, states, share)
    found = states.seconds + chain.turn(states)
    return float(found[0]) if math.isfinite(states.seconds[0]) else float("inf")


def simple_lower_bound(ways: ChainProblem, bandwidth: float, budget: int, peak: int) -> float:
    """S Proposition 3: all computations, or twice what has to leave over the bandwidth, which is
    nothing where the budget exceeds the `peak` of keeping everything."""
    sent = max(0, peak - budget)
    transfer = 0.0 if sent == 0 else math.inf if bandwidth == 0 else sent / bandwidth
    return max(total_compute_seconds(ways), 2 * transfer)
