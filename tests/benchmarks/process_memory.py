"""`python -m tests.benchmarks.process_memory`: what a process holds while it trains, by allocator.

Each row is a process of its own: its RSS at most, and the exact bytes of its step with the states
of the optimizer, above what was there before the first step; CPU seconds of a step, median.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.own_process import run_in_own_process
from tightfit.util.allocators import preload_settings

Job = tuple[Any, tuple[Any, ...], Callable[[Any], Any], list[Any]]
"""A model, its arguments, the loss of its output, and the modules to checkpoint."""
JOBS = ("gpt2", "lora", "resnet26")
BUDGETS = ("50%", "min")
STEPS = 5
HEAD = (
    "| job | step | exact, MB | RSS glibc | RSS tcmalloc | CPU s glibc | CPU s tcmalloc |\n"
    "|---|---|---|---|---|---|---|"
)


_run = partial(run_in_own_process, "process_memory")


def build_job(name: str) -> Job:
    """The model of a job with random weights, and all that a step needs."""
    import torch
    from torch.nn.functional import cross_entropy

    torch.manual_seed(0)
    if name == "resnet26":
        from data.models import resnet

        built: Any = resnet("resnet26", 4, 96)
        model, (args, _) = built
        model, args = model.bfloat16(), tuple(each.bfloat16() for each in args)
        labels = torch.randint(1000, (len(args[0]),))
        stages = [unit for stage in list(model.features)[1:-1] for unit in stage]
        return model, args, lambda output: cross_entropy(output, labels), stages
    model, tokens, layers = _gpt2() if name == "gpt2" else _llama_with_lora()

    def loss(output: Any) -> Any:
        logits = output.logits[:, :-1].flatten(0, 1)
        return cross_entropy(logits, tokens[:, 1:].flatten())

    return model, (tokens,), loss, layers


def _gpt2() -> tuple[Any, Any, list[Any]]:
    from data.models import gpt2

    model: Any
    model, ((tokens,), _) = gpt2(6, 384, 6, 5000, 4, 256)
    return model, tokens, list(model.transformer.h)


def _llama_with_lora() -> tuple[Any, Any, list[Any]]:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=256, intermediate_size=768, num_hidden_layers=6, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=8000, max_position_embeddings=256, use_cache=False,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    layers = list(model.model.layers)
    lora = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    return get_peft_model(model, lora).train(), torch.randint(8000, (4, 256)), layers


def run_job(name: str, step_kind: str) -> dict[str, float]:
    """Trains for some steps in this process, the model as it is ("eager"), checkpointed, or planned
    by the package in the folder `step_kind`."""
    import torch

    import tightfit
    from tightfit.stages.torch_utils.memory_meter import memory_session

    torch.set_num_threads(1)
    model, args, loss, layers = build_job(name)
    if step_kind == "checkpointing":
        _checkpoint(layers)
    elif step_kind != "eager":
        model = tightfit.load(step_kind, model)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def step() -> None:
        loss(model(*args)).backward()
        optimizer.step()
        optimizer.zero_grad()

    Path("/proc/self/clear_refs").write_text("5")
    before, seconds = _status("VmRSS"), []
    for _ in range(STEPS):
        started = time.process_time()
        step()
        seconds.append(time.process_time() - started)
    most = _status("VmHWM") - before
    with memory_session("cpu") as running, running.section("step"):
        step()
    kept = [state for states in optimizer.state.values() for state in states.values()]
    exact = running.section_usage("step").peak + sum(s.untyped_storage().nbytes() for s in kept)
    return {"exact": exact / 1e6, "rss": most, "seconds": statistics.median(seconds[2:])}


def _checkpoint(layers: list[Any]) -> None:
    from functools import partial

    from torch.utils.checkpoint import checkpoint

    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _status(key: str) -> float:
    """A figure of this process in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(key))


def plan_job(name: str, budget: str, store: Path) -> str:
    """The folder of the package of a plan, which a process of its own makes."""
    import torch

    import tightfit

    torch.set_num_threads(1)
    model, args, _, _ = build_job(name)
    _, plan = tightfit.plan(model, args, budget=budget, store=store, check=False, progress=False)
    print(plan.summary(), file=sys.stderr, flush=True)
    return str(plan.package)


def table_rows(name: str, store: Path) -> list[str]:
    """The rows of a job."""
    packages = {
        f"plan, {budget}": _run("--plan", name, budget, "--store", str(store)) for budget in BUDGETS
    }
    rows = []
    for label, kind in {"eager": "eager", "checkpointing": "checkpointing", **packages}.items():
        glibc = _run("--run", name, kind, LD_PRELOAD="")
        other = _run("--run", name, kind, **preload_settings())
        figures = f"{glibc['exact']:.1f} | {glibc['rss']:.1f} | {other['rss']:.1f}"
        seconds = f"{glibc['seconds']:.2f} | {other['seconds']:.2f}"
        rows.append(f"| {name} | {label} | {figures} | {seconds} |")
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", nargs="*", default=list(JOBS))
    parser.add_argument("--run", nargs=2, metavar=("JOB", "STEP"))
    parser.add_argument("--plan", nargs=2, metavar=("JOB", "BUDGET"))
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    if options.run:
        print(json.dumps(run_job(*options.run)))
    elif options.plan:
        name, budget = options.plan
        print(json.dumps(plan_job(name, budget, options.store)))
    else:
        print(HEAD, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            for name in options.jobs:
                table_rows(name, options.store or Path(folder))


if __name__ == "__main__":
    main()
