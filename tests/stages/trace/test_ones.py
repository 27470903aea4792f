"""Masks of ones, at which transformers looks in eager and not while it is traced."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from schemas.graph import Graph
from stages.device.factory import Built
from stages.trace.trace import trace

transformers: Any = pytest.importorskip("transformers")

IDS = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(0))


def traced(mask: torch.Tensor | None, ones: bool) -> Graph:
    heads = {"num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, use_cache=False, **heads
    )
    given = {"input_ids": IDS} if mask is None else {"input_ids": IDS, "attention_mask": mask}
    model = transformers.LlamaForCausalLM(config).train()
    return trace(Built(model, [((), given)], ones=ones), "llama")


def test_a_mask_of_ones_is_left_out_where_a_plan_may_rest_on_that() -> None:
    without, ones = traced(None, False), torch.ones_like(IDS)
    resting, plain = traced(ones, True), traced(ones, False)
    padded = traced(ones.tril(), True)
    found = {
        name: (len(graph.ops), *map(json.loads(graph.guards).get, ("ones", "wished")))
        for name, graph in (("resting", resting), ("plain", plain), ("padded", padded))
    }
    assert found["resting"][1:] == ([1], []) and found["plain"][1:] == ([], [1])
    assert found["padded"][1:] == ([], []) and found["padded"][0] == found["plain"][0]
    assert len(without.ops) <= found["resting"][0] < found["plain"][0]
