"""Whole training steps with AdamW, in a process of its own: `python -m tests.gpu.optimizer_steps`.

Writes JSON: the peak of a step in bytes beyond what is there before it, what parameters and states
take on the device all the time, seconds of a step, and a digest of the parameters after `CHECKED`
steps. With a module the optimizer steps in the backward of that, with its states in the host's
memory, or, on a CPU, on a disk. Beside the result of the plain step a plan is made, in a third of
its bytes, whose parameters live there too, and are updated there where that is predicted faster.
The peer is torchao's optimizer, which keeps its states and updates on the host, where it is there.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tightfit
import tightfit.api.parameter_offload
from tests.gpu.contestant import told
from tests.gpu.models import MODELS, made_on
from tightfit.stages.runtime.offload.backward_optimizer import in_backward
from tightfit.stages.torch_utils.devices import enter_device, synchronize_device
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample, move_built_model
from tightfit.stages.validate.load import load_planned_module
from tightfit.util.errors import ConfigError

CHECKED = 3
SHARE = 3


def measured(
    name: str,
    size: str,
    device: str,
    module: str,
    steps: int,
    beside: Path | None = None,
    peer: bool = False,
) -> dict[str, Any]:
    """What whole steps take; `module` is the folder of a plan, empty for the plain step, whose
    result is given for a plan of parameters that live in the offload target, and for the `peer`."""
    original, on_host = made_on(device, name, size)
    built = move_built_model(BuiltModel(original, [on_host]), device)
    model, sample = built.model, built.samples[0]
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    said: dict[str, Any] = {}
    if peer:
        made = offloading(model)
        if made is None:
            return {"infeasible": "torchao is not installed"}
        optimizer = made
    if beside is not None:
        plain = json.loads(beside.read_text())
        try:
            model, optimizer, said = _away(
                model, sample, optimizer, (plain["there"] + plain["peak"]) // SHARE, size
            )
        except ConfigError as error:
            return {"infeasible": str(error)}
    if module:
        model, optimizer = load_planned_module(module, model), in_backward(optimizer)
    place = torch.device(device)
    with enter_device(device):
        for _ in range(CHECKED):
            _step(model, optimizer, sample)
        synchronize_device(place)
        with _gathered(optimizer):
            digest = _digest(built.model)
        gc.collect()
        with memory_session(device) as running, running.section("step"):
            _step(model, optimizer, sample)
        seconds = [_timed(model, optimizer, sample, place) for _ in range(steps)]
    parameters = sum(p.numel() * p.element_size() for p in built.model.parameters())
    plainly = not module and beside is None
    own = getattr(optimizer, "d_opt", None) if peer else optimizer
    states = sum(_bytes(own, p) for p in built.model.parameters()) if plainly and own else 0
    return {
        "peak": running.section_usage("step").peak,
        "there": parameters + states,
        "seconds": statistics.median(seconds),
        "steps": steps,
        "parameters": digest,
        **said,
    }


def offloading(model: nn.Module) -> torch.optim.Optimizer | None:
    """torchao's AdamW with states and updates on the host, whose small parameters stay with the
    device; None where torchao is not installed."""
    try:
        from torchao.optim import CPUOffloadOptimizer
    except ImportError:
        return None
    made: torch.optim.Optimizer = CPUOffloadOptimizer(
        model.parameters(), torch.optim.AdamW, offload_gradients=True, lr=1e-4
    )
    return made


def _away(
    model: nn.Module, sample: Sample, optimizer: torch.optim.Optimizer, budget: int, size: str
) -> tuple[nn.Module, Any, dict[str, Any]]:
    """The module and the optimizer of a plan whose parameters live in the offload target, and what
    is predicted of it; raises ConfigError where none fits."""
    if size == "tiny":
        tightfit.api.parameter_offload.MIN_OFFLOAD_BYTES = 1 << 8
    args, kwargs = sample
    folder = tempfile.mkdtemp()
    fitted, made = tightfit.plan(
        model, tuple(args), kwargs, budget=budget, optimizer=optimizer, store=folder,
        offload=tightfit.ParameterOffloadOptions(), check=False, progress=False,
    )  # fmt: skip
    whole = made.optimizer_step
    assert whole is not None
    said = {
        "there": whole.parameters,
        "predicted_peak": whole.peak,
        "predicted_seconds": whole.seconds,
        "away": whole.away,
        "moved": whole.moved,
    }
    return fitted, made.optimizer, said


def _gathered(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Within it the values of all parameters are to be had."""
    if not hasattr(optimizer, "gathered"):
        return contextlib.nullcontext()
    found: contextlib.AbstractContextManager[None] = optimizer.gathered()
    return found


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, sample: Sample) -> None:
    args, kwargs = sample
    model(*args, **kwargs).backward()
    optimizer.step()
    optimizer.zero_grad()


def _timed(
    model: nn.Module, optimizer: torch.optim.Optimizer, sample: Sample, device: torch.device
) -> float:
    synchronize_device(device)
    start = time.perf_counter()
    _step(model, optimizer, sample)
    synchronize_device(device)
    return time.perf_counter() - start


def _bytes(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> int:
    """The bytes of a parameter's states on the device."""
    found = optimizer.state[parameter].values()
    tensors = [each for each in found if isinstance(each, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in tensors if t.device == parameter.device)


def _digest(model: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in model.parameters():
        flat = parameter.detach().contiguous().reshape(-1).view(torch.uint8)
        found.update(flat.cpu().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.optimizer_steps")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--module", default="")
    parser.add_argument("--beside", type=Path, help="the result of the plain step")
    parser.add_argument("--peer", action="store_true", help="torchao's optimizer on the host")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    given = (
        asked.model,
        asked.size,
        asked.device,
        asked.module,
        asked.steps,
        asked.beside,
        asked.peer,
    )
    asked.out.write_text(json.dumps(told(asked.module, lambda: measured(*given))))


if __name__ == "__main__":
    main()
