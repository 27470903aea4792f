"""Steps as CUDA graphs, on doubles that capture on the CPU: what eager does, launched otherwise."""

from __future__ import annotations

import copy
import random
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stages.device.factory import Built
from tests.stages.generate.captures import Captures, Stream, stand_in
from tests.stages.generate.models import Small
from tests.stages.generate.plans import (
    backward,
    check_equal,
    fresh,
    generated,
    recompute,
    same,
    step,
    traced,
)

ROWS = torch.linspace(-1, 1, 48).reshape(8, 6)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    return stand_in(monkeypatch)


def made(model: nn.Module, at: Path, *args: Any, **kwargs: Any) -> tuple[ModuleType, Built]:
    """The package of a plan that keeps everything, which may be run as CUDA graphs on the CPU."""
    graph, built = traced((model.train(), (args or (ROWS,), kwargs)))
    module = generated(graph, at / "module", in_place=True)
    unrefused(module)
    return module, built


def unrefused(module: ModuleType) -> None:
    """Lets a package for the CPU be loaded as CUDA graphs."""
    wrapping: Any = sys.modules[f"{module.__name__}.wrap"]
    wrapping.refusal = lambda step, interface: ""


@pytest.fixture
def small(captures: Captures, tmp_path: Path) -> tuple[ModuleType, Built]:
    """Normalisation that writes buffers, dropout that draws, two outputs."""
    torch.manual_seed(0)
    return made(Small(), tmp_path, ROWS, scale=2.0)


def twins(small: tuple[ModuleType, Built]) -> tuple[nn.Module, nn.Module, Any]:
    """A planned module as CUDA graphs and its original, with a sample."""
    module, built = small
    planned = module.load(copy.deepcopy(built.model), cuda_graphs=True)
    return planned, copy.deepcopy(built.model), built.samples[0]


def both(planned: nn.Module, original: nn.Module, sample: Any, seed: int) -> None:
    """A step of each, which are equal bit for bit and draw as many numbers."""
    sample = ((sample[0][0] + seed, *sample[0][1:]), sample[1])
    mine = step(planned, sample, seed)
    state = torch.get_rng_state()
    theirs = step(original, sample, seed)
    assert torch.equal(state, torch.get_rng_state())
    check_equal((planned, *mine), (original, *theirs))


@pytest.mark.parametrize("clearing", ["to none", "to zero", "never"])
def test_steps_are_those_of_eager(small: Any, clearing: str) -> None:
    planned, original, sample = twins(small)
    for number in range(5):
        both(planned, original, sample, number)
        for model in (planned, original) if clearing != "never" else ():
            model.zero_grad(set_to_none=clearing == "to none")


def test_the_first_step_is_plain_the_second_is_captured_all_others_are_replayed(
    small: Any, captures: Captures
) -> None:
    planned, original, sample = twins(small)
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


def optimised(model: nn.Module, sample: Any, place: str, steps: int = 5) -> list[Any]:
    """A training loop as people write them, which clears gradients at a place and keeps outputs."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(3)
    seen = []
    for number in range(steps):
        if place == "before the forward":
            optimiser.zero_grad()
        output = model(sample[0][0] + number, **sample[1])
        loss = output["logits"].square().mean() + output["hidden"].mean()
        if place == "before the backward":
            optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if number % 2 or place != "every other step":
            optimiser.step()
            if place in ("after the step", "every other step"):
                optimiser.zero_grad()
        seen += [loss.detach(), output["logits"]]
    return seen


@pytest.mark.parametrize(
    "place",
    ["before the forward", "before the backward", "after the step", "every other step", "never"],
)
def test_a_training_loop_is_that_of_eager(small: Any, place: str) -> None:
    planned, original, sample = twins(small)
    mine, theirs = optimised(planned, sample, place), optimised(original, sample, place)
    assert all(same(one, other) for one, other in zip(mine, theirs, strict=True))
    for one, other in zip(
        planned.state_dict().values(), original.state_dict().values(), strict=True
    ):
        assert same(one, other)


def test_gradients_of_parameters_lie_where_the_graphs_leave_them(small: Any) -> None:
    """They are no copies, so that they take no bytes beyond the plan's."""
    planned, _, sample = twins(small)
    places = []
    for number in range(4):
        step(planned, sample, number)
        places.append([p.grad.data_ptr() for p in planned.parameters() if p.grad is not None])
        planned.zero_grad()
    assert len(places[2]) == len(list(planned.parameters()))
    assert places[1] == places[2] == places[3] != places[0]


