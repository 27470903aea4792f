"""Trains a GPT-2 under PyTorch's selective checkpointing within a budget, and without beside it.

    python examples/selective_checkpointing.py

prints what each block saves, the predicted and the measured peak, and whether the losses are equal.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import tightfit

SIZES: dict[str, Any] = {"n_layer": 6, "n_embd": 384, "n_head": 6, "vocab_size": 5000}
SMALL: dict[str, Any] = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100}


def train(model: nn.Module, batch: dict[str, Tensor], steps: int) -> tuple[list[float], int]:
    """The losses of some steps, and the peak of the last one's forward and backward."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses, peak = [], 0
    for _ in range(steps):
        with tightfit.memory_session("cpu") as session, session.section("step"):
            output = model(**batch)
            output.loss.backward()
        peak = session.section_usage("step").peak
        losses.append(output.loss.item())
        del output
        optimizer.step()
        optimizer.zero_grad()
    return losses, peak


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--budget", default="30%")
    parser.add_argument("--small", action="store_true", help="a model of two small layers")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args(words)
    sizes = SMALL if options.small else SIZES
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(**sizes, use_cache=False, bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(sizes["vocab_size"], (4, 128))
    batch = {"input_ids": tokens, "labels": tokens}
    start = {name: value.clone() for name, value in model.state_dict().items()}
    losses, peak = train(model.train(), batch, options.steps)

    model.load_state_dict(start)
    policy = tightfit.checkpoint_policy(
        model, (), batch, budget=options.budget, loss=lambda output: output.loss
    )
    print(policy.summary())
    policy.apply(model)
    planned_losses, planned_peak = train(model, batch, options.steps)
    print(f"without checkpointing  {peak:>13,} bytes")
    print(f"predicted              {policy.peak:>13,} bytes")
    print(f"measured               {planned_peak:>13,} bytes")
    print("the losses are equal" if planned_losses == losses else "THE LOSSES DIFFER")


if __name__ == "__main__":
    main()
