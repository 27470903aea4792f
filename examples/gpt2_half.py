"""Trains a GPT-2 with half of its activations, and eager beside it, each in a process of its own.

    python examples/gpt2_half.py

prints the peak of a step in exact bytes, its CPU seconds, and whether the losses are equal.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tightfit

SIZES: dict[str, Any] = {
    "n_layer": 6,
    "n_embd": 384,
    "n_head": 6,
    "vocab_size": 5000,
    "n_positions": 256,
}
SMALL: dict[str, Any] = {
    "n_layer": 2,
    "n_embd": 32,
    "n_head": 2,
    "vocab_size": 100,
    "n_positions": 16,
}


def train(kind: str, budget: str, small: bool, steps: int) -> dict[str, Any]:
    """Trains for some steps; returns the losses, the peak of a step and its median CPU seconds."""
    torch.manual_seed(0)
    config = GPT2Config(**(SMALL if small else SIZES), use_cache=False)
    model = GPT2LMHeadModel(config).train()
    tokens = torch.randint(config.vocab_size, (4, config.n_positions))
    batch = {"input_ids": tokens, "labels": tokens}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if kind == "plan":
        state = torch.get_rng_state()
        model, plan = tightfit.plan(
            model, (), batch, loss=lambda output: output.loss, budget=budget, progress=False
        )
        torch.set_rng_state(state)
        print(plan.message, file=sys.stderr)

    def step() -> float:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    losses, seconds = [step()], []
    for _ in range(steps):
        started = time.process_time()
        losses.append(step())
        seconds.append(time.process_time() - started)
    with tightfit.memory_session("cpu") as seen, seen.section("step"):
        losses.append(step())
    peak = seen.section_usage("step").peak
    return {"losses": losses, "peak": peak, "seconds": statistics.median(seconds)}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kind", choices=["eager", "plan"], help="train in this process")
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--small", action="store_true", help="a model of two small layers")
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args(words)
    if options.kind:
        print(json.dumps(train(**vars(options))))
        return
    given = [*("--budget", options.budget, "--steps", str(options.steps))]
    given += ["--small"] if options.small else []
    found = {}
    for kind in ("eager", "plan"):
        command = [sys.executable, __file__, "--kind", kind, *given]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found[kind] = json.loads(done.stdout)
        mb, seconds = found[kind]["peak"] / 1e6, found[kind]["seconds"]
        print(f"{kind:5}  peak of a step {mb:8.1f} MB  CPU time of a step {seconds:.3f} s")
    equal = found["eager"]["losses"] == found["plan"]["losses"]
    print("the losses are equal" if equal else "THE LOSSES DIFFER")


if __name__ == "__main__":
    main()