def test_outputs_are_copies(small: Any) -> None:
    planned, _, sample = twins(small)
    held = [step(planned, sample, number)[0]["logits"].detach() for number in range(4)]
    before = [output.clone() for output in held]
    step(planned, sample, 9)
    assert all(same(one, other) for one, other in zip(held, before, strict=True))
    assert len({output.data_ptr() for output in held}) == len(held)


def test_a_gradient_that_is_still_held_is_told(small: Any) -> None:
    planned, original, sample = twins(small)
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
    small: Any, captures: Captures
) -> None:
    planned, original, sample = twins(small)
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


def test_a_forward_whose_outputs_are_dropped_makes_room(small: Any, captures: Captures) -> None:
    planned, _, sample = twins(small)
    step(planned, sample)
    planned.zero_grad()
    for _ in range(3):
        planned(*sample[0], **sample[1])
    assert captures.since(0) == ["c0", "r0", "r0", "r0"]


def test_one_backward_for_each_forward(small: Any) -> None:
    planned, _, sample = twins(small)
    for number in range(3):
        step(planned, sample, number)
        planned.zero_grad()
    output = planned(*sample[0], **sample[1])
    loss = output["logits"].square().sum() + output["hidden"].square().sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="runs once for each forward"):
        loss.backward()


def test_parameters_that_are_moved_are_captured_anew(small: Any, captures: Captures) -> None:
    planned, original, sample = twins(small)
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


def test_parameters_may_not_move_before_the_backward(small: Any) -> None:
    planned, _, sample = twins(small)
    step(planned, sample)
    output = planned(*sample[0], **sample[1])
    parameter = next(planned.parameters())
    parameter.data = parameter.detach().clone()
    with pytest.raises(RuntimeError, match="moved to other memory between the forward and the"):
        backward(output)


def test_guards_are_looked_at_before_each_replay(small: Any, captures: Captures) -> None:
    planned, original, sample = twins(small)
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


def test_a_weight_that_changes_before_the_backward_is_told_as_without_graphs(small: Any) -> None:
    planned, _, sample = twins(small)
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


def test_hooks_run_as_in_eager(small: Any) -> None:
    planned, original, sample = twins(small)
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


def test_inputs_with_gradients_get_copies(captures: Captures, tmp_path: Path) -> None:
    rows = ROWS.clone().requires_grad_()
    planned, original, _ = twins(made(nn.Linear(6, 3), tmp_path, rows))
    held = []
    for number in range(4):
        given = [(ROWS + number).requires_grad_() for _ in range(2)]
        for model, x in zip((planned, original), given, strict=True):
            backward(model(x), number)
        assert same(given[0].grad, given[1].grad)
        held.append((given[0].grad, given[1].grad))
    assert all(same(one, other) for one, other in held)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.one(x), self.two(x)


def test_outputs_without_a_gradient_stay_so(captures: Captures, tmp_path: Path) -> None:
    planned, original, _ = twins(made(Two(), tmp_path))
    for number in range(4):
        for model in (planned, original):
            model.zero_grad()
            (model(ROWS + number)[1] * 1).sum().backward()
        check_equal((planned, None, None), (original, None, None))
    with pytest.raises(RuntimeError, match="output 0 receives one where it received none when"):
        backward(planned(ROWS))
    backward(planned(ROWS)[1])


def test_a_gradient_in_other_strides_is_refused(captures: Captures, tmp_path: Path) -> None:
    planned, original, sample = twins(made(nn.Linear(6, 3), tmp_path))
    for number in range(3):
        both(planned, original, sample, number)
    with pytest.raises(RuntimeError, match=r"has strides \(0, 0\), and had \(3, 1\) when"):
        planned(ROWS).sum().backward()


def test_other_streams_wait(small: Any, captures: Captures) -> None:
    planned, original, sample = twins(small)
    for number in range(2):
        both(planned, original, sample, number)
    captures.stream = Stream(captures, "mine")
    start = len(captures.done)
    both(planned, original, sample, 2)
    both(planned, original, sample, 3)
    waits = [each for each in captures.since(start) if each.startswith("w")]
    assert waits == ["w mine for default"]


