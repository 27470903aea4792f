"""Steps as CUDA graphs, on doubles that capture on the CPU: what eager does, launched otherwise."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import (
    backward,
    check_equal,
    fresh,
    same,
    step,
)
from tests.stages.runtime.cuda_graph_steps import ROWS, both, made, twins
from tests.stages.runtime.fake_cuda_graphs import Captures


@pytest.mark.parametrize("clearing", ["to none", "to zero", "never"])
def test_steps_are_those_of_eager(as_graphs: Any, clearing: str) -> None:
    planned, original, sample = twins(as_graphs)
    for number in range(5):
        both(planned, original, sample, number)
        for model in (planned, original) if clearing != "never" else ():
            model.zero_grad(set_to_none=clearing == "to none")


def test_the_first_step_is_plain_the_second_is_captured_all_others_are_replayed(
    as_graphs: Any, captures: Captures
) -> None:
    planned, original, sample = twins(as_graphs)
    both(planned, original, sample, 0)
    assert captures.done == []
    both(planned, original, sample, 1)
    slices = len(captures.done) // 2
    assert slices > 2
    assert captures.since(0) == [f"{what}{part}" for part in range(slices) for what in "cr"]
    for number in (2, 3):
        planned.zero_grad()
        original.zero_grad()
        start = len(captures.done)
        both(planned, original, sample, number)
        assert captures.since(start) == [f"r{part}" for part in range(slices)]
    assert len(captures.pools) == 1


def optimized(model: nn.Module, sample: Any, place: str, steps: int = 5) -> list[Any]:
    """A training loop as people write them, which clears gradients at a place and keeps outputs."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(3)
    seen = []
    for number in range(steps):
        if place == "before the forward":
            optimizer.zero_grad()
        output = model(sample[0][0] + number, **sample[1])
        loss = output["logits"].square().mean() + output["hidden"].mean()
        if place == "before the backward":
            optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if number % 2 or place != "every other step":
            optimizer.step()
            if place in ("after the step", "every other step"):
                optimizer.zero_grad()
        seen += [loss.detach(), output["logits"]]
    return seen


@pytest.mark.parametrize(
    "place",
    ["before the forward", "before the backward", "after the step", "every other step", "never"],
)
def test_a_training_loop_is_that_of_eager(as_graphs: Any, place: str) -> None:
    planned, original, sample = twins(as_graphs)
    mine, theirs = optimized(planned, sample, place), optimized(original, sample, place)
    assert all(same(one, other) for one, other in zip(mine, theirs, strict=True))
    for one, other in zip(
        planned.state_dict().values(), original.state_dict().values(), strict=True
    ):
        assert same(one, other)


def test_gradients_of_parameters_lie_where_the_graphs_leave_them(as_graphs: Any) -> None:
    """They are no copies, so that they take no bytes beyond the plan's."""
    planned, _, sample = twins(as_graphs)
    places = []
    for number in range(4):
        step(planned, sample, number)
        places.append([p.grad.data_ptr() for p in planned.parameters() if p.grad is not None])
        planned.zero_grad()
    assert len(places[2]) == len(list(planned.parameters()))
    assert places[1] == places[2] == places[3] != places[0]


def test_outputs_are_copies(as_graphs: Any) -> None:
    planned, _, sample = twins(as_graphs)
    held = [step(planned, sample, number)[0]["logits"].detach() for number in range(4)]
    before = [output.clone() for output in held]
    step(planned, sample, 9)
    assert all(same(one, other) for one, other in zip(held, before, strict=True))
    assert len({output.data_ptr() for output in held}) == len(held)


def test_a_gradient_that_is_still_held_is_told(as_graphs: Any) -> None:
    planned, original, sample = twins(as_graphs)
    for number in range(3):
        planned.zero_grad()
        step(planned, sample, number)
    held = next(planned.parameters()).grad
    assert held is not None
    planned.zero_grad()
    with pytest.raises(RuntimeError, match="a gradient of an earlier step is still held"):
        planned(*sample[0], **sample[1])
    kept = held.clone()
    del held
    original.load_state_dict(planned.state_dict())
    both(planned, original, sample, 5)
    assert kept.isfinite().all()


def test_a_forward_while_another_may_go_backward_is_one_of_plain_calls(
    as_graphs: Any, captures: Captures
) -> None:
    planned, original, sample = twins(as_graphs)
    for number in range(2):
        both(planned, original, sample, number)
    planned.zero_grad()
    original.zero_grad()
    start = len(captures.done)
    for model in (planned, original):
        torch.manual_seed(4)
        outputs = [model(*fresh(sample)[0], **sample[1]) for _ in range(3)]
        for output in outputs[::-1]:
            backward(output)
    assert captures.since(start).count("r0") == 1
    check_equal((planned, None, None), (original, None, None))


