"""Modes of modules and of PyTorch around, before and between steps."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.battery.registry import fast, use
from tests.battery.use_context import Run


@fast
def evaluation_between_steps(run: Run) -> None:
    for number in range(2):
        run.train(steps=1)
        run.module.eval()
        with torch.no_grad():
            run.say("evaluated", run.forward(number))
        run.module.train()
    run.train(steps=1)


@use
def training_in_evaluation_mode(run: Run) -> None:
    run.module.eval()
    run.train(steps=2)


@fast
def no_gradients_between_steps(run: Run) -> None:
    run.train(steps=1)
    with torch.no_grad():
        run.say("output", run.forward(1))
    run.train(steps=1)


@use
def inference_mode_between_steps(run: Run) -> None:
    run.train(steps=1)
    run.module.eval()
    with torch.inference_mode():
        run.say("output", run.forward(1))
    run.module.train()
    run.train(steps=1)


@use
def inference_mode_in_training_mode(run: Run) -> None:
    with torch.inference_mode():
        run.say("output", run.forward(1))
    run.train(steps=1)


@use
def a_part_in_evaluation_mode(run: Run) -> None:
    parts = [m for m in run.module.modules() if m is not run.module]
    run.need(parts)
    parts[-1].eval()
    run.train(steps=2)


@use
def parts_in_training_mode_again(run: Run) -> None:
    run.need(any(not m.training for m in run.module.modules()))
    run.module.train()
    run.train(steps=2)


def around(run: Run, context: Any) -> None:
    """Forward and loss in a context, backward outside it."""
    with context:
        output = run.forward(1)
        loss = run.loss(output)
    run.say("output", output)
    loss.backward()
    run.gradients()


@fast
def autocast_around(run: Run) -> None:
    around(run, torch.autocast("cpu", torch.bfloat16))


@use
def autocast_off_around(run: Run) -> None:
    around(run, torch.autocast("cpu", enabled=False))


@use
def autocast_to_half_around(run: Run) -> None:
    around(run, torch.autocast("cpu", torch.float16))


@use
def autocast_of_another_device_around(run: Run) -> None:
    around(run, torch.autocast("cuda", torch.float16))


@use
def autocast_around_the_backward_alone(run: Run) -> None:
    loss = run.loss(run.forward())
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()


@use
def autocast_around_the_loss_alone(run: Run) -> None:
    output = run.forward()
    with torch.autocast("cpu", torch.bfloat16):
        loss = run.loss(output)
    loss.backward()


@use
def autocast_without_its_cache(run: Run) -> None:
    around(run, torch.autocast("cpu", torch.bfloat16, cache_enabled=False))


@use
def autocast_around_two_forwards(run: Run) -> None:
    """The cache of casts is shared by both."""
    with torch.autocast("cpu", torch.bfloat16):
        one, two = run.forward(0), run.forward(1)
        loss = run.loss(one) + run.loss(two)
    loss.backward()


@use
def another_default_dtype(run: Run) -> None:
    before = torch.get_default_dtype()
    run.after.callback(torch.set_default_dtype, before)
    torch.set_default_dtype(torch.float64)
    around(run, contextlib.nullcontext())


@use
def deterministic_algorithms(run: Run) -> None:
    run.after.callback(torch.use_deterministic_algorithms, False)
    torch.use_deterministic_algorithms(True)
    run.train(steps=2)


@use
def a_default_device(run: Run) -> None:
    with torch.device("cpu"):
        run.train(steps=2)


@use
def a_default_device_of_meta(run: Run) -> None:
    sample = run.batch(1)
    with torch.device("meta"):
        output = run.call(sample)
    run.say("output", output)
    run.loss(output).backward()


@use
def a_kernel_of_attention_chosen(run: Run) -> None:
    around(run, sdpa_kernel(SDPBackend.MATH))


@use
def gradients_disabled_and_enabled(run: Run) -> None:
    with torch.no_grad(), torch.enable_grad():
        run.train(steps=2)


@use
def gradients_disabled_globally(run: Run) -> None:
    torch.set_grad_enabled(False)
    run.after.callback(torch.set_grad_enabled, True)
    run.say("output", run.forward())
    torch.set_grad_enabled(True)
    run.train(steps=1)


@use
def one_thread_for_backward(run: Run) -> None:
    with torch.autograd.set_multithreading_enabled(False):
        run.train(steps=2)


@use
def seeds_set_between(run: Run) -> None:
    for number in range(2):
        torch.manual_seed(number)
        run.train(steps=1)


@use
def random_numbers_drawn_between_forward_and_backward(run: Run) -> None:
    output = run.forward()
    run.say("drawn", torch.rand(3))
    run.loss(output).backward()
    run.say("drawn", torch.rand(3))


@use
def random_numbers_forked(run: Run) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(9)
        output = run.forward()
    run.say("output", output)
    run.loss(output).backward()


@use
def seed_set_between_forward_and_backward(run: Run) -> None:
    output = run.forward()
    torch.manual_seed(77)
    run.loss(output).backward()
    run.say("drawn", torch.rand(3))


class Silent(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Doubling(TorchDispatchMode):
    """Changes what an operator gives."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.ops.aten.tanh.default else found


class Counting(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Replacing(TorchFunctionMode):
    """Runs another function than was called."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        return found * 0.5 if func is torch.nn.functional.linear else found


@use
def a_dispatch_mode_that_only_looks(run: Run) -> None:
    around(run, Silent())


@use
def a_dispatch_mode_that_changes(run: Run) -> None:
    around(run, Doubling())


@use
def a_function_mode_that_only_looks(run: Run) -> None:
    around(run, Counting())


@use
def a_function_mode_that_changes(run: Run) -> None:
    around(run, Replacing())


@use
def a_profiler(run: Run) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        run.train(steps=1)


@use
def another_number_of_threads(run: Run) -> None:
    run.after.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(2)
    around(run, contextlib.nullcontext())


@use
def numbers_that_underflow_set_to_zero(run: Run) -> None:
    run.after.callback(torch.set_flush_denormal, False)
    torch.set_flush_denormal(True)
    run.train(steps=1)


@use
def lower_precision_of_products(run: Run) -> None:
    run.after.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
    torch.set_float32_matmul_precision("medium")
    run.train(steps=1)
