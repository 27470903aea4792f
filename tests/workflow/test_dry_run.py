"""The Snakefile without running a job: what it would do, and what it refuses."""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from typing import Any

import pytest

from tests.workflow.conftest import ROOT, Workplace
from tightfit.stages.profile.machine_command import add_arguments


def test_the_shipped_configuration_gives_one_job_a_step(quick: Workplace) -> None:
    shutil.copy(ROOT / "config.yaml", quick.folder)
    result = quick.snakemake("--dry-run")
    assert result.returncode == 0, result.stderr
    lines = [line.partition("] ")[2] for line in result.stderr.splitlines()]
    assert lines.count("gpt2: measuring each distinct op") == 1
    assert lines.count("resnet50: planning with auto") == 1
    assert sum(line.startswith("compiling the search") for line in lines) == 1
    assert sum(line.endswith(": running the model") for line in lines) == 3
    assert sum("against the model" in line for line in lines) == 12
    assert not (quick.folder / "results").exists()


@pytest.fixture(scope="module")
def commands(quick: Workplace, tiny: dict[str, Any]) -> list[str]:
    """Those of two models, one of which has strategies of its own, where no disk is named."""
    models = {"one": {**tiny, "strategies": ["offload"]}, "other": tiny}
    strategies = ["offload", "auto"]
    quick.configure({"models": models, "strategies": strategies, "solver": {"engine": "cbc"}})
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TIGHTFIT_DISK", raising=False)
        result = quick.snakemake("--dry-run", "--printshellcmds", logger="")
    assert result.returncode == 0, result.stderr
    return (result.stdout + result.stderr).splitlines()


def test_the_engine_solves_blocks_and_whole_steps(commands: list[str]) -> None:
    for stage in ("solve", "combine", "select"):
        own = [line for line in commands if f"-m tightfit {stage} " in line]
        assert own and all(" --solver cbc " in line for line in own), stage


def test_limits_and_slots_are_those_of_the_configuration(
    quick: Workplace, tiny: dict[str, Any]
) -> None:
    limits = {"hierarchy": {"nodes": 9, "clusters": 5, "top": 8}, "solver": {"slots": 77}}
    quick.configure({"models": {"one": tiny}, "strategies": ["hiremate", "rotor"], **limits})
    result = quick.snakemake("--dry-run", "--printshellcmds", logger="")
    said = (result.stdout + result.stderr).splitlines()
    [command] = [line for line in said if " --hierarchy results/one/" in line and "--top" in line]
    assert " --nodes 9 --clusters 5 --top 8 " in command
    planned = [line for line in said if re.search("-m tightfit (combine|select) ", line)]
    assert planned and all(" --slots 77 " in line for line in planned)


def test_frontiers_share_the_cores(
    quick: Workplace, tiny: dict[str, Any], commands: list[str]
) -> None:
    """A frontier alone is searched by both cores, three by one each."""
    combined = [line for line in commands if "-m tightfit combine " in line]
    many = [line for line in combined if " --no-local-search " not in line]
    assert len(many) == 3 and all(" --workers 1 " in line for line in many)
    assert len(combined) == 6
    quick.configure({"models": {"one": tiny}, "strategies": ["checkpoint_all", "auto"]})
    result = quick.snakemake("--dry-run", "--printshellcmds", logger="")
    said = (result.stdout + result.stderr).splitlines()
    searched = [line for line in said if "-m tightfit combine " in line and " auto " in line]
    assert sorted(" --workers 2 " in line for line in searched) == [False, True]


@pytest.mark.parametrize(
    ("asked", "budgets"), [({}, 12), ({"frontier": True}, 48), ({"frontier": False}, None)]
)
def test_frontiers_are_as_fine_as_is_asked(
    quick: Workplace, tiny: dict[str, Any], asked: dict[str, Any], budgets: int | None
) -> None:
    quick.configure({"models": {"one": tiny}, "strategies": ["checkpoint_all", "rotor"], **asked})
    result = quick.snakemake("--dry-run", "--printshellcmds", logger="")
    said = (result.stdout + result.stderr).splitlines()
    combined = [line for line in said if "-m tightfit combine " in line and " rotor " in line]
    searched = [line for line in combined if f" --budgets {budgets} " in line]
    assert len(searched) == len(combined) - 1 == (0 if budgets is None else 1)
    assert any("-m tightfit combine " in line and " checkpoint_all " in line for line in said)
    pages = [line for line in said if "-m tightfit report --" in line and "perfetto" not in line]
    assert len(pages) == 2
    assert all((" --plans-only " in line) == (budgets is None) for line in pages)


