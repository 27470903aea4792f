"""Which gradients are asked for, how they arrive and who keeps them."""

from __future__ import annotations

import torch
from torch import nn

from tests.battery.registry import fast, use
from tests.battery.use_context import Run, differentiable, tangent, weighted


@fast
def plain_training(run: Run) -> None:
    run.train()


@fast
def accumulation(run: Run) -> None:
    optimizer = run.sgd()
    for step in range(2):
        for part in range(3):
            run.backward(3 * step + part)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


@use
def gradients_start_as_zeros(run: Run) -> None:
    for parameter in run.module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    kept = [p.grad for p in run.module.parameters()]
    run.backward()
    run.say("same tensors", [p.grad is k for p, k in zip(run.module.parameters(), kept)])  # noqa: B905


@fast
def gradients_by_autograd_grad(run: Run) -> None:
    wanted = [p for p in run.module.parameters() if p.requires_grad]
    for number in range(2):
        loss = run.loss(run.forward(number))
        run.say("gradients", torch.autograd.grad(loss, wanted, allow_unused=True))


@fast
def gradients_of_some_parameters(run: Run) -> None:
    weight = run.weight()
    run.say("gradient", torch.autograd.grad(run.loss(run.forward()), [weight], allow_unused=True))
    run.loss(run.forward(1)).backward(inputs=[weight])


@fast
def gradients_of_inputs(run: Run) -> None:
    args, kwargs = run.batch(1)
    given = [
        x.requires_grad_() for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()
    ]
    run.need(given)
    run.loss(run.call((args, kwargs))).backward()
    run.say("gradients of inputs", [x.grad for x in given])


@use
def gradient_of_an_input_alone(run: Run) -> None:
    args, kwargs = run.batch(1)
    given = [
        x.requires_grad_() for x in args if isinstance(x, torch.Tensor) and x.is_floating_point()
    ]
    run.need(given)
    run.say("gradients", torch.autograd.grad(run.loss(run.call((args, kwargs))), given))


@use
def input_made_by_another_layer(run: Run) -> None:
    args, kwargs = run.batch(1)
    run.need(isinstance(args[0], torch.Tensor) and args[0].is_floating_point())
    before = nn.Linear(args[0].shape[-1], args[0].shape[-1], dtype=args[0].dtype)
    before.weight.data.copy_(torch.eye(args[0].shape[-1]))
    run.loss(run.call(((before(args[0].detach()), *args[1:]), kwargs))).backward()
    run.say("the layer before", [p.grad for p in before.parameters()])


@fast
def retained_graph_twice(run: Run) -> None:
    loss = run.loss(run.forward())
    loss.backward(retain_graph=True)
    run.gradients("once")
    loss.backward()


@use
def retained_graph_once(run: Run) -> None:
    for number in range(2):
        run.loss(run.forward(number)).backward(retain_graph=True)


@fast
def a_backward_for_each_output(run: Run) -> None:
    outputs = differentiable(run.forward())
    run.need(len(outputs) > 1)
    for place, output in enumerate(outputs):
        weighted([output]).backward(retain_graph=place + 1 < len(outputs))
        run.gradients(f"after {place}")


@fast
def first_output_only(run: Run) -> None:
    for number in range(2):
        weighted(differentiable(run.forward(number))[:1]).backward()
        run.gradients(str(number))


@fast
def last_output_only(run: Run) -> None:
    for number in range(2):
        weighted(differentiable(run.forward(number))[-1:]).backward()
        run.gradients(str(number))


@use
def another_loss_than_planned(run: Run) -> None:
    for number in range(2):
        outputs = differentiable(run.forward(number))
        sum((output.float().abs().mean() for output in outputs), torch.zeros(())).backward()


@use
def a_gradient_that_is_zero(run: Run) -> None:
    (run.loss(run.forward()) * 0).backward()


@use
def a_gradient_that_is_not_finite(run: Run) -> None:
    (run.loss(run.forward()) * float("inf")).backward()


@fast
def one_tensor_for_two_outputs(run: Run) -> None:
    outputs = differentiable(run.forward())
    pairs = [(a, b) for a in outputs for b in outputs if a is not b and a.shape == b.shape]
    run.need(pairs)
    given = tangent(pairs[0][0])
    torch.autograd.backward(list(pairs[0]), [given, given])
    run.say("what was given", given)


