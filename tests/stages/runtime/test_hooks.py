"""Hooks on a planned module, its parameters and their gradients run as on the model."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from tests.stages.conftest import Planned
from tests.stages.generate.plans import generated, traced
from tests.stages.runtime.test_planned_module import assert_same_gradients, run, twins
from tests.stages.trace import modules


def test_hooks_run_as_before(small: Planned) -> None:
    planned, model = twins(small)
    traces: list[list[Any]] = []
    for module in (planned, model):
        seen: list[Any] = []
        module.register_forward_pre_hook(lambda m, a, seen=seen: seen.append("before"))
        module.register_forward_hook(
            lambda m, a, o, seen=seen: seen.append(o["logits"].detach().clone())
        )
        for name, parameter in module.named_parameters():
            parameter.register_hook(lambda g, n=name, seen=seen: seen.append((n, g.clone())))
            parameter.register_post_accumulate_grad_hook(
                lambda p, n=name, seen=seen: seen.append((n, p.grad.clone(), "after"))
            )
        run(module, small.inputs())["logits"].square().sum().backward()
        traces.append(seen)
    mine, theirs = traces
    assert mine[0] == theirs[0] == "before" and torch.equal(mine[1], theirs[1])
    named = [{(entry[0], len(entry)): entry[1] for entry in seen[2:]} for seen in traces]
    assert list(named[0]) and set(named[0]) == set(named[1])
    assert all(torch.equal(named[0][key], named[1][key]) for key in named[0])
    order = [entry[0] for entry in mine[2:] if len(entry) == 3]
    assert order.index("last.bias") < order.index("middle.bias") < order.index("first.bias")
    for position, entry in enumerate(mine[2:], start=2):
        if len(entry) == 2:
            assert mine[position + 1][0] == entry[0] and len(mine[position + 1]) == 3


def treble(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(3)


def test_a_hook_may_change_a_gradient(small: Planned) -> None:
    planned, model = twins(small)
    for module in (planned, model):
        module.middle.weight.register_hook(lambda gradient: gradient * 2)
        module.last.weight.register_post_accumulate_grad_hook(treble)
        run(module, small.inputs())["logits"].square().sum().backward()
    assert_same_gradients(planned, model)


def test_backward_hooks_of_the_module_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced(modules.tied())
    planned = generated(graph, tmp_path / "tied").load(copy.deepcopy(built.model))
    seen: list[Any] = []
    for module in (planned, built.model):
        module.register_full_backward_pre_hook(lambda m, g: seen.extend(g))
        module(*built.samples[0][0]).square().sum().backward()
    assert len(seen) == 2 and torch.equal(*seen)
    assert_same_gradients(planned, built.model)
