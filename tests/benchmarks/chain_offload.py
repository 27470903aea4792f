"""Long chains with a link to the host: how long planning takes, and what it gives."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.benchmarks.long_chains import SLOTS, random_chain
from tightfit.schemas.link import HostLink
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.options import ChainProblem, build_chain_problem
from tightfit.stages.combine.chain_offload.planner import ChainOffloadPlans, load_planner
from tightfit.util.strategies import OFFLOADERS

LENGTHS = (100,)
BANDWIDTHS = (2e9, 6e9)
SHARES = (0.5, 0.25, 0.17)
HEAD = (
    "| positions | bandwidth | budget | strategy | planned in | time | bound |\n"
    "|---|---|---|---|---|---|---|"
)


def rows_of_offloads() -> Iterator[str]:
    """A row in Markdown for each chain, link, budget and strategy; what is compiled once is not
    timed."""
    for name in OFFLOADERS:
        _planned(name, build_chain_problem(random_chain(8)), HostLink(12e9), 0.5)
    for length in LENGTHS:
        ways = build_chain_problem(random_chain(length))
        for bandwidth in BANDWIDTHS:
            for share in SHARES:
                yield _rotor(ways, length, bandwidth, share)
                for name in OFFLOADERS:
                    start = time.process_time()
                    took = _planned(name, ways, HostLink(bandwidth), share)
                    yield _row(length, bandwidth, share, name, time.process_time() - start, *took)


def _planned(name: str, ways: ChainProblem, link: HostLink, share: float) -> tuple[float, float]:
    """The time of a plan and its bound, both beside keeping everything."""
    plans = ChainOffloadPlans(load_planner(name), ways, link, SLOTS)
    budget = int(plans.keep_all.peak * share)
    plan, everything = plans.within(budget), plans.keep_all.seconds
    seconds = float("inf") if plan is None else plan.seconds
    return seconds / everything, plans.bound(budget) / everything


def _rotor(ways: ChainProblem, length: int, bandwidth: float, share: float) -> str:
    start = time.process_time()
    plans = ChainFrontier(ways)
    budget = int(plans.keep_all.peak * share)
    plan, everything = plans.within(budget), plans.keep_all.seconds
    seconds = float("inf") if plan is None else plan.seconds
    took = time.process_time() - start
    bound = plans.bound(budget) / everything
    return _row(length, bandwidth, share, "rotor, no link", took, seconds / everything, bound)


def _row(
    length: int, bandwidth: float, share: float, name: str, took: float, time: float, bound: float
) -> str:
    return (
        f"| {length} | {bandwidth / 1e9:.0f} GB/s | {share:.0%} | {name} | {took:.2f} s | "
        f"{time:.3f} | {bound:.3f} |"
    )
