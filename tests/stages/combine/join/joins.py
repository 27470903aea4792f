"""Random joins for property tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from tests.stages.combine.chains import QUARTERS, SIZES, chains, ways
from tightfit.schemas.chain import Chain
from tightfit.schemas.sequence import NO_OPTION
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption, PositionOptions
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


def build_unit_join(
    lengths: Sequence[int],
    kept: Sequence[bool],
    forward: float = 1.0,
    backward: float = 1.0,
    turn: float = 1.0,
) -> JoinProblem:
    """The join of S ch. 1 and J: MULTI-b, where everything takes one slot of memory.

    Branch j has `lengths[j]` steps, and the gradient of its input stays to the end where `kept[j]`.
    A backward reads the input of its step and the gradient of its output, so that a way keeps
    nothing; results overwrite inputs that are not needed again (S Table 1.1).
    """
    way = PositionOption(NO_OPTION, 0, 0, 1, 0.0, backward, at_once=True)
    step = PositionOptions(1, 1, 0, forward, 1, [way], in_place=True)
    branches = [
        ChainProblem([step] * length, always_resident=1, loss=False, released=0 if stays else 1)
        for length, stays in zip(lengths, kept, strict=True)
    ]
    return JoinProblem(
        branches, PositionOptions(0, 0, 0, 0.0, 0, [PositionOption(NO_OPTION, 0, 0, 0, 0.0, turn)])
    )
