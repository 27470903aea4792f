"""Integers and booleans with gaps between them, as those of a slice, are laid out once."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import generated, same, traced
from tests.stages.runtime.test_planned_module import assert_same_gradients

TOKENS = torch.arange(24).reshape(4, 6) * 7 % 11


class Language(nn.Module):
    """Tokens, a mask and labels: embedded, counted, compared and looked up."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 5)
        self.head = nn.Linear(5, 11)

    def forward(self, tokens: Any, labels: Any, mask: Any = None) -> Any:
        hidden = self.embedding(tokens) + tokens.cumsum(1).unsqueeze(2) * 0.01
        if mask is not None:
            hidden = hidden.masked_fill(~mask.unsqueeze(2), 0.0)
        logits = self.head(hidden)
        losses = nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        return losses.sum() / labels.ne(3).sum(), logits


class Asking(Language):
    def forward(self, tokens: Any, labels: Any, mask: Any = None) -> Any:
        return super().forward(tokens if tokens.is_contiguous() else tokens + 1, labels, mask)


class Returning(Language):
    def forward(self, tokens: Any, labels: Any, mask: Any = None) -> Any:
        return *super().forward(tokens, labels, mask), tokens[0]


class Summing(Language):
    def forward(self, tokens: Any, labels: Any, mask: Any = None) -> Any:
        first, *rest = super().forward(tokens, labels, mask)
        return first + tokens.sum(dtype=torch.float32) * self.head.bias[0], *rest


def plan(
    kind: type[nn.Module], folder: Path, sample: Any, otherwise: str = "error"
) -> tuple[nn.Module, nn.Module]:
    graph, built = traced((kind(), (sample, {})))
    package = generated(graph, folder / "plan")
    return built.model, package.load(copy.deepcopy(built.model), otherwise)


def test_slices_give_what_eager_gives(tmp_path: Path) -> None:
    mask = torch.arange(20).reshape(4, 5) % 3 > 0
    model, planned = plan(Language, tmp_path, (TOKENS[:, 1:].contiguous(), TOKENS[:, 1:] + 0, mask))
    wide = (torch.arange(48).reshape(4, 12) % 5 > 0)[:, ::2][:, 1:]
    for sample in (
        (TOKENS[:, :-1], TOKENS[:, 1:], mask),
        (TOKENS[:, 1:], TOKENS[:, 1:] + 0, wide),
    ):
        mine, theirs = planned(*sample), model(*sample)
        assert all(map(same, mine, theirs))
        mine[0].backward()
        theirs[0].backward()
        assert_same_gradients(planned, model)


@pytest.mark.parametrize("sample", [TOKENS[:, 1:], TOKENS[:, 1:] + 0])
@pytest.mark.parametrize("given", [TOKENS[:, :-1], TOKENS[:, :-1] + 0, TOKENS[:, 1:].repeat(1, 2)])
def test_a_sample_may_have_gaps_too(
    sample: torch.Tensor, given: torch.Tensor, tmp_path: Path
) -> None:
    model, planned = plan(Language, tmp_path, (sample, sample))
    given = given[:, :5]
    mine, theirs = planned(given, given), model(given, given)
    assert all(map(same, mine, theirs))
    mine[0].backward()
    theirs[0].backward()
    assert_same_gradients(planned, model)


def test_what_is_written_after_the_forward_is_not_read_again(tmp_path: Path) -> None:
    model, planned = plan(Language, tmp_path, (TOKENS[:, 1:] + 0, TOKENS[:, 1:] + 0))
    held = TOKENS.clone()
    loss = planned(held[:, :-1], held[:, 1:])[0]
    held.fill_(0)
    loss.backward()
    model(TOKENS[:, :-1], TOKENS[:, 1:])[0].backward()
    assert_same_gradients(planned, model)


@pytest.mark.parametrize("kind", [Asking, Returning, Summing])
def test_what_may_show_its_gaps_is_refused(kind: type[Language], tmp_path: Path) -> None:
    _, planned = plan(kind, tmp_path, (TOKENS[:, 1:] + 0, TOKENS[:, 1:] + 0))
    with pytest.raises(RuntimeError, match=re.escape("tokens has strides (6, 1), the plan was")):
        planned(TOKENS[:, :-1], TOKENS[:, 1:].contiguous())


@pytest.mark.parametrize(
    "tokens",
    [TOKENS.t().contiguous().t()[:, 1:], TOKENS[:, :1].expand(4, 5)],
    ids=["turned", "repeated"],
)
def test_another_order_is_refused(tokens: torch.Tensor, tmp_path: Path) -> None:
    _, planned = plan(Language, tmp_path, (TOKENS[:, 1:] + 0, TOKENS[:, 1:] + 0))
    with pytest.raises(RuntimeError, match=re.escape(f"tokens has strides {tokens.stride()}")):
        planned(tokens, TOKENS[:, 1:] + 0)


class Mixing(nn.Module):
    """A linear layer of one input, to which another is added, and that is returned."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x: Any, shown: Any) -> Any:
        return self.linear(x), shown[:, :3] * 1.0, shown


def test_a_copy_is_taken_of_what_lies_otherwise_where_asked(tmp_path: Path) -> None:
    sample = (torch.randn(4, 6, requires_grad=True), torch.randn(4, 6))
    model, planned = plan(Mixing, tmp_path, sample, "copy")
    turned = torch.randn(6, 4, requires_grad=True)
    mine, theirs = planned(turned.t(), sample[1]), model(turned.t().contiguous(), sample[1])
    assert all(map(same, mine, theirs))
    mine[0].sum().backward()
    found, turned.grad = turned.grad, None
    theirs[0].sum().backward()
    assert found is not None
    assert turned.grad is not None
    assert same(found, turned.grad)
    assert_same_gradients(planned, model)


@pytest.mark.parametrize("otherwise", ["copy", "error"])
def test_no_copy_is_taken_of_what_is_returned_or_has_another_shape(
    otherwise: str, tmp_path: Path
) -> None:
    sample = (torch.randn(4, 6), torch.randn(4, 6))
    _, planned = plan(Mixing, tmp_path, sample, otherwise)
    with pytest.raises(RuntimeError, match=re.escape("shown has strides (1, 4)") + '.*original"$'):
        planned(sample[0], sample[1].t().contiguous().t())
    with pytest.raises(RuntimeError, match=re.escape("x has shape (5, 6)")):
        planned(torch.randn(5, 6), sample[1])


def test_the_sentence_names_the_copy(tmp_path: Path) -> None:
    sample = (torch.randn(4, 6), torch.randn(4, 6))
    _, planned = plan(Mixing, tmp_path, sample)
    with pytest.raises(RuntimeError, match='or "copy" to have such inputs copied'):
        planned(sample[0].t().contiguous().t(), sample[1])
