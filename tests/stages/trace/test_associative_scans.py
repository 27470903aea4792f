"""State space models of transformers are captured with the scan that they run in eager."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.stages.generate.plans import compare, generated, traced


def test_a_state_space_model_is_planned_as_it_is(tmp_path: Path) -> None:
    from transformers import MambaConfig, MambaModel

    torch.manual_seed(0)
    config = MambaConfig(
        vocab_size=12,
        hidden_size=8,
        state_size=4,
        num_hidden_layers=1,
        use_associative_scan=True,
        use_cache=False,
    )
    model = MambaModel(config)
    tokens = torch.randint(12, (2, 6))
    graph, built = traced((model.train(), ((tokens,), {})))
    compare(generated(graph, tmp_path / "plan"), built)
