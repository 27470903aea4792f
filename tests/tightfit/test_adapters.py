"""Adapters of PEFT: what is trained is small, and the activations are as large as ever."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

import tightfit
from tests.tightfit.conftest import SETTINGS
from tests.tightfit.test_integrations import equal, planned, trainer_of, weights

peft = pytest.importorskip("peft")

TASK: dict[str, Any] = {"task_type": "CAUSAL_LM"}
LAYERS: dict[str, Any] = {"target_modules": ["c_attn"], "fan_in_fan_out": True}
PROMPT: dict[str, Any] = {
    "num_virtual_tokens": 3,
    "num_layers": 1,
    "token_dim": 32,
    "num_attention_heads": 2,
}
ADAPTERS = {
    "lora": lambda: peft.LoraConfig(r=2, lora_dropout=0.1, **TASK, **LAYERS),
    "dora": lambda: peft.LoraConfig(r=2, use_dora=True, **TASK, **LAYERS),
    "prompt": lambda: peft.PromptTuningConfig(**TASK, **PROMPT),
    "prefix": lambda: peft.PrefixTuningConfig(**TASK, **PROMPT),
}


def adapted(name: str) -> Any:
    torch.manual_seed(0)
    small: dict[str, Any] = {"vocab_size": 50, "n_embd": 32, "n_layer": 1, "n_head": 2}
    tokens: dict[str, Any] = {"n_positions": 24, "bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**small, **tokens, use_cache=False))
    return peft.get_peft_model(model, ADAPTERS[name]()).train()


def batch(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(50, (2, 16), generator=generator)
    return {
        "input_ids": tokens,
        "labels": tokens.flip(1),
        "attention_mask": torch.ones_like(tokens),
    }


def train(model: Any, of: Any) -> list[torch.Tensor]:
    """The losses of three steps; `of` has the parameters."""
    optimizer = torch.optim.AdamW([p for p in of.parameters() if p.requires_grad], 1e-2)
    losses = []
    for seed in range(3):
        torch.manual_seed(seed)
        loss = model(**batch(seed)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.sample(only=["lora"])
@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_is_trained_as_without_a_plan(name: str, tmp_path: Path) -> None:
    model = adapted(name)
    eager = copy.deepcopy(model)
    fitted, _ = tightfit.plan(
        model, (), batch(9), budget="100%", store=tmp_path, progress=False, **SETTINGS
    )
    assert train(fitted, fitted) == train(eager, eager)
    assert equal(model.state_dict(), eager.state_dict())
    model.save_pretrained(tmp_path / "planned")
    eager.save_pretrained(tmp_path / "eager")
    saved = [tmp_path / name / "adapter_model.safetensors" for name in ("planned", "eager")]
    assert saved[0].read_bytes() == saved[1].read_bytes()


@pytest.mark.long
def test_a_trainer_of_an_adapter(tmp_path: Path) -> None:
    alone = trainer_of(adapted("lora"), tmp_path / "alone")
    expected = alone.train()
    trainer = trainer_of(adapted("lora"), tmp_path / "planned")
    planned(trainer, tmp_path / "store", budget="100%")
    assert trainer.train().training_loss == expected.training_loss
    assert equal(weights(trainer), weights(alone))
    saved = []
    for one in (trainer, alone):
        folder = Path(one.args.output_dir) / "saved"
        one.save_model(str(folder))
        saved.append((folder / "adapter_model.safetensors").read_bytes())
    assert saved[0] == saved[1]
