"""What a forward asks of its tensors is answered as in eager, or it is refused."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import built_of, generated, same, traced
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError

Ask = Callable[[Any, Tensor, Tensor], bool]


class Asking(nn.Module):
    """Goes one of two ways, as it is answered."""

    def __init__(self, ask: Ask) -> None:
        super().__init__()
        self.layer, self.ask = nn.Linear(3, 3), ask
        self.register_buffer("unread", torch.ones(2, 3))
        self.table = torch.ones(2, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.layer(x) * 2.0 if self.ask(self, x, y) else self.layer(x) + y


def new() -> Tensor:
    return torch.randn(2, 3, requires_grad=True)


def hooked(x: Tensor) -> Tensor:
    x.register_hook(torch.clone)
    return x


@functools.singledispatch
def dispatched(x: Any) -> bool:
    return False


@dispatched.register
def _(x: nn.Parameter) -> bool:
    return True


FACTS: list[tuple[Ask, Callable[[Tensor], Tensor], str]] = [
    (lambda m, x, y: x.is_leaf, lambda x: x * 1.0, "was computed by autograd"),
    (lambda m, x, y: getattr(x, "grad" + "_fn") is None, lambda x: x * 1.0, "was computed"),
    (lambda m, x, y: x.output_nr == 0, lambda x: torch.stack([x, x]).unbind()[1], "was computed"),
    (
        lambda m, x, y: "Acc" in (x * 2.0).grad_fn.next_functions[0][0].name(),  # type: ignore
        lambda x: x * 1.0,
        "was computed",
    ),
    (lambda m, x, y: x._is_view(), lambda x: x[:], "is a view"),
    (lambda m, x, y: x.view(-1)._base is x, lambda x: x[:], "is a view"),
    (lambda m, x, y: x.storage_offset() == 0, lambda x: torch.cat([x, x])[2:], "does not begin"),
    (lambda m, x, y: bool(x[0].storage_offset()), lambda x: torch.cat([x, x])[2:], "does not"),
    (
        lambda m, x, y: x.as_strided((2,), (1,)).dim() == 1,
        lambda x: torch.cat([x, x])[2:],
        "does not begin",
    ),
    (lambda m, x, y: not x._backward_hooks, hooked, "has a hook"),
    (lambda m, x, y: x.is_shared(), lambda x: x.detach().share_memory_().requires_grad_(), "lies"),
    (lambda m, x, y: isinstance(x, nn.Parameter), nn.Parameter, "is a parameter"),
    (lambda m, x, y: type(x) is nn.Parameter, nn.Parameter, "is a parameter"),
    (lambda m, x, y: dispatched(x), nn.Parameter, "is a parameter"),
    (lambda m, x, y: isinstance(x, nn.Buffer), nn.Buffer, "is a parameter, a buffer"),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("ask", "other", "said"), FACTS)
def test_a_fact_that_is_asked_for(
    ask: Ask, other: Callable[[Tensor], Tensor], said: str, tmp_path: Path
) -> None:
    graph, built = traced((Asking(ask), ((new(), new().detach()), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(copy.deepcopy(built.model))
    x, y = new(), new().detach()
    assert same(planned(x, y), built.model(x, y))
    with pytest.raises(package.PlanMismatch, match=f"^x {said}"):
        planned(other(x), y)
    with pytest.raises(ModelError, match=f"an input of shape .* {said}.*asks for that at"):
        traced((Asking(ask), ((other(new()), y), {})))


REFUSED: list[Ask] = [
    lambda m, x, y: x._version == 0,
    lambda m, x, y: x.data_ptr() == y.data_ptr(),
    lambda m, x, y: x[0].untyped_storage().nbytes() > 0,
    lambda m, x, y: x._cdata == y._cdata,
    lambda m, x, y: bool(m.layer.weight._version),
]


@pytest.mark.parametrize("ask", REFUSED)
def test_what_is_another_in_each_step(ask: Ask) -> None:
    with pytest.raises(ModelError, match=r"asks an input for|asks a parameter or a buffer for"):
        traced((Asking(ask), ((new(), new()), {})))


ONE_OBJECT: list[Ask] = [
    lambda m, x, y: x is y,
    lambda m, x, y: id(x) == id(y),
    lambda m, x, y: operator.is_(x, y),
    lambda m, x, y: len({x, y}) == 1,
    lambda m, x, y: x.contiguous() is y.contiguous(),
    lambda m, x, y: any(given is x for given in (y, m.unread, m.table)),
]


@pytest.mark.parametrize("ask", ONE_OBJECT)
def test_inputs_that_are_one_object(ask: Ask, tmp_path: Path) -> None:
    x, y = new().detach(), new().detach()
    graph, built = traced((Asking(ask), ((x, y), {})))
    package = generated(graph, tmp_path / "apart")
    planned = package.load(copy.deepcopy(built.model))
    assert same(planned(x, y), built.model(x, y))
    with pytest.raises(package.PlanMismatch, match=r"^y is the same object as x, which"):
        planned(x, x)
    for known in (planned.unread, planned.table)[: 1 + (ask is ONE_OBJECT[-1])]:
        with pytest.raises(package.PlanMismatch, match=r"^x is a tensor that the model keeps"):
            planned(known, y)
    graph, built = traced((Asking(ask), ((x, x), {})))
    package = generated(graph, tmp_path / "tied")
    planned = package.load(copy.deepcopy(built.model))
    assert same(planned(y, y), built.model(y, y))
    with pytest.raises(package.PlanMismatch, match=r"^y is not the same object as x, which"):
        planned(x, y)


def test_strides_that_nothing_but_a_question_tells_apart(tmp_path: Path) -> None:
    """Of a dimension of one element any stride is right."""
    one = torch.ones(2, 1)
    other = one.as_strided((2, 1), (1, 7))
    answers: list[Ask] = [
        lambda m, x, y: y.stride(1) == 7,
        lambda m, x, y: m.layer.weight.stride(0) == 7,
    ]
    for number, ask in enumerate(answers):
        graph, built = traced((Asking(ask), ((new(), one), {})))
        package = generated(graph, tmp_path / f"plan{number}")
        planned = package.load(copy.deepcopy(built.model))
        x = new()
        assert same(planned(x, one), built.model(x, one))
        if number:
            assert same(planned(x, other), built.model(x, other))
            continue
        with pytest.raises(
            package.PlanMismatch, match=r"^y has strides \(1, 7\), .* asks for them"
        ):
            planned(x, other)


def test_one_object_twice_is_fine_where_nobody_asks(tmp_path: Path) -> None:
    x, y = new().detach(), new().detach()
    graph, built = traced((Asking(lambda m, x, y: y is None), ((x, y), {})))
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    assert same(planned(x, x), built.model(x, x))


def test_layers_that_are_given_one_tensor_of_two(tmp_path: Path) -> None:
    """Attention inside of a layer compares its own operands, which are one whatever is given."""
    model = nn.Transformer(8, 2, 1, 1, 8, dropout=0.0, batch_first=True)
    x, y = torch.randn(2, 3, 8), torch.randn(2, 3, 8)
    graph, built = traced((model, ((x, y), {})))
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    assert same(planned(x, x), built.model(x, x))


def test_samples_that_differ_in_it() -> None:
    x, y = new(), new()
    built = built_of((Asking(ONE_OBJECT[0]), ((x, y), {})))
    built.samples.append(((x, x), {}))
    with pytest.raises(ModelError, match="one sample has a tensor in several places and another"):
        trace(built, "m")


def test_attention_to_itself(tmp_path: Path) -> None:
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 5, 8)
    x.requires_grad_()
    graph, built = traced((model, ((x, x, x), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(copy.deepcopy(built.model))
    given = []
    for each in (planned, built.model):
        x = x.detach().requires_grad_()
        out, _ = each(x, x, x)
        out.square().sum().backward()
        given.append((out.detach(), x.grad, each.in_proj_weight.grad))
    assert all(same(*pair) for pair in zip(*given, strict=True))
    with pytest.raises(package.PlanMismatch, match=r"^key is not the same object as query"):
        planned(x, x.clone(), x)


def do_nothing() -> None:
    """One instruction, from Python 3.12 on."""


class Calling(nn.Module):
    """Calls a function that does nothing."""

    def forward(self, x: Tensor) -> Tensor:
        do_nothing()
        return x.sin()


def test_a_forward_may_call_what_does_nothing(tmp_path: Path) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    graph, built = traced((Calling(), ((x,), {})))
    assert same(generated(graph, tmp_path / "plan").load(built.model)(x), x.sin())
