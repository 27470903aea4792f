"""A signal that reaches `make` alone ends all that it has started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOGETHER = [sys.executable, str(ROOT / "workflow/process_group.py")]


def started(*command: str, ignoring: bool = False) -> subprocess.Popen[str]:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    return subprocess.Popen(
        [*TOGETHER, *command],
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


def test_make_runs_plans_so() -> None:
    said = subprocess.run(
        ["make", "--dry-run", "--always-make", "plan", "zoo"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    runs = [line for line in said.splitlines() if "workflow/plan.sh" in line]
    assert len(runs) == 2
    assert all(line.startswith("exec ") and "workflow/process_group.py" in line for line in runs)
