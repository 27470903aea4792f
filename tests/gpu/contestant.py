"""Measures one way to train one model, in a process of its own: `python -m tests.gpu.contestant`.

Writes JSON: peaks in bytes, seconds of a step, and a sketch of the gradients by which ways are
compared that never meet in one process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tests.gpu.model_sizes import (
    COMPILE,
    EAGER,
    FULL,
    GRAPHS,
    PLAN,
    SAVED,
    SEED,
    SELECTIVE,
    SIZES,
    WAYS,
)
from tests.gpu.models import MODELS, made_on
from tightfit.stages.simulate.cuda_memory import STEPS_ON_NEW_INPUTS
from tightfit.stages.torch_utils.devices import (
    enter_device,
    is_out_of_memory,
    preserve_random_states,
    synchronize_device,
)
from tightfit.stages.torch_utils.model_factory import (
    BuiltModel,
    Sample,
    map_leaves,
    move_built_model,
)
from tightfit.stages.validate.load import load_planned_module
from tightfit.stages.validate.measure import (
    measure_gpu_memory,
    measure_memory,
    peak_gpu_use,
    time_steps,
)
from tightfit.stages.validate.step_timer import StepTimer
from tightfit.stages.validate.training_step import StepRunner, clear_gradients

PROJECTIONS = 8
WARM = 3
"""Steps after which a plan's CUDA graphs are captured and were replayed."""