def test_within_a_capture_of_the_caller_calls_are_plain(small: Any, captures: Captures) -> None:
    planned, original, sample = twins(small)
    for number in range(2):
        both(planned, original, sample, number)
    start = len(captures.done)
    captures.capturing = True
    both(planned, original, sample, 2)
    assert captures.done[start:] == []


def test_a_plan_that_recomputes_is_that_of_eager(captures: Captures, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4)).train()
    graph, built = traced((model, ((ROWS,), {})))
    module = generated(graph, tmp_path / "module", recompute(graph, 1, 1.0), True)
    unrefused(module)
    planned, original, sample = twins((module, built))
    for number in range(4):
        both(planned, original, sample, number)


def test_what_cannot_be_captured_is_told(small: Any, captures: Captures) -> None:
    planned, _, sample = twins(small)
    step(planned, sample)
    captures.fails = "operation not permitted when stream is capturing\nmore"
    said = r"cannot be captured as CUDA graphs \(operation not permitted when stream is capturing\)"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said):
            planned(*sample[0], **sample[1])


def test_copies_and_pickles_are_graphs_too(small: Any, captures: Captures) -> None:
    planned, original, sample = twins(small)
    for number in range(2):
        both(planned, original, sample, number)
    for number, copied in enumerate((copy.deepcopy(planned), copy.copy(planned))):
        twin = copy.deepcopy(original)
        copied.zero_grad()
        twin.zero_grad()
        start = len(captures.done)
        for seed in range(2):
            both(copied, twin, sample, seed)
        assert captures.since(start)[:2] == ["c0", "r0"], number
    reduced = planned.__reduce_ex__(2)
    assert isinstance(reduced, tuple)
    load, parts = reduced[:2]
    assert parts[1:] == ("error", True) and load is small[0].load


def test_any_order_of_uses_is_eagers(small: Any) -> None:
    """At random: steps with and without clearing, forwards alone, several in flight, parts of the
    parameters frozen by clearing, outputs that are kept."""
    draw = random.Random(5)
    for _ in range(6):
        planned, original, _ = twins(small)
        flight: list[tuple[Any, Any]] = []
        for number in range(25):
            use = draw.choice(["forward", "forward", "backward", "backward", "clear", "drop"])
            if use == "forward" and len(flight) < 3:
                outputs = []
                for model in (planned, original):
                    torch.manual_seed(number)
                    outputs.append(model(ROWS * number, scale=2.0))
                flight.append((outputs[0], outputs[1]))
                assert same(outputs[0]["logits"], outputs[1]["logits"])
            elif use == "backward" and flight:
                pair = flight.pop(draw.randrange(len(flight)))
                for output in pair:
                    backward(output, number)
                del pair, output
            elif use == "clear":
                to_none = draw.random() < 0.5
                for model in (planned, original):
                    model.zero_grad(set_to_none=to_none)
            elif use == "drop" and flight:
                flight.pop()
            outputs = []
            check_equal((planned, None, None), (original, None, None))


def test_a_plan_for_the_cpu_is_refused(tmp_path: Path) -> None:
    graph, built = traced((nn.Linear(6, 3).train(), ((ROWS,), {})))
    module = generated(graph, tmp_path / "module")
    with pytest.raises(RuntimeError, match="CUDA graphs need a GPU, and the plan was made for cpu"):
        module.load(built.model, cuda_graphs=True)
    module.load(built.model)


def test_what_cannot_be_a_graph_is_refused_by_name(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, _ = traced((Small().train(), ((ROWS,), {"scale": 2.0})))
    drawing = generated(graph, tmp_path / "drawing", recompute(graph, 1, 1.0))
    keeping = generated(graph, tmp_path / "keeping", in_place=True)
    facts = replace(keeping.INTERFACE, device="cuda")
    refusal = sys.modules[f"{keeping.__name__}.graphed"].refusal
    assert refusal(keeping.step, facts) == ""
    assert "draws random numbers once more" in refusal(drawing.step, facts)
    assert "an output shares memory" in refusal(keeping.step, replace(facts, aliased=(0,)))
    position = next(at for at, t in enumerate(facts.tensors) if t.path == "norm.running_var")
    moved = refusal(keeping.step, replace(facts, assigned=(position,)))
    assert moved == "the model puts another tensor in the place of norm.running_var at each call"
