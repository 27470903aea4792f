"""What Snakemake loads for a run: no executor of a cluster that the run does not name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tightfit.run_command import SNAKEMAKE_PROGRAM, WorkflowRun
from tightfit.snakemake_process import _exit_of_interrupt, unused_plugins

INSTALLED = ["json", "snakemake_executor_plugin_slurm", "snakemake_executor_plugin_slurm_jobstep"]


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (["--cores", "2"], INSTALLED[1:]),
        (["--cores", "2", "--profile", "usual"], INSTALLED[1:]),
        (["--cores", "2", "--profile", "cluster"], []),
        (["--executor", "slurm"], []),
        (["--executor=slurm"], []),
        (["--workflow-profile", "cluster"], []),
    ],
)
def test_executors_that_nobody_names_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: Sequence[str], unused: Sequence[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("usual", "cores: all"), ("cluster", "executor: slurm")):
        Path(name).mkdir()
        Path(name, "config.v8+.yaml").write_text(text)
    assert unused_plugins(words, INSTALLED) == set(unused)


def test_a_profile_that_snakemake_takes_unasked_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("profiles/default").mkdir(parents=True)
    Path("profiles/default/config.yaml").write_text("executor: slurm")
    assert unused_plugins([], INSTALLED) == set()


def test_snakemake_knows_its_own_executors_without_the_others() -> None:
    command = [sys.executable, "-P", str(SNAKEMAKE_PROGRAM), "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    executors = " ".join(told.split()).partition("--executor ")[2].partition("}")[0]
    assert "local" in executors and "dryrun" in executors
    assert "slurm" not in executors and "kubernetes" not in executors


def test_an_interrupt_shows_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    for error in (KeyboardInterrupt(), ValueError("no luck")):
        _exit_of_interrupt(type(error), error, None)
    assert capsys.readouterr().err == "ValueError: no luck\n"


def test_what_a_run_prints_is_progress_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('a: solved 1, 0 from the store')")
    monkeypatch.setattr("tightfit.run_command.SNAKEMAKE_PROGRAM", program)
    run = WorkflowRun([], tmp_path, dict(os.environ), [])
    assert run.run("--until", "solve") == 0
    assert capfd.readouterr() == ("", "a: solved 1, 0 from the store\n")
    assert run.explain(None) == ("a: solved 1, 0 from the store\n", 0)
