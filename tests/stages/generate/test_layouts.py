"""A gradient that arrives in other strides than the trace had gives eager's bits, or is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.stages.generate.plans import built_of, generated, recompute, same
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.generate.layouts import (
    STRIDES_ACCEPTED,
    STRIDES_COPIED,
    STRIDES_REFUSED,
    gradient_layouts,
)
from tightfit.stages.trace.trace import trace

Loss = Callable[[Any], torch.Tensor]

IMAGE, ROWS, WORDS, GRID = (4, 3, 12, 12), (40, 9), (8, 20, 9), (4, 6, 7, 9)


def weighed(out: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient is no constant, as of rows of classes."""
    rows = out.reshape(-1, out.shape[-1])
    return functional.cross_entropy(rows, torch.arange(len(rows)) % rows.shape[-1])


LOSSES: dict[str, Loss] = {
    "rows": weighed,
    "classes last": lambda out: weighed(out.movedim(1, -1)),
    "sequence first": lambda out: out.transpose(0, 1).contiguous().cos().sum(),
    "last two": lambda out: weighed(out.transpose(-1, -2)),
    "flat": lambda out: out.flatten(1).softmax(1).square().sum(),
    "all turned": lambda out: weighed(out.permute(*reversed(range(out.dim())))),
    "sum": lambda out: out.sum(),
    "mean": lambda out: out.mean(),
    "mean of parts": lambda out: out.mean(1).cos().sum(),
    "part": lambda out: weighed(out[:, 1:]),
    "joined": lambda out: torch.cat([out, out.detach()], 1).cos().sum(),
}


def conv(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 6, 1), *last)


def channels_last(model: nn.Module) -> nn.Module:
    for parameter in model.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    return model


def linear(*last: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(9, 16), nn.Tanh(), nn.Linear(16, 6), *last)


class Added(nn.Module):
    """A bias of all rows, a sum over all but the last dimension in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.bias = linear(), nn.Parameter(torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + self.bias


class Tied(nn.Module):
    """A head that shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(11, 8), nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.embedding((x[..., 0] * 3).long().abs() % 11)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "conv": (conv, IMAGE),
    "conv, norm": (lambda: conv(nn.BatchNorm2d(6)), IMAGE),
    "conv, groups": (lambda: conv(nn.GroupNorm(2, 6)), IMAGE),
    "conv, relu": (lambda: conv(nn.ReLU()), IMAGE),
    "conv, sigmoid": (lambda: conv(nn.Sigmoid()), IMAGE),
    "channels last": (lambda: channels_last(conv()), IMAGE),
    "rows": (linear, ROWS),
    "words": (linear, WORDS),
    "grid": (linear, GRID),
    "norm": (lambda: linear(nn.LayerNorm(6)), WORDS),
    "gelu": (lambda: linear(nn.GELU()), WORDS),
    "tanh": (lambda: linear(nn.Tanh()), GRID),
    "relu": (lambda: linear(nn.ReLU()), WORDS),
    "softmax": (lambda: linear(nn.Softmax(-1)), WORDS),
    "log softmax": (lambda: linear(nn.LogSoftmax(1)), WORDS),
    "dropout": (lambda: linear(nn.Dropout(0.2)), WORDS),
    "added": (Added, WORDS),
    "tied": (Tied, WORDS),
}


def gradients(model: nn.Module, x: torch.Tensor, loss: Loss) -> list[torch.Tensor | None]:
    """What two steps leave, the second on top of the first."""
    torch.manual_seed(1)
    for number in range(2):
        loss(model(x + number)).backward()
    left = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    return left


def is_refused(planned: nn.Module, original: nn.Module, x: torch.Tensor, loss: Loss) -> bool:
    """Whether a planned module refuses a loss; asserts that it is equal to eager where not."""
    expected = gradients(original, x, loss)
    try:
        found = gradients(planned, x, loss)
    except RuntimeError as error:
        assert "plan with the loss (loss=)" in str(error), error
        planned.zero_grad()
        return True
    assert all(same(one, other) for one, other in zip(found, expected, strict=True))
    return False


