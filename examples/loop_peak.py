"""Trains a GPT-2 with a loss outside of the plan; compares the loop's exact peak with the budget.

    python examples/loop_peak.py

A budget counts the step: parameters, inputs, activations, gradients, and room for a loss. What
AdamW keeps of each parameter comes on top. The loop is measured from its first step on, by
PyTorch's own allocation events: forward, loss, backward, and the update of the optimizer.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import cross_entropy
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
    "vocab_size": 500,
    "n_positions": 16,
}


def measure_loop(budget: str, small: bool, steps: int) -> tuple[int, int, int]:
    """The bytes that the plan promises, those that AdamW keeps, and the peak of the whole loop."""
    torch.manual_seed(0)
    config = GPT2Config(**(SMALL if small else SIZES), use_cache=False)
    model = GPT2LMHeadModel(config).train()
    tokens = torch.randint(config.vocab_size, (4, config.n_positions))
    module, plan = tightfit.plan(model, (tokens,), budget=budget, progress=False)
    print(plan.summary())
    assert plan.peak is not None
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)

    def step() -> None:
        logits = module(tokens).logits
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    with tightfit.memory_session("cpu") as seen, seen.section("loop"):
        for _ in range(steps):
            step()
    kept = [state for states in optimizer.state.values() for state in states.values()]
    states = sum(state.untyped_storage().nbytes() for state in kept)
    before = plan.baseline.bytes_before_step
    return before + plan.peak, states, before + seen.section_usage("loop").peak


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="50%")
    parser.add_argument("--small", action="store_true", help="a model of two small layers")
    parser.add_argument("--steps", type=int, default=4)
    options = parser.parse_args(words)
    promised, states, peak = measure_loop(**vars(options))
    print(f"the plan promises      {promised:>13,} bytes")
    print(f"AdamW keeps            {states:>13,} bytes")
    print(f"the whole loop takes   {peak:>13,} bytes")
    within = peak <= promised + states
    print("the loop keeps to the budget" if within else "THE LOOP TAKES MORE")


if __name__ == "__main__":
    main()
