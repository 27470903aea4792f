"""A plan is compared in further rounds than on its sample, and a refusal says what is likely."""

from __future__ import annotations

import copy
import math
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.torch_utils.model_factory import BuiltModel, check_factory_result
from tightfit.stages.trace.trace import trace
from tightfit.stages.validate.training_step import StepRunner, copy_sample, randomize_sample
from tightfit.stages.validate.validate import check_planned_module as check_plan

torch.set_num_threads(1)


class Plain(nn.Module):
    """What the plans below do; the models that they are plans of do something more."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).tanh()


class DrawsFromPython(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1 + random.random())


class DrawsFromNumpy(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if np.random.random() < 0.5 else x @ self.linear.weight


class Counts(Plain):
    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


class Decides(Plain):
    """Does otherwise where an input is not the sample's."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if bool((x == 0.25).any()) else 2.0)


class Keeps(Plain):
    """Reads in the backward what the last forward has written."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x.detach().mean(0)
        y = super().forward(x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * self.seen)
        return y


class KeepsItsOwn(Keeps):
    """As the other, but with what its own forward has written."""

    def forward(self, x: Tensor) -> Tensor:
        self.seen = seen = x.detach().mean(0)
        y = Plain.forward(self, x)
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient * seen)
        return y


class Narrow(Plain):
    """Raises for other contents, and gives NaN for some."""

    def forward(self, x: Tensor) -> Tensor:
        if not bool((x == 0.25).any()):
            raise ValueError("only the sample will do")
        return super().forward(x)


class Roots(Plain):
    """NaN wherever an input is negative."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sqrt())


def built_of(model: nn.Module, low: float = 0.0) -> BuiltModel:
    torch.manual_seed(5)
    x = torch.rand(3, 4) + low
    x[0, 0] = 0.25
    return check_factory_result((model, [((x,), {})]), "it")


@pytest.fixture(scope="module")
def graph() -> Graph:
    return trace(built_of(Plain()), "it")


def pair(kind: type[Plain], planned: type[Plain] = Plain, low: float = 0.0) -> Any:
    torch.manual_seed(1)
    model = kind()
    other = planned()
    other.load_state_dict(model.state_dict())
    return built_of(model, low), other


Check = Callable[[Graph, BuiltModel, nn.Module], str]


@pytest.fixture(params=[True, False], ids=["full", "quick"])
def check(request: pytest.FixtureRequest) -> Check:
    """The check in all rounds and the one of two steps, which say the same."""
    return partial(check_plan, full=request.param)


def test_nothing_is_said_of_a_plan_that_does_the_same(graph: Graph, check: Check) -> None:
    assert check(graph, *pair(Plain)) == ""
    assert check(graph, *pair(Keeps, Keeps)) == ""


