"""Compiles the bodies of groups, each distinct one once in a process."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tightfit.schemas.errors import ModelError
from tightfit.schemas.graph import Graph
from tightfit.schemas.groups import Body, body_of, is_group, may_group
from tightfit.stages.device import kernels as device_kernels
from tightfit.stages.device.groups import forms_of, kernel
from tightfit.stages.device.kernels import Kernel, KernelError, Over, zeros_of
from tightfit.stages.fuse.alternatives import distinct_parts, exact_and_faster, with_alternatives
from tightfit.stages.fuse.fusing import fuse
from tightfit.stages.fuse.overwriting import distinct_forms, exact_and_smaller, with_forms_in_place
from tightfit.stages.fuse.pace import slower_than_aten
from tightfit.stages.fuse.together import compile_together

Report = Callable[[int, int], None]


class GroupError(ModelError):
    """One group cannot be compiled; others may."""


def compile_group(body: Body, device: torch.device, over: Over | None = None) -> Kernel:
    """The kernel of a body on a device, in place where it writes `over` an input, which has run
    once. Raises ModelError, in one sentence,
    where there is no compiler or the build lacks what this needs, GroupError where this body does
    not compile, or its kernel does not run."""
    try:
        compiled = kernel(body, device, over)
    except KernelError as error:
        raise GroupError(str(error)) from error
    except RuntimeError as error:
        raise ModelError(str(error)) from error
    try:
        compiled([zeros_of(form, device) for form in forms_of(body.inputs)])
    except Exception as error:
        said = (str(error).strip().splitlines() or [""])[0]
        kind = type(error).__name__
        raise GroupError(f"the kernel of a group does not run: {kind}: {said}") from error
    return compiled


def check_compiler(device: torch.device) -> None:
    """Raises ModelError, in one sentence, where a device's groups cannot be compiled at all."""
    try:
        device_kernels.check_compiler(device)
    except RuntimeError as error:
        raise ModelError(str(error)) from error


def fuse_compiled(
    graph: Graph,
    device: torch.device,
    tell: Callable[[str], None],
    report: Report = lambda done, total: None,
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
        groups = {op.target: op for op in fused.ops if is_group(op.target)}
        bodies = {target: body_of(op) for target, op in groups.items()}
        tell_done = _growing(report, len(groups))
        compile_together([(body, None) for body in bodies.values()], device, jobs, tell_done)
        for number, (target, body) in enumerate(bodies.items()):
            tell_done(number)
            said = _objection(body, device)
            if said:
                tell(f"{said}; it stays ATen")
                failed.add(target)
        if not failed:
            made = _with_forms_in_place(fused, device, report, jobs)
            return _with_alternatives(made, device, report, jobs)
        refused |= failed


def _with_forms_in_place(fused: Graph, device: torch.device, report: Report, jobs: int) -> Graph:
    """The fused graph with the forms in place that are exact and take fewer bytes."""
    wanted = distinct_forms(fused)
    tell_done = _growing(report, len(wanted))
    compile_together(wanted, device, jobs, tell_done)
    return with_forms_in_place(
        fused,
        lambda body, over: exact_and_smaller(body, over, device),
        lambda done, total: tell_done(done),
    )


def _with_alternatives(graph: Graph, device: torch.device, report: Report, jobs: int) -> Graph:
    """The fused graph with the parts of its groups that may run in place of these."""
    wanted = distinct_parts(graph)
    tell_done = _growing(report, len(wanted))
    compile_together([(body, None) for body in wanted], device, jobs, tell_done)
    return with_alternatives(
        graph,
        lambda body, part: exact_and_faster(body, part, device),
        lambda done, total: tell_done(done * len(wanted) // total),
    )


def _growing(report: Report, total: int) -> Callable[[int], None]:
    """Tells of how many groups are done, of a total; never of fewer than before."""
    most = 0

    def done(count: int) -> None:
        nonlocal most
        most = max(most, count)
        report(most, total)

    return done


def _objection(body: Body, device: torch.device) -> str:
    """Why a body is not to be one kernel, "" where it is."""
    try:
        compile_group(body, device)
    except GroupError as error:
        return str(error)
    if not slower_than_aten(body, device):
        return ""
    calls = [call.target.split(".")[1] for call in body.calls if may_group(call.target)]
    return f"the kernel of a group of {', '.join(dict.fromkeys(calls))} is slower than ATen"
