"""Long heterogeneous chains for the dynamic program."""

from __future__ import annotations

import random

from tightfit.schemas.chain import Chain, ChainPosition
from tightfit.stages.combine.chain.dp_table import build_chain_table
from tightfit.stages.combine.chain.frontier import keep_all_sequence
from tightfit.stages.combine.chain.options import build_chain_problem
from tightfit.stages.combine.chain.simulate import simulate_chain

SLOTS = 500
SHARE = 0.5


def random_chain(length: int) -> Chain:
    """A chain of `length` positions and the loss, with sizes in MB and times in ms of deep nets."""
    draw = random.Random(length)
    positions = []
    for number in range(1, length + 2):
        output = draw.randrange(1_000_000, 20_000_000)
        positions.append(
            ChainPosition(
                position=number,
                u_f=draw.uniform(0.5, 5.0) / 1000,
                u_b=draw.uniform(1.0, 10.0) / 1000,
                a=output,
                abar=output + draw.randrange(40_000_000),
                delta=output,
                o_f=draw.randrange(2_000_000),
                o_b=draw.randrange(4_000_000),
                weight=0,
                grad=0,
                label="",
            )
        )
    return Chain(positions, 1_000_000, 1_000_000)


def solve_chain(chain: Chain) -> None:
    """Fills the table for all budgets up to half of what keeping everything takes."""
    ways = build_chain_problem(chain)
    everything = simulate_chain(ways, keep_all_sequence(ways)).peak
    build_chain_table(ways, int(everything * SHARE), SLOTS)
