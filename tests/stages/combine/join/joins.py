"""Random joins for property tests."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from tests.stages.combine.chains import QUARTERS, SIZES, chains, ways
from tightfit.schemas.chain import Chain
from tightfit.stages.combine.chain.options import PositionOption, PositionOptions
from tightfit.stages.combine.join.problem import JoinProblem


@st.composite
def joins(draw: st.DrawFn, most: int = 2, longest: int = 2, most_ways: int = 2) -> JoinProblem:
    """Joins of one to `most` branches with ways of their own, and gradients that grow; in some one
    branch goes on at a time."""
    branches = []
    for _ in range(draw(st.integers(1, most))):
        chain = draw(ways(longest=longest, most_ways=most_ways))
        branches.append(replace(chain, positions=chain.positions[:-1], loss=False))
    way = PositionOption(-1, 0, draw(SIZES), draw(SIZES), draw(QUARTERS), draw(QUARTERS))
    loss = PositionOptions(0, draw(SIZES), draw(st.integers(0, 3)), 0.0, 0, [way])
    return JoinProblem(branches, loss, ordered=draw(st.booleans()))


@st.composite
def chains_of_a_join(draw: st.DrawFn, most: int = 3, longest: int = 4) -> list[Chain]:
    """Chains with one loss."""
    found = [draw(chains(longest=longest)) for _ in range(draw(st.integers(2, most)))]
    loss = found[0].positions[-1]
    return [
        replace(
            chain,
            positions=[*chain.positions[:-1], replace(loss, position=len(chain.positions))],
        )
        for chain in found
    ]
