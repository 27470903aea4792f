"""Settings of PyTorch on CUDA that choose kernels, workspaces and how memory is handed out."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import torch

from tightfit.stages.simulate.allocator_settings import (
    ALLOC_CONF_VARIABLES,
    parse_settings,
    settings_build_items,
)
from tightfit.util.errors import ConfigError

_VARIABLES = (
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUBLASLT_WORKSPACE_SIZE",
    "TORCH_CUBLASLT_UNIFIED_WORKSPACE",
    "TORCH_CUBLAS_WORKSPACE_CACHE",
    "NVIDIA_TF32_OVERRIDE",
    "CUDA_LAUNCH_BLOCKING",
)
"""Variables of the environment that change what runs or what it takes."""

_DRIVER = Path("/proc/driver/nvidia/version")


def cuda_settings() -> list[str]:
    """What the costs of operators on CUDA depend on, each as a short text."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    found = [
        f"CUDA {torch.version.cuda}",
        f"cuDNN {cudnn.version()}",
        f"driver {driver_version()}",
        f"benchmark {cudnn.benchmark}",
        *float32_precisions(),
        f"fp16 reductions {matmul.allow_fp16_reduced_precision_reduction}",
        f"bf16 reductions {matmul.allow_bf16_reduced_precision_reduction}",
    ]
    if hasattr(torch._C, "_get_cublas_allow_fp16_accumulation"):
        found.append(f"fp16 accumulation {matmul.allow_fp16_accumulation}")
    if cudnn.deterministic:
        found.append("cuDNN deterministic")
    found.append(f"allocator {torch.cuda.get_allocator_backend()}")
    found += settings_build_items(allocator_settings())
    found += [f"{name}={os.environ[name]}" for name in _VARIABLES if os.environ.get(name)]
    return found


def allocator_settings() -> str:
    """What PyTorch's allocator was last set to, by a program or by the environment; "" where by
    neither. Whether segments expand outlasts settings that do not name it."""
    found: dict[str, Any] = {}
    if torch.cuda.is_initialized():
        found = torch.cuda.memory._snapshot().get("allocator_settings", {})
    environment = next(
        (os.environ[name] for name in ALLOC_CONF_VARIABLES if os.environ.get(name)), ""
    )
    told = str(found.get("PYTORCH_CUDA_ALLOC_CONF", "")) or environment
    if found.get("expandable_segments") and not parse_settings(told).expandable:
        return f"{told},expandable_segments:True".lstrip(",")
    return told


def float32_precisions() -> list[str]:
    """How products, convolutions and recurrent layers of float32 are computed.

    By `fp32_precision`, which the older switches set too; asking these raises once the newer one
    was set.
    """
    ask = torch._C._get_fp32_precision_getter
    return [f"float32 {' '.join(ask('cuda', kind) for kind in ('matmul', 'conv', 'rnn'))}"]


def driver_version() -> str:
    """The version of NVIDIA's driver, "unknown" where the system does not tell."""
    text = _DRIVER.read_text() if _DRIVER.exists() else ""
    found = re.search(r"Kernel Module.*?\s(\d+(?:\.\d+)+)", text)
    return found[1] if found else "unknown"


def deterministic_settings() -> list[str]:
    """The switches for deterministic algorithms, on whatever device."""
    if not torch.are_deterministic_algorithms_enabled():
        return []
    warning = torch.is_deterministic_algorithms_warn_only_enabled()
    filling = getattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    found = ["deterministic, warning only" if warning else "deterministic"]
    return found if filling else [*found, "memory not filled"]


def check_cuda_settings() -> None:
    """Raises ConfigError, by name, where a setting of CUDA keeps memory from being foretold."""
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise ConfigError(
            f"PyTorch's allocator on CUDA is {backend}, which does not tell the bytes that were "
            "requested: leave backend out of PYTORCH_ALLOC_CONF and PYTORCH_CUDA_ALLOC_CONF"
        )
    if os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):
        raise ConfigError(
            "PYTORCH_NO_CUDA_MEMORY_CACHING is set, with which PyTorch does not tell the bytes "
            "that were requested: unset it"
        )
    parse_settings(allocator_settings())
    if torch.backends.cudnn.benchmark:
        raise ConfigError(
            "torch.backends.cudnn.benchmark is True, with which cuDNN chooses kernels and "
            "workspaces by timing them, so that neither memory nor bits can be foretold: set it "
            "to False"
        )
