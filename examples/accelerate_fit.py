"""Trains a small GPT-2 in a loop of one's own under accelerate, planned to a budget.

    python examples/accelerate_fit.py

The model is planned within its first call in the loop, under the precision of the accelerator:
`prepare`, gradient accumulation and clipping stay as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

import tightfit

WORDS = 200


def train(
    width: int, layers: int, tokens: int, budget: str | None
) -> tuple[list[float], tightfit.integrations.FirstCallPlan | None]:
    """The losses of an epoch, and the plan if there is a budget."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=WORDS,
            n_positions=tokens,
            n_embd=width,
            n_layer=layers,
            n_head=4,
            use_cache=False,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    rows = torch.randint(WORDS, (16, tokens))
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    fit = None
    if budget is not None:
        fit = tightfit.integrations.plan_at_first_call(
            model, budget=budget, loss=tightfit.integrations.model_output_loss, progress=False
        )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = DataLoader(TensorDataset(rows), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, batches)
    losses = []
    for (batch,) in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=batch, labels=batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses, fit


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--budget", default="50%")
    options = vars(parser.parse_args(words))
    budget = options.pop("budget")
    plain, _ = train(**options, budget=None)
    fitted, fit = train(**options, budget=budget)
    print(fit.plan.message if fit is not None and fit.plan is not None else "no plan")
    print("losses", fitted)
    print("equal to accelerate" if plain == fitted else "NOT EQUAL to accelerate")


if __name__ == "__main__":
    main()