@pytest.fixture(scope="module", params=MODELS)
def last_layer(request: pytest.FixtureRequest) -> tuple[str, nn.Module, torch.Tensor, Graph]:
    """A model by its name, with an input and its graph."""
    make, shape = MODELS[request.param]
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    return request.param, model, x, trace(built_of((model, ((x,), {}))), "m")


@pytest.mark.sample(3)
@pytest.mark.parametrize("in_place", [False, True])
def test_losses(
    last_layer: tuple[str, nn.Module, torch.Tensor, Graph], in_place: bool, tmp_path: Path
) -> None:
    """Everyday losses of everyday last layers: equal, and refused only where the step computes in
    the memory of the gradient."""
    name, model, x, graph = last_layer
    model = copy.deepcopy(model)
    executions = recompute(graph, 1) if in_place else None
    planned = generated(graph, tmp_path / "p", executions, in_place).load(copy.deepcopy(model))
    refused = {key for key, loss in LOSSES.items() if is_refused(planned, model, x, loss)}
    allowed = {"gelu"} if in_place else set()
    assert not refused or name in allowed
    assert not refused & {"rows", "flat", "sum", "mean", "mean of parts"}


class Pair(nn.Module):
    """Two outputs, one made of the other."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(9, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.one(x)
        return first, self.two(torch.tanh(first))


def planned_of(model: nn.Module, x: torch.Tensor, folder: Path, loss: Loss | None = None) -> Any:
    made = (copy.deepcopy(model), ((x,), {}), *([] if loss is None else [loss]))
    return generated(trace(built_of(made), "m"), folder).load(copy.deepcopy(model))


@pytest.mark.parametrize("key", ["classes last", "sequence first", "all turned", "mean"])
def test_two_outputs(key: str, tmp_path: Path) -> None:
    """Each gradient arrives in strides of its own, or not at all."""
    model, x = Pair(), torch.randn(WORDS)
    planned = planned_of(model, x, tmp_path / "p")
    for chosen in (
        lambda out: LOSSES[key](out[0]) + weighed(out[1]),
        lambda out: weighed(out[0]) + LOSSES[key](out[1]),
        lambda out: LOSSES[key](out[1]),
        lambda out: LOSSES[key](out[0]),
    ):
        assert not is_refused(planned, model, x, chosen)


class Sorting(torch.autograd.Function):
    """A product whose backward asks for a layout, which leaves nothing in a trace."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradient.contiguous()
        return gradient @ weight.t(), x.t() @ gradient


class Own(nn.Module):
    """Its last operator is a function of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(9, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Sorting.apply(x, self.weight)


class Hooked(Own):
    """A hook sees the gradient of its last operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = x @ self.weight
        made.register_hook(torch.Tensor.contiguous)
        return made


@pytest.mark.parametrize("kind", [Own, Hooked])
def test_python_in_the_backward(kind: type[nn.Module], tmp_path: Path) -> None:
    """What Python would do with other strides is unknown."""
    model, x = kind(), torch.randn(ROWS)
    planned = planned_of(model, x, tmp_path / "p")
    assert is_refused(planned, model, x, LOSSES["last two"])
    assert not is_refused(planned, model, x, LOSSES["mean"])
    assert not is_refused(planned, model, x, weighed)


