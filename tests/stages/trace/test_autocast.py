"""Under autocast a plan casts what eager casts, once for all uses, and sums as eager does."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.generate.plans import backward, check_equal, fresh, generated, traced

Around = Callable[[], contextlib.AbstractContextManager[Any]]

cast: Around = functools.partial(torch.autocast, "cpu", torch.bfloat16)
uncached: Around = functools.partial(torch.autocast, "cpu", torch.bfloat16, cache_enabled=False)
plain: Around = functools.partial(torch.autocast, "cpu", torch.bfloat16, enabled=False)
half: Around = functools.partial(torch.autocast, "cpu", torch.float16)


class Uses(nn.Module):
    """One layer, in the way that a function uses it."""

    def __init__(self, use: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.use = use

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.use(self.layer, tokens)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.second(torch.relu(self.first(tokens)))


def twice(layer: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    return layer(torch.relu(layer(tokens)))


def within(region: Around) -> Callable[[nn.Module, torch.Tensor], torch.Tensor]:
    def use(layer: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        with region():
            return twice(layer, tokens)

    return use


def regions(layer: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    with cast():
        first = layer(layer(tokens))
    between = layer(first.float())
    with cast():
        second = layer(first)
        with plain():
            second = layer(second.float())
        second = layer(second)
        with cast():
            second = layer(second)
        with uncached():
            second = layer(second)
        second = layer(second)
    return between + second


def in_full_precision(layer: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    first = layer(tokens)
    with plain():
        first = layer(first.float())
    return layer(first)


def attention(layer: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    made = layer(tokens)[None, None]
    return nn.functional.scaled_dot_product_attention(made, made, made, dropout_p=0.1)


USES = {
    "twice": twice,
    "in a region": within(cast),
    "in a region without a cache": within(uncached),
    "in several regions": regions,
    "in full precision in between": in_full_precision,
    "in attention that is spelled out": attention,
}
AROUND: dict[str, Around] = {
    "nothing": contextlib.nullcontext,
    "autocast": cast,
    "autocast without a cache": uncached,
}


def check(model: nn.Module, tokens: torch.Tensor, around: Around, path: Path) -> None:
    sample: Any = ((tokens,), {})
    with around():
        graph, _ = traced((model, sample))
    planned = generated(graph, path).load(copy.deepcopy(model))
    for seed in range(2):
        steps = []
        for module in (planned, model):
            given: Any = fresh(sample)
            torch.manual_seed(seed)
            with around():
                output = module(*given[0])
            backward(output)
            steps.append((module, output, given))
        check_equal(*steps)


@pytest.mark.sample(4)
@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("use", USES)
def test_a_layer_that_is_used_several_times(use: str, around: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(Uses(USES[use]), torch.randn(4, 8), AROUND[around], tmp_path)


@pytest.mark.parametrize("around", AROUND)
def test_tied_weights_and_an_input_that_is_used_twice(around: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(Tied(), torch.randn(4, 8).requires_grad_(), AROUND[around], tmp_path / "tied")
    both = Uses(lambda layer, tokens: layer(tokens) + layer(tokens * 1) + layer(tokens))
    check(both, torch.randn(4, 8).requires_grad_(), AROUND[around], tmp_path / "both")


def test_a_cast_to_float16_is_kept_too(tmp_path: Path) -> None:
    torch.manual_seed(0)
    check(Uses(twice), torch.randn(4, 8), half, tmp_path)


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU])
def test_recurrent_layers_under_autocast(layer: type[nn.Module], tmp_path: Path) -> None:
    """Some processors have no LSTM in bfloat16: there eager ends in an error as well."""
    torch.manual_seed(0)
    model = nn.Sequential(layer(8, 8), First())
    try:
        with cast():
            model(torch.randn(3, 4, 8))
    except RuntimeError as error:
        pytest.skip(str(error))
    check(model, torch.randn(3, 4, 8), cast, tmp_path)


class First(nn.Module):
    """The first of the results of a layer."""

    def forward(self, results: Any) -> torch.Tensor:
        return results[0]


def test_planning_within_autocast_leaves_its_cache_as_it_is(tmp_path: Path) -> None:
    model = Uses(twice)
    with cast():
        traced((model, ((torch.randn(4, 8),), {})))
        assert torch.is_autocast_cache_enabled()
    with uncached():
        traced((model, ((torch.randn(4, 8),), {})))
        assert not torch.is_autocast_cache_enabled()
