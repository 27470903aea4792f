"""`python -m tightfit`: help for every stage, one sentence for an error."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tightfit
from tightfit.__main__ import MAX_ERROR_CHARACTERS, STAGES, UNFINISHED_ERROR, main
from tightfit.util.errors import ConfigError
from tightfit.util.processes import is_file_locked
from tightfit.util.strategies import CHAIN_STRATEGIES

ROOT = Path(__file__).parents[1]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tightfit", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_names_every_stage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {stage} " in text for stage in STAGES)


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"tightfit {tightfit.__version__}\n"


def test_the_help_of_chains_names_all_their_strategies(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["chain", "--help"])
    assert {*CHAIN_STRATEGIES} <= {*re.findall(r"\w+", capsys.readouterr().out)}


def test_summary_and_prune_take_the_usual_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("summary", "prune"):
        assert main([command]) == 1
        assert "config.yaml" in capsys.readouterr().err
    Path("config.yaml").write_text("models: {m: {factory: 'a.b:c'}}\nresults: mine\n")
    assert main(["summary"]) == 0
    assert "not planned" in capsys.readouterr().out


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_help(stage: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([stage, "--help"])
    assert stopped.value.code == 0
    assert f"usage: tightfit {stage}" in capsys.readouterr().out


def test_no_stage_and_an_unknown_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["paint"]) == 2
    assert (
        "'paint' is no stage, use one of run, fit, trace, fuse, profile" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("stage", "option"),
    [
        ("combine", "--workers"),
        ("profile", "--threads"),
        ("validate", "--threads"),
        ("solve", "--jobs"),
        ("solve", "--peaks"),
        ("fuse", "--jobs"),
    ],
)
@pytest.mark.parametrize("given", ["0", "-2", "1.5", "99999999999"])
def test_a_count_that_is_none_is_refused(
    stage: str, option: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([stage, option, given])
    assert stopped.value.code == 2
    said = f"argument {option}: {given} is not a number from 1 to 65536"
    assert capsys.readouterr().err.endswith(f"tightfit {stage}: error: {said}\n")


def test_an_error_is_one_sentence_and_is_kept(tmp_path: Path) -> None:
    words = ["partition", "--graph", str(tmp_path / "absent"), "--costs", "x", "--out", "y"]
    kept = tmp_path / "error.txt"
    result = run(*words, "--error-file", str(kept))
    assert result.returncode == 1
    sentence = f"{tmp_path}/absent: cannot be read (No such file or directory)"
    assert result.stderr == f"tightfit partition: {sentence}\n"
    assert kept.read_text() == f"partition: {sentence}\n"
    assert not Path("y").exists()


def test_a_stage_that_is_killed_and_wrong_arguments_leave_a_sentence_too(tmp_path: Path) -> None:
    kept, pipe = tmp_path / "error.txt", tmp_path / "graph.arrow"
    words = ["partition", "--costs", "x", "--out", str(tmp_path / "y"), "--error-file", str(kept)]
    code = "import os, sys; from tightfit.__main__ import main;"
    code += "import tightfit.stages.partition.command as cli;"
    code += f"cli.run = lambda _: os.kill(os.getpid(), 9); main({[*words, '--graph', str(pipe)]!r})"
    run_it = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert run_it.returncode == -9
    assert kept.read_text() == f"partition: {UNFINISHED_ERROR}\n"
    assert not is_file_locked(kept)
    with pytest.raises(SystemExit) as stopped:
        main([*words, "--graph"])
    assert stopped.value.code == 2
    assert (
        kept.read_text() == "partition: wrong arguments: argument --graph: expected one argument\n"
    )


def test_a_stage_that_runs_keeps_its_file_for_errors_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, seen = tmp_path / "error.txt", []
    words = ["partition", "--graph", "x", "--costs", "x", "--out", str(tmp_path / "y")]

    def runs(_: object) -> None:
        seen.append(is_file_locked(kept))
        raise ConfigError("this stage fails")

    monkeypatch.setattr("tightfit.stages.partition.command.run", runs)
    assert main([*words, "--error-file", str(kept)]) == 1
    assert seen == [True] and not is_file_locked(kept)
    assert kept.read_text() == "partition: this stage fails\n"


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = run("partition", "--debug", "--graph", "absent", "--costs", "x", "--out", "y")
    assert result.returncode == 1
    assert "Traceback" in result.stderr


def test_texts_of_files_stay_on_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--costs", "x", "--out", "y"]
    assert main(["partition", "--graph", str(tmp_path / "a\nb\x1b[2Jc"), *words]) == 1
    assert f"{tmp_path}/a b [2Jc: cannot be read" in capsys.readouterr().err
    assert main(["partition", "--graph", "a" * 9999, *words]) == 1
    assert len(capsys.readouterr().err) < MAX_ERROR_CHARACTERS + 100


def test_all_errors_of_a_configuration_are_told_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = "".join(f"  m{number}: {{factory: nothing}}\n" for number in range(100))
    (tmp_path / "many.yaml").write_text(f"models:\n{models}")
    assert main(["run", str(tmp_path / "many.yaml"), "--dry-run"]) == 1
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if '"nothing" was found, expected text of the form' in line]
    assert len(told) == 100, lines[:3]