def test_a_forward_whose_outputs_are_dropped_makes_room(as_graphs: Any, captures: Captures) -> None:
    planned, _, sample = twins(as_graphs)
    step(planned, sample)
    planned.zero_grad()
    for _ in range(3):
        planned(*sample[0], **sample[1])
    assert captures.since(0) == ["c0", "r0", "r0", "r0"]


def test_one_backward_for_each_forward(as_graphs: Any) -> None:
    planned, _, sample = twins(as_graphs)
    for number in range(3):
        step(planned, sample, number)
        planned.zero_grad()
    output = planned(*sample[0], **sample[1])
    loss = output["logits"].square().sum() + output["hidden"].square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once for each forward"):
        loss.backward()


def test_parameters_that_are_moved_are_captured_anew(as_graphs: Any, captures: Captures) -> None:
    planned, original, sample = twins(as_graphs)
    for number in range(3):
        both(planned, original, sample, number)
    with torch.no_grad():
        for parameter in planned.parameters():
            parameter.data = parameter.clone()
    start = len(captures.done)
    both(planned, original, sample, 3)
    assert captures.since(start)[0] == "c0" and len(captures.pools) == 2
    planned.load_state_dict({k: v.clone() for k, v in original.state_dict().items()}, assign=True)
    planned.zero_grad()
    original.zero_grad()
    both(planned, original, sample, 4)
    assert len(captures.pools) == 3
    both(planned, original, sample, 5)
    assert len(captures.pools) == 3


def test_parameters_may_not_move_before_the_backward(as_graphs: Any) -> None:
    planned, _, sample = twins(as_graphs)
    step(planned, sample)
    output = planned(*sample[0], **sample[1])
    parameter = next(planned.parameters())
    parameter.data = parameter.detach().clone()
    with pytest.raises(RuntimeError, match="moved to offload target between the forward and the"):
        backward(output)


def test_guards_are_looked_at_before_each_replay(as_graphs: Any, captures: Captures) -> None:
    planned, original, sample = twins(as_graphs)
    for number in range(2):
        both(planned, original, sample, number)
    start = len(captures.done)
    with pytest.raises(Exception, match="has shape"):
        planned(ROWS[:4], scale=2.0)
    with pytest.raises(Exception, match="scale"):
        planned(ROWS, scale=3.0)
    for model in (planned, original):
        torch.manual_seed(2)
        with torch.no_grad():
            model(ROWS, scale=3.0)
        model.eval()
    assert same(planned(ROWS)["logits"], original(ROWS)["logits"])
    assert captures.done[start:] == []


def test_a_weight_that_changes_before_the_backward_is_told_as_without_graphs(
    as_graphs: Any,
) -> None:
    planned, _, sample = twins(as_graphs)
    for number in range(2):
        step(planned, sample, number)
        planned.zero_grad()
    output = planned(*sample[0], **sample[1])
    with torch.no_grad():
        planned.get_parameter("middle.weight").mul_(2)
    with pytest.raises(RuntimeError, match=r"middle\.weight was changed in place"):
        backward(output)


class Reading(nn.Module):
    """Counts its calls in a buffer, and multiplies by another one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("calls", torch.zeros(()))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return self.linear(x).tanh()


def test_a_buffer_that_is_written_is_written_each_time_and_autograd_is_told(
    captures: Captures, tmp_path: Path
) -> None:
    planned, original, sample = twins(made(Reading(), tmp_path))
    versions = []
    for number in range(4):
        both(planned, original, sample, number)
        assert planned.get_buffer("calls").item() == number + 1
        versions.append(planned.get_buffer("calls")._version)
    assert versions == sorted(set(versions))


def doubled(seen: list[Any], name: str, gradient: Tensor) -> Tensor:
    seen.append((name, gradient.clone()))
    return gradient * 2


def accumulated(seen: list[Any], name: str, parameter: Tensor) -> None:
    assert parameter.grad is not None
    seen.append((name, parameter.grad.clone()))


def test_hooks_run_as_in_eager(as_graphs: Any) -> None:
    planned, original, sample = twins(as_graphs)
    seen: dict[int, list[Any]] = {0: [], 1: []}
    for place, model in enumerate((planned, original)):
        for name, parameter in model.named_parameters():
            parameter.register_hook(partial(doubled, seen[place], name))
            parameter.register_post_accumulate_grad_hook(partial(accumulated, seen[place], name))
    for number in range(4):
        both(planned, original, sample, number)
        planned.zero_grad()
        original.zero_grad()
        mine, theirs = (sorted(seen[p], key=lambda each: each[0]) for p in (0, 1))
        assert [name for name, _ in mine] == [name for name, _ in theirs]
        assert all(same(one, other) for (_, one), (_, other) in zip(mine, theirs, strict=True))
