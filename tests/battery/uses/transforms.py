"""Transforms of PyTorch applied to a module: compiled, functional, traced."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from tests.battery.registry import beyond, fast, use
from tests.battery.use_context import Run, differentiable, tensors, weighted


def compiled(run: Run, **how: Any) -> None:
    torch._dynamo.reset()
    run.after.callback(torch._dynamo.reset)
    made = torch.compile(run.module, backend="eager", **how)
    for number in range(2):
        output = run.forward(number, made)
        run.say("output", output)
        run.loss(output).backward()
        run.gradients(str(number))


@fast
def compiled_around(run: Run) -> None:
    compiled(run)


@beyond
def compiled_whole(run: Run) -> None:
    compiled(run, fullgraph=True)


@use
def compiled_in_place(run: Run) -> None:
    torch._dynamo.reset()
    run.after.callback(torch._dynamo.reset)
    run.module.compile(backend="eager")
    run.train(steps=2)


@use
def compiled_step(run: Run) -> None:
    torch._dynamo.reset()
    run.after.callback(torch._dynamo.reset)

    def step(*args: Any, **kwargs: Any) -> Tensor:
        return weighted(differentiable(run.module(*args, **kwargs)))

    made = torch.compile(step, backend="eager")
    for number in range(2):
        run.call(run.batch(number), made).backward()
        run.gradients(str(number))


def functional_loss(run: Run, number: int = 1) -> Any:
    args, kwargs = run.batch(number)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        with run.case.around():
            output = torch.func.functional_call(run.module, parameters, args, kwargs)
        return weighted(differentiable(output)) if differentiable(output) else _sum(output)

    return loss


def _sum(output: Any) -> Tensor:
    return torch.stack([x.float().sum() for x in tensors(output)]).sum()


def _parameters(run: Run) -> dict[str, Tensor]:
    return {name: p for name, p in run.module.named_parameters() if p.requires_grad}


@use
def called_with_other_weights(run: Run) -> None:
    """`functional_call` outside of transforms."""
    given = {n: (p.detach() * 0.5).requires_grad_() for n, p in _parameters(run).items()}
    functional_loss(run)(given).backward()
    run.say("gradients", {name: p.grad for name, p in given.items()})


@use
def called_with_computed_weights(run: Run) -> None:
    """Weights that are no leaves, as in meta-learning."""
    rate = torch.tensor(0.5, requires_grad=True)
    given = {n: p * rate.to(p.dtype) for n, p in _parameters(run).items()}
    functional_loss(run)(given).backward()
    run.say("gradient of the rate", rate.grad)


@fast
def functional_gradient(run: Run) -> None:
    given = {name: p.detach() for name, p in _parameters(run).items()}
    run.say("gradients", torch.func.grad(functional_loss(run))(given))


@use
def functional_reverse_product(run: Run) -> None:
    given = {name: p.detach() for name, p in _parameters(run).items()}
    pulled: Any = torch.func.vjp(functional_loss(run), given)
    value, pull = pulled
    run.say("value", value)
    run.say("gradients", pull(torch.ones_like(value)))


@use
def functional_forward_product(run: Run) -> None:
    given = {name: p.detach() for name, p in _parameters(run).items()}
    moved = {name: torch.ones_like(p) for name, p in given.items()}
    run.say("product", list(torch.func.jvp(functional_loss(run), (given,), (moved,))))


@use
def functional_gradient_of_input(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and args[0].is_floating_point())

    def loss(x: Tensor) -> Tensor:
        return _sum(run.call(((x, *args[1:]), kwargs)))

    run.say("gradient", torch.func.grad(loss)(args[0].detach()))


@use
def functional_jacobian(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and args[0].is_floating_point())

    def first(x: Tensor) -> Tensor:
        return tensors(run.call(((x, *args[1:]), kwargs)))[0].float().sum(0)

    run.say("jacobian", torch.func.jacrev(first)(args[0].detach()))


@use
def mapped_over_a_batch(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and len(args) == 1 and not kwargs)
    many = torch.stack([run.batch(number)[0][0].detach() for number in range(2)])
    output = torch.vmap(lambda x: tensors(run.module(x))[0], randomness="different")(many)
    run.say("output", output)
    output.float().sum().backward()


@use
def mapped_over_samples_of_a_call(run: Run) -> None:
    """Gradients of each sample."""
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and len(args) == 1 and not kwargs)
    given = {name: p.detach() for name, p in _parameters(run).items()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return _sum(torch.func.functional_call(run.module, parameters, (x[None],)))

    many = torch.vmap(torch.func.grad(loss), (None, 0), randomness="different")
    run.say("gradients", many(given, args[0].detach()))


@use
def forward_gradients(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and args[0].is_floating_point())
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(args[0].detach(), torch.ones_like(args[0]))
        output = tensors(run.call(((dual, *args[1:]), kwargs)))[0]
        run.say("moves", list(torch.autograd.forward_ad.unpack_dual(output)))


@use
def jacobian_of_autograd(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and args[0].is_floating_point())
    run.say(
        "jacobian",
        torch.autograd.functional.jacobian(
            lambda x: tensors(run.call(((x, *args[1:]), kwargs)))[0].float().sum(0),
            args[0].detach(),
        ),
    )


@use
def traced_by_fx(run: Run) -> None:
    parameters = inspect.signature(run.module.forward).parameters.values()
    run.need(all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters))
    made = torch.fx.symbolic_trace(run.module)
    run.loss(run.forward(1, made)).backward()


@use
def traced_by_jit(run: Run) -> None:
    args, kwargs = run.batch(1)
    made = torch.jit.trace(run.module, args, example_kwarg_inputs=None, check_trace=False)
    run.need(not kwargs)
    run.loss(run.forward(1, made)).backward()


@use
def batched_gradients(run: Run) -> None:
    output = differentiable(run.forward())[0]
    many = torch.stack([torch.ones_like(output), torch.full_like(output, 0.5)])
    wanted: list[Any] = [p for p in run.module.parameters() if p.requires_grad]
    run.say(
        "gradients",
        torch.autograd.grad(output, wanted, many, is_grads_batched=True, allow_unused=True),
    )


@use
def gradient_of_a_penalised_input(run: Run) -> None:
    """The penalty of a critic: a gradient by the input that is differentiated again."""
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], Tensor) and args[0].is_floating_point())
    x = args[0].detach().requires_grad_()
    loss = run.loss(run.call(((x, *args[1:]), kwargs)))
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    (gradient.norm() - 1).square().backward()


@use
def fake_tensors(run: Run) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    args, kwargs = run.batch(1)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fakes = [mode.from_tensor(x) if isinstance(x, Tensor) else x for x in args]
        run.say("shape", [list(x.shape) for x in tensors(run.call((tuple(fakes), kwargs)))])


@use
def scripted_call_of_children(run: Run) -> None:
    """Only the children are called, as feature extractors do."""
    child = run.first(nn.Linear)
    x = torch.randn(2, child.in_features, dtype=child.weight.dtype)
    run.say("child", child(x))
    child(x).sum().backward()
