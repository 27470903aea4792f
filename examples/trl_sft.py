"""Fine-tunes a small GPT-2 under trl's SFTTrainer, planned to a budget by a callback.

    python examples/trl_sft.py

`Fit` plans within the first training step; the trainer keeps its defaults.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import tightfit

WORDS = [f"w{number}" for number in range(200)]


def trainer_in(
    folder: str, width: int, layers: int, tokens: int, callbacks: Sequence[Any]
) -> SFTTrainer:
    """A trainer of a new model on random words."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=len(WORDS), n_positions=tokens, n_embd=width, n_layer=layers, n_head=4
        )
    )
    words = Tokenizer(
        WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="w0")
    )
    rows = torch.randint(len(WORDS), (16, tokens), generator=torch.Generator().manual_seed(1))
    texts = [" ".join(WORDS[number] for number in row) for row in rows]
    arguments = SFTConfig(
        output_dir=folder,
        per_device_train_batch_size=4,
        max_length=tokens,
        max_steps=3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return SFTTrainer(
        model,
        args=arguments,
        train_dataset=Dataset.from_dict({"text": texts}),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=words, unk_token="w0", pad_token="w1", eos_token="w2"
        ),
        callbacks=[*callbacks],
    )


def losses(trainer: SFTTrainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--budget", default="50%")
    options = vars(parser.parse_args(words))
    fit = tightfit.integrations.Fit(budget=options.pop("budget"), progress=False)
    with tempfile.TemporaryDirectory() as folder:
        plain = trainer_in(folder, **options, callbacks=[])
        plain.train()
        fitted = trainer_in(folder, **options, callbacks=[fit])
        fitted.train()
    print(fit.plan.message if fit.plan is not None else "no plan")
    print("losses", losses(fitted))
    print("equal to SFTTrainer" if losses(plain) == losses(fitted) else "NOT EQUAL to SFTTrainer")


if __name__ == "__main__":
    main()