class _SavedOnHost(nn.Module):
    """A model whose saved tensors wait in pinned memory of the host."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autograd.graph.save_on_cpu(pin_memory=torch.cuda.is_available()):
            return self.model(*args, **kwargs)


def measured(
    name: str,
    size: str,
    way: str,
    device: str,
    budget: float,
    module: str,
    steps: int,
    bits: bool = True,
) -> dict[str, Any]:
    """What one way takes: `budget` is the compiler's, `module` the folder of a plan. Without `bits`
    the gradients are not compared bit by bit, which takes a second for each gigabyte of them."""
    if name == "resnet" and way in (EAGER, FULL) and computes_nothing(device):
        torch.backends.cudnn.enabled = False
    checkpoint = way if way in (FULL, SELECTIVE) else ""
    original, on_host = made_on(device, name, size, checkpoint)
    built = move_built_model(BuiltModel(original, [on_host]), device)
    model, stepper = built.model, StepRunner([0], None)
    held = [built.samples.pop()]
    if way in (PLAN, GRAPHS):
        model = load_planned_module(
            module, model, **({"cuda_graphs": True} if way == GRAPHS else {})
        )
    elif way == SAVED:
        model = _SavedOnHost(model)
    elif way == COMPILE:
        backend = "inductor" if device.startswith("cuda") else "aot_eager_decomp_partition"
        model = torch.compile(model, backend=backend)  # type: ignore[assignment]
    started = time.perf_counter()
    with enter_device(device), _budget(way, budget):
        if way == COMPILE:
            stepper.run(model, held[0])
            clear_gradients(model, held[0])
            synchronize_device(device)
        compiling = time.perf_counter() - started
        taken = measure_gpu_memory(model, stepper, held[0], device, WARM if way == GRAPHS else 2)
        renewed = renewed_memory(model, stepper, held, on_host, device)
        sample = held[0]
        sketch = _sketch(model, stepper, sample, bits)
        peak = measure_memory(model, stepper, sample, device)[0].peak
        times = time_steps(StepTimer(model, stepper, sample, device), steps)
    fixed = sum(tensor.untyped_storage().nbytes() for tensor in _distinct(original, sample))
    return {
        "peak": peak,
        "requested": None if taken is None else taken.most.requested,
        "allocated": None if taken is None else taken.most.allocated,
        "reserved": None if taken is None else taken.most.reserved,
        "renewed": renewed,
        "context": None if taken is None else taken.context,
        "fixed": fixed,
        "seconds": times.planned.median,
        "spread": times.planned.spread,
        "waited": times.waited,
        "compiling": compiling if way == COMPILE else None,
        "samples": SIZES[name][size]["batch"] * SIZES[name][size].get("tokens", 1),
        "steps": times.planned.repeats,
        "gradients": sketch,
    }


def computes_nothing(device: str) -> bool:
    """Whether a device is that of `tests.gpu.cuda_stubs`, which has no cuDNN."""
    return device.startswith("cuda") and "stub" in torch.cuda.get_device_name(device)


def renewed_memory(
    model: nn.Module, stepper: StepRunner, held: list[Sample], on_host: Sample, device: str
) -> int | None:
    """The most reserved bytes of a GPU once two steps more have run, each on inputs of its own that
    were made while those of the step before were there, as in a training loop; None on the CPU.

    `held` is the one place that holds the inputs of a step. Buffers and random states are not put
    back, as in a loop.
    """

    def here(leaf: Any) -> Any:
        return leaf.to(device, copy=True) if isinstance(leaf, Tensor) else leaf

    for _ in range(STEPS_ON_NEW_INPUTS):
        held[0] = map_leaves(here, on_host)
        stepper.run(model, held[0])
        clear_gradients(model, held[0])
    return peak_gpu_use(device).most.reserved if device.startswith("cuda") else None


@contextlib.contextmanager
def _budget(way: str, budget: float) -> Iterator[None]:
    if way != COMPILE:
        yield
        return
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    drawing = inductor.patch(fallback_random=True)  # random numbers as eager draws them
    with functorch.patch(activation_memory_budget=budget), drawing:
        yield


def _sketch(model: nn.Module, stepper: StepRunner, sample: Sample, bits: bool) -> dict[str, Any]:
    """Of the gradients of one seeded step: the digest of their bits, their norm, and their products
    with a few random vectors, which tell how far two sets of gradients are apart."""
    buffers = [buffer.clone() for buffer in model.buffers()]
    clear_gradients(model, sample)
    digest = hashlib.sha256()
    square, products = 0.0, [0.0] * PROJECTIONS
    with preserve_random_states():
        torch.manual_seed(SEED)
        output, _ = stepper.run(model, sample)
        digest.update(_bytes(output))
        loss = float(output.detach())
        for number, parameter in enumerate(model.parameters()):
            if parameter.grad is None:
                continue
            gradient = parameter.grad
            if bits:
                digest.update(_bytes(gradient))
            flat = gradient.detach().reshape(-1).float()
            square += float(flat.square().sum(dtype=torch.float64))
            generator = torch.Generator(flat.device).manual_seed(number)
            for place in range(PROJECTIONS):
                vector = torch.randn(flat.shape, generator=generator, device=flat.device)
                products[place] += float((flat * vector).sum(dtype=torch.float64))
    clear_gradients(model, sample)
    with torch.no_grad():
        for buffer, old in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(old)
    told = digest.hexdigest() if bits else ""
    return {"loss": loss, "bits": told, "norm": square**0.5, "products": products}


def _bytes(tensor: Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return flat.cpu().numpy().tobytes()


def _distinct(model: nn.Module, sample: Sample) -> Iterator[Tensor]:
    """Parameters, their gradients, buffers and inputs, each once."""
    for parameter in model.parameters():
        yield parameter
        if parameter.requires_grad:
            yield parameter
    yield from model.buffers()
    yield from (leaf for leaf in sample[0] if isinstance(leaf, Tensor))


def told(module: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is measured beside what was predicted, or why nothing is: the plan of a module (the
    empty text for none) does not fit in its budget, or the step on the device."""
    plan: dict[str, Any] = {}
    if module:
        plan = json.loads((Path(module).parent / "plan.json").read_text())
    if plan.get("status") == "infeasible":
        return {"infeasible": plan["message"]}
    predicted = {name: plan.get(name) for name in ("budget_bytes", "peak", "seconds", "gpu")}
    try:
        return {**measure(), **({"predicted": predicted} if plan else {})}
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return {"out_of_memory": True}


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.contestant")
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--budget", type=float, default=1.0)
    parser.add_argument("--module", default="")
    parser.add_argument("--no-bits", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    given = (asked.model, asked.size, asked.way, asked.device, asked.budget, asked.module)
    result = told(asked.module, lambda: measured(*given, asked.steps, not asked.no_bits))
    asked.out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
