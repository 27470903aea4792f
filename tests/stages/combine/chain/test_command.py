"""`chain`, by its files."""

from __future__ import annotations

import argparse
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.persistent import cases, chain_of_case
from tightfit.__main__ import main
from tightfit.schemas.block_options import BlockOption, write_block_options
from tightfit.schemas.chain import Chain, ChainPosition, read_chain, write_chain
from tightfit.schemas.sequence import read_sequence
from tightfit.stages.combine.chain.command import add_arguments, run
from tightfit.stages.combine.chain.options import build_chain_problem
from tightfit.stages.combine.chain.simulate import simulate_chain
from tightfit.util.errors import ConfigError

SOLVED = cases()[2]


def combine(folder: Path, chain: Chain, *arguments: str) -> dict:
    write_chain(folder / "chain.arrow", chain)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = ["--chain", str(folder / "chain.arrow"), "--out", str(folder / "out"), *arguments]
    run(parser.parse_args(given))
    return json.loads((folder / "out" / "plan.json").read_text())


def rotor(folder: Path, chain: Chain, budget: int | str, *arguments: str) -> dict:
    return combine(folder, chain, "--strategy", "rotor", "--budget", str(budget), *arguments)


def layers(count: int, size: int = 1_000_003) -> Chain:
    rows = [
        ChainPosition(
            p, 1.0, 2.0, size, (2 + p % 3) * size + p, size, p, 2 * p, 0, p * 1000, f"layer {p}"
        )
        for p in range(1, count + 1)
    ]
    return Chain(
        [*rows, ChainPosition(count + 1, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, "loss")], size, size
    )


def test_a_number_without_unit_is_refused_for_a_chain_of_a_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--budget: 50 is 50 bytes, write '50%' or '50MB'$"):
        rotor(tmp_path, layers(3), 50)


def test_a_known_case_is_optimal_without_a_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = rotor(tmp_path, chain_of_case(SOLVED), SOLVED["memory"])
    capsys.readouterr()
    assert main(["show", str(tmp_path / "out/plan.json")]) == 0
    assert ": plan, 1 row, " in capsys.readouterr().out
    assert plan["status"] == "optimal"
    assert plan["optimal_in"] == "persistent sequences of the chain"
    assert plan["time"] == plan["lower_bound"] == SOLVED["expected_persistent_opt"]
    assert plan["gap"] == 0.0
    assert plan["smallest_budget"] is None
    ways = build_chain_problem(read_chain(tmp_path / "chain.arrow"))
    played = simulate_chain(ways, read_sequence(tmp_path / "out" / "sequence.arrow"))
    assert (played.seconds, played.peak) == (plan["time"], plan["peak"])
    assert plan["peak"] <= SOLVED["memory"]


def test_a_rounded_plan_says_its_slots_and_its_gap(tmp_path: Path) -> None:
    plan = rotor(tmp_path, layers(30), "40%", "--slots", "200")
    assert plan["status"] == "optimal"
    assert plan["optimal_in"] == "persistent sequences of the chain at 200 slots"
    assert plan["message"].endswith("% faster, and none at 200 slots is faster.")
    assert 0 < plan["lower_bound"] < plan["time"]
    assert plan["gap"] == pytest.approx(1 - plan["lower_bound"] / plan["time"])
    assert plan["peak"] <= plan["budget_bytes"] < plan["keep_all"]["peak"]
    assert plan["time"] > plan["keep_all"]["time"]
    assert plan["recomputed"] > 0


def test_room_enough_keeps_everything(tmp_path: Path) -> None:
    plan = rotor(tmp_path, layers(12), "1GB")
    assert plan["status"] == "optimal"
    assert (plan["recomputed"], plan["gap"]) == (0, 0.0)
    words = [str(action) for action in read_sequence(tmp_path / "out" / "sequence.arrow")]
    assert words[0] == "F_all 1" and words[12] == "loss" and words[-1] == "B 1"


