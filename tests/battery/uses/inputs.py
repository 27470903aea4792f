"""What a call is given."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from tests.battery.registry import fast, use
from tests.battery.use_context import Run, tensors


def mapped(run: Run, change: Any, number: int = 1) -> None:
    """One backward on contents that `change` has changed."""
    sample = run.batch(number)
    changed = pytree.tree_map(lambda x: change(x) if isinstance(x, Tensor) else x, sample)
    run.say("output", (output := run.call(changed)))
    run.loss(output).backward()
    run.say("gradients of inputs", [x.grad for x in tensors(changed) if x.is_leaf])


@fast
def other_contents(run: Run) -> None:
    for number in (7, 8):
        run.say("output", run.backward(number))
        run.gradients(str(number))


@use
def contents_of_zeros(run: Run) -> None:
    mapped(run, lambda x: torch.zeros_like(x, requires_grad=x.requires_grad))


@use
def contents_of_large_numbers(run: Run) -> None:
    mapped(
        run,
        lambda x: (
            (x.detach() * 1e4).requires_grad_(x.requires_grad) if x.is_floating_point() else x
        ),
    )


@use
def contents_that_are_not_numbers(run: Run) -> None:
    def change(x: Tensor) -> Tensor:
        if not x.is_floating_point():
            return x
        changed = x.detach().clone()
        changed.view(-1)[0] = float("nan")
        return changed.requires_grad_(x.requires_grad)

    mapped(run, change)


@fast
def one_tensor_for_two_inputs(run: Run) -> None:
    """All inputs of one shape and dtype are the same tensor."""
    sample = run.batch(1)
    first: dict[Any, Tensor] = {}
    run.need(len(tensors(sample)) > 1)

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return first.setdefault((x.shape, x.dtype), x)

    changed = pytree.tree_map(one, sample)
    run.need(len(first) < len(tensors(sample)))
    run.loss(run.call(changed)).backward()
    run.say("gradients of inputs", [x.grad for x in tensors(changed)])


@use
def two_views_for_two_inputs(run: Run) -> None:
    sample = run.batch(1)
    first: dict[Any, Tensor] = {}
    run.need(len(tensors(sample)) > 1)

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return first.setdefault((x.shape, x.dtype), x.detach()).view(x.shape)

    changed = pytree.tree_map(one, sample)
    run.need(len(first) < len(tensors(sample)))
    run.loss(run.call(changed)).backward()


@fast
def two_tensors_after_one(run: Run) -> None:
    """As many steps with other labels as with the sample's."""
    run.need(len(run.inputs()) > 1)
    run.train(steps=4)


def given_instead(run: Run, wanted: list[Tensor]) -> None:
    args, kwargs = run.batch(1)
    for place, arg in enumerate(args):
        for tensor in wanted:
            if isinstance(arg, Tensor) and arg.shape == tensor.shape and arg.dtype == tensor.dtype:
                changed = (*args[:place], tensor, *args[place + 1 :])
                run.loss(run.call((changed, kwargs))).backward()
                return
            if isinstance(arg, Tensor) and arg.is_floating_point() == tensor.is_floating_point():
                try:
                    view = tensor.expand(arg.shape)
                except RuntimeError:
                    continue
                changed = (*args[:place], view, *args[place + 1 :])
                run.loss(run.call((changed, kwargs))).backward()
                return
    run.need(False)


@fast
def own_buffer_as_input(run: Run) -> None:
    given_instead(run, list(run.module.buffers()))


@use
def own_parameter_as_input(run: Run) -> None:
    given_instead(run, list(run.module.parameters()))


@use
def data_of_own_parameter_as_input(run: Run) -> None:
    given_instead(run, [p.data for p in run.module.parameters()])


@use
def a_parameter_as_input(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and args[0].is_floating_point())
    given = nn.Parameter(args[0].detach())
    run.loss(run.call(((given, *args[1:]), kwargs))).backward()
    run.say("gradient", given.grad)


@use
def input_changed_between_forward_and_backward(run: Run) -> None:
    sample = run.batch(1)
    output = run.call(sample)
    for tensor in tensors(sample):
        tensor.data.zero_()
        with torch.no_grad():
            tensor.add_(1)
    run.loss(output).backward()


@use
def input_changed_after_the_step(run: Run) -> None:
    sample = run.batch(1)
    held = run.call(sample)
    run.loss(held).backward()
    with torch.no_grad():
        for tensor in tensors(sample):
            tensor.zero_()
    run.say("output", held)
    run.loss(run.call(sample)).backward()


