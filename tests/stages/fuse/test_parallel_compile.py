"""Groups compiled at a time, in processes of their own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.fuse.test_compile_groups import BODY, CPU, inputs
from tightfit.schemas.graph.fused_groups import serialize_group_body
from tightfit.stages.fuse import compile_groups, compile_worker
from tightfit.stages.fuse.compile_groups import compile_in_parallel
from tightfit.stages.runtime.kernels.compile import InPlaceKernel, Kernel, kernel_folder
from tightfit.stages.torch_utils import fused_group_operators as device_groups
from tightfit.stages.torch_utils.fused_group_operators import (
    body_file_name,
    group_kernel,
    is_body_compiled,
)


@pytest.fixture(scope="module")
def run() -> Kernel:
    return group_kernel(BODY, CPU)


def test_many_groups_are_shared_among_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks: list[list[str]] = []

    def apart(task: str, running: Any, done: Callable[[], None]) -> None:
        tasks.append([text for text, _ in json.loads(task)["kernels"]])
        for _ in tasks[-1]:
            done()

    monkeypatch.setattr(compile_groups, "_compile_in_process", apart)
    monkeypatch.setattr(
        compile_groups, "is_body_compiled", lambda body, device, over: body.outputs == [2]
    )
    bodies = [replace(BODY, outputs=[2, 4 + number]) for number in range(9)]
    kernels = [(body, None) for body in bodies]
    told: list[int] = []
    compile_in_parallel([*kernels, (replace(BODY, outputs=[2]), None)], CPU, 8, told.append)
    assert sorted(map(len, tasks)) == [4, 5]
    assert sorted(text for task in tasks for text in task) == sorted(
        map(serialize_group_body, bodies)
    )
    assert sorted(told) == list(range(1, 10))
    tasks.clear()
    compile_in_parallel(kernels[:7], CPU, 8, told.append)
    compile_in_parallel(kernels, CPU, 1, told.append)
    assert not tasks


def test_a_worker_compiles_into_the_folder_of_all(
    monkeypatch: pytest.MonkeyPatch, run: Kernel, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that does not compile there is left to whoever asked."""
    assert is_body_compiled(BODY, CPU)
    monkeypatch.setattr(device_groups, "_kernels", {})
    over = InPlaceKernel(0, 0)
    with kernel_folder(CPU) as folder:
        for each in (None, over):
            (folder / "compiled" / body_file_name(BODY, each)).unlink(missing_ok=True)
    wrong = replace(BODY, forms=[BODY.forms[1], BODY.forms[1]])
    texts = serialize_group_body(wrong), serialize_group_body(BODY), serialize_group_body(BODY)
    task = compile_groups._encode_task(list(zip(texts, (None, None, over), strict=True)), CPU)
    monkeypatch.setattr(sys, "stdin", io.StringIO(task))
    compile_worker.main()
    assert capsys.readouterr().out == "done\n" * 3
    assert is_body_compiled(BODY, CPU)
    assert is_body_compiled(BODY, CPU, over)
    assert not is_body_compiled(wrong, CPU)


@pytest.mark.long
def test_two_runs_may_compile_a_group_at_a_time_and_one_may_be_killed(
    monkeypatch: pytest.MonkeyPatch, run: Kernel, tmp_path: Path
) -> None:
    """What they leave is whole: it has the bits of what was compiled elsewhere."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    task = compile_groups._encode_task([(serialize_group_body(BODY), None)], CPU)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tightfit.stages.fuse.compile_worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            cwd=compile_groups.INSTALL_ROOT,
        )
        for _ in range(2)
    ]  # fmt: skip
    for process in running:
        compile_groups._send_task(process, task)
    first, second = running
    while not any(tmp_path.rglob("*.cpp")) and first.poll() is None:
        time.sleep(0.01)
    first.kill()
    assert second.stdout is not None
    assert second.stdout.read() == "done\n"
    for process in running:
        with process:
            pass
    assert is_body_compiled(BODY, CPU)
    monkeypatch.setattr(device_groups, "_kernels", {})
    assert all(map(torch.equal, group_kernel(BODY, CPU)(inputs()), run(inputs())))


def test_a_process_is_given_its_task_and_tells(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\ncat > {tmp_path}/task\necho "$*" > {tmp_path}/words\necho done\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    done: list[None] = []
    running: list[Any] = []
    compile_groups._compile_in_process("the task", running, lambda: done.append(None))
    assert len(done) == 1
    assert (tmp_path / "task").read_text() == "the task"
    assert (tmp_path / "words").read_text() == "-m tightfit.stages.fuse.compile_worker\n"
    assert running[0].returncode == 0
