"""A planned module takes the place of its model in the training scripts that people write."""

from __future__ import annotations

import copy
import inspect
import io
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.conftest import Planned
from tests.stages.generate.plans import (
    check_equal,
    compare,
    generated,
    keep_all,
    recompute,
    step,
    traced,
)
from tests.stages.generate.small_model import Small
from tests.stages.trace import modules

SAMPLE = {"scale": 2.0}


def is_planned(output: Any) -> bool:
    return "_ReturnOutput" in output["logits"].grad_fn.name()


def twins(small: Planned) -> tuple[Small, Small]:
    """A planned module and the original, equal."""
    return small.package.load(small.model()), small.model()


def run(model: nn.Module, x: torch.Tensor, seed: int = 5, **arguments: Any) -> Any:
    torch.manual_seed(seed)
    return model(x, **{**SAMPLE, **arguments})


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [gradient_of(parameter) for parameter in model.parameters()]


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None
    return parameter.grad.clone()


def assert_same_gradients(one: nn.Module, other: nn.Module) -> None:
    assert all(map(torch.equal, gradients(one), gradients(other)))


def test_it_looks_like_the_model(small: Planned) -> None:
    planned, model = twins(small)
    assert isinstance(planned, Small) and type(planned).__name__ == "Small"
    assert repr(planned) == repr(model)
    assert list(planned.state_dict()) == list(model.state_dict())
    assert inspect.signature(planned.forward) == inspect.signature(model.forward)
    assert is_planned(run(planned, small.inputs()))


def test_it_shares_everything_with_the_model(small: Planned) -> None:
    model = small.model()
    planned = small.package.load(model)
    assert all(a is b for a, b in zip(planned.parameters(), model.parameters(), strict=True))
    model.last = nn.Linear(8, 3)
    model.first.weight = nn.Parameter(torch.ones(8, 6))
    twin = copy.deepcopy(model)
    run(planned, small.inputs())["logits"].sum().backward()
    run(twin, small.inputs())["logits"].sum().backward()
    assert_same_gradients(model, twin)
    model.eval()
    assert not planned.training


def test_training_with_an_optimizer_follows_the_model(small: Planned) -> None:
    planned, model = twins(small)
    for module in (planned, model):
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
        for number in range(4):
            for part in range(2):
                output = run(module, small.inputs(2 * number + part), seed=number)
                (output["logits"].square().mean() + output["hidden"].mean()).backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad(set_to_none=number % 2 == 0)
    theirs = model.state_dict()
    for name, tensor in planned.state_dict().items():
        assert torch.equal(tensor, theirs[name]), name


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients_the_original_runs(small: Planned, context: Any) -> None:
    planned, model = twins(small)
    with context():
        mine, theirs = run(planned, small.inputs(batch=3)), run(model, small.inputs(batch=3))
    assert torch.equal(mine["logits"], theirs["logits"]) and mine["logits"].grad_fn is None


def test_in_evaluation_the_original_runs(small: Planned) -> None:
    planned, model = twins(small)
    mine = run(planned.eval(), small.inputs(batch=7))
    theirs = run(model.eval(), small.inputs(batch=7))
    assert torch.equal(mine["logits"], theirs["logits"]) and not is_planned(mine)
    assert is_planned(run(planned.train(), small.inputs()))


def test_two_forwards_then_two_backwards_in_either_order(small: Planned) -> None:
    for reverse in (False, True):
        planned, model = twins(small)
        for module in (planned, model):
            outputs = [run(module, small.inputs(seed), seed) for seed in (1, 2)]
            for output in reversed(outputs) if reverse else outputs:
                output["logits"].square().sum().backward()
        assert_same_gradients(planned, model)


def test_two_modules_in_one_process_do_not_meet(small: Planned, tmp_path: Path) -> None:
    other = small.package.load(small.model(3))
    again = generated(small.graph, tmp_path / "other", keep_all(small.graph))
    third = again.load(small.model(4))
    mine = small.package.load(small.model())
    outputs = [run(module, small.inputs(i), i) for i, module in enumerate((mine, other, third))]
    for output in outputs:
        output["logits"].square().sum().backward()
    for number, (module, seed) in enumerate(((mine, 0), (other, 3), (third, 4))):
        model = small.model(seed)
        run(model, small.inputs(number), number)["logits"].square().sum().backward()
        assert_same_gradients(module, model)


