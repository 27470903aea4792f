"""A planned module among other modules."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import GradBucket
from torch.futures import Future

from tests.battery.registry import fast, use
from tests.battery.use_context import Run, differentiable, weighted


class Outer(nn.Module):
    """Layers around a part."""

    def __init__(self, part: nn.Module, width: int) -> None:
        super().__init__()
        self.part = part
        self.head = nn.Linear(width, 4)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        output = differentiable(self.part(*args, **kwargs))[0]
        return self.head(output.float()).tanh()


def outer(run: Run) -> Outer:
    with torch.no_grad():
        run.module.eval()
        found = run.forward()
        run.module.train()
    first = next(leaf for leaf in _floats(found))
    torch.manual_seed(4)
    return Outer(run.module, first.shape[-1])


def _floats(output: Any) -> list[torch.Tensor]:
    from tests.battery.observations import Seen, Trail

    trail = Trail()
    trail.say("", output)
    return [e.data for _, e in trail.entries if isinstance(e, Seen) and e.data.is_floating_point()]


def train_around(run: Run, whole: nn.Module, steps: int = 2) -> None:
    optimizer = torch.optim.SGD(whole.parameters(), 0.05)
    for number in range(steps):
        optimizer.zero_grad()
        loss = weighted(differentiable(run.forward(number, whole)))
        run.say("loss", loss)
        loss.backward()
        for name, parameter in whole.named_parameters():
            run.say(name, parameter.grad)
        optimizer.step()


@fast
def a_part_of_a_larger_model(run: Run) -> None:
    train_around(run, outer(run))


@use
def a_part_used_twice_in_a_larger_model(run: Run) -> None:
    class Twice(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            self.part = part

        def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            one = differentiable(self.part(*args, **kwargs))[0]
            return one * differentiable(self.part(*args, **kwargs))[0].sigmoid()

    train_around(run, Twice(run.module))


@use
def tied_to_a_layer_outside(run: Run) -> None:
    weight = run.weight()
    run.need(weight.dim() == 2)
    head = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    head.weight = weight
    output = differentiable(run.forward())[0]
    run.need(output.shape[-1] == weight.shape[1])
    (head(output.to(weight.dtype)).square().sum()).backward()


@use
def two_models_planned_alike(run: Run) -> None:
    """Two students from one package, of other weights, in one loss."""
    torch.manual_seed(77)
    other = run.again(run.case.model())
    one, two = (differentiable(run.forward(0, m))[0] for m in (run.module, other))
    (one - two).square().sum().backward()
    run.say("the other", [p.grad for p in other.parameters()])


@use
def a_teacher_and_a_student(run: Run) -> None:
    torch.manual_seed(78)
    teacher = run.again(run.case.model()).eval()
    for number in range(2):
        with torch.no_grad():
            wanted = run.forward(number, teacher)
        (_floats(wanted)[0] - differentiable(run.forward(number))[0]).square().sum().backward()


@use
def loaded_twice(run: Run) -> None:
    """The same model is planned once more, and both modules are used."""
    run.train(steps=1)
    run.module = run.again(run.module)
    run.train(steps=2)


@use
def the_original_used_beside_the_planned(run: Run) -> None:
    """The bound forward of the class, with the shared weights."""
    base = type(run.module)
    original = getattr(base, "_tightfit_original", base)
    args, kwargs = run.batch(1)
    with run.case.around():
        run.need(not torch.is_autocast_enabled("cpu"))
        loss = run.loss(run.forward()) + run.loss(original.forward(run.module, *args, **kwargs))
    loss.backward()


@use
def called_by_its_forward(run: Run) -> None:
    for number in range(2):
        args, kwargs = run.batch(number)
        with run.case.around():
            output = run.module.forward(*args, **kwargs)
        run.loss(output).backward()


@use
def in_a_sequence(run: Run) -> None:
    args, kwargs = run.batch()
    run.need(not kwargs and len(args) == 1 and args[0].is_floating_point())
    whole = nn.Sequential(
        nn.Linear(args[0].shape[-1], args[0].shape[-1]).to(args[0].dtype), run.module
    )
    train_around(run, whole)


@use
def data_parallel_without_devices(run: Run) -> None:
    train_around(run, nn.DataParallel(run.module))


def _distributed(run: Run) -> Any:
    import torch.distributed as distributed

    run.need(distributed.is_available())
    if not distributed.is_initialized():
        place = Path(tempfile.mkdtemp()) / "meet"
        distributed.init_process_group("gloo", init_method=f"file://{place}", rank=0, world_size=1)
        run.after.callback(distributed.destroy_process_group)
    return nn.parallel.DistributedDataParallel(run.module, find_unused_parameters=False)


@use
def distributed_data_parallel(run: Run) -> None:
    train_around(run, _distributed(run))


@use
def distributed_without_synchronising(run: Run) -> None:
    whole = _distributed(run)
    with whole.no_sync():
        weighted(differentiable(run.forward(0, whole))).backward()
    weighted(differentiable(run.forward(1, whole))).backward()


@use
def a_hook_of_communication(run: Run) -> None:
    whole = _distributed(run)

    def halve(state: object, bucket: GradBucket) -> Future[torch.Tensor]:
        future: Future[torch.Tensor] = Future()
        future.set_result(bucket.buffer() * 0.5)
        return future

    halve.__annotations__ = {"bucket": GradBucket, "return": Future[torch.Tensor]}

    whole.register_comm_hook(None, halve)
    weighted(differentiable(run.forward(0, whole))).backward()
