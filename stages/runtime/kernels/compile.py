"""Compiles functions of tensors by inductor: the kernels of groups.

Inductor keeps what it compiled in a folder of its own (`TORCHINDUCTOR_CACHE_DIR`), which is read
as code: it belongs to the user of the machine and is no artifact that travels. Kernels of each
build, processor and number of threads are in a folder of their own below it, since inductor's names
do not tell processors apart. `compile_fx_inner` is private to PyTorch; where an installed build
lacks it, that is said in one sentence.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ..call_context import default_torch_state
from .inductor_config import current_setting, pinned_settings

Kernel = Callable[[Sequence[Tensor]], list[Tensor]]
"""Takes the inputs of a function in their order and returns its outputs in theirs."""


CACHE_DIR_VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""The variable that names inductor's folder."""
_CPU_INFO = Path("/proc/cpuinfo")


class CompilerError(RuntimeError):
    """Nothing can be compiled here."""


class KernelError(RuntimeError):
    """One function cannot be compiled; others may."""


class TensorForm(NamedTuple):
    """How a tensor lies in memory: `strides` and `offset` count elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: str


class InPlaceKernel(NamedTuple):
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
        "instructions": [torch.backends.cpu.get_cpu_capability(), *_cpu_instructions()],
        "threads": torch.get_num_threads(),
        "device": device.type,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["capability"] = torch.cuda.get_device_capability(device)
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def build_description(device: torch.device) -> str:
    """The same for people, as far as they know it."""
    gpu = device.type == "cuda"
    place = torch.cuda.get_device_name(device) if gpu else torch.backends.cpu.get_cpu_capability()
    return f"PyTorch {torch.__version__}, {place}, {torch.get_num_threads()} threads"


def _cpu_instructions() -> list[str]:
    """What the processor can do: kernels are compiled for just this one."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        return []
    told = (line.split(":", 1)[1] for line in lines if line.startswith(("flags", "Features")))
    return sorted(set(next(told, "").split()))


def check_compiler(device: torch.device) -> None:
    """Raises CompilerError, in one sentence, where no kernel can be compiled for a device."""
    load_inductor()
    with kernel_folder(device), pin_inductor_config(device):
        try:
            if device.type == "cpu":
                from torch._inductor.cpp_builder import get_cpp_compiler

                get_cpp_compiler()
            else:
                importlib.import_module("triton")
        except Exception as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise CompilerError(
                f"groups need a compiler for {device.type} and there is none ({said}): install "
                "one, or use kernels: eager"
            ) from error


@contextlib.contextmanager
def kernel_folder(device: torch.device) -> Iterator[Path]:
    """Within it inductor keeps what it compiles in a folder for this build, processor and number of
    threads. Raises CompilerError where that cannot be made or written."""
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    before = os.environ.get(CACHE_DIR_VARIABLE)
    above = before or default_cache_dir()
    folder = Path(above) / f"groups-{build_key(device)[:16]}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CompilerError(
            f"groups are compiled in {above} ({CACHE_DIR_VARIABLE}), which cannot be written "
            f"({error.strerror}): name another folder, or use kernels: eager"
        ) from error
    try:
        os.environ[CACHE_DIR_VARIABLE] = str(folder)
        yield folder
    finally:
        if before is None:
            os.environ.pop(CACHE_DIR_VARIABLE, None)
        else:
            os.environ[CACHE_DIR_VARIABLE] = before


def load_inductor() -> tuple[Callable[..., Any], Any]:
    """The compiler of FX graphs and its decompositions. Raises CompilerError where there is
    none."""
    try:
        from torch._inductor.compile_fx import compile_fx_inner
        from torch._inductor.decomposition import select_decomp_table
    except ImportError as error:
        raise CompilerError(
            f"PyTorch {torch.__version__} has no compiler of the form that groups need: "
            "use kernels: eager"
        ) from error
    table = select_decomp_table()
    norms = [at for at in table if at in _NORM_OPERATORS]
    return compile_fx_inner, {**table, **{at: _norm_in_single_precision(table[at]) for at in norms}}


_NORM_OPERATORS = (
    torch.ops.aten.native_layer_norm.default,
    torch.ops.aten.native_group_norm.default,
)


def _norm_in_single_precision(norm: Callable[..., Any]) -> Callable[..., Any]:
    """A normalization that, on the CPU, gives what ATen does where operands of several precisions
    meet, as under autocast: means and deviations in single precision, the rest in the input's."""

    def run(given: Tensor, *more: Any) -> Any:
        dtypes = {leaf.dtype for leaf in more if isinstance(leaf, Tensor)}
        if given.device.type != "cpu" or torch.float32 not in dtypes - {given.dtype}:
            return norm(given, *more)
        made, mean, deviation = norm(given.float(), *more)
        return made.to(given.dtype), mean, deviation

    return run


def compile_function(
    name: str,
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[TensorForm],
    outputs: Sequence[TensorForm],
    device: torch.device,
    over: InPlaceKernel | None = None,
) -> Kernel:
    """The kernel of a function of calls of ATen, for inputs of these forms on a device; it makes
    outputs of these forms, each in a storage of its own, but for the one that takes the place of
    the input that is written `over`.

    Raises CompilerError where nothing can be compiled at all, KernelError, with `name`, where this
    function cannot, each in one sentence. The kernel raises RuntimeError where an output has
    another form or storage than it should.
    """
    compile_inner, _ = load_inductor()
    with (
        kernel_folder(device),
        pin_inductor_config(device),
        default_torch_state(),
        raise_kernel_errors(name),
    ):
        traced, fakes = trace_function(function, inputs, outputs, device, over)
        compiled = compile_inner(traced, fakes)
    return kernel_with_checks(name, compiled, outputs, over)


