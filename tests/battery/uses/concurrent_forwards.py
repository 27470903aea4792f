"""Several forwards in flight, interrupted ones, and recomputed ones."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from tests.battery.registry import fast, use
from tests.battery.use_context import Run, differentiable, tensors


@fast
def two_forwards_then_their_backwards(run: Run) -> None:
    for _ in range(2):
        outputs = [run.forward(number) for number in range(2)]
        run.say("outputs", outputs)
        for place, output in enumerate(outputs):
            run.loss(output).backward()
            run.state(f"after {place}")


@fast
def backwards_in_reverse_order(run: Run) -> None:
    outputs = [run.forward(number) for number in range(3)]
    for output in reversed(outputs):
        run.loss(output).backward()
        run.gradients("so far")


@fast
def siamese(run: Run) -> None:
    optimizer = run.sgd()
    for number in range(2):
        optimizer.zero_grad()
        one, two = (differentiable(run.forward(2 * number + k))[0] for k in range(2))
        loss = (one - two).square().mean()
        run.say("loss", loss)
        loss.backward()
        run.gradients(str(number))
        optimizer.step()


@fast
def contrastive(run: Run) -> None:
    for number in range(2):
        anchor, near, far = (differentiable(run.forward(3 * number + k))[0] for k in range(3))
        loss = ((anchor - near).square().sum() - (anchor - far).square().sum() + 1).tanh()
        loss.backward()
        run.gradients(str(number))


@use
def the_same_contents_twice(run: Run) -> None:
    one, two = differentiable(run.forward(0))[0], differentiable(run.forward(0))[0]
    (one * two).sum().backward()


@fast
def adversarial(run: Run) -> None:
    """The module judges real and made inputs; then the maker is trained through it."""
    args, kwargs = run.batch()
    run.need(isinstance(args[0], torch.Tensor) and args[0].is_floating_point())
    maker = torch.nn.Parameter(torch.full(args[0].shape[-1:], 0.5, dtype=args[0].dtype))
    optimizer, other = run.sgd(), torch.optim.SGD([maker], 0.1)
    for number in range(2):
        noise = run.batch(10 + number)[0][0].detach()
        optimizer.zero_grad()
        real = run.loss(run.forward(number))
        made = run.loss(run.call((((noise * maker).detach(), *args[1:]), kwargs)))
        (real - made).backward()
        optimizer.step()
        other.zero_grad()
        run.loss(run.call(((noise * maker, *args[1:]), kwargs))).backward()
        run.say("gradient of the maker", maker.grad)
        other.step()
    run.say("maker", maker)


@use
def critic_on_real_and_made(run: Run) -> None:
    """As above, where made inputs are plain tensors."""
    optimizer = run.sgd()
    for number in range(2):
        optimizer.zero_grad()
        real, made = run.forward(number), run.forward(20 + number)
        (run.loss(real) - run.loss(made)).backward()
        optimizer.step()


@use
def a_step_between_two_forwards_and_the_second_backward(run: Run) -> None:
    optimizer = run.sgd()
    one, two = run.forward(0), run.forward(1)
    run.loss(one).backward()
    optimizer.step()
    run.loss(two).backward()


@use
def evaluation_between_forward_and_backward(run: Run) -> None:
    output = run.forward(0)
    with torch.no_grad():
        run.say("meanwhile", run.forward(1))
    run.module.eval()
    with torch.no_grad():
        run.say("evaluated", run.forward(2))
    run.module.train()
    run.loss(output).backward()


@use
def another_forward_that_is_dropped(run: Run) -> None:
    output = run.forward(0)
    run.say("dropped", run.forward(1))
    run.loss(output).backward()


@use
def chained(run: Run) -> None:
    args, kwargs = run.batch()
    output = differentiable(run.call((args, kwargs)))[0]
    first = args[0]
    run.need(isinstance(first, torch.Tensor) and first.shape == output.shape)
    run.need(first.dtype == output.dtype)
    again = run.call(((output, *args[1:]), kwargs))
    run.loss(again).backward()


@use
def chained_through_detach(run: Run) -> None:
    args, kwargs = run.batch()
    output = differentiable(run.call((args, kwargs)))[0]
    first = args[0]
    run.need(isinstance(first, torch.Tensor) and first.shape == output.shape)
    run.need(first.dtype == output.dtype)
    again = run.call(((output.detach(), *args[1:]), kwargs))
    (run.loss(again) + output.square().sum()).backward()


def _checkpointed(run: Run, **how: Any) -> None:
    for number in range(2):
        args, kwargs = run.batch(number)
        leaves = [x.requires_grad_() if x.is_floating_point() else x for x in tensors(args)]
        run.need(leaves)
        output = checkpoint(lambda *a, k=kwargs: run.call((a, k)), *args, **how)
        loss = run.loss(output)
        run.say("loss", loss)
        loss.backward()
        run.gradients(str(number))


@fast
def checkpoint_around(run: Run) -> None:
    _checkpointed(run, use_reentrant=False)


@use
def reentrant_checkpoint_around(run: Run) -> None:
    run.need(any(x.is_floating_point() for x in run.inputs()))
    _checkpointed(run, use_reentrant=True)


@use
def checkpoint_around_as_it_was_sampled(run: Run) -> None:
    for number in range(2):
        args, kwargs = run.batch(number)
        output = checkpoint(run.call, (args, kwargs), use_reentrant=False)
        run.loss(output).backward()


@use
def saved_tensors_moved(run: Run) -> None:
    with torch.autograd.graph.save_on_cpu():
        output = run.forward()
    run.loss(output).backward()


@use
def saved_tensors_packed(run: Run) -> None:
    """Saved tensors come back as other ones."""
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.detach().clone(), lambda x: x.clone()
    ):
        output = run.forward()
        loss = run.loss(output)
    loss.backward()


@use
def saved_tensors_changed(run: Run) -> None:
    """Saved tensors come back as halves."""
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: x.detach().clone(),
        lambda x: x * 0.5 if x.is_floating_point() else x,
    ):
        output = run.forward()
    run.loss(output).backward()


def in_thread(work: Any) -> Any:
    """Runs work in a thread of its own and gives what it returns; raises what it raises."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def body() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return found[0]


@fast
def in_another_thread(run: Run) -> None:
    in_thread(run.train)


@use
def backward_in_another_thread(run: Run) -> None:
    loss = run.loss(run.forward())
    in_thread(loss.backward)


@use
def two_threads_at_once(run: Run) -> None:
    """Gradients that nobody adds up; only where nothing is drawn or written."""
    run.need(not list(run.module.buffers()))
    state = torch.get_rng_state()
    run.loss(run.forward())
    run.need(torch.equal(state, torch.get_rng_state()))
    wanted = [p for p in run.module.parameters() if p.requires_grad]
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        for _ in range(3):
            loss = run.loss(run.forward(number))
            found[number] = torch.autograd.grad(loss, wanted, allow_unused=True)

    errors: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    run.say("gradients", [found[number] for number in sorted(found)])
