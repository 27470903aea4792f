"""What the capture changes for its time in PyTorch and transformers, and that it is put back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import masking_utils

from data.models import gpt2
from tests.stages.trace.eager_comparison import check_against_eager
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.capture_patches import (
    disable_python_decompositions,
    patch_packed_sequence_masks,
)
from tightfit.stages.trace.trace import trace

TINY = {"layers": 1, "width": 16, "heads": 2, "vocabulary": 20, "batch": 2, "tokens": 6}


class Numbered(nn.Module):
    """A language model that is called through another module, which may number the tokens."""

    def __init__(self, numbers: str) -> None:
        super().__init__()
        self.model = gpt2(**TINY)[0]
        self.numbers = numbers

    def forward(self, *tokens: torch.Tensor, **others: torch.Tensor) -> Any:
        if self.numbers == "from zero":
            others["position_ids"] = torch.arange(6)[None]
        elif self.numbers == "packed":
            others["position_ids"] = torch.cat([torch.arange(2), torch.arange(4)])[None]
        elif self.numbers == "packed in place":
            others["position_ids"] = torch.arange(6)[None]
            others["position_ids"][:, 3:] -= 3
        elif self.numbers == "random":
            others["position_ids"] = torch.randint(0, 3, (1, 6))
        return self.model(*tokens, **others).logits


def nothing(tensor: torch.Tensor) -> bool:
    """Knows of no tensor whether it counts up."""
    return False


def kernels() -> dict[str, list[Any]]:
    names = "upsample_bilinear2d lstm gru rnn_tanh matmul native_batch_norm dropout".split()
    packets = [getattr(torch.ops.aten, name) for name in names]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    return {str(overload): list(overload.py_kernels) for overload in overloads}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("numbers", "given", "masks"),
    [
        ("nowhere", None, False),
        ("from zero", None, False),
        ("packed", None, True),
        ("packed in place", None, True),
        ("random", None, True),
        ("nowhere", torch.tensor([[0, 1, 2, 0, 1, 2]]), True),
    ],
)
def test_packed_sequences_are_kept_apart(
    numbers: str, given: torch.Tensor | None, masks: bool, tmp_path: Path
) -> None:
    kwargs = {} if given is None else {"position_ids": given}
    sample = (gpt2(**TINY)[1][0], kwargs)
    built = BuiltModel(Numbered(numbers).train(), [sample])
    graph = trace(built, "numbered")
    check_against_eager(graph, built, tmp_path / "graph.arrow")
    attention = [op for op in graph.ops if "scaled_dot_product" in op.target]
    assert attention
    assert any("attn_mask" in op.arguments for op in attention) == masks


def test_all_is_put_back_after_an_error() -> None:
    before = (masking_utils.find_packed_sequence_indices, kernels())
    with (
        pytest.raises(ZeroDivisionError),
        patch_packed_sequence_masks(nothing),
        disable_python_decompositions(),
    ):
        assert masking_utils.find_packed_sequence_indices is not before[0]
        assert kernels() != before[1]
        1 / 0  # noqa: B018
    assert (masking_utils.find_packed_sequence_indices, kernels()) == before


@pytest.mark.parametrize("missing", ["operator", "masks"])
def test_where_there_is_nothing_to_replace_all_stays(monkeypatch: Any, missing: str) -> None:
    if missing == "operator":
        monkeypatch.setattr("tightfit.stages.trace.capture_patches._KEYS", ())
    else:
        monkeypatch.delattr(masking_utils, "find_packed_sequence_indices")
    before = kernels()
    with patch_packed_sequence_masks(nothing), disable_python_decompositions():
        assert missing == "masks" or kernels() == before
        assert hasattr(masking_utils, "find_packed_sequence_indices") == (missing == "operator")
    assert kernels() == before


def test_recurrent_layers_of_a_gpu_are_captured_without_cudnn() -> None:
    before = kernels()
    with disable_python_decompositions(on_gpu=True):
        within = kernels()
    with disable_python_decompositions():
        assert kernels()["aten.lstm.input"] != before["aten.lstm.input"]
    for name in ("lstm.input", "gru.input", "rnn_tanh.input"):
        assert within[f"aten.{name}"] == before[f"aten.{name}"]
    assert within["aten.matmul.default"] != before["aten.matmul.default"]
    assert kernels() == before
