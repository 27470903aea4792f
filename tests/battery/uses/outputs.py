"""What is done with the outputs."""

from __future__ import annotations

import copy
import gc
from typing import Any

import torch
from torch import Tensor

from tests.battery.registry import beyond, fast, use
from tests.battery.use_context import Run, differentiable, tensors, weighted


@fast
def aliases_among_outputs(run: Run) -> None:
    """Which outputs share bytes with each other, with inputs, buffers and parameters, and which
    are the same object (of inputs and parameters with gradients it is not promised)."""
    sample = run.batch(1)
    output = run.call(sample)
    outputs = tensors(output)
    others = [*tensors(sample), *run.module.buffers(), *run.module.parameters()]

    def place(x: Tensor) -> int:
        return x.untyped_storage().data_ptr()

    run.say("outputs", [[place(a) == place(b) for b in outputs] for a in outputs])
    run.say("others", [[place(a) == place(b) for b in others] for a in outputs])
    promised = [*outputs, *(b for b in others if not b.requires_grad)]
    run.say("the same", [[a is b for b in promised] for a in outputs])
    run.loss(output).backward()


def changed(run: Run, change: Any) -> None:
    output = run.forward(1)
    leaves = differentiable(output)
    run.need(not leaves[0].is_leaf)
    with torch.no_grad() if change is None else torch.enable_grad():
        if change is None:
            leaves[0].mul_(0.5)
        else:
            change(leaves[0])
    run.say("all outputs", output)
    weighted(leaves).backward()


@fast
def outputs_changed_in_place(run: Run) -> None:
    changed(run, lambda x: x.mul_(0.5))


@use
def outputs_changed_in_place_without_gradient(run: Run) -> None:
    changed(run, None)


@use
def outputs_filled_where_masked(run: Run) -> None:
    changed(run, lambda x: x.masked_fill_(x > 0.3, 0.0))


@use
def outputs_rectified_in_place(run: Run) -> None:
    changed(run, torch.relu_)


@use
def rows_of_outputs_set(run: Run) -> None:
    """Where elements share memory, what a plan does is not promised."""

    def set_first(output: Tensor) -> None:
        run.need(0 not in output.stride())
        output[0] = 0.0

    changed(run, set_first)


@beyond
def data_of_outputs_changed(run: Run) -> None:
    """Writes where PyTorch does not see it."""
    output = run.forward(1)
    for leaf in differentiable(output):
        leaf.data.mul_(2)
    run.loss(output).backward()


@use
def plain_outputs_changed_in_place(run: Run) -> None:
    output = run.forward(1)
    plain = [x for x in tensors(output) if not x.requires_grad]
    run.need(plain)
    for leaf in plain:
        leaf.zero_()
    run.say("outputs", output)
    run.loss(output).backward()


@use
def detached_outputs_changed_in_place(run: Run) -> None:
    output = run.forward(1)
    loss = run.loss(output)
    differentiable(output)[0].detach().zero_()
    loss.backward()


@use
def outputs_kept_over_steps(run: Run) -> None:
    """What a step gave does not change in the next one."""
    optimizer = run.sgd()
    kept = []
    for number in range(3):
        optimizer.zero_grad()
        output = run.backward(number)
        kept.append(output)
        kept.append([p.grad for p in run.module.parameters()])
        optimizer.step()
        optimizer.zero_grad()
    run.say("kept", kept)


@use
def views_of_outputs_kept(run: Run) -> None:
    parts = [differentiable(run.backward(number))[0].detach()[:1] for number in range(2)]
    gc.collect()
    run.say("parts", parts)


@use
def outputs_in_a_later_loss(run: Run) -> None:
    """The second loss reads the first outputs without gradient."""
    first = run.forward(0)
    run.loss(first).backward()
    kept = differentiable(first)[0].detach()
    second = differentiable(run.forward(1))[0]
    (second - kept).square().sum().backward()


@use
def facts_of_outputs(run: Run) -> None:
    """What outputs are (of an input or a parameter with a gradient, which is a leaf, it is not
    promised that it is returned itself)."""
    sample = run.batch(0)
    given = [x for x in [*tensors(sample), *run.module.parameters()] if x.requires_grad]
    places = {x.untyped_storage().data_ptr() for x in given}
    for leaf in tensors(run.call(sample)):
        itself = leaf.untyped_storage().data_ptr() in places
        known = None if itself else leaf.is_leaf
        run.say("facts", [known, leaf.is_contiguous(), type(leaf).__name__, leaf.storage_offset()])


@use
def outputs_deep_copied(run: Run) -> None:
    output = run.forward()
    run.say("a copy", copy.deepcopy(tensors(output)[0].detach()))
    run.loss(output).backward()
