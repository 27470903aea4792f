"""`tests/gpu/run.sh`: runs the steps that are not done yet, within a number of minutes."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.gpu.record import DONE, FAILED, LACKS, LATE, WAITS, Record
from tests.gpu.steps import ROOT, Asked, Step, steps

_TOLD = 300
"""Characters of a failure that stand in the record; the rest is in its log."""


def main() -> int:
    """Returns 0 when all steps are done, 2 where some wait for another run, else 1."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder to write")
    parser.add_argument("--minutes", type=float, default=20.0, help="begin no step after these")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try this out")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--strategy", default="rockmate")
    parser.add_argument("--only", default="", help="only steps whose name holds this text")
    parser.add_argument("--again", action="store_true", help="try again what failed")
    parser.add_argument(
        "--reports",
        type=Path,
        help="folder for copies of both files (default: reports, for full sizes on a GPU)",
    )
    asked = parser.parse_args()
    reports = asked.reports
    if reports is None and asked.size == "full" and asked.device.startswith("cuda"):
        reports = ROOT / "reports"
    signal.signal(signal.SIGTERM, _stopped)
    return run(
        Asked(asked.out.resolve(), asked.device, asked.size, asked.strategy),
        asked.minutes,
        asked.only,
        asked.again,
        reports,
    )


def _stopped(*_: Any) -> None:
    """What is asked to end takes along what it has started."""
    raise SystemExit(2)


def run(
    asked: Asked, minutes: float, only: str = "", again: bool = False, reports: Path | None = None
) -> int:
    """Runs what is not done; see `main`."""
    about = {"device": asked.device, "size": asked.size, "strategy": asked.strategy}
    record = Record(asked.out, about, reports)
    record.on(machine(asked.device))
    end = time.monotonic() + 60 * minutes
    settled = (DONE,) if again else (DONE, FAILED)
    for step in steps(asked):
        if only not in step.name or record.steps.get(step.name, {}).get("state") in settled:
            continue
        found = _outcome(step, record, asked.out, end - time.monotonic())
        record.note(step.name, found)
        print(f"{step.name}: {found['state']} {found.get('said', '')}", flush=True)
    states = {found["state"] for found in record.steps.values()}
    print(f"written: {', '.join(map(str, record.files))}")
    if states & {FAILED, LACKS}:
        return 1
    return 2 if states & {LATE, WAITS} else 0


def machine(device: str) -> dict[str, Any]:
    """What runs here, as another process says it. Raises SystemExit where PyTorch or the device is
    not, or the process fails."""
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"{sys.executable} has no PyTorch: name another Python with PYTHON=...")
    command = [sys.executable, "-m", "tests.gpu.machine", device]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if asked.returncode:
        lines = asked.stderr.strip().splitlines() or [f"{command} ends with {asked.returncode}"]
        raise SystemExit(lines[-1])
    found: dict[str, Any] = json.loads(asked.stdout.strip().splitlines()[-1])
    return found


def _outcome(step: Step, record: Record, out: Path, left: float) -> dict[str, Any]:
    """What comes of a step."""
    lacking = [name for name in step.needs if importlib.util.find_spec(name) is None]
    if lacking:
        return {"state": LACKS, "said": ", ".join(lacking)}
    waiting = [name for name in step.after if not record.is_done(name)]
    if waiting:
        return {"state": WAITS, "said": f"for {', '.join(waiting)}"}
    unmade = [path.name for path in step.reads if not path.exists()]
    if unmade:
        return {"state": WAITS, "said": f"for {', '.join(unmade)}"}
    if left <= 0:
        return {"state": WAITS, "said": "for another run"}
    log = out / "logs" / f"{step.name.replace('/', '_').replace(' ', '_').replace(':', '')}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    if step.result is not None:
        step.result.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    codes = _commands(step, log, min(step.limit, left))
    seconds = round(time.monotonic() - started, 2)
    if None in codes:
        limited = left < step.limit
        said = "for another run" if limited else f"{step.limit:.0f} s"
        return {"state": WAITS if limited else LATE, "seconds": seconds, "said": said}
    if any(codes):
        return {"state": FAILED, "seconds": seconds, "said": _last_words(log)}
    found: dict[str, Any] = {"state": DONE, "seconds": seconds, "said": _last_words(log)}
    if step.result is not None:
        found["result"] = json.loads(step.result.read_text())
        found["said"] = ""
    return found


def _commands(step: Step, log: Path, limit: float) -> list[int | None]:
    """The exit codes of a step's commands, None for one that was ended `limit` seconds after the
    begin; of commands in a row, those up to the first that failed."""
    end = time.monotonic() + limit
    codes: list[int | None] = []
    with log.open("w") as out:
        if step.together:
            return _ended([_started(command, out) for command in step.commands], end)
        for command in step.commands:
            codes += _ended([_started(command, out)], end)
            if codes[-1] != 0:
                break
    return codes


def _started(command: Any, out: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
    )


def _ended(processes: Sequence[subprocess.Popen[bytes]], end: float) -> list[int | None]:
    """The exit codes of processes; None for one that was ended, with its children, at the time
    `end`. None of them goes on where this process is ended itself."""
    codes: list[int | None] = []
    try:
        for process in processes:
            try:
                codes.append(process.wait(max(end - time.monotonic(), 0.1)))
            except subprocess.TimeoutExpired:
                _kill(process)
                codes.append(None)
    except BaseException:
        for process in processes:
            _kill(process)
        raise
    return codes


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Ends a process and its children, unless it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-_TOLD:] if lines else ""


if __name__ == "__main__":
    sys.exit(main())
