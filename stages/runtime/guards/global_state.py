"""What is set for the whole process and changes what runs, each with a way to ask for it.

The file travels with a generated package and needs only PyTorch.
"""

from __future__ import annotations

import sys
import types
from operator import is_
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils import parametrize


class ReplacedFunctions:
    """The names in a module of PyTorch under which functions from elsewhere stand."""

    def __init__(self, module: types.ModuleType) -> None:
        self.fields = vars(module)
        self.values: list[Any] = []
        self.names = ""

    def __call__(self) -> str:
        """The names, joined by commas."""
        values = list(self.fields.values())
        if len(values) != len(self.values) or not all(map(is_, values, self.values)):
            self.values = values
            self.names = ", ".join(
                name
                for name, value in self.fields.items()
                if callable(value) and not _is_from_torch(value)
            )
        return self.names


def _is_from_torch(value: Any) -> bool:
    module = str(getattr(value, "__module__", None) or "torch")
    return module.partition(".")[0] in ("torch", *sys.stdlib_module_names)


_SDPA = ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")
_GENERAL_STATES = {
    "the default dtype": lambda: str(torch.get_default_dtype()),
    "the default device": lambda: str(torch.get_default_device()),
    "torch.backends.mkldnn.enabled": lambda: bool(torch._C._get_mkldnn_enabled()),
    "torch.backends.cudnn.enabled": lambda: bool(torch._C._get_cudnn_enabled()),
    "the use of deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "the cache of parametrizations": lambda: bool(parametrize._cache_enabled),
    "the replacement in torch.nn.functional": ReplacedFunctions(functional),
}
_ATTENTION_BACKENDS = {
    f"torch.backends.cuda.{name}_enabled()": getattr(torch.backends.cuda, f"{name}_enabled")
    for name in _SDPA
    if hasattr(torch.backends.cuda, f"{name}_enabled")
}
GLOBAL_STATES: dict[str, Any] = _GENERAL_STATES | _ATTENTION_BACKENDS
"""What is set for the whole process and changes what runs: how to ask for it, by its name."""

ATTENTION_STATES = frozenset(_ATTENTION_BACKENDS)
