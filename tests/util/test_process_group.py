"""A signal that reaches one process ends all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tightfit.util.process_group import (
    SIGNAL_CODE,
    TERMINATION_SIGNALS,
    is_interrupted,
    run_process_group,
)

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from tightfit.util.process_group import run_process_group
sys.exit(run_process_group(sys.argv[1:]))
"""
TOGETHER = [sys.executable, "-c", CODE]


def started(*command: str, ignoring: bool = False) -> subprocess.Popen[str]:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    return subprocess.Popen(
        [*TOGETHER, *command],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=ignore if ignoring else None,
    )


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("code", [0, 1, 7])
def test_the_exit_code_is_that_of_the_command(code: int) -> None:
    running = started("/bin/sh", "-c", f"echo said; exit {code}")
    assert running.communicate(timeout=60) == ("said\n", None)
    assert running.returncode == code


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("ignoring", [False, True], ids=["in front", "behind"])
def test_a_signal_ends_the_command_and_what_it_runs_in_the_background(
    number: int, ignoring: bool
) -> None:
    ready = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(1000)"
    running = started("/bin/sh", "-c", f"{sys.executable} -c '{ready}' & wait", ignoring=ignoring)
    assert running.stdout is not None
    family = [int(word) for word in running.stdout.readline().split()]
    assert all(map(is_there, family))
    running.send_signal(number)
    running.wait(timeout=60)
    assert running.returncode == 128 + number
    assert not any(map(is_there, family))


def test_a_second_signal_ends_what_an_interrupt_does_not() -> None:
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    deaf += "print('deaf', flush=True); time.sleep(1000)"
    running = started(sys.executable, "-c", deaf)
    assert running.stdout is not None and running.stdout.readline() == "deaf\n"
    running.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(timeout=0.5)
    running.send_signal(signal.SIGTERM)
    running.wait(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM


def test_signals_do_afterwards_what_they_did_before() -> None:
    before = [signal.getsignal(number) for number in TERMINATION_SIGNALS]
    assert run_process_group(["/bin/sh", "-c", "kill -TERM $$"]) == SIGNAL_CODE + signal.SIGTERM
    assert [signal.getsignal(number) for number in TERMINATION_SIGNALS] == before


def test_the_command_is_given_a_folder_variables_and_open_files(tmp_path: Path) -> None:
    with (tmp_path / "said").open("wb") as output, (tmp_path / "open").open("w") as kept:
        words = f"pwd; echo $MINE; echo more >/dev/fd/{kept.fileno()}; echo error >&2"
        done: list[str] = []
        code = run_process_group(
            ["/bin/sh", "-c", words],
            folder=tmp_path,
            environment={"MINE": "yes"},
            output=output,
            inherited=[kept.fileno()],
            meanwhile=lambda: done.append("work"),
        )
    assert (code, done) == (0, ["work"])
    assert (tmp_path / "said").read_text() == f"{tmp_path}\nyes\nerror\n"
    assert (tmp_path / "open").read_text() == "more\n"


@pytest.mark.parametrize(
    ("code", "interrupted"), [(0, False), (1, False), (130, True), (137, False), (143, True)]
)
def test_exit_codes_of_interrupted_commands_are_known(code: int, interrupted: bool) -> None:
    assert is_interrupted(code) == interrupted
