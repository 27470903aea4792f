"""What costs depend on beyond the op: names this machine's device and this build of PyTorch."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from tightfit.schemas.costs import Device
from tightfit.stages.device.devices import device_named
from tightfit.stages.device.settings import cuda_settings, deterministic_settings


def describe_device(device: torch.device | str) -> Device:
    """The device that costs are measured on.

    `build` names PyTorch's version and the switches that choose kernels and workspaces; `threads`
    is 0 on CUDA, where the host's threads do not matter.
    """
    device = device_named(device)
    if device.type == "cuda":
        build = [torch.__version__, *cuda_settings()]
        name, threads = torch.cuda.get_device_name(device), 0
    else:
        build = [
            torch.__version__,
            torch.backends.cpu.get_cpu_capability(),
            f"oneDNN {torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled}",
        ]
        name, threads = _processor(), torch.get_num_threads()
    build += deterministic_settings()
    return Device(device.type, name, ", ".join(build), threads, "measured")


def _processor() -> str:
    """The processor's name as the operating system tells it."""
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()
