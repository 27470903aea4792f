"""One way to name a device, to enter it, and to wait for it.

Devices are written "cpu", "cuda" (the current one) or "cuda:1". Graphs and plans know kinds of
devices; what runs, measures or draws does so on one device, which is named here.
"""

from __future__ import annotations

import contextlib
import gc
import platform
import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tightfit.schemas.costs import ProfileDevice
from tightfit.schemas.machine import machine_names
from tightfit.stages.torch_utils.cuda_settings import (
    check_cuda_settings,
    cuda_settings,
    deterministic_settings,
)
from tightfit.util.allocators import GLIBC, running_allocator
from tightfit.util.errors import ModelError


def parse_device(name: torch.device | str) -> torch.device:
    """The device of a name; on CUDA always with its number, that of the current one where the name
    has none. Raises ModelError where the name is none."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"{name!r} is no device") from error
    if device.type == "cuda" and device.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(device.type) if device.type == "cpu" else device


def require_device(name: str) -> None:
    """Raises ModelError unless the device ("cpu", "cuda", "cuda:1") is here, ConfigError where its
    settings keep memory from being foretold."""
    if name.endswith(".json") or name in machine_names():
        raise ModelError(
            f"{name!r} is described, and not here: plan for it in a configuration (device: {name}) "
            "or by `profile --source roofline --machine`"
        )
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(f"{name!r} is no device") from error
    if device.type not in ("cpu", "cuda"):
        raise ModelError(f"plans are made for cpu and cuda, and not for the device {name!r}")
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise ModelError(f"the device {name!r} is not on this machine")
        check_cuda_settings()


def device_of_tensors(tensors: Iterable[torch.Tensor], kind: str) -> torch.device:
    """The device of the first of some tensors that is on a kind of device; without one, the
    current device of the kind."""
    for tensor in tensors:
        if tensor.device.type == kind:
            return parse_device(tensor.device)
    return parse_device(kind)


def enter_device(device: torch.device | str) -> contextlib.AbstractContextManager[Any]:
    """Within it a CUDA device is the current one; nothing for other devices."""
    device = torch.device(device)
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


def synchronize_device(device: torch.device | str) -> None:
    """Waits until a device has done what it was given."""
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def release_device_memory(device: torch.device | str) -> None:
    """Gives back what nothing holds any more: cycles of Python, and the segments that PyTorch's
    allocator keeps of a CUDA device."""
    gc.collect()
    if torch.device(device).type == "cuda":
        with enter_device(device):
            torch.cuda.empty_cache()


_OUT_OF_MEMORY = ("out of memory", "STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that a device has no memory left. Beside PyTorch's allocator, CUDA and
    its libraries say so by plain errors: they ask the device for memory of their own."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _OUT_OF_MEMORY)


def move_tensors(module: nn.Module, device: torch.device | str) -> None:
    """Puts the contents of a module's parameters and buffers on a device; each stays the object
    that it is, and ties stay ties."""
    for tensor in {
        id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())
    }.values():
        if tensor.device != torch.device(device):
            tensor.data = tensor.data.to(device)


@contextlib.contextmanager
def hold_on_host(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Within it the contents of tensors lie on the host, in the same strides and sharing what they
    share; each stays the object that it is. Afterwards they are where they were."""
    away = [(tensor, tensor.device) for tensor in tensors if tensor.layout == torch.strided]
    _move_storages([(tensor, torch.device("cpu")) for tensor, _ in away])
    try:
        yield
    finally:
        _move_storages(away)


def _move_storages(places: Iterable[tuple[torch.Tensor, torch.device]]) -> None:
    """Puts the storages of tensors on devices, each storage once."""
    moved: dict[int, torch.Tensor] = {}
    wanted = list(places)
    storages = [tensor.untyped_storage() for tensor, _ in wanted]
    for (tensor, device), storage in zip(wanted, storages, strict=True):
        if storage._cdata not in moved:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            moved[storage._cdata] = flat.to(device, copy=True)
        there = moved[storage._cdata].untyped_storage()
        empty = torch.empty(0, dtype=tensor.dtype, device=device)
        layout = tensor.storage_offset(), tensor.shape, tensor.stride()
        tensor.data = empty.set_(there, *layout)


@contextlib.contextmanager
def preserve_random_states() -> Iterator[None]:
    """PyTorch's random states, of the CPU and of all CUDA devices in use, come back at its end: a
    seed is one for all of them."""
    used = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=used):
        yield


@contextlib.contextmanager
def preserve_all_random_states() -> Iterator[None]:
    """The random states of Python, NumPy and PyTorch come back at its end."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        with preserve_random_states():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def describe_device(device: torch.device | str) -> ProfileDevice:
    """The device that costs are measured on.

    `build` names PyTorch's version and the switches that choose kernels and workspaces, and on the
    CPU an allocator of C other than glibc's, since new pages are a part of what an op takes;
    `threads` is 0 on CUDA, where the host's threads do not matter.
    """
    device = parse_device(device)
    if device.type == "cuda":
        build = [torch.__version__, *cuda_settings()]
        name, threads = torch.cuda.get_device_name(device), 0
    else:
        build = [
            torch.__version__,
            torch.backends.cpu.get_cpu_capability(),
            f"oneDNN {torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled}",
        ]
        build += [] if running_allocator() == GLIBC else [running_allocator()]
        name, threads = _processor_name(), torch.get_num_threads()
    build += deterministic_settings()
    return ProfileDevice(device.type, name, ", ".join(build), threads, "measured")


def _processor_name() -> str:
    """The processor's name as the operating system tells it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
