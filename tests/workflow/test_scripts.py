"""The scripts behind `make`: one run at a time, and errors in plain words."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.conftest import Workplace


def command(workplace: Workplace, config: str) -> list[str]:
    script = workplace.checkout / "workflow/plan.sh"
    return [str(script), str(Path(sys.executable).parent), config, "1"]


def environment(workplace: Workplace) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(workplace.checkout / "workflow/progress")}


@pytest.fixture
def invalid(workplace: Workplace) -> str:
    """A configuration that ends a run at once."""
    path = workplace.checkout / "invalid.yaml"
    path.write_text("models: {a: {factory: nowhere}}\n")
    return path.name


def test_a_run_with_a_wrong_configuration_says_so_and_fails(
    workplace: Workplace, invalid: str
) -> None:
    result = subprocess.run(
        command(workplace, invalid),
        cwd=workplace.checkout,
        env=environment(workplace),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert 'models.a.factory: "nowhere" was found, expected text of the form' in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "mine.yaml: cannot be read (No such file or directory)"),
        ("models: {a: [", "mine.yaml: is not YAML (while parsing a flow"),
        ("", "mine.yaml: the configuration: nothing was found, expected a mapping"),
    ],
)
def test_a_file_that_is_no_configuration_is_told_in_a_sentence(
    workplace: Workplace, text: str | None, words: str
) -> None:
    path = workplace.checkout / "mine.yaml"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    result = subprocess.run(
        command(workplace, path.name),
        cwd=workplace.checkout,
        env=environment(workplace),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(words) and result.stderr.count("\n") == 1


@pytest.fixture
def ending(workplace: Workplace) -> str:
    """A configuration without a fault of its own, whose run ends at once: its factory is
    nowhere."""
    path = workplace.checkout / "right.yaml"
    path.write_text("models: {a: {factory: 'nowhere:a'}}\nsearch_path: [gone]\n")
    return path.name


@contextlib.contextmanager
def held_folder(workplace: Workplace) -> Iterator[None]:
    """Within it another run holds the folder."""
    folder = workplace.checkout / ".snakemake"
    folder.mkdir(exist_ok=True)
    with (folder / "plan.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_wrong_configuration_is_told_ahead_of_a_wait(workplace: Workplace, invalid: str) -> None:
    with held_folder(workplace):
        result = subprocess.run(
            command(workplace, invalid),
            cwd=workplace.checkout,
            env=environment(workplace),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert result.returncode == 1 and "models.a.factory" in result.stderr
    assert not result.stdout


@pytest.fixture
def _interrupted() -> Iterator[None]:
    """Interrupts reach what is started, also where the tests themselves run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def waiting_run(workplace: Workplace, config: str) -> Iterator[subprocess.Popen[str]]:
    """A run that waits for another one, which goes on within this block."""
    with held_folder(workplace):
        waiting = subprocess.Popen(
            command(workplace, config),
            cwd=workplace.checkout,
            env=environment(workplace),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "Waiting for another run in this folder to end ...\n"
        assert waiting.poll() is None
        yield waiting


def test_a_second_run_waits_for_the_first(workplace: Workplace, ending: str) -> None:
    with waiting_run(workplace, ending) as waiting:
        pass
    rest, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 1
    assert "nowhere" in rest


@pytest.mark.usefixtures("_interrupted")
def test_a_run_that_waits_is_interrupted_without_a_word(workplace: Workplace, ending: str) -> None:
    with waiting_run(workplace, ending) as waiting:
        os.killpg(waiting.pid, signal.SIGINT)
        rest, _ = waiting.communicate(timeout=120)
    assert (rest, waiting.returncode) == ("", -signal.SIGINT)


def test_an_environment_needs_a_python_that_fits(workplace: Workplace, tmp_path: Path) -> None:
    result = subprocess.run(
        [str(workplace.checkout / "workflow/environment.sh"), str(tmp_path / "venv"), "models"],
        env={**os.environ, "PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("tightfit needs Python 3.11 or 3.12 with pip")
    assert not (tmp_path / "venv").exists()
