"""A model that cannot be planned is refused in a sentence that says what to do."""

from __future__ import annotations

import functools
import io
import itertools
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from tests.stages.generate.plans import built_of
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError

X = torch.ones(2, 3)
TABLES: dict[Any, Any] = {}
KEPT: list[Any] = []
TICKS = torch.zeros(2)
CORNER = torch.tensor([0, 1, 1]), torch.tensor([0])


class Texts(list[Any]):
    """A list of a class of its own."""


def sets_data(m: Any, x: Tensor) -> Tensor:
    m.weight.data = m.weight.data.clamp(-9.0, 9.0)
    return m(x)


def sets_data_of_a_buffer(m: Any, x: Tensor) -> Tensor:
    m.mean.data = m.mean * 0.9
    return m(x) + m.mean


def retains(m: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    y = m(x)
    y.retain_grad()
    return y.sin(), y


def asks_for_its_input(m: Any, x: Tensor) -> Tensor:
    return m(x.requires_grad_())


def distribution(m: Any, x: Tensor) -> Any:
    return Normal(m(x), 1.0, validate_args=False)


def own_list(m: Any, x: Tensor) -> Any:
    return Texts([m(x)])


def fills_a_table(m: Any, x: Tensor) -> Tensor:
    TABLES[(3, "x")] = TABLES.get((3, "x"), 0.0) + 1.0
    return m(x)


def counts_in_a_part_of_a_tensor(m: Any, x: Tensor) -> Tensor:
    TICKS[0] += 1.0
    return m(x)


def adds_to_a_tensor(m: Any, x: Tensor) -> Tensor:
    TICKS.add_(1.0)
    return m(x) * TICKS.sum()


def keeps_a_tensor(m: Any, x: Tensor) -> Tensor:
    KEPT.append(m(x))
    return KEPT[-1].sin()


def keeps_a_gradient(m: Any, x: Tensor) -> Tensor:
    y = m(x)
    y.register_hook(KEPT.append)
    return y.sin()


def draws_by_shape(m: Any, x: Tensor) -> Tensor:
    y = m(x)
    y.register_hook(lambda gradient: gradient * torch.rand(3))
    return y.sin()


COUNT = itertools.count()


def takes_of_a_global(m: Any, x: Tensor) -> Tensor:
    return m(x) * float(next(COUNT))


class Taking:
    """Takes from an iterator of its own."""

    def __init__(self) -> None:
        self.left = iter([1.0, 2.0])

    def __call__(self) -> float:
        return next(self.left)


def around() -> Any:
    left = iter([1.0])
    return lambda: next(left)


def changes_its_input(m: Any, x: Tensor) -> Tensor:
    x += 1
    return m(x)


def goes_another_way_compiled(m: Any, x: Tensor) -> Tensor:
    mask: Any = None if torch.compiler.is_compiling() else [2.0]
    return m(x) * mask[0]


def looks_up_a_class(m: Any, x: Tensor) -> Tensor:
    y = m(x)
    if type(y) is not Tensor:
        raise KeyError(f"no backend takes {type(y)}")
    return y


def groups_products(m: Any, x: Tensor) -> Tensor:
    y = m(x)
    if torch.compiler.is_compiling():
        raise RuntimeError("Expected inputs of BF16 type but got mat_a.dtype=torch.float32.")
    return y


class Model(nn.Module):
    """A linear layer and what `does` does with it."""

    def __init__(self, does: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.does = nn.Linear(3, 3), does
        self.layer.register_buffer("mean", torch.zeros(()))

    def forward(self, x: Tensor) -> Any:
        return self.does(self.layer, x)


SENTENCES: list[tuple[Callable[[Any, Tensor], Any], str]] = [
    (
        sets_data,
        r"sets \.data of a tensor at .*test_capture_errors\.py:\d+, .* set it between steps",
    ),
    (sets_data_of_a_buffer, r"sets \.data of a tensor at"),
    (changes_its_input, r"changes its input input.* in place, .*: let it change a copy"),
    (retains, r"calls retain_grad\(\) on a tensor at .*: call it on what the model returns"),
    (asks_for_its_input, "the forward sets requires_grad of its input input.*: set it before"),
    (distribution, "the model's output holds a Normal, which a plan cannot take apart: use"),
    (own_list, "the model's output holds a Texts, which a plan cannot take apart: use"),
    (fills_a_table, r"the forward changes \(3, 'x'\) in the global TABLES"),
    (
        keeps_a_tensor,
        r"the forward changes the global KEPT at .*test_capture_errors.* and reads it, with what "
        "earlier steps have left there, .*; let each call make a list of its own",
    ),
    (
        goes_another_way_compiled,
        r"TypeError: 'NoneType' .*; at .*test_capture_errors\.py:\d+ it asks whether it is "
        "compiled, .* such as a mask: give it that",
    ),
    (looks_up_a_class, "by the exact class of a tensor, .*: name the choice in the call"),
    (groups_products, r"in bfloat16 alone: cast the model to it, or .*\(\"batched_mm\"\)"),
    (keeps_a_gradient, "KEPT"),
    (counts_in_a_part_of_a_tensor, r"is no buffer, .*: register it as a buffer"),
    (adds_to_a_tensor, r"is no buffer, .*: register it as a buffer"),
    (draws_by_shape, r"the backward draws random numbers by rand\(\) that hang on no gradient"),
]


@pytest.mark.parametrize(("does", "sentence"), SENTENCES)
def test_sentences(does: Callable[[Any, Tensor], Any], sentence: str) -> None:
    with pytest.raises(ModelError, match=sentence) as caught:
        trace(built_of((Model(does), ((X,), {}))), "m")
    assert "\n" not in str(caught.value)
    assert not TABLES and not KEPT and not TICKS.any()


def test_a_lazy_module_is_run_first() -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    with pytest.raises(ModelError, match=r"0\.weight is of a lazy module .*: run the model once"):
        trace(built_of((model, ((X,), {}))), "m")


def test_a_mask_that_is_compared_with_a_causal_one() -> None:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 1, 4), 1, enable_nested_tensor=False
    )
    mask = nn.Transformer.generate_square_subsequent_mask(3)
    with pytest.raises(ModelError, match=r"with a causal one, .* \(of an encoder is_causal=True\)"):
        trace(built_of((model, ((torch.ones(3, 2, 4), mask), {}))), "m")


