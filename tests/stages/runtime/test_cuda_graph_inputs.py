"""Steps as CUDA graphs: kinds of inputs, outputs, streams and copies, and what is refused."""

from __future__ import annotations

import copy
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import (
    backward,
    check_equal,
    generated,
    recompute,
    same,
    step,
    traced,
)
from tests.stages.generate.small_model import Small
from tests.stages.runtime.cuda_graph_steps import ROWS, both, made, twins, unrefused
from tests.stages.runtime.fake_cuda_graphs import Captures, Stream


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


def test_other_streams_wait(as_graphs: Any, captures: Captures) -> None:
    planned, original, sample = twins(as_graphs)
    for number in range(2):
        both(planned, original, sample, number)
    captures.stream = Stream(captures, "mine")
    start = len(captures.done)
    both(planned, original, sample, 2)
    both(planned, original, sample, 3)
    waits = [each for each in captures.since(start) if each.startswith("w")]
    assert waits == ["w mine for default"]


def test_within_a_capture_of_the_caller_calls_are_plain(as_graphs: Any, captures: Captures) -> None:
    planned, original, sample = twins(as_graphs)
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


def test_what_cannot_be_captured_is_told(as_graphs: Any, captures: Captures) -> None:
    planned, _, sample = twins(as_graphs)
    step(planned, sample)
    captures.fails = "operation not permitted when stream is capturing\nmore"
    said = r"cannot be captured as CUDA graphs \(operation not permitted when stream is capturing\)"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=said):
            planned(*sample[0], **sample[1])


def test_copies_and_pickles_are_graphs_too(as_graphs: Any, captures: Captures) -> None:
    planned, original, sample = twins(as_graphs)
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
    assert parts[1:] == ("error", True) and load is as_graphs[0].load


def test_any_order_of_uses_is_eagers(as_graphs: Any) -> None:
    """At random: steps with and without clearing, forwards alone, several in flight, parts of the
    parameters frozen by clearing, outputs that are kept."""
    draw = random.Random(5)
    for _ in range(6):
        planned, original, _ = twins(as_graphs)
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
    refusal = sys.modules[f"{keeping.__name__}.runtime.cuda_graphs"].cuda_graph_obstacle
    assert refusal(keeping.step, facts) == ""
    assert "draws random numbers once more" in refusal(drawing.step, facts)
    assert "an output shares memory" in refusal(keeping.step, replace(facts, aliased=(0,)))
    position = next(at for at, t in enumerate(facts.tensors) if t.path == "norm.running_var")
    moved = refusal(keeping.step, replace(facts, assigned_buffers=(position,)))
    assert moved == "the model puts another tensor in the place of norm.running_var at each call"
