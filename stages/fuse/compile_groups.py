"""Compiles the bodies of groups, each distinct one once in a process."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from tightfit.schemas.graph.fused_groups import (
    GroupBody,
    is_fused_group,
    is_group_operator,
    read_group_body,
    serialize_group_body,
)
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.fuse.fuse_graph import fuse
from tightfit.stages.fuse.inplace_kernels import (
    add_inplace_kernels,
    distinct_inplace_kernels,
    is_exact_and_smaller,
)
from tightfit.stages.fuse.partial_recompute import (
    add_partial_recomputes,
    distinct_partial_recomputes,
    is_exact_and_faster,
)
from tightfit.stages.fuse.speed_filter import is_slower_than_aten
from tightfit.stages.runtime.kernels import compile as device_kernels
from tightfit.stages.runtime.kernels.compile import (
    InPlaceKernel,
    Kernel,
    KernelError,
    zeros_of_form,
)
from tightfit.stages.torch_utils.fused_group_operators import (
    group_kernel,
    is_body_compiled,
    tensor_forms,
)
from tightfit.util.errors import ModelError
from tightfit.util.paths import INSTALL_ROOT
from tightfit.util.progress import ProgressCallback

GROUPS_PER_PROCESS = 4
"""So many groups are worth a process."""


def compile_in_parallel(
    wanted: Iterable[tuple[GroupBody, InPlaceKernel | None]],
    device: torch.device,
    jobs: int,
    report: Callable[[int], None],
) -> None:
    """Fills inductor's folder with the kernels of bodies that it lacks, in place where these write
    over an input, by at most so many processes; `report` is told how many are done. Does nothing
    where one process would do."""
    missing = [
        (serialize_group_body(body), over)
        for body, over in wanted
        if not is_body_compiled(body, device, over)
    ]
    processes = min(jobs, len(missing) // GROUPS_PER_PROCESS)
    if processes < 2:
        return
    done = itertools.count(1)
    running: list[subprocess.Popen[str]] = []
    shares = [_encode_task(missing[first::processes], device) for first in range(processes)]
    with ThreadPoolExecutor(max_workers=processes) as pool:
        try:
            for _ in pool.map(
                lambda task: _compile_in_process(task, running, lambda: report(next(done))), shares
            ):
                pass
        except BaseException:
            for process in running:
                process.kill()
            raise


def _encode_task(kernels: Sequence[tuple[str, InPlaceKernel | None]], device: torch.device) -> str:
    task = {"kernels": kernels, "device": str(device), "threads": torch.get_num_threads()}
    return json.dumps(task)


def _compile_in_process(
    task: str, running: list[subprocess.Popen[str]], done: Callable[[], None]
) -> None:
    """Has a process compile kernels; `done` is called for each. What it does not do is left."""
    paths = [str(INSTALL_ROOT), os.environ.get("PYTHONPATH", "")]
    process = subprocess.Popen(
        [sys.executable, "-m", "tightfit.stages.fuse.compile_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
    )
    running.append(process)
    with process:
        _send_task(process, task)
        for line in process.stdout or ():
            if line == "done\n":
                done()


def _send_task(process: subprocess.Popen[str], task: str) -> None:
    """Gives a process its task; one that has ended already does not read it."""
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(task)
        process.stdin.close()


class GroupCompileError(ModelError):
    """One group cannot be compiled; others may."""


def compile_group(
    body: GroupBody, device: torch.device, over: InPlaceKernel | None = None
) -> Kernel:
    """The kernel of a body on a device, in place where it writes `over` an input, which has run
    once. Raises ModelError, in one sentence,
    where there is no compiler or the build lacks what this needs, GroupError where this body does
    not compile, or its kernel does not run."""
    try:
        compiled = group_kernel(body, device, over)
    except KernelError as error:
        raise GroupCompileError(str(error)) from error
    except RuntimeError as error:
        raise ModelError(str(error)) from error
    try:
        compiled([zeros_of_form(form, device) for form in tensor_forms(body.inputs)])
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        kind = type(error).__name__
        raise GroupCompileError(f"the kernel of a group does not run: {kind}: {said}") from error
    return compiled


def check_compiler(device: torch.device) -> None:
    """Raises ModelError, in one sentence, where a device's groups cannot be compiled at all."""
    try:
        device_kernels.check_compiler(device)
    except RuntimeError as error:
        raise ModelError(str(error)) from error


def fuse_and_compile(
    graph: Graph,
    device: torch.device,
    tell: Callable[[str], None],
    report: ProgressCallback = lambda done, total, _: None,
    jobs: int = 1,
) -> Graph:
    """The fused graph, each distinct group of it compiled, with the forms in place that are exact
    and take fewer bytes, and with the alternatives that are exact and take less time.

    A group that does not compile stays ATen, as does one that takes longer than ATen's calls;
    `tell` is given the sentence. `report` is told how many kernels are compiled, of how many. Many
    that inductor's folder lacks are compiled by up to `jobs` processes. Raises ModelError where
    there is no compiler.
    """
    check_compiler(device)
    refused: set[str] = set()
    while True:
        fused = fuse(graph, refused)
        failed = set()
        groups = {op.target: op for op in fused.ops if is_fused_group(op.target)}
        bodies = {target: read_group_body(op) for target, op in groups.items()}
        tell_done = _monotone_progress(report, len(groups))
        compile_in_parallel([(body, None) for body in bodies.values()], device, jobs, tell_done)
        for number, (target, body) in enumerate(bodies.items()):
            tell_done(number)
            said = _rejection_reason(body, device)
            if said:
                tell(f"{said}; it stays ATen")
                failed.add(target)
        if not failed:
            made = _add_inplace_kernels(fused, device, report, jobs)
            return _add_partial_recomputes(made, device, report, jobs)
        refused |= failed


def _add_inplace_kernels(
    fused: Graph, device: torch.device, report: ProgressCallback, jobs: int
) -> Graph:
    """The fused graph with the forms in place that are exact and take fewer bytes."""
    wanted = distinct_inplace_kernels(fused)
    tell_done = _monotone_progress(report, len(wanted))
    compile_in_parallel(wanted, device, jobs, tell_done)
    return add_inplace_kernels(
        fused,
        lambda body, over: is_exact_and_smaller(body, over, device),
        lambda done, total, _: tell_done(done),
    )


def _add_partial_recomputes(
    graph: Graph, device: torch.device, report: ProgressCallback, jobs: int
) -> Graph:
    """The fused graph with the parts of its groups that may run in place of these."""
    wanted = distinct_partial_recomputes(graph)
    tell_done = _monotone_progress(report, len(wanted))
    compile_in_parallel([(body, None) for body in wanted], device, jobs, tell_done)
    return add_partial_recomputes(
        graph,
        lambda body, part: is_exact_and_faster(body, part, device),
        lambda done, total, _: tell_done(done * len(wanted) // total),
    )


def _monotone_progress(report: ProgressCallback, total: int) -> Callable[[int], None]:
    """Tells of how many groups are done, of a total; never of fewer than before."""
    most = 0

    def done(count: int) -> None:
        nonlocal most
        most = max(most, count)
        report(most, total, "")

    return done


def _rejection_reason(body: GroupBody, device: torch.device) -> str:
    """Why a body is not to be one kernel, "" where it is."""
    try:
        compile_group(body, device)
    except GroupCompileError as error:
        return str(error)
    if not is_slower_than_aten(body, device):
        return ""
    calls = [call.target.split(".")[1] for call in body.calls if is_group_operator(call.target)]
    return f"the kernel of a group of {', '.join(dict.fromkeys(calls))} is slower than ATen"