def test_sparse_gradients() -> None:
    model = nn.Embedding(5, 3, sparse=True)
    with pytest.raises(ModelError, match=r"makes sparse gradients .*set its sparse to False"):
        trace(built_of((model, ((torch.tensor([1, 2]),), {}))), "m")


class Viewed(nn.Module):
    """Writes into a buffer that another one is a view of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.register_buffer("queue", torch.zeros(6))
        self.register_buffer("first", self.queue[:3])  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        self.queue.add_(1.0)  # type: ignore[operator]
        return self.layer(x) + self.first


def test_a_buffer_that_is_a_view_of_another() -> None:
    with pytest.raises(
        ModelError, match=r"the model writes to 'first', and another buffer or input is a view"
    ):
        trace(built_of((Viewed(), ((X,), {}))), "m")


TIED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda m: m.layer.weight.data, "the parameter 'layer.weight'"),
    (lambda m: [m.layer.weight.detach()[:2]], "the parameter 'layer.weight'"),
    (lambda m: (m.layer.mean.view(1),), "the buffer 'layer.mean'"),
    (lambda m: X[:1], "an input"),
]


@pytest.mark.parametrize(
    "compute",
    [
        lambda m, x: m(x).to_sparse().to_dense(),
        lambda m, x: m(x).to_sparse_csr().to_dense().sum(),
        lambda m, x: m(x).to_sparse(layout=torch.sparse_csc).to_dense(),
        lambda m, x: m(x).to_mkldnn().to_dense(),
        lambda m, x: torch.sparse_csr_tensor(*CORNER, m(x)[0, :1], (2, 3)).to_dense() + m(x),
    ],
)
def test_tensors_that_are_not_strided(compute: Callable[[Any, Tensor], Any]) -> None:
    """At some of them PyTorch would end the process."""
    with pytest.raises(ModelError, match=r"\(\) at \S+ makes a tensor that is not strided"):
        trace(built_of((Model(compute), ((X,), {}))), "m")


@pytest.mark.parametrize(("tied", "owner"), TIED)
def test_a_constant_in_the_memory_of_what_changes(tied: Callable[[Any], Any], owner: str) -> None:
    model = Model(lambda m, x: m(x) * m.tied[0].sum())
    model.layer.tied = tied(model)
    with pytest.raises(ModelError, match=f"that shares its memory with {owner}.*each time"):
        trace(built_of((model, ((X,), {}))), "m")


USED_UP: list[tuple[Any, Callable[[Any], Any]]] = [
    (iter([1.0, 2.0]), next),
    ({"a": [itertools.cycle([1.0])]}, lambda held: next(held["a"][0])),
    ((float(number) for number in range(9)), next),
    (itertools.count().__next__, lambda held: held()),
    (functools.partial(next, iter([1.0])), lambda held: held()),
    (io.StringIO("1.0"), lambda held: float(held.readline())),
    (Taking(), lambda held: held()),
    (around(), lambda held: held()),
    (SimpleNamespace(left=iter([1.0])), lambda held: next(held.left)),
    (random.SystemRandom(), lambda held: held.random()),
]


@pytest.mark.parametrize(("held", "taken"), USED_UP)
def test_what_the_forward_uses_up(held: Any, taken: Callable[[Any], Any]) -> None:
    """It is refused before anything is taken."""
    model = Model(lambda m, x: m(x) * taken(m.held))
    model.layer.held = held
    with pytest.raises(ModelError, match=r"is or holds what is used up where it is taken from \("):
        trace(built_of((model, ((X,), {}))), "m")
    assert isinstance(held, random.SystemRandom) or float(taken(held)) in (0.0, 1.0)


def test_a_counter_that_is_a_global() -> None:
    with pytest.raises(ModelError, match=r"the global COUNT, .* \(count\)"):
        trace(built_of((Model(takes_of_a_global), ((X,), {}))), "m")
    assert next(COUNT) == 0


def test_random_numbers_of_the_system_that_nobody_draws() -> None:
    model = Model(lambda m, x: m(x))
    object.__setattr__(model.layer, "held", random.SystemRandom())
    trace(built_of((model, ((X,), {}))), "m")


@pytest.mark.parametrize(
    "loss",
    [
        lambda out: out[out > 0].sum(),
        lambda out: out.sum() * float(out.detach().sum()),
        lambda out: nn.functional.ctc_loss(
            out.log_softmax(-1)[:, None],
            torch.ones(1, 1).long(),
            torch.tensor([2]),
            torch.ones(1).long(),
        ),
    ],
)
def test_a_loss_that_asks_for_data(loss: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ModelError, match=r"asks for the data .*: plan without loss, and compute"):
        trace(built_of((Model(lambda m, x: m(x)), ((X,), {}), loss)), "m")


def test_a_loss_that_raises() -> None:
    with pytest.raises(ModelError, match=r"the loss raises KeyError: 'none'$"):
        trace(built_of((Model(lambda m, x: m(x)), ((X,), {}), lambda out: TABLES["none"])), "m")


CONSTANT = torch.ones(2, 3)


class Given(torch.autograd.Function):
    """Its gradient is a tensor that it is given: another one, or the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: Tensor) -> Tensor:
        ctx.save_for_backward(given)
        return x.sum()

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, None]:
        return ctx.saved_tensors[0], None


