"""What a planned step cannot go through is refused in a sentence, or the original runs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from tests.stages.conftest import Planned
from tests.stages.generate.plans import generated, traced
from tests.stages.runtime.test_planned_module import assert_same_gradients, run, twins
from tightfit.stages.torch_utils.model_factory import BuiltModel

Use = Callable[[nn.Module, torch.Tensor], Any]


def transformed(model: nn.Module, x: torch.Tensor) -> Any:
    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, parameters, (x,)).sum()

    return torch.func.grad(loss)(dict(model.named_parameters()))


def mapped(model: nn.Module, x: torch.Tensor) -> Any:
    return torch.func.vmap(lambda each: model(each))(torch.stack([x, x]))


def forward_mode(model: nn.Module, x: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, x.sin())
        return forward_ad.unpack_dual(model(dual)).tangent.clone()


def watched_saving(model: nn.Module, x: torch.Tensor) -> Any:
    with saved_tensors_hooks(lambda saved: saved * 2, lambda saved: saved):
        loss = model(x).square().sum()
    loss.backward()
    return [parameter.grad for parameter in model.parameters()]


class Scaled(torch.Tensor):
    """A tensor with a behavior of its own."""

    @classmethod
    def __torch_function__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return super().__torch_function__(operator, types, args, kwargs or {})


def subclass(model: nn.Module, x: torch.Tensor) -> Any:
    return model(x.as_subclass(Scaled)).as_subclass(torch.Tensor)


@pytest.mark.parametrize(
    ("use", "sentence"),
    [
        (transformed, "torch.func"),
        (mapped, "torch.func"),
        (forward_mode, "forward-mode"),
        (watched_saving, "saved_tensors_hooks"),
        (subclass, "is a Scaled"),
    ],
)
def test_it_is_refused_or_the_original_runs(use: Use, sentence: str, tmp_path: Path) -> None:
    graph, built = traced(layer())
    package, model = generated(graph, tmp_path / "plan"), built.model
    x = built.samples[0][0][0]
    with pytest.raises(package.PlanMismatch, match=sentence):
        use(package.load(copy.deepcopy(model)), x)
    other = package.load(copy.deepcopy(model), on_mismatch="original")
    mine, theirs = (torch.utils._pytree.tree_leaves(use(each, x)) for each in (other, model))
    assert len(mine) == len(theirs)
    assert all(torch.equal(*pair) for pair in zip(mine, theirs, strict=True))


def batched(out: torch.Tensor, weight: torch.Tensor) -> Any:
    many = torch.stack([torch.ones_like(out), out.detach()])
    return torch.autograd.grad(out, weight, many, is_grads_batched=True)


def mapped_backward(out: torch.Tensor, weight: torch.Tensor) -> Any:
    many = torch.stack([torch.ones_like(out), out.detach()])
    return torch.func.vmap(lambda gradient: torch.autograd.grad(out, weight, gradient))(many)


def dual_gradient(out: torch.Tensor, weight: torch.Tensor) -> Any:
    with forward_ad.dual_level():
        given = forward_ad.make_dual(torch.ones_like(out), out.detach())
        return torch.autograd.grad(out, weight, given)


def of_subclass(out: torch.Tensor, weight: torch.Tensor) -> Any:
    return torch.autograd.grad(out, weight, out.detach().as_subclass(Scaled))


@pytest.mark.parametrize(
    ("backward", "sentence"),
    [
        (batched, "is inside a transform .*: call it once"),
        (mapped_backward, "is inside a transform .*: call it once"),
        (dual_gradient, "the gradient of output 0 carries a forward-mode derivative"),
        (of_subclass, "the gradient of output 0 is a Scaled"),
    ],
)
def test_backwards_that_are_refused(
    backward: Callable[..., Any], sentence: str, tmp_path: Path
) -> None:
    graph, built = traced(layer())
    planned = generated(graph, tmp_path / "plan").load(copy.deepcopy(built.model))
    x = built.samples[0][0][0]
    backward(built.model(x), next(built.model.parameters()))
    with pytest.raises(RuntimeError, match=sentence):
        backward(planned(x), next(planned.parameters()))


class Marked(torch.Tensor):
    """A subclass without a behavior of its own."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [Marked, nn.Parameter])