def test_errors_of_the_configuration_are_told_all_at_once(
    quick: Workplace, tiny: dict[str, Any]
) -> None:
    document = {"models": {"a": {**tiny, "budgets": ["8 gigs"]}}, "device": "gpu", "piars": 3}
    quick.configure(document)
    result = quick.snakemake("--dry-run")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    for sentence in (
        "has 3 errors",
        "models.a.budgets[0]: '8 gigs' has the unknown unit 'gigs'",
        'device: "gpu" was found, expected cpu, cuda, cuda:NUMBER, a described device (a100, ',
        "piars: is no known key, did you mean pairs",
    ):
        assert sentence in result.stderr


def test_folders_that_cannot_be_are_told_in_a_sentence(
    quick: Workplace, tiny: dict[str, Any]
) -> None:
    (quick.folder / "notes.txt").touch()
    folders = {"results": "notes.txt", "store": "notes.txt/store"}
    quick.configure({"models": {"tiny": tiny}, **folders})
    result = quick.snakemake("--dry-run")
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    for key in folders:
        assert f"{key}: notes.txt is a file, expected a folder" in result.stderr


def test_the_link_is_measured_once_where_a_strategy_takes_it(commands: list[str]) -> None:
    """Also where no folder of a disk is named, which is an empty argument of the command."""
    assert any(" --strategy offload " in line and "results/other/" in line for line in commands)
    [command] = [line for line in commands if "-m tightfit machine " in line]
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parser.add_argument("--error-file")
    said = command.partition("-m tightfit machine ")[2]
    for asked in ("", "1"):
        words = subprocess.run(
            ["/bin/sh", "-c", f"printf '%s\\n' {said}"],
            env={"TIGHTFIT_REMEASURE": asked},
            capture_output=True,
            text=True,
            check=True,
        )
        options = parser.parse_args(words.stdout.splitlines())
        assert (options.disk, options.out) == ("", "results/machine_cpu.json")
        assert options.remeasure is bool(asked)


def test_a_model_may_be_planned_for_a_device_of_its_own(
    quick: Workplace, tiny: dict[str, Any]
) -> None:
    described = {**tiny, "device": "h100", "strategies": ["rotor"], "solver": {"peaks": 1}}
    quick.configure({"models": {"here": {**tiny, "pairs": 2}, "there": described}, "pairs": 4})
    result = quick.snakemake("--dry-run", "--printshellcmds", logger="")
    assert result.returncode == 0, result.stderr
    said = (result.stdout + result.stderr).splitlines()

    def command(stage: str, model: str) -> str:
        lines = [line for line in said if f"-m tightfit {stage} " in line]
        return next(line for line in lines if f"results/{model}/" in line)

    assert " --device cpu " in command("profile", "here")
    assert "h100.json" in command("profile", "there")
    assert " --pairs 2 " in command("reference", "here")
    assert " --peaks 4 " in command("solve", "here")
    assert " --peaks 1 " in command("solve", "there")
    assert not any("results/there/" in line for line in said if "tightfit validate " in line)
    assert not any("-m tightfit machine " in line for line in said)


def test_samples_with_a_joint_budget_wait_for_the_steps_that_keep_everything(
    quick: Workplace, tiny: dict[str, Any]
) -> None:
    shapes = {**tiny, "samples": [{"tokens": 16}, {"tokens": 8}], "joint": True}
    quick.configure({"models": {"tiny": shapes}, "strategies": ["rotor"], "device": "h100"})
    result = quick.snakemake("--dry-run", "--printshellcmds", logger="")
    assert result.returncode == 0, result.stderr
    said = (result.stdout + result.stderr).splitlines()
    plans = " ".join(f"results/tiny.{number}/keep_all/none/plan.json" for number in (1, 2))
    asked = [line for line in said if f" --joint {plans} " in line]
    assert len(asked) == 2 and all(" --budget 50% " in line for line in asked)


def test_the_workflow_is_tidy(quick: Workplace, tiny: dict[str, Any]) -> None:
    quick.configure({"models": {"tiny": tiny}})
    result = quick.snakemake("--lint")
    lines = [line.strip() for line in (result.stdout + result.stderr).splitlines()]
    complaints = {line for line in lines if line.startswith("*")}
    assert complaints == {"* Specify a conda environment or container for each rule.:"}