@use
def gradients_of_all_outputs_are_one(run: Run) -> None:
    outputs = differentiable(run.forward())
    torch.autograd.backward(outputs, [torch.ones(()).to(o.dtype).expand(o.shape) for o in outputs])


@fast
def a_given_gradient_stays_as_it_was(run: Run) -> None:
    outputs = differentiable(run.forward())
    given = [tangent(output, place) for place, output in enumerate(outputs)]
    torch.autograd.backward(outputs, given)
    run.say("what was given", given)


@use
def a_given_gradient_of_other_strides(run: Run) -> None:
    outputs = differentiable(run.forward())
    given = [tangent(o).mT.contiguous().mT if o.dim() > 1 else tangent(o) for o in outputs]
    torch.autograd.backward(outputs, given)
    run.say("what was given", given)


@fast
def gradients_kept_by_output_hooks(run: Run) -> None:
    for number in range(2):
        output = run.forward(number)
        kept: list[torch.Tensor] = []
        for leaf in differentiable(output):
            leaf.register_hook(kept.append)
        run.loss(output).backward()
        run.say("gradients of outputs", kept)


@use
def gradients_retained_by_outputs(run: Run) -> None:
    output = run.forward()
    for leaf in differentiable(output):
        leaf.retain_grad()
    run.loss(output).backward()
    run.say("gradients of outputs", [leaf.grad for leaf in differentiable(output)])


@use
def gradients_changed_by_output_hooks(run: Run) -> None:
    output = run.forward()
    for leaf in differentiable(output):
        leaf.register_hook(lambda gradient: gradient * 0.5)
    run.loss(output).backward()


@use
def gradients_of_outputs(run: Run) -> None:
    output = run.forward()
    leaves = differentiable(output)
    run.say("gradients", torch.autograd.grad(run.loss(output), leaves, allow_unused=True))


@use
def gradients_of_outputs_and_parameters(run: Run) -> None:
    output = run.forward()
    wanted = [*differentiable(output), *[p for p in run.module.parameters() if p.requires_grad]]
    run.say("gradients", torch.autograd.grad(run.loss(output), wanted, allow_unused=True))


@use
def double_backward(run: Run) -> None:
    wanted = [p for p in run.module.parameters() if p.requires_grad]
    loss = run.loss(run.forward())
    found = torch.autograd.grad(loss, wanted, create_graph=True, allow_unused=True)
    run.say("gradients", found)
    torch.stack([g.square().sum() for g in found if g is not None]).sum().backward()


@use
def a_penalty_on_weights(run: Run) -> None:
    for number in range(2):
        loss = run.loss(run.forward(number))
        parameters = [p for p in run.module.parameters() if p.requires_grad]
        (loss + sum(p.square().sum() for p in parameters)).backward()


@use
def a_penalty_on_weights_before_the_call(run: Run) -> None:
    penalty = sum(p.square().sum() for p in run.module.parameters() if p.requires_grad)
    (penalty + run.loss(run.forward())).backward()


@use
def a_weight_used_outside_too(run: Run) -> None:
    weight = run.weight()
    run.loss(run.forward()).add((weight @ weight.mT).sum() * 0.1).backward()


@use
def a_weight_used_outside_through_branches(run: Run) -> None:
    weight = run.weight()
    before = (weight * 0.3).tanh().sum()
    output = run.loss(run.forward())
    after = (weight * 0.7).sigmoid().sum()
    (after + output * 0.9 + before).backward()


@use
def a_scaled_loss(run: Run) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = run.sgd()
    for number in range(2):
        optimizer.zero_grad()
        scaler.scale(run.loss(run.forward(number))).backward()
        scaler.step(optimizer)
        scaler.update()


@use
def a_forward_without_backward(run: Run) -> None:
    run.say("dropped", run.forward(1))
    run.train()


@use
def detected_anomaly(run: Run) -> None:
    with torch.autograd.detect_anomaly():
        run.backward()


@use
def a_loss_in_pieces(run: Run) -> None:
    outputs = differentiable(run.forward())
    pieces = [part for output in outputs for part in output.flatten().chunk(3)]
    weighted(pieces).backward()


@use
def backward_of_a_view_of_an_output(run: Run) -> None:
    output = differentiable(run.forward())[0]
    output[:1].mul(2).sum().backward()
