"""Says what runs here, in a process of its own, so that nobody else holds the GPU while something
is measured: `python -m tests.gpu.machine_info DEVICE` prints JSON."""

from __future__ import annotations

import json
import platform
import sys
from typing import Any

import torch

from tightfit.stages.torch_utils.cuda_settings import cuda_settings
from tightfit.stages.torch_utils.devices import require_device
from tightfit.util.errors import TightfitError


def machine(device: str) -> dict[str, Any]:
    """What there is. Raises SystemExit with a sentence where the device is not here, or is set so
    that memory cannot be foretold."""
    try:
        require_device(device)
    except TightfitError as error:
        raise SystemExit(str(error)) from error
    found: dict[str, Any] = {"Python": platform.python_version(), "PyTorch": torch.__version__}
    found["device"] = device
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(device)
        found["GPU"] = torch.cuda.get_device_name(device)
        found["memory"] = f"{total / 1e9:.1f} GB"
        if total - free > total // 10:
            found["in use before"] = f"{(total - free) / 1e9:.1f} GB"
        found["set"] = "; ".join(cuda_settings())
    return found


if __name__ == "__main__":
    print(json.dumps(machine(sys.argv[1])))
