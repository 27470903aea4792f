"""Inputs of integers in other strides than the sample's: taken where eager does not mind them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from stages.generate.loose import loose_inputs
from tests.stages.generate.plans import check_equal, generated, recompute, step, traced

ROWS, COLUMNS, WORDS = 6, 8, 11


class Words(nn.Module):
    """Rows of an embedding, with a head that an integer input goes into in some way."""

    def __init__(self, use: Callable[..., Any]) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 5)
        self.head = nn.Linear(5, WORDS)
        self.use = use

    def forward(self, tokens: torch.Tensor, other: torch.Tensor) -> Any:
        return self.use(self.head(self.words(tokens).tanh()), other)


def classes(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1))


def classes_first(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=3)


def shifted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    marked = torch.where(labels == 2, -100, labels + 1 - 1)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), marked[:, 1:].flatten())


def by_view(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(logits.view(-1, WORDS), labels.view(-1))


def returned(logits: torch.Tensor, labels: torch.Tensor) -> Any:
    return logits.sum(), labels


def returned_part(logits: torch.Tensor, labels: torch.Tensor) -> Any:
    return logits.sum(), labels == 3


def weighted(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return (logits.sum(-1) * labels).sum()


def asked(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return classes(logits, labels) * (1 if labels.is_contiguous() else 2)


def padded(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    following = functional.pad(labels, (0, 1), value=-100)[:, 1:].contiguous()
    return functional.cross_entropy(logits.view(-1, WORDS), following.view(-1))


TAKEN = {"padded": padded, "classes": classes, "classes first": classes_first, "shifted": shifted}
REFUSED = {
    "by view": by_view,
    "returned": returned,
    "returned part": returned_part,
    "weighted": weighted,
    "asked": asked,
}


def numbers(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randint(WORDS, shape, generator=torch.Generator().manual_seed(seed))


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "cut": lambda: numbers(ROWS, COLUMNS + 2)[:, 1:-1],
    "every other": lambda: numbers(ROWS, 2 * COLUMNS)[:, ::2],
    "turned": lambda: numbers(COLUMNS, ROWS).t(),
    "repeated": lambda: numbers(1, COLUMNS).expand(ROWS, COLUMNS),
    "one number": lambda: numbers(1, 1).expand(ROWS, COLUMNS),
    "one of three": lambda: numbers(ROWS, COLUMNS, 3)[..., 1],
}


def planned(use: Callable[..., Any], folder: Path) -> tuple[nn.Module, nn.Module, Any]:
    """A planned module, its twin, and the package."""
    torch.manual_seed(0)
    sample: Any = ((numbers(ROWS, COLUMNS), numbers(ROWS, COLUMNS, seed=6)), {})
    graph, built = traced((Words(use).train(), sample))
    package = generated(graph, folder / "plan", recompute(graph, 3, 1.0))
    return package.load(copy.deepcopy(built.model)), built.model, package


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("use", TAKEN)
def test_eagers_bits_in_any_layout(use: str, layout: str, tmp_path: Path) -> None:
    model, twin, _ = planned(TAKEN[use], tmp_path)
    other = LAYOUTS[layout]()
    assert not other.is_contiguous()
    for given in ((other, numbers(ROWS, COLUMNS)), (numbers(ROWS, COLUMNS), other), (other, other)):
        kept = [tensor.clone() for tensor in given]
        mine, theirs = (step_as_given(module, given) for module in (model, twin))
        check_equal((model, mine, ()), (twin, theirs, ()))
        assert all(map(torch.equal, given, kept))


def step_as_given(model: nn.Module, args: Any) -> torch.Tensor:
    """A step on inputs with the strides that they have."""
    model.zero_grad()
    output: torch.Tensor = model(*args)
    output.backward()
    return output


@pytest.mark.parametrize("use", REFUSED)
def test_what_eager_minds_is_refused(use: str, tmp_path: Path) -> None:
    model, _, package = planned(REFUSED[use], tmp_path)
    with pytest.raises(package.PlanMismatch, match=r"other has strides .*; give it other\.contig"):
        model(numbers(ROWS, COLUMNS), LAYOUTS["cut"]())


def test_another_shape_is_refused_still(tmp_path: Path) -> None:
    model, _, package = planned(classes, tmp_path)
    with pytest.raises(package.PlanMismatch, match="tokens has shape"):
        model(numbers(ROWS, COLUMNS)[:, 1:], numbers(ROWS, COLUMNS))


def test_an_input_that_changes_before_the_backward_is_refused_as_in_eager(tmp_path: Path) -> None:
    model, twin, _ = planned(classes, tmp_path)
    for module in (model, twin):
        tokens = LAYOUTS["cut"]()
        output = module(tokens, numbers(ROWS, COLUMNS))
        tokens.zero_()
        with pytest.raises(RuntimeError, match=r"changed in place|modified by an inplace"):
            output.backward()


def test_inputs_of_numbers_with_points_are_never_loose(tmp_path: Path) -> None:
    graph, built = traced((nn.Sequential(nn.Linear(4, 4)).train(), ((torch.randn(3, 4),), {})))
    assert loose_inputs(graph) == []
    package = generated(graph, tmp_path / "plan")
    with pytest.raises(package.PlanMismatch, match="has strides"):
        package.load(built.model)(torch.randn(4, 3).t())


def test_a_sample_that_is_cut_itself(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sample: Any = ((LAYOUTS["cut"](), LAYOUTS["turned"]()), {})
    graph, built = traced((Words(classes).train(), sample))
    model = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    given = (numbers(ROWS, COLUMNS), numbers(ROWS, COLUMNS, seed=9))
    mine, theirs = (step_as_given(module, given) for module in (model, built.model))
    check_equal((model, mine, ()), (built.model, theirs, ()))
    assert step(model, ((given[0].clone(), given[1]), {}))[0].shape == ()
