"""Compiles the body of a group by inductor, each distinct one once in a process.

Inductor keeps what it compiled in a folder of its own (`TORCHINDUCTOR_CACHE_DIR`), which is read
as code: it belongs to the user of the machine and is no artifact that travels. `compile_fx_inner`
is private to PyTorch; where an installed build lacks it, that is said in one sentence.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from schemas.errors import ModelError
from schemas.graph import Graph
from schemas.groups import Body, Leaf, body_digest, body_of, body_text, is_group
from stages.fuse.evaluate import evaluate
from stages.fuse.fusing import fuse


class GroupError(ModelError):
    """One group cannot be compiled; others may."""


Kernel = Callable[[Sequence[Tensor]], list[Tensor]]
"""Takes the inputs of a body in its order and returns its outputs in theirs."""


def build_key(device: torch.device) -> str:
    """What compiled groups depend on beside their bodies: the build of PyTorch, the processor and
    its instructions, the number of threads, a GPU's name and capability. 64 hex digits."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "git": torch.version.git_version,
        "config": torch.__config__.show(),
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device.type,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["capability"] = torch.cuda.get_device_capability(device)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


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
    compiler or the build lacks what this needs, GroupError where this body does not compile.

    The kernel raises ModelError where an output has other strides or another dtype than by ATen.
    """
    compile_inner, table = _inductor()
    digest = body_digest(body_text(body))[:12]
    try:
        with torch.no_grad(), FakeTensorMode():
            fakes = [_fake(leaf, device) for leaf in body.inputs]
            expected = [_form(made) for made in evaluate(body, fakes)]
            traced = make_fx(lambda *given: evaluate(body, given), decomposition_table=table)(
                *fakes
            )
        with torch.no_grad():
            _ask_for_strides(traced, [strides for _, strides, _ in expected])
            compiled = compile_inner(traced, fakes)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0]}"
        raise GroupError(f"the group {digest} cannot be compiled: {said}") from error

    def run(inputs: Sequence[Tensor]) -> list[Tensor]:
        with torch.no_grad():
            outputs = list(compiled(list(inputs)))
        if [_form(made) for made in outputs] != expected:
            raise ModelError(f"the group {digest} was compiled with outputs of another form")
        return outputs

    return run


def _inductor() -> tuple[Callable[..., Any], Any]:
    try:
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table
    except ImportError as error:
        raise ModelError(
            f"PyTorch {torch.__version__} has no compiler of the form that groups need: "
            "use kernels: eager"
        ) from error
    return compile_fx_inner, select_decomp_table()


def check_compiler(device: torch.device) -> None:
    """Raises ModelError, in one sentence, where a device's groups cannot be compiled at all."""
    _inductor()
    try:
        if device.type == "cpu":
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
        else:
            importlib.import_module("triton")
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"groups need a compiler for {device.type} and there is none ({said}): install one, "
            "or use kernels: eager"
        ) from error


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


def _fake(leaf: Leaf, device: torch.device) -> Tensor:
    """A tensor of a leaf's form without memory; called under a fake mode."""
    pairs = zip(leaf.shape, leaf.strides, strict=True)
    span = 0 if 0 in leaf.shape else 1 + sum((size - 1) * stride for size, stride in pairs)
    base = torch.empty(leaf.offset + span, dtype=getattr(torch, leaf.dtype), device=device)
    return base.as_strided(leaf.shape, leaf.strides, leaf.offset)


def _form(tensor: Tensor) -> tuple[list[int], list[int], torch.dtype]:
    return list(tensor.shape), list(tensor.stride()), tensor.dtype


def _ask_for_strides(traced: torch.fx.GraphModule, strides: list[list[int]]) -> None:
    """Tells inductor which strides the outputs have, which it may change otherwise."""
    output = next(node for node in traced.graph.nodes if node.op == "output")
    output.meta["user_visible_output_idxs"] = list(range(len(strides)))
    output.meta["original_output_strides"] = [tuple(at) for at in strides]