@pytest.mark.parametrize(
    "loss",
    [
        lambda outs: Given.apply(outs[0], outs[0]),
        lambda outs: Given.apply(outs[0], outs[1]),
        lambda outs: Given.apply(outs[0], CONSTANT),
        lambda outs: Given.apply(outs[0], CONSTANT.view(2, 3)),
    ],
)
def test_a_loss_that_gives_as_a_gradient_what_it_has_not_made(loss: Any) -> None:
    model = Model(lambda m, x: (m(x), x))
    with pytest.raises(ModelError, match=r"in memory that it has not made for it.*: give a copy"):
        trace(built_of((model, ((X,), {}), loss)), "m")


@pytest.mark.parametrize(
    "loss",
    [
        lambda outs: Given.apply(outs[0], outs[1].clone()),
        lambda outs: Given.apply(outs[0], CONSTANT.view(3, 2).t().contiguous()),
        lambda outs: Given.apply(outs[0], torch.tensor([[1.0, 2.0, 3.0]] * 2)),
        lambda outs: outs[0].sum() + outs[0].view(-1)[0],
    ],
)
def test_a_loss_that_makes_what_it_gives_as_a_gradient(loss: Any) -> None:
    model = Model(lambda m, x: (m(x), x))
    assert trace(built_of((model, ((X,), {}), loss)), "m").has_loss