@pytest.mark.parametrize("last", [False, True])
def test_remedies(last: bool, tmp_path: Path) -> None:
    """The sentence names what helps: a hook, and the loss in the plan."""
    model: nn.Module = nn.Sequential(nn.Conv2d(3, 6, 3), nn.Conv2d(6, 6, 1), Turned())
    loss, x = LOSSES["flat"], torch.randn(IMAGE)
    if last:
        model, x = channels_last(model), x.to(memory_format=torch.channels_last)
    turned = LOSSES["all turned"]
    planned = planned_of(model, x, tmp_path / "p")
    with pytest.raises(RuntimeError, match="the gradient of output 0 arrives with") as refused:
        turned(planned(x)).backward()
    text = str(refused.value).rpartition("register_hook(")[2][:-1]
    hook = eval(text)

    def hooked(out: torch.Tensor) -> torch.Tensor:
        out.register_hook(hook)
        return turned(out)

    assert not is_refused(planned, model, x, hooked)
    assert not is_refused(planned_of(model, x, tmp_path / "q", turned), model, x, turned)
    assert not is_refused(planned, model, x, loss)


LAST_OF_IMAGES: dict[str, Callable[[], nn.Module]] = {
    "nearest": lambda: nn.Upsample(scale_factor=2),
    "bilinear": lambda: nn.Upsample(scale_factor=2, mode="bilinear"),
    "shuffle": lambda: nn.Sequential(nn.Conv2d(6, 8, 1), nn.PixelShuffle(2)),
    "maximum": lambda: nn.MaxPool2d(2),
    "mean": lambda: nn.AvgPool2d(2),
    "adaptive": lambda: nn.AdaptiveAvgPool2d(4),
    "zeros": lambda: nn.ZeroPad2d(2),
    "reflection": lambda: nn.ReflectionPad2d(2),
}


@pytest.mark.parametrize("last", LAST_OF_IMAGES)
def test_images_with_channels_last(last: str, tmp_path: Path) -> None:
    """The gradient of an ordinary loss is contiguous; one of the output's strides is taken, too."""
    torch.manual_seed(0)
    model = channels_last(conv(nn.ReLU(), LAST_OF_IMAGES[last]()))
    x = torch.randn(IMAGE).to(memory_format=torch.channels_last)
    planned = planned_of(model, x, tmp_path / "p")
    weights = torch.randn(model(x).shape)
    turned = weights.to(memory_format=torch.channels_last)
    for loss in (
        lambda out: functional.cross_entropy(out, weights.argmax(1)),
        lambda out: functional.mse_loss(out, weights),
        lambda out: out.pow(2).mean(),
        lambda out: (out * weights).sum(),
        lambda out: (out * turned).sum(),
        lambda out: out.sum(),
    ):
        assert not is_refused(planned, model, x, loss)


class Spectrum(nn.Module):
    """A short-time Fourier transform, or what `read` reads of it."""

    def __init__(self, read: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.read = nn.Linear(32, 32), read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        window = torch.hann_window(16)
        return self.read(torch.stft(self.layer(x), 16, 4, window=window, return_complex=True))


@pytest.mark.parametrize("read", [lambda made: made, torch.abs, torch.view_as_real])
def test_spectra(read: Callable[[torch.Tensor], torch.Tensor], tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Spectrum(read), torch.randn(4, 32)
    planned = planned_of(model, x, tmp_path / "p")
    losses: list[Loss] = [
        lambda out: out.abs().pow(2).mean(),
        lambda out: (torch.view_as_real(out) if out.is_complex() else out).pow(2).mean(),
        lambda out: (out.transpose(1, 2) * 2).abs().cos().sum(),
    ]
    for loss in losses:
        assert not is_refused(planned, model, x, loss)


class Turned(nn.Module):
    """A cumulative sum, of which the layouts are not known, after the last layer."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1)


def test_kinds(tmp_path: Path) -> None:
    """How the gradient of a model's output is taken."""
    for last, kind in (
        (nn.Identity(), STRIDES_ACCEPTED),
        (nn.GELU(), STRIDES_ACCEPTED),
        (nn.GroupNorm(2, 20), STRIDES_COPIED),
        (Turned(), STRIDES_REFUSED),
    ):
        graph = trace(built_of((linear(last), ((torch.randn(WORDS),), {}))), "m")
        assert list(gradient_layouts(graph, [], ()).taken.values()) == [kind]