def test_too_small_a_budget_names_the_smallest_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = layers(12)
    plan = rotor(tmp_path, chain, 1000)
    assert capsys.readouterr().out == f"infeasible: {plan['message']}\n"
    assert plan["status"] == "infeasible"
    assert plan["time"] is None and plan["peak"] is None and plan["optimal_in"] == ""
    assert f"{plan['smallest_budget']:,} bytes" in plan["message"]
    assert read_sequence(tmp_path / "out" / "sequence.arrow") == []
    smallest = rotor(tmp_path, chain, plan["smallest_budget"])
    assert smallest["status"] in ("optimal", "feasible")
    assert capsys.readouterr().out == f"{smallest['status']}: {smallest['message']}\n"
    assert smallest["peak"] == plan["smallest_budget"]
    assert rotor(tmp_path, chain, plan["smallest_budget"] - 1)["status"] == "infeasible"


@pytest.mark.parametrize("strategy", ["rotor", "early_free", "sequential", "revolve"])
def test_min_is_the_smallest_budget_that_works(tmp_path: Path, strategy: str) -> None:
    chain = chain_of_case(SOLVED)
    least = combine(tmp_path, chain, "--strategy", strategy, "--budget", "min")
    refused = combine(tmp_path, chain, "--strategy", strategy, "--budget", "1B")
    assert least["budget"] == "min" and least["status"] != "infeasible"
    assert least["peak"] == least["budget_total"] == refused["smallest_budget"]


def test_less_budget_is_never_a_higher_peak_or_less_time(tmp_path: Path) -> None:
    plans = [rotor(tmp_path, layers(14), f"{share}%") for share in range(100, 20, -5)]
    feasible = [plan for plan in plans if plan["status"] != "infeasible"]
    assert len(feasible) > 8
    for more, less in pairwise(feasible):
        assert less["peak"] <= more["peak"]
        assert less["time"] >= more["time"]


def test_rockmate_runs_blocks_with_the_options_of_their_label(tmp_path: Path) -> None:
    size = 1_000_003
    cheap: dict[str, Any] = dict(
        forward_seconds=1.0, output_seconds=0.0, forward=[0], status="feasible", gap=1.0
    )
    rows = [
        BlockOption(
            "layer 2", 0, "nothing", size, size, 0, backward_seconds=0.0, backward=[], **cheap
        ),
        BlockOption("layer 2", 1, "all", 4 * size, 4 * size, 6 * size, 2.0, 2.0, 0.0, [0], [2]),
        BlockOption("layer 2", 2, "little", size, 2 * size, 6 * size, 1.0, 2.1, 0.0, [0], [2]),
    ]
    write_block_options(tmp_path / "options.arrow", rows)
    chain = layers(6)
    arguments = ["--strategy", "rockmate", "--options", str(tmp_path / "options.arrow")]
    plan = combine(tmp_path, chain, *arguments, "--budget", "70%")
    assert plan["status"] == "optimal"
    words = [str(action) for action in read_sequence(tmp_path / "out" / "sequence.arrow")]
    assert "F 2 option 2" in words and "F_all 3" in words


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--strategy", "magic", "--budget", "1GB"], "--strategy magic: a chain is planned by"),
        (["--strategy", "magic", "--budget", "1GB"], " or pofo or "),
        (["--strategy", "magic", "--budget", "1GB"], " or madpipe"),
        (["--strategy", "madpipe"], "--strategy madpipe plans a pipeline, and needs --machine"),
        (["--strategy", "rotor", "--budget", "lots"], "'lots' is no size"),
        (["--strategy", "rockmate", "--budget", "1GB"], "needs --options"),
        (["--strategy", "rotor", "--budget", "1GB", "--slots", "0"], "--slots 0"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    with pytest.raises(ConfigError) as refused:
        combine(tmp_path, layers(3), *arguments)
    assert sentence in str(refused.value)
    assert not (tmp_path / "out").exists()
