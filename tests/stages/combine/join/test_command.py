"""`chain` with several chains, by its files."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.combine.chain.test_command import layers
from tightfit.schemas.block_options import BlockOption, write_block_options
from tightfit.schemas.chain import Chain, write_chain
from tightfit.schemas.sequence import read_sequence
from tightfit.stages.combine.chain.command import add_arguments, run
from tightfit.stages.combine.chain.simulate import simulate_join
from tightfit.stages.combine.join.problem import build_join_problem
from tightfit.util.errors import ArtifactError

ROOT = Path(__file__).parents[4]


def written(folder: Path, chains: list[Chain]) -> list[str]:
    words = []
    for number, chain in enumerate(chains):
        write_chain(folder / f"{number}.arrow", chain)
        words += ["--chain", str(folder / f"{number}.arrow")]
    return words


def combine(folder: Path, chains: list[Chain], *arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    given = ["--strategy", "rotor", *arguments, "--out", str(folder / "out")]
    run(parser.parse_args([*written(folder, chains), *given]))
    return json.loads((folder / "out" / "plan.json").read_text())


def two() -> list[Chain]:
    return [layers(6, 1000), layers(4, 3000)]


def test_the_plan_is_what_the_referee_plays(tmp_path: Path) -> None:
    plan = combine(tmp_path, two(), "--budget", "60%")
    sequence = read_sequence(tmp_path / "out" / "sequence.arrow")
    played = simulate_join(build_join_problem(two()), sequence)
    assert (played.seconds, played.peak) == (plan["time"], plan["peak"])
    assert plan["peak"] <= plan["budget_bytes"] < plan["keep_all"]["peak"]
    assert plan["status"] == "optimal"
    assert plan["optimal_in"].startswith("nested sequences of the join")
    assert plan["lower_bound"] <= plan["time"] and plan["recomputed"] > 0
    assert {action.branch for action in sequence} == {0, 1, 2}
    words = [str(action) for action in sequence]
    assert "B 4 of branch 2" in words and words.count("loss") == 1


def test_room_enough_keeps_everything(tmp_path: Path) -> None:
    plan = combine(tmp_path, two(), "--budget", "1GB")
    assert (plan["status"], plan["recomputed"], plan["gap"]) == ("optimal", 0, 0.0)
    assert plan["optimal_in"] == "nested sequences of the join"
    assert plan["time"] == 10 * 3.0
    assert plan["baseline"]["inputs"] == 4000


def test_too_small_a_budget_names_the_smallest_that_works(tmp_path: Path) -> None:
    plan = combine(tmp_path, two(), "--budget", "5000")
    assert plan["status"] == "infeasible"
    assert plan["message"].startswith("No nested sequence fits 5,000 bytes")
    assert read_sequence(tmp_path / "out" / "sequence.arrow") == []
    smallest = combine(tmp_path, two(), "--budget", str(plan["smallest_budget"]))
    assert smallest["peak"] == plan["smallest_budget"]
    below = combine(tmp_path, two(), "--budget", str(plan["smallest_budget"] - 1))
    assert below["status"] == "infeasible"


def test_a_chain_may_be_named_twice(tmp_path: Path) -> None:
    chain = layers(5, 1000)
    write_chain(tmp_path / "tower.arrow", chain)
    once = ["--chain", str(tmp_path / "tower.arrow")]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    rest = ["--strategy", "rotor", "--budget", "60%", "--out", str(tmp_path / "out")]
    run(parser.parse_args([*once, *once, *rest]))
    sequence = read_sequence(tmp_path / "out" / "sequence.arrow")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert simulate_join(build_join_problem([chain, chain]), sequence).seconds == plan["time"]


def test_branches_that_are_only_a_loss_are_planned(tmp_path: Path) -> None:
    plan = combine(tmp_path, [layers(0), layers(0)], "--budget", "1GB")
    assert plan["status"] == "optimal"
    assert [str(step) for step in read_sequence(tmp_path / "out" / "sequence.arrow")] == ["loss"]


def test_blocks_run_with_the_options_of_their_label(tmp_path: Path) -> None:
    cheap: dict[str, Any] = dict(
        forward_seconds=1.0, output_seconds=0.0, forward=[0], status="feasible", gap=1.0
    )
    rows = [
        BlockOption(
            "layer 2", 0, "none", 1000, 1000, 0, backward_seconds=0.0, backward=[], **cheap
        ),
        BlockOption("layer 2", 1, "all", 4000, 4000, 6000, 2.0, 2.0, 0.0, [0], [2]),
        BlockOption("layer 2", 2, "little", 1000, 2000, 6000, 1.0, 2.1, 0.0, [0], [2]),
    ]
    write_block_options(tmp_path / "options.arrow", rows)
    chains = [layers(4, 1000), layers(3, 1000)]
    options = ["--strategy", "rockmate", "--options", str(tmp_path / "options.arrow")]
    combine(tmp_path, chains, *options, "--budget", "85%")
    words = [str(step) for step in read_sequence(tmp_path / "out" / "sequence.arrow")]
    assert "F 2 option 2 of branch 1" in words or "F 2 option 2 of branch 2" in words


def test_branches_with_two_losses_are_refused(tmp_path: Path) -> None:
    first, second = two()
    other = replace(second.positions[-1], u_f=2.0)
    chains = [first, replace(second, positions=[*second.positions[:-1], other])]
    with pytest.raises(ArtifactError) as refused:
        combine(tmp_path, chains, "--budget", "60%")
    assert "1.arrow: its loss has u_f = 2.0, that of" in str(refused.value)
    assert str(refused.value).endswith("the branches of a join end in the same loss")
    assert not (tmp_path / "out").exists()


def test_branches_that_are_too_long_together_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="branches of 40, 40, 40 positions are too long"):
        combine(tmp_path, [layers(40)] * 3, "--budget", "60%")


def test_the_command_plans_a_join_without_pytorch(tmp_path: Path) -> None:
    arguments = ["chain", *written(tmp_path, two()), "--strategy", "rotor", "--budget", "60%"]
    code = (
        "import sys; from tightfit.__main__ import main\n"
        f"status = main({[*arguments, '--out', str(tmp_path / 'out')]!r})\n"
        "assert 'torch' not in sys.modules; sys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    record = json.loads((tmp_path / "out" / "lineage" / "plan.json.json").read_text())
    assert len(record["inputs"]) == 2
