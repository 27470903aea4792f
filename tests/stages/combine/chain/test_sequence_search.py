"""The fastest sequences with frees: known optima, and never slower than persistent ones."""

from __future__ import annotations

from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.chains import chains
from tests.stages.combine.persistent import cases, chain_of_case, optimum
from tightfit.__main__ import main
from tightfit.schemas.chain import Chain, ChainPosition, write_chain
from tightfit.schemas.plan import read_plan
from tightfit.schemas.sequence import ChainOperation, read_sequence
from tightfit.stages.combine.chain import sequence_search
from tightfit.stages.combine.chain.options import build_chain_problem
from tightfit.stages.combine.chain.sequence_search import (
    EarlyFreeChainPlans,
    FastestSequence,
    SequenceSearch,
)
from tightfit.stages.combine.chain.simulate import simulate_chain
from tightfit.util.errors import ConfigError, ScheduleError


@pytest.mark.parametrize("case", cases(), ids=lambda case: case["id"])
def test_the_optimum_with_frees_of_every_known_case(case: dict) -> None:
    ways = build_chain_problem(chain_of_case(case))
    found = SequenceSearch(ways).fastest(case["memory"])
    expected = case["expected_opt_free_discard"]
    assert found.seconds == (inf if expected is None else expected)
    if found.sequence is not None:
        played = simulate_chain(ways, found.sequence)
        assert played.seconds == found.seconds and played.peak <= case["memory"]


@given(chains(), st.integers(0, 40))
@settings(max_examples=150, deadline=None)
def test_no_persistent_sequence_is_faster(chain: Chain, budget: int) -> None:
    ways = build_chain_problem(chain)
    found = SequenceSearch(ways).fastest(budget)
    assert found.seconds <= optimum(ways, budget)
    if found.sequence is not None:
        played = simulate_chain(ways, found.sequence)
        assert played.seconds == pytest.approx(found.seconds) and played.peak <= budget


@given(chains())
@settings(max_examples=50, deadline=None)
def test_the_smallest_budget_works_and_less_does_not(chain: Chain) -> None:
    plans = EarlyFreeChainPlans(build_chain_problem(chain))
    smallest = plans.within(plans.smallest_budget)
    assert smallest is not None and smallest.peak == plans.smallest_budget
    assert plans.within(plans.smallest_budget - 1) is None


def test_a_chain_from_a_file_beats_the_persistent_optimum(tmp_path: Path) -> None:
    case = max(cases(), key=lambda case: case["L"])
    write_chain(tmp_path / "chain.arrow", chain_of_case(case))
    asked = ["--chain", str(tmp_path / "chain.arrow"), "--budget", str(case["memory"])]
    for strategy in ("early_free", "rotor"):
        words = ["chain", *asked, "--strategy", strategy, "--out", str(tmp_path / strategy)]
        assert main(words) == 0
    plan, persistent = (
        read_plan(tmp_path / name / "plan.json") for name in ("early_free", "rotor")
    )
    assert plan.time == case["expected_opt_free_discard"] < case["expected_persistent_opt"]
    assert persistent.time == case["expected_persistent_opt"]
    assert (plan.status, plan.optimal_in) == ("optimal", "all sequences of the chain")
    assert plan.message.endswith("; no possible sequence is faster.")
    sequence = read_sequence(tmp_path / "early_free" / "sequence.arrow")
    assert {"free", "free_all"} & {operation.action for operation in sequence}


def test_a_join_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_chain(tmp_path / "chain.arrow", chain_of_case(cases()[0]))
    twice = ["--chain", str(tmp_path / "chain.arrow")] * 2
    words = ["chain", *twice, "--budget", "50%", "--strategy", "early_free", "--out", str(tmp_path)]
    assert main(words) == 1
    assert "--strategy early_free plans one chain, and no join" in capsys.readouterr().err


def test_a_search_that_gives_up_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    case = cases()[0]
    ways = build_chain_problem(chain_of_case(case))
    assert SequenceSearch(ways).fastest(case["memory"], most=3) == FastestSequence(
        None, inf, gave_up=True, states=4
    )
    monkeypatch.setattr(
        SequenceSearch, "fastest", lambda *_, **__: FastestSequence(None, inf, gave_up=True)
    )
    with pytest.raises(ConfigError, match="a chain of 8 positions is too long to search"):
        sequence_search.EarlyFreeChainPlans(ways).within(case["memory"])


def test_a_search_that_would_take_too_long_ends_early() -> None:
    """Of a long chain after a small part of the states that it may look at; one that ends within
    these is gone through."""
    rows = [
        ChainPosition(
            place, 1 + place % 5, 2 + place % 7, 5 + place % 3, 9, 5, 0, 0, 0, 0, f"{place}"
        )
        for place in range(1, 31)
    ]
    loss = ChainPosition(31, 1.0, 1.0, 1, 1, 1, 0, 0, 0, 0, "loss")
    plans = EarlyFreeChainPlans(build_chain_problem(Chain([*rows, loss], 5, 0)))
    budget = (plans.persistent.smallest_budget + plans.keep_all.peak) // 3
    assert plans.persistent.smallest_budget < budget
    with pytest.raises(ConfigError, match=r"up to 200,000 states .* (4,000|16,000) were"):
        plans.within(budget)
    short = build_chain_problem(chain_of_case(max(cases(), key=lambda case: case["L"])))
    budget = EarlyFreeChainPlans(short).persistent.smallest_budget
    found = SequenceSearch(short).fastest(budget)
    assert found == SequenceSearch(short).fastest(budget, persistent=found.seconds)


@pytest.mark.parametrize("kind", ["free", "free_all"])
def test_what_is_not_there_is_not_freed(kind: str) -> None:
    ways = build_chain_problem(chain_of_case(cases()[0]))
    with pytest.raises(ScheduleError, match=rf"step 0 \({kind} 2\) frees what is not there"):
        simulate_chain(ways, [ChainOperation(kind, 2)])  # type: ignore[arg-type]