@use
def transposed_input(run: Run) -> None:
    def change(x: Tensor) -> Tensor:
        if x.dim() < 2:
            return x
        return x.detach().mT.contiguous().mT.requires_grad_(x.requires_grad)

    mapped(run, change)


@use
def sliced_input(run: Run) -> None:
    mapped(
        run, lambda x: torch.cat([x.detach(), x.detach()])[: len(x)].requires_grad_(x.requires_grad)
    )


@use
def strided_input(run: Run) -> None:
    def change(x: Tensor) -> Tensor:
        wide = torch.stack([x.detach(), x.detach()], -1)
        return wide[..., 0].requires_grad_(x.requires_grad)

    mapped(run, change)


@use
def expanded_input(run: Run) -> None:
    mapped(run, lambda x: x.detach()[:1].expand(x.shape).requires_grad_(x.requires_grad))


@use
def offset_input(run: Run) -> None:
    """Starts in the middle of a storage, out of alignment."""

    def change(x: Tensor) -> Tensor:
        wide = torch.cat([x.detach().flatten()[:1], x.detach().flatten()])
        return wide[1:].view(x.shape).requires_grad_(x.requires_grad)

    mapped(run, change)


@use
def another_batch_size(run: Run) -> None:
    mapped(run, lambda x: x.detach()[:-1].clone().requires_grad_(x.requires_grad))


@use
def another_dtype(run: Run) -> None:
    mapped(run, lambda x: x.detach().double() if x.is_floating_point() else x.int())


@use
def everything_by_keyword(run: Run) -> None:
    args, kwargs = run.batch(1)
    names = list(inspect.signature(run.module.forward).parameters)
    run.need(args and "args" not in names)
    named = dict(zip(names, args, strict=False)) | kwargs
    run.loss(run.call(((), named))).backward()


@use
def everything_by_position(run: Run) -> None:
    args, kwargs = run.batch(1)
    parameters = inspect.signature(run.module.forward).parameters
    run.need(kwargs and all(p.kind != p.KEYWORD_ONLY for p in parameters.values()))
    given = [kwargs[name] for name in list(parameters)[len(args) :] if name in kwargs]
    run.loss(run.call(((*args, *given), {}))).backward()


@use
def a_number_of_another_value(run: Run) -> None:
    args, kwargs = run.batch(1)
    changed = {k: v + 1.0 if isinstance(v, float) else v for k, v in kwargs.items()}
    run.need(any(isinstance(v, float) for v in kwargs.values()))
    run.loss(run.call((args, changed))).backward()


@use
def an_argument_left_out(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(kwargs)
    kwargs = dict(kwargs)
    kwargs.popitem()
    run.loss(run.call((args, kwargs))).backward()


@use
def an_unknown_argument(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.call((args, {**kwargs, "unknown": 1}))


@use
def nothing_given(run: Run) -> None:
    run.call(((), {}))


@use
def none_given(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.call(((None, *args[1:]), kwargs))


@use
def a_list_given(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.call((([args[0]], *args[1:]), kwargs))


@use
def inputs_that_are_let_go(run: Run) -> None:
    """Nobody holds the inputs when the backward runs."""
    output = run.call(run.batch(1))
    [torch.randn(6, 8) for _ in range(10)]
    run.loss(output).backward()


@use
def inputs_made_in_inference_mode(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(not any(x.requires_grad for x in tensors((args, kwargs))))
    with torch.inference_mode():
        sample = pytree.tree_map(
            lambda x: x.clone() if isinstance(x, Tensor) else x, (args, kwargs)
        )
    run.loss(run.call(sample)).backward()


class Marked(Tensor):
    """A subclass that does nothing else."""


@use
def a_subclass_of_tensor(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(not tensors(args)[0].requires_grad)
    run.loss(run.call(((args[0].as_subclass(Marked), *args[1:]), kwargs))).backward()


@use
def a_sparse_input(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and args[0].dim() == 2)
    run.loss(run.call(((args[0].detach().to_sparse(), *args[1:]), kwargs))).backward()


@use
def a_conjugate_or_negative_view(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and args[0].is_floating_point())
    lazy = torch._neg_view(args[0].detach())
    run.loss(run.call(((lazy, *args[1:]), kwargs))).backward()
