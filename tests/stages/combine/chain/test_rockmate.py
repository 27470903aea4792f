"""The dynamic program with options per block, against exhaustive search."""

from __future__ import annotations

from math import inf

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.chains import ways
from tests.stages.combine.persistent import optimum
from tightfit.stages.combine.chain.discretize import discretize_chain
from tightfit.stages.combine.chain.dp_table import fill_chain_table
from tightfit.stages.combine.chain.dp_table_compiled import fill_chain_table_compiled
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.options import ChainProblem


@given(ways(), st.integers(0, 50))
@settings(max_examples=150, deadline=None)
def test_equals_exhaustive_search(chain: ChainProblem, budget: int) -> None:
    plan = ChainFrontier(chain).within(budget)
    assert (inf if plan is None else plan.seconds) == optimum(chain, budget)


@given(ways())
@settings(max_examples=80, deadline=None)
def test_the_smallest_budget_is_the_smallest_that_exhaustive_search_can_use(
    chain: ChainProblem,
) -> None:
    smallest = ChainFrontier(chain).smallest_budget
    assert optimum(chain, smallest) < inf
    assert optimum(chain, smallest - 1) == inf


@given(ways(), st.integers(0, 50))
@settings(max_examples=60, deadline=None)
def test_more_options_never_cost_time(chain: ChainProblem, budget: int) -> None:
    fewer = ChainProblem(
        [type(row)(**{**vars(row), "ways": row.ways[:1]}) for row in chain.positions],
        chain.always_resident,
    )
    one, all_ways = ChainFrontier(fewer).within(budget), ChainFrontier(chain).within(budget)
    if one is not None:
        assert all_ways is not None and all_ways.seconds <= one.seconds + 1e-9


@given(ways(longest=40, most_ways=2), st.integers(1, 300), st.integers(1, 60), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_compiled_program_fills_the_same_table(
    chain: ChainProblem, limit: int, slots: int, optimistic: bool
) -> None:
    in_slots = discretize_chain(chain, limit, slots, optimistic)
    np.testing.assert_allclose(
        fill_chain_table_compiled(in_slots), fill_chain_table(in_slots), rtol=1e-12, atol=1e-9
    )
