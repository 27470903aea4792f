"""Schedules with updates in their backward: where these stand, and what the simulator says."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.stages.simulate.test_transfers import schedule, three_layers
from tightfit.schemas.actions import UpdateOnDevice
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import LinkSpeed, OptimizerPlan, ParameterUpdateCost
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.combine.optimizer_offload.optimizer_in_backward import (
    _autograd_order,
    add_updates_in_backward,
    costs_by_value,
)
from tightfit.stages.simulate.simulate import SimulationResult, simulate

SPEED = LinkSpeed(1.0, 1.0, (1.0, 2.0), 0.0)
LINK = HostLink(1.0, shared=False, device="cpu", to="disk")


def cost(*pieces: int, seconds: float = 2.0, peak: int = 6, first: int = 10) -> ParameterUpdateCost:
    return ParameterUpdateCost("", pieces, seconds, peak, 0, (first, 1))


def whole(
    update: ParameterUpdateCost, first: bool = False, accumulate: bool = False
) -> SimulationResult:
    graph, costs = three_layers()
    [gradient] = graph.gradients
    steps = add_updates_in_backward(graph, schedule({}), {gradient.value: update})
    assert steps[-1] == ScheduleStep(UpdateOnDevice(gradient.value))
    updates = OptimizerPlan({gradient.value: update}, SPEED, 4, first=first)
    return simulate(graph, costs, steps, accumulate=accumulate, link=LINK, updates=updates)


def test_an_update_takes_its_bytes_where_the_gradient_is_whole() -> None:
    """The gradient of `three_layers` is 4 bytes of 12 that are live when it is whole."""
    graph, _ = three_layers()
    assert add_updates_in_backward(graph, schedule({}), {}) == schedule({})
    assert whole(cost(8)).peak == 20
    assert whole(cost(8, peak=9, first=11)).peak == 21
    assert whole(cost(8, peak=9, first=11), first=True).peak == 23
    assert whole(cost(8)).steps[-1].live == 8
    assert whole(cost(8), first=True).steps[-1].live == 9
    assert whole(cost(8, peak=13), accumulate=True).peak == 21
    assert whole(cost(8), accumulate=True).steps[-1].live == 4


def test_costs_are_known_by_the_path_of_a_parameter() -> None:
    graph, _ = three_layers()
    [gradient] = graph.gradients
    path = graph.values[gradient.value].path
    assert costs_by_value(graph, {path: cost(8)}) == {gradient.value: cost(8)}
    assert costs_by_value(graph, {"other": cost(8)}) == {}


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
    assert seen == _autograd_order(first, last=False) + _autograd_order(last, last=True)


def test_states_that_come_and_go_while_others_are_updated_cost_no_time() -> None:
    found = whole(cost(1, 1, 1, seconds=9.0))
    assert found.transfers is not None and found.transfers.wait_seconds == 0.0
    assert (
        found.transfers.offloaded_bytes,
        found.transfers.prefetched_bytes,
        found.transfers.host_peak,
    ) == (3, 3, 3)
    assert found.seconds == pytest.approx(5.0 + 9.0 + 1.0)


def test_updates_wait_for_a_slow_link() -> None:
    """Each piece leaves at 1 byte a second, and its buffer is free then."""
    found = whole(cost(*[8] * 6, seconds=0.6))
    assert found.transfers is not None
    assert found.seconds == pytest.approx(5.1 + 6 * 8.0)
    assert found.transfers.wait_seconds > 10.0
    first = whole(cost(*[8] * 6, seconds=0.6), first=True)
    assert first.transfers is not None and first.transfers.prefetched_bytes == 0


def test_without_states_nothing_waits() -> None:
    found = whole(cost(0, 0, seconds=2.0))
    assert (found.seconds, found.transfers) == (7.0, None)
