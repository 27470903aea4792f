"""Optimizers and what people do between backward and step."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.battery.registry import fast, use
from tests.battery.use_context import Run


def trained(run: Run) -> list[nn.Parameter]:
    found = [p for p in run.module.parameters() if p.requires_grad]
    run.need(found)
    return found


def _by(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer]) -> Callable[[Run], None]:
    def body(run: Run) -> None:
        run.train(make(trained(run)))

    return body


def _named(name: str, body: Callable[[Run], None]) -> None:
    body.__name__ = body.__qualname__ = name
    use(body)


_named("momentum", _by(lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01)))
_named("adam", _by(lambda p: torch.optim.Adam(p, 0.01)))
_named("adamw_foreach", _by(lambda p: torch.optim.AdamW(p, 0.01, foreach=True)))
_named("adamw_fused", _by(lambda p: torch.optim.AdamW(p, 0.01, fused=True)))
_named("rmsprop", _by(lambda p: torch.optim.RMSprop(p, 0.01)))
_named("adagrad", _by(lambda p: torch.optim.Adagrad(p, 0.01)))


def inside_backward(run: Run, make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """An optimizer's step as soon as a gradient is there, which is then forgotten."""
    own = {parameter: make([parameter]) for parameter in trained(run)}

    def step(parameter: nn.Parameter) -> None:
        own[parameter].step()
        own[parameter].zero_grad()

    for parameter in own:
        parameter.register_post_accumulate_grad_hook(step)
    for number in range(3):
        run.backward(number)
        run.state(f"step {number}")


@fast
def sgd_inside_backward(run: Run) -> None:
    inside_backward(run, lambda p: torch.optim.SGD(p, 0.1))


@fast
def adamw_inside_backward(run: Run) -> None:
    inside_backward(run, lambda p: torch.optim.AdamW(p, 0.05))


@use
def gradient_hooks_that_change_weights(run: Run) -> None:
    for parameter in trained(run):

        def update(gradient: torch.Tensor, parameter: nn.Parameter = parameter) -> None:
            parameter.data.add_(gradient, alpha=-0.1)

        parameter.register_hook(update)
    for number in range(2):
        run.backward(number)


@fast
def clipping(run: Run) -> None:
    optimizer = torch.optim.AdamW(trained(run), 0.01)
    for number in range(3):
        optimizer.zero_grad()
        run.backward(number)
        run.say("norm", torch.nn.utils.clip_grad_norm_(trained(run), 0.1))
        optimizer.step()


@use
def clipping_by_value(run: Run) -> None:
    optimizer = run.sgd()
    for number in range(2):
        optimizer.zero_grad()
        run.backward(number)
        torch.nn.utils.clip_grad_value_(trained(run), 0.01)
        optimizer.step()


@use
def line_search(run: Run) -> None:
    optimizer = torch.optim.LBFGS(trained(run), 0.1, max_iter=3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = run.loss(run.forward())
        loss.backward()
        return loss

    run.say("loss", optimizer.step(closure))


@use
def scheduled_rate(run: Run) -> None:
    optimizer = run.sgd(0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    for number in range(3):
        optimizer.zero_grad()
        run.backward(number)
        optimizer.step()
        schedule.step()


@use
def sharpness_aware(run: Run) -> None:
    """Two backwards a step, the second with moved weights."""
    optimizer = run.sgd()
    for number in range(2):
        optimizer.zero_grad()
        run.backward(number)
        moves = [p.grad * 0.01 if p.grad is not None else None for p in trained(run)]
        with torch.no_grad():
            for parameter, move in zip(trained(run), moves, strict=True):
                if move is not None:
                    parameter.add_(move)
        optimizer.zero_grad()
        run.backward(number)
        with torch.no_grad():
            for parameter, move in zip(trained(run), moves, strict=True):
                if move is not None:
                    parameter.sub_(move)
        optimizer.step()


@use
def weights_clamped_after_a_step(run: Run) -> None:
    optimizer = run.sgd()
    for number in range(3):
        optimizer.zero_grad()
        run.backward(number)
        optimizer.step()
        for parameter in trained(run):
            parameter.data.clamp_(-0.1, 0.1)


@fast
def moving_average_by_deepcopy(run: Run) -> None:
    optimizer = run.sgd()
    average: nn.Module | None = None
    for number in range(3):
        optimizer.zero_grad()
        run.backward(number)
        optimizer.step()
        if average is None:
            average = copy.deepcopy(run.module)
        else:
            with torch.no_grad():
                for mine, theirs in zip(average.parameters(), run.module.parameters(), strict=True):
                    mine.lerp_(theirs, 0.5)
    assert average is not None
    average.zero_grad()
    run.loss(run.forward(4, average)).backward()
    run.say("average", list(average.parameters()))
    run.say("gradients of the average", [p.grad for p in average.parameters()])
    average.eval()
    with torch.no_grad():
        run.say("output of the average", run.forward(5, average))
    run.train()


@use
def averaged_model(run: Run) -> None:
    average = torch.optim.swa_utils.AveragedModel(run.module)
    optimizer = run.sgd()
    for number in range(3):
        optimizer.zero_grad()
        run.backward(number)
        optimizer.step()
        average.update_parameters(run.module)
    average.eval()
    with torch.no_grad():
        run.say("output", run.forward(1, average))


@use
def two_groups_one_of_them_frozen_later(run: Run) -> None:
    weight = run.weight()
    rest = [p for p in trained(run) if p is not weight]
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.1}, {"params": rest, "lr": 0.01}])
    run.train(optimizer, 1)
    weight.requires_grad_(False)
    weight.grad = None
    run.train(optimizer, 1)


@use
def optimizer_state_saved_and_loaded(run: Run) -> None:
    optimizer = torch.optim.Adam(trained(run), 0.01)
    run.train(optimizer, 2)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer = torch.optim.Adam(trained(run), 0.5)
    optimizer.load_state_dict(state)
    run.train(optimizer, 1)


@use
def a_step_between_forward_and_backward(run: Run) -> None:
    optimizer = run.sgd()
    run.backward(0)
    output = run.forward(1)
    optimizer.step()
    run.loss(output).backward()
