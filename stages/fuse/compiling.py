"""Compiles the bodies of groups, each distinct one once in a process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from schemas.errors import ModelError
from schemas.graph import Graph
from schemas.groups import Body, body_digest, body_of, body_text, is_group
from stages.device import kernels as device_kernels
from stages.device.groups import compile_body
from stages.device.kernels import Kernel, KernelError, build_key
from stages.fuse.fusing import fuse


class GroupError(ModelError):
    """One group cannot be compiled; others may."""


@dataclass
class Kernels:
    """The compiled groups of a process, by the build they are for and the digest of their bodies.

    A kernel that was compiled for another number of threads is not handed out."""

    device: torch.device
    made: dict[tuple[str, str], Kernel] = field(default_factory=dict)

    def kernel(self, body: Body) -> Kernel:
        """The kernel of a body, compiled if there is none; raises ModelError where it cannot be."""
        key = build_key(self.device), body_digest(body_text(body))
        if key not in self.made:
            self.made[key] = compile_group(body, self.device)
        return self.made[key]


def compile_group(body: Body, device: torch.device) -> Kernel:
    """The kernel of a body on a device. Raises ModelError, in one sentence, where there is no
    compiler or the build lacks what this needs, GroupError where this body does not compile."""
    try:
        return compile_body(body, device)
    except KernelError as error:
        raise GroupError(str(error)) from error
    except RuntimeError as error:
        raise ModelError(str(error)) from error


def check_compiler(device: torch.device) -> None:
    """Raises ModelError, in one sentence, where a device's groups cannot be compiled at all."""
    try:
        device_kernels.check_compiler(device)
    except RuntimeError as error:
        raise ModelError(str(error)) from error


def fuse_compiled(graph: Graph, kernels: Kernels, tell: Callable[[str], None]) -> Graph:
    """The fused graph, each distinct group of it compiled; a group that does not compile stays
    ATen, and `tell` is given the sentence. Raises ModelError where there is no compiler."""
    check_compiler(kernels.device)
    refused: set[str] = set()
    while True:
        fused = fuse(graph, refused)
        failed = set()
        for op in {op.target: op for op in fused.ops if is_group(op.target)}.values():
            try:
                kernels.kernel(body_of(op))
            except GroupError as error:
                tell(f"{error}; it stays ATen")
                failed.add(op.target)
        if not failed:
            return fused
        refused |= failed
