"""`tests/gpu/run.sh`: runs the steps that are not done yet, within a number of minutes."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.gpu.record import DONE, FAILED, LACKS, LATE, WAITS, Record
from tests.gpu.steps import ROOT, Asked, Step, steps

_TOLD = 300
"""Characters of a failure that stand in the table."""
_LOG = 20_000
"""The last characters of a log that stand in the record: a traceback whole, wherever it was cut
off."""
_PROCESSES: set[subprocess.Popen[bytes]] = set()
"""What runs."""


def main() -> int:
    """Returns 0 when all steps are done, 2 where some wait for another run, else 1."""
    parser = argparse.ArgumentParser(prog="tests/gpu/run.sh", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder to write")
    parser.add_argument(
        "--plans", type=Path, help="folder with the plans (default: plans in --out)"
    )
    parser.add_argument("--minutes", type=float, default=8.0, help="end all steps after these")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1, or cpu to try this out")
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--only", default="", help="only steps whose name holds this text")
    parser.add_argument("--again", action="store_true", help="try again what failed")
    parser.add_argument(
        "--list", action="store_true", help="print the steps with their seconds, and run none"
    )
    parser.add_argument(
        "--reports",
        type=Path,
        help="folder for copies of both files (default: reports, for full sizes on a GPU)",
    )
    options = parser.parse_args()
    plans = options.plans or options.out / "plans"
    asked = Asked(options.out.resolve(), options.device, options.size, plans.resolve())
    if options.list:
        return listed(asked, options.only)
    reports = options.reports
    if reports is None and asked.size == "full" and asked.device.startswith("cuda"):
        reports = ROOT / "reports"
    signal.signal(signal.SIGTERM, _stopped)
    return run(asked, options.minutes, options.only, options.again, reports)


def listed(asked: Asked, only: str = "") -> int:
    """Prints the steps and the seconds that they are likely to take."""
    total = 0.0
    for step in steps(asked):
        if only in step.name:
            total += step.estimate / step.width
            print(f"{step.estimate / step.width:6.0f} s {total:6.0f} s  {step.name}")
    return 0


def _stopped(*_: Any) -> None:
    """What is asked to end takes along what it has started."""
    raise SystemExit(2)


def run(
    asked: Asked, minutes: float, only: str = "", again: bool = False, reports: Path | None = None
) -> int:
    """Runs what is not done; see `main`."""
    begin = time.monotonic()
    record = Record(asked.out, {"device": asked.device, "size": asked.size}, reports)
    record.on(machine(asked.device))
    settled = (DONE,) if again else (DONE, FAILED)
    left = [
        step
        for step in steps(asked)
        if only in step.name and record.steps.get(step.name, {}).get("state") not in settled
    ]
    clock = _Clock(begin, begin + 60 * minutes)
    try:
        for _, several in itertools.groupby(left, lambda step: step.group or step.name):
            _together(list(several), record, asked.out, clock)
    finally:
        for process in list(_PROCESSES):
            _kill(process)
    states = {found["state"] for found in record.steps.values()}
    print(f"{clock.now()} written: {', '.join(map(str, record.files))}")
    if states & {FAILED, LACKS}:
        return 1
    return 2 if states & {LATE, WAITS} else 0


@dataclass(frozen=True)
class _Clock:
    """When a run began and when it ends, as `time.monotonic` tells."""

    begin: float
    end: float

    def now(self) -> str:
        """The seconds since the begin, to print."""
        return f"[{time.monotonic() - self.begin:5.0f} s]"

    def left(self) -> float:
        """The seconds that are left."""
        return self.end - time.monotonic()


def _together(several: list[Step], record: Record, out: Path, clock: _Clock) -> None:
    """Runs steps at a time, and notes what comes of each as soon as it is there."""

    def one(step: Step) -> None:
        print(
            f"{clock.now()} {step.name}: begins, likely to take {step.estimate:.0f} s", flush=True
        )
        try:
            found = _outcome(step, record, out, clock.left())
        except Exception:
            found = {"state": FAILED, "said": "the runner fails", "log": traceback.format_exc()}
        with lock:
            record.note(step.name, {**found, "estimate": round(step.estimate, 1)})
        print(f"{clock.now()} {step.name}: {found['state']} {found.get('said', '')}", flush=True)

    lock = threading.Lock()
    if len(several) == 1:
        one(several[0])
        return
    pool = ThreadPoolExecutor(max(step.width for step in several))
    try:
        for done in [pool.submit(one, step) for step in several]:
            done.result()
    finally:
        for process in list(_PROCESSES):
            _kill(process)
        pool.shutdown(cancel_futures=True)


def machine(device: str) -> dict[str, Any]:
    """What runs here, as another process says it. Raises SystemExit where PyTorch or the device is
    not, or the process fails."""
    if importlib.util.find_spec("torch") is None:
        raise SystemExit(f"{sys.executable} has no PyTorch: name another Python with PYTHON=...")
    command = [sys.executable, "-m", "tests.gpu.machine_info", device]
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
    log = out / "logs" / f"{re.sub('[^a-z0-9.-]+', '_', step.name.lower())}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    if step.result is not None:
        step.result.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    code = _ended(step, log, min(step.limit, left))
    seconds = round(time.monotonic() - started, 2)
    kept = {"seconds": seconds, "log": log.read_text(errors="replace")[-_LOG:]}
    if code is None:
        limited = left < step.limit
        said = "for another run" if limited else f"longer than {step.limit:.0f} s"
        return {"state": WAITS if limited else LATE, "said": said, **kept}
    if code:
        return {"state": FAILED, "said": _last_words(log), **kept}
    if step.result is None:
        return {"state": DONE, "said": _last_words(log), **kept}
    return {"state": DONE, "seconds": seconds, "result": json.loads(step.result.read_text())}


def _ended(step: Step, log: Path, limit: float) -> int | None:
    """The exit code of the first of a step's commands that fails, 0 where none does, None where one
    was ended, with its children, `limit` seconds after the begin."""
    end = time.monotonic() + limit
    with log.open("w") as out:
        for command in step.commands:
            process = subprocess.Popen(
                command, cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
            _PROCESSES.add(process)
            try:
                code = process.wait(max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                return None
            finally:
                _kill(process)
                _PROCESSES.discard(process)
            if code:
                return code
    return 0


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
