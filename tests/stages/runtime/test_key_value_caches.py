"""Models that return key and value caches are planned, and loaded in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, traced

ROOT = Path(__file__).parents[3]
CHILD = """
import importlib, sys
from tests.stages.runtime import test_key_value_caches
sys.path.insert(0, sys.argv[1])
for name in sys.argv[2:]:
    model, (_, kwargs) = getattr(test_key_value_caches, name)()
    load = importlib.import_module(f"plan_{name}").load
    print(test_key_value_caches.caches_of(load(model)(**kwargs)))
"""


def gpt2() -> tuple[nn.Module, Any]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=20, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    ids = torch.arange(6).reshape(2, 3)
    return GPT2LMHeadModel(config), ((), {"input_ids": ids, "labels": ids})


def t5() -> tuple[nn.Module, Any]:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    settings: dict[str, Any] = {
        **{"vocab_size": 20, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2},
        **{"decoder_start_token_id": 0, "pad_token_id": 0},
    }
    config = T5Config(**settings)
    ids = torch.arange(6).reshape(2, 3)
    return T5ForConditionalGeneration(config), ((), {"input_ids": ids, "labels": ids})


def caches_of(output: Any) -> str:
    """The kinds of caches of an output, with their sizes."""
    cache = output.past_key_values
    parts = (
        getattr(cache, "self_attention_cache", cache),
        getattr(cache, "cross_attention_cache", cache),
    )
    sizes = [tuple(part.layers[0].keys.shape) for part in parts]
    return f"{type(cache).__name__} {sizes} {getattr(cache, 'is_updated', None)}"


@pytest.mark.long
def test_they_are_loaded_elsewhere(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    expected = []
    for make in (gpt2, t5):
        graph, built = traced(make())
        planned = generated(graph, tmp_path / f"plan_{make.__name__}").load(built.model)
        (_, kwargs) = built.samples[0]
        expected.append(caches_of(planned(**kwargs)))
        assert expected[-1] == caches_of(make()[0](**kwargs))
    command = [sys.executable, "-c", CHILD, str(tmp_path), gpt2.__name__, t5.__name__]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert child.stdout.splitlines() == expected, child.stderr
