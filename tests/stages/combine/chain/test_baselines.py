"""What rotor is compared with: segments of equal length, and chains that store inputs alone."""

from __future__ import annotations

from collections import Counter
from math import comb, inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.chain.test_command import combine, layers
from tests.stages.combine.chains import chains
from tests.stages.combine.persistent import optimum
from tightfit.schemas.chain import Chain
from tightfit.schemas.sequence import NO_OPTION
from tightfit.stages.combine.chain.baselines import (
    RevolveChainPlans,
    SegmentedChainPlans,
    most_segments,
    restrict_to_inputs,
    segmented_sequence,
)
from tightfit.stages.combine.chain.frontier import ChainFrontier
from tightfit.stages.combine.chain.options import (
    ChainProblem,
    PositionOption,
    PositionOptions,
    build_chain_problem,
)
from tightfit.stages.combine.chain.simulate import simulate_chain


def torch_segments(length: int, segments: int) -> list[range]:
    """As `checkpoint_sequential` of PyTorch cuts modules 1..length; the last part runs once."""
    size = length // segments
    starts = range(0, size * (segments - 1), size) if segments > 1 else range(0)
    cut = [range(start + 1, start + size + 1) for start in starts]
    return [*cut, range(size * (segments - 1) + 1, length + 1)]


@given(chains(longest=9), st.data())
@settings(max_examples=100, deadline=None)
def test_each_number_of_segments_runs_all_but_the_last_again(
    chain: Chain, data: st.DataObject
) -> None:
    ways, length = build_chain_problem(chain), len(chain.positions) - 1
    segments = data.draw(st.integers(1, most_segments(length)))
    sequence = segmented_sequence(length, segments)
    played = simulate_chain(ways, sequence)
    *again, last = torch_segments(length, segments)
    twice = [position for part in again for position in part]
    extra = sum(chain.positions[position - 1].u_f for position in twice)
    once = sum(row.u_f + row.u_b for row in chain.positions)
    assert played.seconds == pytest.approx(once + extra)
    assert played.recomputed == len(twice)
    kinds = Counter(operation.action for operation in sequence)
    assert kinds["B"] == length and kinds["F_ck"] == len(again)
    assert kinds["F_all"] == len(twice) + len(last)


@given(chains(longest=9), st.integers(0, 60))
@settings(max_examples=100, deadline=None)
def test_the_fastest_number_of_segments_that_fits_is_taken(chain: Chain, budget: int) -> None:
    ways, length = build_chain_problem(chain), len(chain.positions) - 1
    plans = SegmentedChainPlans(ways)
    tried = [
        simulate_chain(ways, segmented_sequence(length, count))
        for count in range(1, most_segments(length) + 1)
    ]
    fitting = [played.seconds for played in tried if played.peak <= budget]
    found = plans.within(budget)
    assert (inf if found is None else found.seconds) == min(fitting, default=inf)
    assert plans.smallest_budget == min(played.peak for played in tried)
    assert found is None or ChainFrontier(ways).within(budget).seconds <= found.seconds  # type: ignore[union-attr]


@given(chains(), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_revolve_equals_exhaustive_search(chain: Chain, budget: int) -> None:
    ways = build_chain_problem(chain)
    plans = RevolveChainPlans(ways, 500)
    found = plans.within(budget)
    expected = optimum(restrict_to_inputs(ways), budget)
    assert (inf if found is None else found.seconds) == expected
    if found is not None:
        played = simulate_chain(ways, found.sequence)
        assert (played.seconds, played.peak) == (found.seconds, found.peak)
        assert found.peak <= budget and plans.bound(budget) <= found.seconds
    assert (found is None) == (budget < plans.smallest_budget)


@pytest.mark.parametrize("length", range(1, 13))
def test_alike_positions_take_the_steps_of_griewank_and_walther(length: int) -> None:
    """With s snapshots, l steps take r l - C(s + r, s + 1) forwards ahead of those that are kept,
    with the least r for which C(s + r, s) is l or more; the loss is the last step."""
    way = PositionOption(NO_OPTION, 0, 0, 0, 1.0, 0.0)
    step = PositionOptions(1, 0, 0, 1.0, 1, [way], in_place=True)
    loss = PositionOptions(0, 0, 0, 0.0, 0, [PositionOption(NO_OPTION, 0, 0, 0, 0.0, 0.0)])
    plans = RevolveChainPlans(ChainProblem([step] * length + [loss], 1), 500)
    for snapshots in range(1, length + 1):
        r = next(r for r in range(length + 1) if comb(snapshots + r, snapshots) > length)
        ahead = r * (length + 1) - comb(snapshots + r, snapshots + 1)
        found = plans.within(snapshots + 1)
        assert found is not None and found.seconds == ahead + length


@pytest.mark.parametrize("strategy", ["sequential", "revolve"])
def test_the_command_compares_them_with_rotor(tmp_path: Path, strategy: str) -> None:
    words = ["--budget", "70%", "--strategy"]
    plan = combine(tmp_path, layers(9), *words, strategy)
    rotor = combine(tmp_path, layers(9), *words, "rotor")
    assert plan["keep_all"] == rotor["keep_all"] and plan["budget_total"] == rotor["budget_total"]
    assert plan["status"] == "optimal" and plan["time"] >= rotor["time"]
    assert plan["peak"] <= plan["budget_total"]
    room = combine(tmp_path, layers(9), "--budget", "1GB", "--strategy", strategy)
    assert room["time"] == room["keep_all"]["time"] + (0 if strategy == "sequential" else 9.0)
    assert room["status"] == "optimal" and room["gap"] == 0.0
