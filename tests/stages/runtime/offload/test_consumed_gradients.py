"""Loops that look at gradients between a backward and the step of an optimizer that takes another
one's place: as torch.optim where gradients are kept, told where the backward has consumed them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.runtime.offload.test_backward_optimizer import (
    assert_alike,
    assert_trained_alike,
    groups_of,
    model,
)
from tests.stages.runtime.offload.test_host_update import lodged
from tightfit.stages.runtime.offload.backward_optimizer import in_backward
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE

Loop = Callable[[nn.Module, Any, torch.Tensor], Any]
GONE = r"the gradient of a parameter of shape .* is gone: .* plan with gradients=GradientOptions"


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))


def backward(module: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(inputs).square().mean()
    loss.backward()
    return loss


def clip_norm(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    norm = nn.utils.clip_grad_norm_(module.parameters(), 0.01)
    optimizer.step()
    return norm


def clip_value(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    nn.utils.clip_grad_value_(module.parameters(), 0.001)
    optimizer.step()


def clip_with_accelerate(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    accelerator = pytest.importorskip("accelerate").Accelerator(cpu=True)
    backward(module, inputs)
    norm = accelerator.clip_grad_norm_(module.parameters(), 0.01)
    optimizer.step()
    return norm


def scale(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=float("inf"), growth_interval=1)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(module(inputs).square().mean()).backward()
        scaler.unscale_(optimizer)
        found.append(nn.utils.clip_grad_norm_(module.parameters(), 0.01))
        scaler.step(optimizer)
        scaler.update(2.0**10 if len(found) == 1 else None)
    assert not torch.isfinite(found[0]) and torch.isfinite(found[-1])
    return found[1:]


def add_noise(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    torch.manual_seed(1)
    for parameter in module.parameters():
        assert parameter.grad is not None
        parameter.grad += 0.1 * torch.randn_like(parameter.grad)
    optimizer.step()


def replace(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def log_after(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    step_only = [None if p.grad is None else p.grad.norm() for p in module.parameters()]
    optimizer.step()
    return step_only


def decay(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.9)
    optimizer.step()


def two_backwards(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    backward(module, 2 * inputs)
    optimizer.step()


def skip_a_step(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    module.zero_grad()
    backward(module, 2 * inputs)
    optimizer.step()


def closure(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    def again() -> torch.Tensor:
        optimizer.zero_grad()
        return backward(module, inputs)

    return optimizer.step(again)


def never_drop(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    for _ in range(2):
        backward(module, inputs)
        optimizer.step()


def step_twice(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    optimizer.step()
    optimizer.step()


def leave_zeros(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    backward(module, inputs)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return [parameter.grad for parameter in module.parameters()]


def step_hook(module: nn.Module, optimizer: Any, inputs: torch.Tensor) -> Any:
    def clip(*_: Any) -> None:
        nn.utils.clip_grad_norm_(module.parameters(), 0.01)

    handle = optimizer.register_step_pre_hook(clip)
    backward(module, inputs)
    optimizer.step()
    handle.remove()


WAYS: dict[Loop, str] = {
    clip_norm: GONE,
    clip_value: GONE,
    clip_with_accelerate: GONE,
    scale: GONE,
    add_noise: GONE,
    replace: GONE,
    log_after: GONE,
    decay: r"a parameter of shape .* was changed between a backward",
    two_backwards: r"a second backward comes before optimizer\.step\(\)",
    skip_a_step: GONE,
    closure: r"takes no closure: plan with gradients=GradientOptions",
    never_drop: r"call optimizer\.zero_grad\(\) between a step\(\) and the next backward",
    step_twice: r"call optimizer\.zero_grad\(\) between a step\(\) and the next backward",
    leave_zeros: r"zero_grad\(set_to_none=False\) leaves zeros",
    step_hook: GONE,
}
"""Loops, and what is said of them where the backward consumes the gradients."""


def made(kind: Any, parameters: Any) -> torch.optim.Optimizer:
    more: dict[str, Any] = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    given: torch.optim.Optimizer = kind(parameters, lr=0.1, **more)
    return given


@pytest.mark.parametrize("loop", WAYS, ids=lambda loop: loop.__name__)
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_kept_gradients_are_those_of_torch(loop: Loop, kind: type[torch.optim.Optimizer]) -> None:
    plain, own = model(), model()
    expected = made(kind, groups_of(plain))
    optimizer = in_backward(made(kind, groups_of(own)), piece_bytes=512, keep_gradients=True)
    for number in range(3):
        inputs = torch.randn(4, 9, generator=torch.Generator().manual_seed(number))
        wanted = loop(plain, expected, inputs)
        assert_alike(wanted, loop(own, optimizer, inputs))
        for each in (expected, optimizer):
            each.zero_grad()
    assert_trained_alike(plain, own)
    assert_alike(expected.state_dict(), optimizer.state_dict())
    optimizer.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("loop", WAYS, ids=lambda loop: loop.__name__)
def test_consumed_gradients_are_told(loop: Loop) -> None:
    own = model()
    optimizer = in_backward(torch.optim.AdamW(groups_of(own)))
    with pytest.raises(RuntimeError, match=WAYS[loop]):
        loop(own, optimizer, torch.ones(4, 9))


def test_parameters_in_another_memory() -> None:
    plain, own = model(), model()
    expected = made(torch.optim.AdamW, plain.parameters())
    store, optimizer = lodged(own, made(torch.optim.AdamW, own.parameters()))
    optimizer.keep_gradients = True
    for number in range(3):
        inputs = torch.randn(4, 9, generator=torch.Generator().manual_seed(number))
        backward(plain, inputs)
        for parameter, gradient in zip(own.parameters(), plain.parameters(), strict=True):
            assert gradient.grad is not None
            parameter.grad = gradient.grad.clone()
        for number_there in range(len(store.parameters)):
            optimizer._arrived(number_there)
        norms = [nn.utils.clip_grad_norm_(m.parameters(), 0.01) for m in (plain, own)]
        assert torch.equal(*norms)
        for each in (expected, optimizer):
            each.step()
            each.zero_grad()
    with optimizer.gathered():
        assert_trained_alike(plain, own)
    optimizer.keep_gradients = False
    some = next(iter(own.parameters()))
    some.grad = torch.ones(33, 9)
    optimizer._arrived(0)
    with pytest.raises(RuntimeError, match=GONE):
        nn.utils.clip_grad_norm_(own.parameters(), 0.01)
    with optimizer.gathered(), pytest.raises(RuntimeError, match=GONE):
        nn.utils.clip_grad_norm_(own.parameters(), 0.01)
    optimizer.step()
    own.zero_grad()
    assert some.grad is None
    optimizer.close()


def test_after_the_step_a_loop_drops_gradients_in_any_way() -> None:
    def by_hand(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters():
            parameter.grad = None

    def deleted(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters():
            del parameter.grad

    plain, own = model(), model()
    expected, given = torch.optim.AdamW(plain.parameters()), torch.optim.AdamW(own.parameters())
    optimizer = in_backward(given)
    ways: list[Callable[[nn.Module, Any], Any]] = [
        *(by_hand, deleted, lambda module, _: module.zero_grad(), lambda _, each: each.zero_grad()),
        lambda module, each: (given if module is own else each).zero_grad(),
    ]
    for way in ways:
        for module, each in ((plain, expected), (own, optimizer)):
            backward(module, torch.ones(4, 9))
            each.step()
            way(module, each)
        assert all(type(parameter) is nn.Parameter for parameter in own.parameters())
        assert all(parameter.grad is None for parameter in own.parameters())
    assert_trained_alike(plain, own)


def test_a_model_is_used_and_copied_while_its_gradients_are_consumed() -> None:
    own = model()
    optimizer = in_backward(torch.optim.SGD(own.parameters(), lr=0.1))
    backward(own, torch.ones(4, 9))
    optimizer.step()
    some = next(own.parameters())
    assert isinstance(some, nn.Parameter) and type(some.detach()) is torch.Tensor
    assert type(some + 1) is torch.Tensor
    for twin in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert all(type(parameter) is nn.Parameter for parameter in twin.parameters())
        assert next(twin.parameters()).grad is None
        assert_trained_alike(own, twin)
    own.double().float()
    with pytest.raises(RuntimeError, match=GONE):
        _ = some.grad
    optimizer.close()  # type: ignore[attr-defined]
    assert some.grad is None and type(some) is nn.Parameter


def test_the_optimizer_that_was_replaced_takes_no_step() -> None:
    own = model()
    given = torch.optim.SGD(own.parameters(), lr=0.1)
    optimizer = in_backward(given, keep_gradients=True)
    backward(own, torch.ones(4, 9))
    with pytest.raises(RuntimeError, match=r"call step\(\) of that one"):
        given.step()
    optimizer.close()  # type: ignore[attr-defined]
    given.step()
