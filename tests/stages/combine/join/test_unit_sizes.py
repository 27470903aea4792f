"""The join program with unit sizes against known optima and exhaustive search."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.join.exhaustive_search import cases, unit_optimum
from tightfit.__main__ import main
from tightfit.stages.combine.chain.simulate import simulate_join
from tightfit.stages.combine.join.dp_table import build_join_table
from tightfit.stages.combine.join.frontier import JoinFrontier, JoinMinMemory
from tightfit.stages.combine.join.problem import JoinProblem
from tightfit.stages.combine.join.unit_costs import build_unit_join

JOINS = cases("join")
TABLES = [case for case in cases("join_tables") if "lengths" in case]
CHAINS = [case for case in cases("join_tables") if "expected_opt0_by_l" in case]


def join_of(case: dict[str, Any]) -> JoinProblem:
    kept = [bool(b) for b in case["b"]]
    return build_unit_join(case["lengths"], kept, case["u_f"], case["u_b"], case["u_t"])


def makespan(join: JoinProblem, memory: int) -> float:
    """The time of the plan within a memory in slots, which the simulator has played."""
    plan = JoinFrontier(join).within(memory)
    if plan is None:
        return inf
    played = simulate_join(join, plan.sequence)
    assert (played.seconds, played.peak) == (plan.seconds, plan.peak)
    assert plan.peak <= memory
    return plan.seconds


@pytest.mark.parametrize("case", JOINS, ids=lambda case: case["id"])
def test_the_makespan_of_every_known_case(case: dict[str, Any]) -> None:
    expected = case["expected_makespan"]
    assert makespan(join_of(case), case["memory"]) == (inf if expected is None else expected)


@pytest.mark.parametrize("case", JOINS, ids=lambda case: case["id"])
def test_the_least_memory_of_every_known_case(case: dict[str, Any]) -> None:
    least = JoinMinMemory(join_of(case))
    assert least.budget == case["expected_m_min"]
    assert simulate_join(join_of(case), least.sequence()).peak == case["expected_m_min"]


@pytest.mark.parametrize("case", TABLES, ids=lambda case: case["name"])
def test_the_table_of_every_known_network(case: dict[str, Any]) -> None:
    join, expected = join_of(case), case["expected_makespan_by_c"]
    table = build_join_table(join, len(expected) - 1 - join.always_resident, 500)
    assert table.grid.exact
    found = [inf] * join.always_resident + [
        table.times.base + lost for lost in table.times.lost.tolist()
    ]
    assert found == [inf if seconds is None else seconds for seconds in expected]
    assert expected.index(case["span"]) == case["c_opt"]
    for memory, seconds in enumerate(expected):
        if seconds is not None:
            played = simulate_join(join, table.sequence(memory - join.always_resident))
            assert played.seconds == seconds and played.peak <= memory


@pytest.mark.parametrize("case", TABLES[:2], ids=lambda case: case["name"])
def test_the_command_prints_the_table(
    case: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    lengths, kept = map(str, case["lengths"]), map(str, case["b"])
    assert main(["join-table", "--lengths", *lengths, "--input-gradients", *kept]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    expected = case["expected_makespan_by_c"]
    assert head.split() == ["slots", "time"] and len(rows) > case["c_opt"]
    for count, row in enumerate(rows[: len(expected)]):
        seconds = expected[count]
        assert row.split() == [str(count), "-" if seconds is None else f"{seconds:g}"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["3", "4", "--input-gradients", "1"], "--input-gradients: expected 2 numbers"),
        (["600", "600"], "--lengths: expected at most 1000 steps together"),
        (["300", "300"], "are too long to be planned as a join"),
        (["3", "--forward", "nan"], "--forward, --backward and --turn: expected numbers from 0"),
    ],
)
def test_the_command_refuses_what_is_no_join(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["join-table", "--lengths", *words]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("case", CHAINS, ids=lambda case: case["name"])
def test_one_branch_is_revolve(case: dict[str, Any]) -> None:
    """S Definition 4: Opt_0(l, m) is the loss and its forward less than a chain of l + 1 steps."""
    u_f, u_b = case["u_f"], case["u_b"]
    for length, expected in enumerate(case["expected_opt0_by_l"]):
        if length % 7 == 0:
            join = build_unit_join([length + 1], [True], u_f, u_b, 0)
            assert makespan(join, case["memory"]) == expected + u_f


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=3),
    st.integers(1, 9),
    st.sampled_from([(1, 1, 1), (1, 2, 1), (3, 2, 5)]),
)
@settings(max_examples=60, deadline=None)
def test_equals_exhaustive_search(
    branches: list[tuple[int, bool]], memory: int, costs: tuple[int, int, int]
) -> None:
    lengths, kept = zip(*branches, strict=True)
    expected = unit_optimum(lengths, kept, memory, *costs)
    assert makespan(build_unit_join(lengths, kept, *costs), memory) == expected