@contextlib.contextmanager
def pin_inductor_config(device: torch.device) -> Iterator[None]:
    """Within it inductor has the settings that kernels are compiled with, as far as it knows them,
    whatever a process has set. Raises CompilerError where the environment forces another one."""
    from torch._inductor import config

    wanted = pinned_settings(config, device.type)
    with config.patch(wanted):
        for name, value in wanted.items():
            if (found := current_setting(config, name)) != value:
                raise CompilerError(
                    f"the environment sets {name} of PyTorch's inductor to {found!r}, and kernels "
                    f"are compiled with {value!r}: unset it"
                )
        yield


@contextlib.contextmanager
def raise_kernel_errors(name: str) -> Iterator[None]:
    """Any error within it is a KernelError that names what cannot be compiled, in one line."""
    try:
        yield
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        said = f"{type(error).__name__}: {lines[0]}"
        raise KernelError(f"{name} cannot be compiled: {said}") from error


def trace_function(
    function: Callable[..., Sequence[Tensor]],
    inputs: Sequence[TensorForm],
    outputs: Sequence[TensorForm],
    device: torch.device,
    over: InPlaceKernel | None = None,
) -> tuple[torch.fx.GraphModule, list[Tensor]]:
    """The FX graph of a function as inductor takes it, with tensors without memory that stand for
    its inputs. Raises RuntimeError where it makes other outputs than it should."""
    _, table = load_inductor()
    with torch.no_grad(), FakeTensorMode():
        fakes = [zeros_of_form(form, device) for form in inputs]
        traced = make_fx(function, decomposition_table=table)(*fakes)
        _check_outputs(traced, outputs)
        if over is not None:
            _write_in_place(traced, over, fakes[over.input])
    _request_strides(traced, [form.strides for form in _allocated_outputs(outputs, over)])
    return traced, fakes


def _allocated_outputs(
    outputs: Sequence[TensorForm], over: InPlaceKernel | None
) -> list[TensorForm]:
    """The outputs that are made in storages of their own."""
    return [form for place, form in enumerate(outputs) if over is None or place != over.output]


def kernel_with_checks(
    name: str,
    compiled: Callable[[list[Tensor]], Sequence[Tensor]],
    outputs: Sequence[TensorForm],
    over: InPlaceKernel | None = None,
) -> Kernel:
    """The kernel that a compiled function is; its first results are looked at."""
    fresh = _allocated_outputs(outputs, over)
    checked: list[bool] = []

    def run(given: Sequence[Tensor]) -> list[Tensor]:
        given = [_resolve_view(tensor) for tensor in given]
        results = list(compiled([*given]))
        if not checked:
            if [_form_of(made) for made in results] != fresh:
                raise RuntimeError(f"{name} was compiled with outputs of another form")
            if len({made.untyped_storage()._cdata for made in (*results, *given)}) < len(
                results
            ) + len({made.untyped_storage()._cdata for made in given}):
                raise RuntimeError(f"{name} was compiled with outputs that share memory")
            checked.append(True)
        if over is not None:
            results.insert(over.output, _view_as_form(given[over.input], outputs[over.output]))
        return results

    return run


def _resolve_view(tensor: Tensor) -> Tensor:
    """A tensor whose memory holds its numbers, which those of a negative or a conjugate view does
    not: compiled functions read memory alone. Raises RuntimeError where it has no such copy."""
    if not (tensor.is_neg() or tensor.is_conj()):
        return tensor
    made = tensor.resolve_conj().resolve_neg()
    if made.stride() != tensor.stride():
        raise RuntimeError(
            "a group is given a negative or conjugate view that is expanded: give it a copy, as "
            "from resolve_neg() or resolve_conj()"
        )
    return made


def zeros_of_form(form: TensorForm, device: torch.device) -> Tensor:
    """A tensor of a form."""
    pairs = zip(form.shape, form.strides, strict=True)
    span = 0 if 0 in form.shape else 1 + sum((size - 1) * stride for size, stride in pairs)
    base = torch.zeros(form.offset + span, dtype=getattr(torch, form.dtype), device=device)
    return base.as_strided(form.shape, form.strides, form.offset)


def _form_of(tensor: Tensor) -> TensorForm:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorForm(
        tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()), dtype
    )


def _check_outputs(traced: torch.fx.GraphModule, outputs: Sequence[TensorForm]) -> None:
    """Raises RuntimeError where a traced function makes other shapes or dtypes than it should."""
    output = next(node for node in traced.graph.nodes if node.op == "output")
    made = [_form_of(node.meta["val"]) for node in output.args[0]]
    found = [(form.shape, form.dtype) for form in made]
    if found != [(form.shape, form.dtype) for form in outputs]:
        raise RuntimeError("its outputs have other shapes or dtypes than they should")


def _request_strides(traced: torch.fx.GraphModule, strides: Sequence[tuple[int, ...]]) -> None:
    """Tells inductor which strides the outputs have, which it may change otherwise."""
    output = next(node for node in traced.graph.nodes if node.op == "output")
    output.meta["user_visible_output_idxs"] = list(range(len(strides)))
    output.meta["original_output_strides"] = list(strides)


def _write_in_place(traced: torch.fx.GraphModule, over: InPlaceKernel, given: Tensor) -> None:
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


def _view_as_form(given: Tensor, form: TensorForm) -> Tensor:
    """What lies in the memory of a tensor, in another form."""
    made = torch.empty(0, dtype=given.dtype, device=given.device)
    return made.set_(given.untyped_storage(), given.storage_offset(), form.shape, form.strides)
