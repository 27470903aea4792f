"""Masks of ones, at which transformers looks in eager and not while it is traced."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tightfit.__main__ import main
from tightfit.schemas.graph.training_graph import Graph, read_graph
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.trace import trace

transformers: Any = pytest.importorskip("transformers")

IDS = torch.randint(50, (2, 8), generator=torch.Generator().manual_seed(0))


def traced(mask: torch.Tensor | None, ones: bool) -> Graph:
    heads = {"num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, use_cache=False, **heads
    )
    given = {"input_ids": IDS} if mask is None else {"input_ids": IDS, "attention_mask": mask}
    model = transformers.LlamaForCausalLM(config).train()
    return trace(BuiltModel(model, [((), given)], ones=ones), "llama")


def test_a_mask_of_ones_is_left_out_where_a_plan_may_rest_on_that() -> None:
    without, ones = traced(None, False), torch.ones_like(IDS)
    resting, plain = traced(ones, True), traced(ones, False)
    padded = traced(ones.tril(), True)
    found = {
        name: (
            len(graph.ops),
            *map(json.loads(graph.guards).get, ("all_ones_inputs", "all_ones_samples")),
        )
        for name, graph in (("resting", resting), ("plain", plain), ("padded", padded))
    }
    assert found["resting"][1:] == ([1], []) and found["plain"][1:] == ([], [1])
    assert found["padded"][1:] == ([], []) and found["padded"][0] == found["plain"][0]
    assert len(without.ops) <= found["resting"][0] < found["plain"][0]


FACTORY = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

def masked():
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, use_cache=False,
        num_attention_heads=2, intermediate_size=64,
    )
    ids = torch.randint(50, (2, 8))
    mask = torch.ones_like(ids)
    return LlamaForCausalLM(config).train(), ((), {"input_ids": ids, "attention_mask": mask})
"""


@pytest.mark.long
def test_the_command_rests_on_ones_where_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "masks.py").write_text(FACTORY)
    words = [
        "trace",
        "--factory",
        "masks:masked",
        "--search-path",
        str(tmp_path),
        "--name",
        "llama",
    ]
    for name, further in (("plain", []), ("resting", ["--assume-all-ones-masks"])):
        assert main([*words, *further, "--out", str(tmp_path / name)]) == 0
    plain, resting = (read_graph(tmp_path / name) for name in ("plain", "resting"))
    assert (
        json.loads(resting.guards)["all_ones_inputs"] == [1]
        and json.loads(plain.guards)["all_ones_inputs"] == []
    )
    assert len(resting.ops) < len(plain.ops)
