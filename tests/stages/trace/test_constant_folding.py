"""What is known of the tensors that a forward makes from nothing but constants."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import built_of, compare, generated, recompute, traced
from tightfit.stages.trace.constant_folding import ConstantFolder
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError

aten = torch.ops.aten


def test_what_is_written_is_forgotten_and_nothing_else() -> None:
    unknown = torch.ones(())
    known = ConstantFolder(every=True, own=[unknown])
    kept = torch.zeros(3)
    known.follow(aten.zeros.default, ([3],), {}, kept)
    for _ in range(20):
        made = torch.zeros(3)
        known.follow(aten.zeros.default, ([3],), {}, made)
        view = made[1:]
        known.follow(aten.slice.Tensor, (made, 0, 1), {}, view)
        assert known.find(made) is not None and known.find(view) is not None
        known.follow(aten.copy_.default, (view, unknown), {}, view)
        assert known.find(made) is None and known.find(view) is None
    assert known.find(kept) is not None


def test_writes_of_constants_are_followed_through_views() -> None:
    known = ConstantFolder()
    made = torch.zeros(3)
    known.follow(aten.zeros.default, ([3],), {}, made)
    view = made[1:]
    known.follow(aten.slice.Tensor, (made, 0, 1), {}, view)
    known.follow(aten.fill_.Scalar, (view, 2.0), {}, view)
    found = known.find(made)
    assert found is not None and torch.equal(found, torch.tensor([0.0, 2.0, 2.0]))


class Model(nn.Module):
    """A layer, and what is computed with it."""

    window: Tensor
    chosen: Tensor

    def __init__(self, compute: Callable[[Any, Tensor], Any], width: int = 8) -> None:
        super().__init__()
        self.layer, self.compute = nn.Linear(width, width), compute
        self.register_buffer("window", torch.hann_window(8))
        self.register_buffer("chosen", torch.tensor([True, False, True, True] * 2))
        self.grid = torch.linspace(0, 1, 5) ** 2

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def checks_times(m: Model, x: Tensor) -> Tensor:
    times = torch.linspace(0, 1, 4)
    assert (times[1:] > times[:-1]).all()
    for one, other in itertools.pairwise(times):
        x = x + (other - one) * m.layer(x)
    return x


def steps_along_a_grid(m: Model, x: Tensor) -> Tensor:
    for step in m.grid.diff().tolist():
        x = x + step * m.layer(x)
    for _ in range(int(torch.searchsorted(m.grid, torch.tensor(0.3)))):
        x = x + (m.grid[1] - m.grid[0]).item() * m.layer(x)
    return x * sum(torch.tensor([1, 2, 3]).tolist()) * float(torch.ones(2).numpy().sum())


def inverts_a_transform(m: Model, x: Tensor) -> Tensor:
    spectrum = torch.stft(m.layer(x), 8, 2, window=m.window, return_complex=True)
    return torch.istft(spectrum * 2, 8, 2, window=m.window)


def chooses_by_masks(m: Model, x: Tensor) -> tuple[Tensor, ...]:
    y = m.layer(x)
    upper = torch.ones(8, 8).triu(1).bool()
    rows, columns = torch.where(upper)
    pairs = (y[:, :, None] * y[:, None, :])[:, upper]
    return pairs.sum(-1), y[:, rows] * y[:, columns], y[:, m.chosen]


def masks_windows(m: Model, x: Tensor) -> Tensor:
    groups = torch.zeros(8, 8)
    for number, part in enumerate((slice(0, -4), slice(-4, -2), slice(-2, None))):
        groups[part] = number
    between = groups.view(-1, 1) - groups.view(1, -1)
    return m.layer(x) + between[:4, :2].mean() if between.any() else x


def encodes(m: Any, x: Tensor) -> Any:
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[0])
    return m.encoder(m.layer(x), mask=mask)


@pytest.mark.parametrize(
    "compute",
    [
        checks_times,
        steps_along_a_grid,
        inverts_a_transform,
        chooses_by_masks,
        masks_windows,
        encodes,
    ],
)
def test_answers_of_constants_are_eagers(
    compute: Callable[[Any, Tensor], Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model: Any = Model(compute)
    layer = nn.TransformerEncoderLayer(8, 2, 8)
    model.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    x = torch.randn(*((3, 5, 8) if compute is encodes else (3, 8)))
    graph, built = traced((model, ((x,), {})))
    compare(generated(graph, tmp_path / "plan", recompute(graph, 1, 0.7), True), built)


def asks_for_an_input(m: Model, x: Tensor) -> Tensor:
    total = torch.zeros(4)
    total[0] = x.sum()
    return m.layer(x) if total.any() else x


def asks_for_a_draw(m: Model, x: Tensor) -> Tensor:
    return m.layer(x) if torch.rand(()) > 0.5 else -m.layer(x)


def asks_for_a_weight(m: Model, x: Tensor) -> Tensor:
    return m.layer(x) if m.layer.weight.sum() > 0 else -m.layer(x)


def asks_for_data_of_a_weight(m: Any, x: Tensor) -> Tensor:
    return m.layer(x) if m.tied[0].sum() > 0 else -m.layer(x)


def asks_for_an_average(m: Any, x: Tensor) -> Tensor:
    y = m.norm(m.layer(x))
    return y if m.norm.running_mean.sum() > 0 else -y


@pytest.mark.parametrize(
    "compute",
    [
        asks_for_an_input,
        asks_for_a_draw,
        asks_for_a_weight,
        asks_for_data_of_a_weight,
        asks_for_an_average,
    ],
)
def test_answers_of_what_changes_are_refused(compute: Callable[[Any, Tensor], Any]) -> None:
    model: Any = Model(compute)
    model.norm = nn.BatchNorm1d(8)
    model.tied = [model.layer.weight.data]
    with pytest.raises(ModelError, match=r"at \S*test_constant_folding\.py:\d+: its control flow"):
        trace(built_of((model, ((torch.randn(3, 8),), {}))), "m")


def test_a_function_that_checks_data_is_named() -> None:
    def losing(m: Model, x: Tensor) -> Tensor:
        mean, variance = m.layer(x).chunk(2, 1)
        return nn.functional.gaussian_nll_loss(mean, mean * 0, variance.exp())

    with pytest.raises(ModelError, match=r"functional\.gaussian_nll_loss\(\) looks at the data"):
        trace(built_of((Model(losing), ((torch.randn(3, 8),), {}))), "m")
