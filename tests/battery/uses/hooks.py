"""Hooks of modules, parameters and gradients; errors in them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.battery.cases import doubled
from tests.battery.registry import fast, use
from tests.battery.use_context import Run, tensors


class Stop(Exception):  # noqa: N818
    """What a hook of the user raises."""


@fast
def root_forward_hooks(run: Run) -> None:
    run.module.register_forward_pre_hook(lambda m, a: run.say("before", a))
    run.module.register_forward_hook(lambda m, a, o: run.say("after", o))
    run.train(steps=2)


@use
def root_forward_hooks_with_keywords(run: Run) -> None:
    run.module.register_forward_pre_hook(
        lambda m, a, k: run.say("before", [a, k]), with_kwargs=True
    )
    run.module.register_forward_hook(lambda m, a, k, o: run.say("after", [k, o]), with_kwargs=True)
    run.train(steps=2)


@fast
def root_hooks_that_change(run: Run) -> None:
    def halve(x: Any) -> Any:
        return x * 0.5 if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    run.module.register_forward_pre_hook(lambda m, a: tuple(halve(x) for x in a))
    run.module.register_forward_hook(lambda m, a, o: halve(o))
    run.train(steps=2)


@fast
def root_backward_hooks(run: Run) -> None:
    run.module.register_full_backward_pre_hook(lambda m, g: run.say("coming", g))
    run.module.register_full_backward_hook(lambda m, i, o: run.say("gone", [i, o]))
    run.train(steps=2)


@use
def root_hooks_always_called(run: Run) -> None:
    run.module.register_forward_hook(lambda m, a, o: run.say("always", True), always_call=True)
    run.train(steps=2)


@use
def root_hooks_removed(run: Run) -> None:
    handle = run.module.register_forward_hook(lambda m, a, o: run.say("after", o))
    run.train(steps=1)
    handle.remove()
    run.train(steps=1)


def inner(run: Run) -> nn.Module:
    found = [m for m in run.module.modules() if m is not run.module and list(m.parameters(False))]
    run.need(found)
    return found[-1]


@fast
def inner_forward_hooks(run: Run) -> None:
    inner(run).register_forward_hook(lambda m, a, o: run.say("inside", o))
    run.train(steps=2)


@use
def inner_forward_hooks_that_change(run: Run) -> None:
    inner(run).register_forward_hook(lambda m, a, o: o * 2 if isinstance(o, torch.Tensor) else o)
    run.train(steps=2)


@use
def inner_forward_hooks_on_all(run: Run) -> None:
    """What feature extractors do."""
    for name, module in run.module.named_modules():
        module.register_forward_hook(lambda m, a, o, n=name: run.say(n, tensors(o)))
    run.train(steps=1)


@use
def inner_pre_hooks(run: Run) -> None:
    inner(run).register_forward_pre_hook(lambda m, a: run.say("before", list(a)))
    run.train(steps=2)


@fast
def inner_backward_hooks(run: Run) -> None:
    inner(run).register_full_backward_hook(lambda m, i, o: run.say("inside", list(o)))
    run.train(steps=2)


@use
def inner_backward_hooks_that_change(run: Run) -> None:
    inner(run).register_full_backward_hook(doubled)
    run.train(steps=2)


@use
def inner_backward_pre_hooks(run: Run) -> None:
    inner(run).register_full_backward_pre_hook(lambda m, o: run.say("inside", list(o)))
    run.train(steps=1)


@use
def inner_hooks_removed_again(run: Run) -> None:
    inner(run).register_forward_hook(lambda m, a, o: o).remove()
    run.train(steps=2)


@use
def hooks_in_evaluation_only(run: Run) -> None:
    run.train(steps=1)
    handle = inner(run).register_forward_hook(lambda m, a, o: run.say("inside", tensors(o)))
    run.module.eval()
    with torch.no_grad():
        run.forward()
    run.module.train()
    handle.remove()
    run.train(steps=1)


@fast
def parameter_hooks(run: Run) -> None:
    seen: dict[str, list[torch.Tensor]] = {}
    for name, parameter in run.module.named_parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda g, n=name: seen.setdefault(n, []).append(g.clone()))
    run.train(steps=2)
    run.say("seen", dict(sorted(seen.items())))


@use
def parameter_hooks_that_change(run: Run) -> None:
    for parameter in run.module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda g: g * 3)
    run.train(steps=2)


@use
def parameter_hooks_that_change_in_place(run: Run) -> None:
    for parameter in run.module.parameters():
        if parameter.requires_grad:
            parameter.register_hook(lambda g: g.mul_(3))
    run.train(steps=2)


def halved(parameter: torch.Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


@use
def gradients_changed_in_place_in_backward(run: Run) -> None:
    """A gradient that has arrived is scaled while the backward goes on."""
    for parameter in run.module.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(halved)
    run.train(steps=2)


@use
def grad_accumulator_hooks(run: Run) -> None:
    """What data-parallel wrappers use."""
    kept, seen = [], set[str]()
    for name, parameter in run.module.named_parameters():
        if parameter.requires_grad:
            view: Any = parameter.view_as(parameter)
            node = view.grad_fn.next_functions[0][0]
            node.register_hook(lambda *_, n=name: seen.add(n))
            kept.append(node)
    run.backward()
    run.say("seen", sorted(seen))


@use
def multi_gradient_hooks(run: Run) -> None:
    parameters = [p for p in run.module.parameters() if p.requires_grad]
    with torch.autograd.graph.register_multi_grad_hook(
        parameters, lambda gradients: run.say("all", gradients)
    ):
        run.backward()


@use
def global_forward_hooks(run: Run) -> None:
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, a, o: run.say("a module", type(m).__name__)
    )
    run.after.callback(handle.remove)
    run.train(steps=1)


@use
def global_hooks_that_change(run: Run) -> None:
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, a, o: o * 2 if isinstance(m, nn.Linear) else None
    )
    run.after.callback(handle.remove)
    run.train(steps=1)


@use
def global_backward_hooks(run: Run) -> None:
    handle = nn.modules.module.register_module_full_backward_hook(
        lambda m, i, o: run.say("a module", [type(m).__name__, list(o)])
    )
    run.after.callback(handle.remove)
    run.train(steps=1)


@fast
def an_error_inside_backward_and_a_next_step(run: Run) -> None:
    weight = run.weight()
    raising = [True]

    def stop(parameter: torch.Tensor) -> None:
        if raising[0]:
            raise Stop

    weight.register_post_accumulate_grad_hook(stop)
    try:
        run.backward()
    except Stop:
        run.say("stopped", True)
    raising[0] = False
    run.module.zero_grad()
    run.train(steps=2)


@use
def an_error_in_a_gradient_hook_and_the_same_backward_again(run: Run) -> None:
    weight = run.weight()
    raising = [True]

    def stop(gradient: torch.Tensor) -> None:
        if raising[0]:
            raise Stop

    weight.register_hook(stop)
    loss = run.loss(run.forward())
    try:
        loss.backward(retain_graph=True)
    except Stop:
        run.say("stopped", True)
    raising[0] = False
    run.module.zero_grad()
    loss.backward()


@use
def an_error_before_the_forward_and_a_next_step(run: Run) -> None:
    raising = [True]

    def stop(module: nn.Module, args: Any) -> None:
        if raising[0]:
            raise Stop

    run.module.register_forward_pre_hook(stop)
    try:
        run.forward()
    except Stop:
        run.say("stopped", True)
    raising[0] = False
    run.train(steps=2)


@use
def an_error_in_the_loss_and_a_next_step(run: Run) -> None:
    output = run.forward()
    try:
        raise Stop
    except Stop:
        run.say("stopped", True)
    del output
    run.train(steps=2)