def test_threads_do_not_meet(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(modules.tied())
    planned = generated(graph, tmp_path / "tied", recompute(graph, 1)).load(built.model)
    samples = [torch.randint(0, 10, (2, 3)) for _ in range(4)]
    expected = [train_alone(copy.deepcopy(built.model), tokens) for tokens in samples]
    found: list[Any] = [None] * len(samples)

    def work(number: int) -> None:
        for _ in range(10):
            found[number] = train_alone(planned, samples[number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(samples))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for mine, theirs in zip(found, expected, strict=True):
        assert all(map(torch.equal, mine, theirs))


def train_alone(model: nn.Module, tokens: torch.Tensor) -> Any:
    """Gradients of one step that leaves `.grad` alone."""
    return torch.autograd.grad(model(tokens).square().sum(), list(model.parameters()))


def test_a_deep_copy_has_its_own_parameters(small: Planned) -> None:
    planned, model = twins(small)
    twin = copy.deepcopy(planned)
    assert isinstance(twin, Small) and twin.first.weight is not planned.first.weight
    output = run(twin, small.inputs())
    assert is_planned(output)
    output["logits"].square().sum().backward()
    run(model, small.inputs())["logits"].square().sum().backward()
    assert_same_gradients(twin, model)
    assert planned.first.weight.grad is None


def test_state_is_saved_and_loaded(small: Planned) -> None:
    file = io.BytesIO()
    torch.save(small.package.load(small.model(2)).state_dict(), file)
    file.seek(0)
    planned = small.package.load(small.model())
    planned.load_state_dict(torch.load(file))
    model = small.model(2)
    run(planned, small.inputs())["logits"].sum().backward()
    run(model, small.inputs())["logits"].sum().backward()
    assert_same_gradients(planned, model)


def test_the_whole_module_is_saved_and_loaded(
    small: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(small.directory.parent))
    import planned_small

    file = io.BytesIO()
    torch.save(planned_small.load(small.model(2), on_mismatch="original"), file)
    file.seek(0)
    planned = torch.load(file, weights_only=False)
    assert isinstance(planned, Small)
    assert is_planned(run(planned, small.inputs()))
    assert not is_planned(run(planned, small.inputs(batch=2)))
    del sys.modules["planned_small"]


def test_an_output_that_gets_no_gradient_gives_none(small: Planned) -> None:
    planned, model = twins(small)
    for module in (planned, model):
        run(module, small.inputs())["hidden"].square().sum().backward()
    assert model.last.weight.grad is None and planned.last.weight.grad is None
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.equal(gradient_of(planned.get_parameter(name)), parameter.grad)


def test_gradients_of_some_parameters_alone(small: Planned) -> None:
    planned, model = twins(small)
    mine, theirs = (
        torch.autograd.grad(
            run(module, small.inputs())["logits"].square().sum(),
            [module.norm.weight, module.last.bias],
        )
        for module in (planned, model)
    )
    assert all(map(torch.equal, mine, theirs))
    assert all(parameter.grad is None for parameter in planned.parameters())


def test_a_second_backward_is_refused(small: Planned) -> None:
    loss = run(small.package.load(small.model()), small.inputs())["logits"].sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once for each forward"):
        loss.backward()


def test_double_backward_is_refused(small: Planned) -> None:
    planned = small.package.load(small.model())
    loss = run(planned, small.inputs())["logits"].square().sum()
    with pytest.raises(RuntimeError, match="no double backward"):
        torch.autograd.grad(loss, list(planned.parameters()), create_graph=True)


def test_outputs_may_be_changed_in_place_unless_the_backward_needs_them(small: Planned) -> None:
    planned, model = twins(small)
    for module in (planned, model):
        run(module, small.inputs())["logits"].mul_(3).square().sum().backward()
    assert_same_gradients(planned, model)
    for module in (planned, model):
        output = run(module, small.inputs())
        output["hidden"].mul_(3)
        with pytest.raises(RuntimeError, match=r"in-?\s?place"):
            (output["logits"].sum() + output["hidden"].sum()).backward()


def test_weights_may_not_change_before_the_backward_that_needs_them(small: Planned) -> None:
    planned = small.package.load(small.model())
    loss = run(planned, small.inputs())["logits"].sum()
    with torch.no_grad():
        planned.middle.weight.mul_(2)
    with pytest.raises(RuntimeError, match=r"the parameter middle\.weight was changed in place"):
        loss.backward()


def test_an_error_in_the_backward_leaves_no_state(
    small: Planned, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, model = twins(small)
    output = run(planned, small.inputs())
    step_module = sys.modules[f"{small.package.__name__}.step"]
    with monkeypatch.context() as patch:
        patch.setattr(step_module, "mm", None)
        with pytest.raises(TypeError):
            output["logits"].square().sum().backward()
    planned.zero_grad()
    for module in (planned, model):
        run(module, small.inputs())["logits"].square().sum().backward()
    assert_same_gradients(planned, model)


def test_inputs_from_another_module_get_their_gradients(small: Planned, tmp_path: Path) -> None:
    torch.manual_seed(0)
    head = nn.Linear(6, 6)
    x = torch.randn(4, 6, requires_grad=True)
    graph, _ = traced((Small().train(), ((x,), SAMPLE)))
    package = generated(graph, tmp_path / "inside", recompute(graph, 2))
    outer, twin = nn.Sequential(head, package.load(small.model())), None
    twin = nn.Sequential(copy.deepcopy(head), small.model())
    for whole in (outer, twin):
        torch.manual_seed(1)
        whole[1](whole[0](small.inputs()), 2.0)["logits"].square().sum().backward()
    assert_same_gradients(outer, twin)
    assert list(outer.state_dict()) == list(twin.state_dict())


def test_functional_calls_reach_the_given_parameters(small: Planned) -> None:
    planned, model = twins(small)
    results = []
    for module in (planned, model):
        given = {
            name: (parameter.detach() * 2).requires_grad_()
            for name, parameter in module.named_parameters()
        }
        torch.manual_seed(5)
        output = torch.func.functional_call(module, given, (small.inputs(),), SAMPLE)
        output["logits"].square().sum().backward()
        results.append([tensor.grad for tensor in given.values()])
    assert all(map(torch.equal, *results))


def test_an_output_that_the_loss_does_not_use_refuses_gradients(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(modules.heads())
    planned = generated(graph, tmp_path / "heads").load(built.model)
    args, kwargs = built.samples[0]
    output = planned(*args, **kwargs)
    assert output["unused"].requires_grad
    assert built.loss is not None
    built.loss(output).backward()
    with pytest.raises(RuntimeError, match="does not use it"):
        planned(*args, **kwargs)["unused"].sum().backward()


def test_tied_weights_stay_tied(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(modules.tied())
    package = generated(graph, tmp_path / "tied", recompute(graph, 1))
    planned: Any = compare(package, built)
    assert planned.head.weight is planned.embedding.weight
    planned.head.weight = nn.Parameter(planned.head.weight.detach().clone())
    with pytest.raises(RuntimeError, match="no longer the same tensor"):
        planned(*built.samples[0][0])


def test_autocast_around_a_plan_that_was_traced_with_it(small: Planned, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        graph, built = traced((Small().train(), ((x,), SAMPLE)))
    package = generated(graph, tmp_path / "autocast", recompute(graph, 1))
    planned, model = package.load(small.model()), small.model()
    with torch.autocast("cpu", torch.bfloat16):
        mine, theirs = step(planned, built.samples[0]), step(model, built.samples[0])
    assert mine[0]["logits"].dtype == torch.bfloat16
    check_equal((planned, *mine), (model, *theirs))
    with pytest.raises(RuntimeError, match=r"autocast on cpu is off, the plan .* it bfloat16"):
        planned(x, **SAMPLE)


def test_backward_inside_autocast_is_refused_where_it_would_cast(small: Planned) -> None:
    planned, _ = twins(small)
    loss = run(planned, small.inputs())["logits"].square().sum()
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(RuntimeError, match="call backward outside of autocast"),
    ):
        loss.backward()
