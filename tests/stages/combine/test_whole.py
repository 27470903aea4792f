"""Steps with updates in their backward: bytes by the order of issue, waits by the clocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from schemas.actions import Action, Compute, Free, Gradient, Loss
from schemas.schedule import Step
from schemas.updates import LinkSpeed, UpdateCost
from stages.combine.whole import Line, _popped, whole_line, whole_seconds
from tests.stages.replay.test_transfers import three_layers

SPEED = LinkSpeed(1.0, 1.0, (1.0, 2.0), 0.0)


def cost(path: str, *pieces: int, seconds: float = 2.0) -> UpdateCost:
    return UpdateCost(path, pieces, seconds, 6, 0, (10, 1))


def schedule() -> list[Step]:
    """The gradient of `three_layers` is 4 bytes of 12 that are live when it is whole."""
    actions: list[tuple[Action, int]] = [
        (Compute(0), 4),
        (Compute(1), 8),
        (Compute(2), 12),
        (Loss(3), 16),
        (Compute(4), 20),
        (Free(1), 16),
        (Compute(5), 20),
        (Free(0), 16),
        (Free(4), 12),
        (Gradient(5), 12),
    ]
    return [
        Step(action, "cpu/compute", "cpu/memory", float(place), place + 1.0, live, live)
        for place, (action, live) in enumerate(actions)
    ]


def test_an_update_takes_its_bytes_where_the_gradient_is_whole() -> None:
    graph, _ = three_layers()
    [gradient] = graph.gradients
    path = graph.values[gradient.value].path
    steps = schedule()
    assert whole_line(graph, steps, {}, first=False) == Line(20, [])
    small = whole_line(graph, steps, {path: cost(path, 8)}, first=False)
    assert small == Line(20, [(9, path)])
    large = UpdateCost(path, (8,), 1.0, 9, 0, (11, 1))
    assert whole_line(graph, steps, {path: large}, first=False).peak == 21
    assert whole_line(graph, steps, {path: large}, first=True).peak == 23


class Slice(torch.autograd.Function):
    """Hands gradients over, and lets what comes behind it run with its token."""

    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        ctx.count = len(tensors)
        return torch.empty(0)

    @staticmethod
    def backward(ctx: Any, *tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (tokens[0], *(torch.ones(()) for _ in range(ctx.count)))


@pytest.mark.parametrize("count", range(1, 12))
def test_the_order_in_which_autograd_takes_gradients_up(count: int) -> None:
    seen: list[int] = []
    tensors = [torch.zeros((), requires_grad=True) for _ in range(2 * count)]
    for number, tensor in enumerate(tensors):
        tensor.register_post_accumulate_grad_hook(lambda _, number=number: seen.append(number))
    token = Slice.apply(torch.empty(0), *tensors[count:])
    Slice.apply(token, *tensors[:count]).sum().backward()
    first, last = list(range(count)), list(range(count, 2 * count))
    assert seen == _popped(first, last=False) + _popped(last, last=True)


def test_states_that_come_and_go_while_others_are_updated_cost_no_time() -> None:
    steps = [Step(Compute(0), "cpu/compute", end=10.0)]
    costs = {"a": cost("a", 1, 1, 1, seconds=9.0)}
    found = whole_seconds(steps, Line(0, [(0, "a")]), costs, SPEED, 4)
    assert found == (19.0, 0.0)


def test_updates_wait_for_a_slow_link() -> None:
    steps = [Step(Compute(0), "cpu/compute", end=1.0)]
    costs = {"a": cost("a", 4, 4, 4, 4, 4, 4, seconds=0.6)}
    seconds, waited = whole_seconds(steps, Line(0, [(0, "a")]), costs, SPEED, 4)
    assert seconds == pytest.approx(24.0) and waited == pytest.approx(24.0 - 1.6)


def test_without_states_nothing_waits() -> None:
    steps = [Step(Compute(0), "cpu/compute", end=1.0)]
    costs = {"a": cost("a", 0, 0, seconds=2.0)}
    assert whole_seconds(steps, Line(0, [(0, "a")]), costs, SPEED, 4) == (3.0, 0.0)
