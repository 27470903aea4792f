"""Models that return key and value caches are planned, and loaded in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, traced

ROOT = Path(__file__).parents[3]
CHILD = """
import sys
from tests.stages.generate import test_caches
made = getattr(test_caches, sys.argv[1])()
sys.path.insert(0, sys.argv[2])
from plan import load
print(test_caches.caches_of(load(made[0])(**made[1][1])))
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


@pytest.mark.parametrize("make", [gpt2, t5])
def test_it_is_loaded_elsewhere(make: Callable[[], tuple[nn.Module, Any]], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    graph, built = traced(make())
    planned = generated(graph, tmp_path / "plan").load(built.model)
    (_, kwargs) = built.samples[0]
    expected = caches_of(planned(**kwargs))
    assert expected == caches_of(make()[0](**kwargs))
    command = [sys.executable, "-c", CHILD, make.__name__, str(tmp_path)]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert child.stdout.strip() == expected, child.stderr
