"""A part of a benchmark in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


def run_in_own_process(benchmark: str, *words: str, **environment: str) -> Any:
    """The JSON document in the last line that a benchmark of this folder prints for some words,
    with some variables of the environment set."""
    command = [sys.executable, "-m", f"tests.benchmarks.{benchmark}", *words]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **environment}
    )
    return json.loads(done.stdout.splitlines()[-1])
