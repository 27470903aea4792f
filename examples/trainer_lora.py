"""Fine-tunes a small Llama with LoRA under transformers' Trainer, planned to a budget.

    python examples/trainer_lora.py

`plan_trainer` takes the trainer's own first batch as its sample.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

import tightfit


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random tokens that are their own labels."""

    def __init__(self, count: int, tokens: int) -> None:
        drawing = torch.Generator().manual_seed(1)
        self.rows = torch.randint(200, (count, tokens), generator=drawing)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def trainer_in(folder: str, width: int, layers: int, tokens: int) -> Trainer:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=200,
        use_cache=False,
    )
    lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model: Any = get_peft_model(LlamaForCausalLM(config), lora)
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_steps=4,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return Trainer(model=model, args=arguments, train_dataset=Texts(16, tokens))


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--budget", default="50%")
    options = vars(parser.parse_args(words))
    budget = options.pop("budget")
    with tempfile.TemporaryDirectory() as folder:
        plain = trainer_in(folder, **options)
        plain.train()
        fitted = trainer_in(folder, **options)
        plan = tightfit.integrations.plan_trainer(fitted, budget=budget, progress=False)
        fitted.train()
    print(plan.message)
    print("losses", losses(fitted))
    print("equal to Trainer" if losses(plain) == losses(fitted) else "NOT EQUAL to Trainer")


if __name__ == "__main__":
    main()
