"""Chains with a link that tests plan."""

from __future__ import annotations

import math
from itertools import combinations

from hypothesis import strategies as st

from tests.stages.combine.chains import chains
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.chain.ways import Ways, ways_of_chain
from tightfit.stages.combine.offload.fluid import fluid_seconds
from tightfit.stages.combine.offload.plans import LinkedChain
from tightfit.stages.combine.offload.registry import planner

SLOTS = 500


def linked(name: str, ways: Ways, link: HostLink | float) -> LinkedChain:
    """A planner for a chain and a link, or a shared one of a bandwidth."""
    given = link if isinstance(link, HostLink) else HostLink(link)
    return LinkedChain(planner(name), ways, given, SLOTS)


def shares_of(ways: Ways, positions: tuple[int, ...]) -> list[float]:
    """1 for those positions, 0 for all others."""
    return [float(position in positions) for position in range(len(ways))]


def least_fluid(ways: Ways, budget: int, bandwidth: float) -> float:
    """The least seconds with fractional communications, over all sets of what leaves."""
    sets = (s for size in range(len(ways) + 1) for s in combinations(range(len(ways)), size))
    seconds = (fluid_seconds(ways, budget, bandwidth, shares_of(ways, s)) for s in sets)
    return min(seconds, default=math.inf)


@st.composite
def linked_chains(draw: st.DrawFn, longest: int = 4) -> tuple[Ways, HostLink, int]:
    """A chain, a link with a bandwidth, and a budget, often too small to keep everything."""
    ways = ways_of_chain(draw(chains(longest)))
    bandwidth = draw(st.sampled_from([0.25, 0.5, 1.0, 2.0, 4.0, 1e9]))
    link = HostLink(
        bandwidth,
        draw(st.sampled_from([0.0, 0.25])),
        draw(st.booleans()),
        overhead=draw(st.sampled_from([0.0, 0.125])),
        overhead_per_byte=draw(st.sampled_from([0.0, 0.0625])),
    )
    peak = linked("offload_greedy", ways, link).keep_all.peak
    return ways, link, draw(st.integers(max(1, peak // 3), peak + 2))