@pytest.mark.parametrize(("full", "steps"), [(True, 4), (False, 2)])
def test_a_quick_check_is_two_steps_of_both_in_flight_on_other_contents(
    graph: Graph, full: bool, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    built, planned = pair(Plain)
    done: list[str] = []
    inputs: list[Tensor] = []
    forward, backward = StepRunner.forward, StepRunner.backward

    def noting_forward(stepper: StepRunner, module: nn.Module, sample: Any) -> Any:
        done.append("forward")
        inputs.append(sample[0][0])
        return forward(stepper, module, sample)

    def noting_backward(stepper: StepRunner, output: Any, tangent: Any) -> Any:
        done.append("backward")
        return backward(stepper, output, tangent)

    monkeypatch.setattr(StepRunner, "forward", noting_forward)
    monkeypatch.setattr(StepRunner, "backward", noting_backward)
    assert check_plan(graph, built, planned, full=full) == ""
    assert done.count("forward") == done.count("backward") == 2 * steps
    assert done[-4:] == ["forward", "forward", "backward", "backward"]
    one, other, sample = *inputs[-2:], built.samples[0][0][0]
    assert not any(map(torch.equal, (one, other, sample), (other, sample, one)))


@pytest.mark.parametrize(
    ("model", "planned", "words"),
    [
        (DrawsFromPython, Plain, "may draw from Python's or NumPy's random numbers"),
        (DrawsFromNumpy, Plain, "may draw from Python's or NumPy's random numbers"),
        (Counts, Plain, "may keep something from call to call"),
        (Decides, Plain, "other contents of the sample's shapes"),
        (Decides, Plain, "may depend on the values of its inputs"),
        (Keeps, KeepsItsOwn, "with two forwards before their backwards"),
        (Plain, Counts, "sample 0, step 1"),
        (Plain, Roots, "what was captured is not what the model does"),
    ],
)
def test_a_refusal_says_what_differs_and_why(
    graph: Graph, model: type[Plain], planned: type[Plain], words: str, check: Check
) -> None:
    said = check(graph, *pair(model, planned))
    assert words in said and said.endswith(".") and "\n" not in said
    assert "differs from the original model" in said and said[0].isupper()


def test_a_plan_that_raises_on_other_contents_is_refused(graph: Graph, check: Check) -> None:
    said = check(graph, *pair(Plain, Narrow))
    assert "fails on other contents of the sample's shapes with ValueError: only the" in said
    said = check(graph, *pair(Plain, type("Raises", (Plain,), {"forward": _raise})))
    assert said == "The planned step fails with ValueError: never."


def _raise(self: Any, x: Tensor) -> Tensor:
    raise ValueError("never")


def test_contents_that_the_original_cannot_take_are_no_reason(graph: Graph, check: Check) -> None:
    assert check(graph, *pair(Narrow)) == ""
    assert check(graph, *pair(Roots, Roots, low=-0.5)) == ""


class Two(nn.Module):
    """Has two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x).tanh() * y


class PlanMismatch(RuntimeError):  # noqa: N818
    """As a package has it."""


class One(Two):
    """Takes two inputs for one."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x, x)


class Refusing(Two):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if x is not y:
            raise PlanMismatch("y is another tensor than x")
        return super().forward(x, y)


def test_a_tensor_in_two_places_is_also_given_as_two(check: Check) -> None:
    torch.manual_seed(1)
    model, x = Two(), torch.rand(3, 4)
    built = check_factory_result((model, [((x, x), {})]), "it")
    graph = trace(check_factory_result((model, [((x, x.clone()), {})]), "it"), "it")
    one, refusing = One(), Refusing()
    one.load_state_dict(model.state_dict())
    refusing.load_state_dict(model.state_dict())
    assert check(graph, built, copy.deepcopy(model)) == check(graph, built, refusing) == ""
    assert "with a tensor each where the sample has one in several" in check(graph, built, one)


def test_the_users_model_and_all_random_numbers_stay_as_they_were(
    graph: Graph, check: Check
) -> None:
    built, planned = pair(Keeps, Keeps)
    model = built.model
    model.linear.weight.grad = torch.ones(4, 4)
    calls: list[Any] = []
    planned.linear.register_forward_hook(lambda module, args, output: calls.append(module))
    before = copy.deepcopy(model.state_dict())
    random.seed(8), np.random.seed(8), torch.manual_seed(8)
    states = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    sample = built.samples[0][0][0].clone()
    assert check(graph, built, planned) == ""
    assert states[0] == random.getstate() and torch.equal(states[1], torch.get_rng_state())
    assert states[2] == np.random.get_state()[1].tolist()  # type: ignore[index]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(model.linear.weight.grad, torch.ones(4, 4)) and model.training
    assert model.linear.bias.grad is None and torch.equal(sample, built.samples[0][0][0])
    assert calls and not any(module in (model.linear, planned.linear) for module in calls)


def test_a_model_that_cannot_be_copied_is_named(graph: Graph, check: Check) -> None:
    built, planned = pair(Plain)
    built.model.linear.further = threading.Lock()
    said = check(graph, built, planned)
    assert said.startswith("The model cannot be compared with its plan, since it cannot be copied")


def test_what_a_forward_has_left_in_a_container_is_copied_without_its_history(
    graph: Graph, check: Check
) -> None:
    built, planned = pair(Plain)
    built.model.linear.further = {"left": [torch.ones(2, requires_grad=True) * 2]}
    assert check(graph, built, planned) == ""


def test_fresh_contents_are_of_the_same_kind() -> None:
    torch.manual_seed(0)
    chances = torch.rand(40).requires_grad_()
    whole, marks = torch.arange(30).view(5, 6).t(), torch.tensor([True, False, False])
    mask = torch.tensor([0.0, -math.inf, 0.0, -math.inf])
    wide = torch.randn(3, 1).expand(3, 5)
    empty, turned = torch.empty(0, 3), torch.randn(4, 6, dtype=torch.complex64)
    sample: Any = ((chances, whole), {"rest": [marks, mask, wide, empty, turned, "text"]})
    args, kwargs = randomize_sample(sample, 1)
    mine = [chances, whole, marks, mask, wide, empty, turned]
    made = [*args, *kwargs["rest"][:-1]]
    for one, other in zip(mine, made, strict=True):
        assert (one.shape, one.stride(), one.dtype) == (other.shape, other.stride(), other.dtype)
        assert one.requires_grad == other.requires_grad and one is not other
    assert made[0].min() >= 0 and made[0].max() <= 1 and not torch.equal(made[0], chances)
    assert sorted(made[1].flatten().tolist()) == list(range(30)) and not torch.equal(made[1], whole)
    assert made[2].sum() == 1 and sorted(made[3].tolist()) == sorted(mask.tolist())
    assert torch.equal(made[4][:, 0], made[4][:, 4]) and not torch.equal(made[4], wide)
    assert not torch.equal(made[6], turned) and kwargs["rest"][-1] == "text"


def test_one_tensor_in_two_places_becomes_two_unless_tied() -> None:
    x = torch.randn(6)
    sample: Any = ((x,), {"y": x})
    (one,), kwargs = randomize_sample(sample, 2)
    assert one is not kwargs["y"] and not torch.equal(one, kwargs["y"])
    (one,), kwargs = randomize_sample(sample, 2, tied=True)
    assert one is kwargs["y"]
    (one,), kwargs = copy_sample(sample)
    assert one is kwargs["y"] and one is not x and torch.equal(one, x)


def test_a_model_whose_own_step_fails_is_named(graph: Graph, check: Check) -> None:
    built, planned = pair(type("Raises", (Plain,), {"forward": _raise}))
    assert check(graph, built, planned) == "The model's own step fails with ValueError: never."


class Scored(nn.Module):
    """A number that is made of logits, and these twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        logits = self.layer(x)
        return logits.square().mean(), logits * 2.0, logits


class NeedsAll(Scored):
    """A plan that cannot do without a gradient of the second output."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        arrived: list[Tensor] = []
        score, twice, logits = super().forward(x)

        def keep(gradient: Tensor) -> None:
            arrived.append(gradient)

        def refuse(gradient: Tensor) -> None:
            if not arrived:
                raise RuntimeError("only some of the outputs have a gradient")

        twice.register_hook(keep)
        logits.register_hook(refuse)
        return score, twice, logits


def test_a_loss_among_the_outputs_is_tried_alone(check: Check) -> None:
    built = check_factory_result((Scored().train(), ((torch.randn(5, 3),), {})), "", "scored")
    graph = trace(built, "scored")
    assert not check(graph, built, copy.deepcopy(built.model))
    refusing = NeedsAll()
    refusing.load_state_dict(built.model.state_dict())
    said = check(graph, built, refusing)
    assert "fails with a gradient of the first output alone with RuntimeError: only some" in said
    assert "where the first output is the loss, plan with loss=lambda output: output[0]" in said