def test_a_gradient_of_a_plain_subclass(kind: Any, small: Planned) -> None:
    planned, model = twins(small)
    for each in (planned, model):
        out = run(each, small.inputs())["logits"]
        given = out.detach().clone()
        out.backward(kind(given) if kind is nn.Parameter else given.as_subclass(kind))
    assert_same_gradients(planned, model)


def test_hooks_that_give_back_what_was_saved_do_no_harm(small: Planned) -> None:
    planned, model = twins(small)
    for each in (planned, model):
        with save_on_cpu():
            loss = run(each, small.inputs())["logits"].square().sum()
        loss.backward()
    assert_same_gradients(planned, model)


class Outer(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.last = inner, nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.inner(x * 2).sin())


def layer() -> tuple[nn.Module, Any]:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU()), ((torch.randn(3, 4),), {})


@pytest.mark.sample(2)
@pytest.mark.parametrize("how", ["planned", "make_fx", "compiled"])
def test_a_planned_part_may_be_traced(how: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(layer())
    part = generated(graph, tmp_path / "part").load(built.model)
    original = Outer(copy.deepcopy(built.model))
    original.inner.__class__ = nn.Sequential
    outer = Outer(part)
    outer.load_state_dict(original.state_dict())
    x = built.samples[0][0][0]
    whole: Any = outer
    if how == "planned":
        found, _ = traced((outer, ((x,), {})))
        whole = generated(found, tmp_path / "whole").load(outer)
    elif how == "compiled":
        whole = torch.compile(outer, backend="aot_eager")
    else:
        from torch.fx.experimental.proxy_tensor import make_fx

        whole = make_fx(outer)(x)
    outputs = [each(x) for each in (whole, original)]
    assert torch.equal(*outputs)
    if how != "make_fx":
        for output in outputs:
            output.square().sum().backward()
        assert_same_gradients(outer, original)


class Aliased(nn.Module):
    """An output, a view of it, and a part of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.layer(x)
        return y, y.t()


@pytest.fixture
def aliased(tmp_path: Path) -> tuple[nn.Module, BuiltModel]:
    graph, built = traced((Aliased(), ((torch.randn(3, 4),), {})))
    return generated(graph, tmp_path / "plan").load(built.model), built


def test_an_output_changed_through_its_alias_is_refused(
    aliased: tuple[nn.Module, BuiltModel],
) -> None:
    planned, built = aliased
    one, other = planned(*built.samples[0][0])
    with torch.no_grad():
        one.mul_(2)
    with pytest.raises(RuntimeError, match="shares memory with another output"):
        (one.sum() + other.square().sum()).backward()
    one, other = planned(*built.samples[0][0])
    (one.sum() + other.square().sum()).backward()


def test_an_exception_in_a_backward_leaves_nothing_behind(small: Planned) -> None:
    planned, model = twins(small)

    def fail(gradient: torch.Tensor) -> None:
        raise ValueError("a hook fails")

    hook = planned.last.weight.register_hook(fail)
    with pytest.raises(ValueError, match="a hook fails"):
        run(planned, small.inputs())["logits"].square().sum().backward()
    hook.remove()
    planned.zero_grad()
    for each in (planned, model):
        run(each, small.inputs())["logits"].square().sum().backward()
    assert_same_gradients(planned, model)


def test_a_copy_made_in_the_middle_of_a_step_is_whole(small: Planned) -> None:
    planned, model = twins(small)
    loss = run(planned, small.inputs())["logits"].square().sum()
    copies = [copy.deepcopy(planned)]
    loss.backward()
    for each in (*copies, model):
        run(each, small.inputs())["logits"].square().sum().backward()
        assert_same_gradients(planned, each)
    assert pickle.dumps(planned.state_dict())


def test_several_backwards_are_told_to_be_one(small: Planned) -> None:
    planned, _ = twins(small)
    output = run(planned, small.inputs())
    output["logits"].sum().backward()
    with pytest.raises(RuntimeError, match="one backward of their sum"):
        output["hidden"].sum().backward()
