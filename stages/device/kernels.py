"""Compiles functions of tensors by inductor: the kernels of groups.

Inductor keeps what it compiled in a folder of its own (`TORCHINDUCTOR_CACHE_DIR`), which is read
as code: it belongs to the user of the machine and is no artifact that travels. `compile_fx_inner`
is private to PyTorch; where an installed build lacks it, that is said in one sentence.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

Kernel = Callable[[Sequence[Tensor]], list[Tensor]]
"""Takes the inputs of a function in their order and returns its outputs in theirs."""


class KernelError(RuntimeError):
    """One function cannot be compiled; others may."""


class Form(NamedTuple):
    """How a tensor lies in memory: `strides` and `offset` count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str


class Over(NamedTuple):
    """A kernel in place: the number of the input that it writes over, and of the output that then
    lies there."""

    input: int
    output: int


def build_key(device: torch.device) -> str:
    """What kernels depend on beside their functions: the build of PyTorch, the processor and its
    instructions, the number of threads, a GPU's name and capability. 64 hex digits."""
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


def check_compiler(device: torch.device) -> None:
    """Raises RuntimeError, in one sentence, where no kernel can be compiled for a device."""
    inductor()
    _check_folder()
    try:
        if device.type == "cpu":
            from torch._inductor.cpp_builder import get_cpp_compiler

            get_cpp_compiler()
        else:
            importlib.import_module("triton")
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RuntimeError(
            f"groups need a compiler for {device.type} and there is none ({said}): install one, "
            "or use kernels: eager"
        ) from error


def _check_folder() -> None:
    """Raises RuntimeError where inductor's folder cannot be there."""
    folder = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    try:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RuntimeError(
            f"groups are compiled in {folder} (TORCHINDUCTOR_CACHE_DIR), which cannot be made "
            f"({error.strerror}): name another folder, or use kernels: eager"
        ) from error


def inductor() -> tuple[Callable[..., Any], Any]:
    """The compiler of FX graphs and its decompositions; raises RuntimeError where there is none."""
    try:
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table
    except ImportError as error:
        raise RuntimeError(
            f"PyTorch {torch.__version__} has no compiler of the form that groups need: "
            "use kernels: eager"
        ) from error
    return compile_fx_inner, select_decomp_table()


def compile_function(
    name: str,
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[Form],
    outputs: Sequence[Form],
    device: torch.device,
    over: Over | None = None,
) -> Kernel:
    """The kernel of a function of calls of ATen, for inputs of these forms on a device; it makes
    outputs of these forms, each in a storage of its own, but for the one that takes the place of
    the input that is written `over`.

    Raises RuntimeError where nothing can be compiled at all, KernelError, with `name`, where this
    function cannot, each in one sentence. The kernel raises RuntimeError where an output has
    another form or storage than it should.
    """
    compile_inner, table = inductor()
    try:
        with torch.no_grad(), FakeTensorMode():
            fakes = [zeros_of(form, device) for form in inputs]
            _check_made(function(*fakes), outputs)
            traced = make_fx(function, decomposition_table=table)(*fakes)
            if over is not None:
                _write_over(traced, over, fakes[over.input])
        fresh = [form for place, form in enumerate(outputs) if over is None or place != over.output]
        with torch.no_grad():
            _ask_for_strides(traced, [form.strides for form in fresh])
            compiled = compile_inner(traced, fakes)
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0]}"
        raise KernelError(f"{name} cannot be compiled: {said}") from error
    checked: list[bool] = []

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        results = list(compiled(list(given)))
        if not checked:
            if [_form(made) for made in results] != fresh:
                raise RuntimeError(f"{name} was compiled with outputs of another form")
            if len({made.untyped_storage()._cdata for made in (*results, *given)}) < len(
                results
            ) + len({made.untyped_storage()._cdata for made in given}):
                raise RuntimeError(f"{name} was compiled with outputs that share memory")
            checked.append(True)
        if over is not None:
            results.insert(over.output, _lain(given[over.input], outputs[over.output]))
        return results

    return run


def zeros_of(form: Form, device: torch.device) -> Tensor:
    """A tensor of a form."""
    pairs = zip(form.shape, form.strides, strict=True)
    span = 0 if 0 in form.shape else 1 + sum((size - 1) * stride for size, stride in pairs)
    base = torch.zeros(form.offset + span, dtype=getattr(torch, form.dtype), device=device)
    return base.as_strided(form.shape, form.strides, form.offset)


def _form(tensor: Tensor) -> Form:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return Form(tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), dtype)


def _check_made(made: Sequence[Tensor], outputs: Sequence[Form]) -> None:
    """Raises RuntimeError where a function makes other shapes or dtypes than it should."""
    found = [(form.shape, form.dtype) for form in map(_form, made)]
    if found != [(form.shape, form.dtype) for form in outputs]:
        raise RuntimeError("its outputs have other shapes or dtypes than they should")


def _ask_for_strides(traced: torch.fx.GraphModule, strides: Sequence[tuple[int, ...]]) -> None:
    """Tells inductor which strides the outputs have, which it may change otherwise."""
    output = next(node for node in traced.graph.nodes if node.op == "output")
    output.meta["user_visible_output_idxs"] = list(range(len(strides)))
    output.meta["original_output_strides"] = list(strides)


def _write_over(traced: torch.fx.GraphModule, over: Over, given: Tensor) -> None:
    """Lets a traced function write an output over an input, once nothing reads that any more; what
    reads the output after that reads it there."""
    nodes = list(traced.graph.nodes)
    source, output = nodes[over.input], nodes[-1]
    rest = list(output.args[0])
    node = rest.pop(over.output)
    made = node.meta["val"]
    places = {each: place for place, each in enumerate(nodes)}
    last = max(node, *_readers(source), key=lambda each: places[each])
    later = [user for user in node.users if places[user] > places[last] and user is not output]

    def after(place: torch.fx.Node, target: Any, args: tuple[Any, ...], like: Tensor) -> Any:
        with traced.graph.inserting_after(place):
            added = traced.graph.call_function(target, args)
        added.meta["val"] = like
        return added

    view, copy = torch.ops.aten.view.default, torch.ops.aten.copy_.default
    shown = after(last, view, (node, list(given.shape)), made.view(given.shape))
    written = after(shown, copy, (source, shown), given)
    if later:
        there = after(written, view, (written, list(made.shape)), given.view(made.shape))
        for user in later:
            user.replace_input_with(node, there)
    output.args = (rest,)
    traced.recompile()


def _readers(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that read a node or a view of it."""
    found: dict[torch.fx.Node, None] = {}
    pending = [node]
    while pending:
        for user in pending.pop().users:
            returns = getattr(getattr(user.target, "_schema", None), "returns", ())
            if user not in found and any(at.alias_info is not None for at in returns):
                pending.append(user)
            found[user] = None
    return [*found]


def _lain(given: Tensor, form: Form) -> Tensor:
    """What lies in the memory of a tensor, in another form."""
    made = torch.empty(0, dtype=given.dtype, device=given.device)
    return made.set_(given.untyped_storage(), given.storage_offset(), form.shape, form.strides)
