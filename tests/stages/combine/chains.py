"""Random chains for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption, PositionOptions

SIZES = st.integers(0, 6)
QUARTERS = st.integers(0, 24).map(lambda quarters: quarters / 4)


@st.composite
def positions(draw: st.DrawFn, number: int) -> ChainPosition:
    output = draw(SIZES)
    return ChainPosition(
        position=number,
        u_f=draw(QUARTERS),
        u_b=draw(QUARTERS),
        a=output,
        abar=output + draw(SIZES),
        delta=draw(SIZES),
        o_f=draw(st.integers(0, 3)),
        o_b=draw(st.integers(0, 3)),
        weight=draw(SIZES),
        grad=draw(st.integers(0, 3)),
        label="",
    )


@st.composite
def chains(draw: st.DrawFn, longest: int = 4) -> Chain:
    """Chains of up to `longest` positions beside the loss, parameter gradients included."""
    length = draw(st.integers(0, longest)) + 1
    rows = [draw(positions(number)) for number in range(1, length + 1)]
    return Chain(rows, draw(SIZES), draw(SIZES))


@st.composite
def single_ways(
    draw: st.DrawFn, option: int, output: int, pass_peak: int, spared: float
) -> PositionOption:
    save = output + draw(SIZES)
    return PositionOption(
        option=option,
        save=save,
        forward_peak=max(save, pass_peak) + draw(st.integers(0, 2)),
        backward_peak=draw(st.integers(0, 16)),
        forward_seconds=draw(QUARTERS) + spared,
        backward_seconds=draw(QUARTERS),
        output_seconds=spared,
    )


@st.composite
def ways(draw: st.DrawFn, longest: int = 3, most_ways: int = 3) -> ChainProblem:
    """Chains whose positions have several ways, and gradients that grow."""
    rows = []
    for _ in range(draw(st.integers(0, longest)) + 1):
        output = draw(SIZES)
        pass_peak = output + draw(st.integers(0, 3))
        seconds = draw(QUARTERS)
        spared = min(seconds, draw(st.sampled_from([0.0, 0.25, 1.0])))
        numbers = range(1, draw(st.integers(1, most_ways)) + 1)
        options = [draw(single_ways(number, output, pass_peak, spared)) for number in numbers]
        rows.append(
            PositionOptions(
                output, draw(SIZES), draw(st.integers(0, 3)), seconds, pass_peak, options
            )
        )
    return ChainProblem(rows, draw(SIZES))
