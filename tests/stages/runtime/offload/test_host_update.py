"""Updates in the memory that parameters live in: bit for bit those of torch.optim, or one
sentence."""

from __future__ import annotations

import contextlib
import copy
import gc
import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.runtime.offload.test_backward_optimizer import (
    CASES,
    assert_alike,
    groups_of,
    model,
)
from tightfit.stages.profile.optimizer_updates import measure_updates
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE
from tightfit.stages.runtime.offload.parameter_pieces import split_into_pieces, states_per_parameter
from tightfit.stages.runtime.offload.parameter_store import ParameterStore
from tightfit.stages.runtime.offload.piecewise_optimizer import STAGING_BUFFER_COUNT
from tightfit.stages.runtime.offload.second_tier import TIER_BUFFERS
from tightfit.stages.runtime.offload.setup import OffloadSpec, offload_parameters
from tightfit.stages.runtime.offload.step_context import StepContext
from tightfit.stages.runtime.offload.target import TargetWork, TransferHandle
from tightfit.stages.torch_utils.memory_meter import memory_session

PIECE = 512


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))


def lodged(
    module: nn.Module,
    optimizer: Any,
    sums: bool = False,
    there: Any = (),
    workspace: int = 1 << 20,
    far: Any = (),
    second_disk: Any = None,
) -> Any:
    """The store of all parameters of a module, which updates each of them, and the optimizer; the
    states of those that are `far` are on another disk."""
    paths, parameters = zip(*module.named_parameters(), strict=True)
    groups = optimizer.param_groups
    ordered = [p for group in groups for p in group["params"]]
    counts = [
        states_per_parameter(type(optimizer), group) for group in groups for _ in group["params"]
    ]
    pieces = [piece for own in split_into_pieces(ordered, counts, PIECE) for piece in own]
    named = [id(parameters[n]) for n in far]
    apart = [piece.size for piece in pieces if id(ordered[piece.parameter]) in named]
    through = TIER_BUFFERS * max(apart, default=0)
    size = sum(p.numel() * p.element_size() for p in parameters)
    offload_plan = OffloadSpec(
        optimizer=type(optimizer).__name__,
        paths=paths,
        resident=tuple(there),
        updated=paths,
        piece_bytes=PIECE,
        staging_bytes=STAGING_BUFFER_COUNT * max(piece.size for piece in pieces),
        parameter_bytes=size,
        state_bytes=sum(piece.size for piece in pieces) - sum(apart) + through,
        activation_bytes=size,
        peak=0,
        first_peak=0,
        host_updated=tuple(range(len(paths))),
        workspace_bytes=workspace,
        gradient_sum_bytes=size if sums else 0,
        second_tier=tuple(far),
        second_tier_bytes=sum(apart),
        second_tier_staging_bytes=through,
    )
    return offload_parameters(module, optimizer, offload_plan, second_disk=second_disk)


def gradients_of(module: nn.Module, step: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(p.shape, generator=generator).to(p.dtype) for p in module.parameters()]


def run(
    store: ParameterStore, optimizer: Any, gradients: list[torch.Tensor | None], last: bool
) -> None:
    """What the program of a microbatch does once gradients are whole."""
    adding = store.host_updater is not None and store.host_updater.adds and not last
    with contextlib.nullcontext() if last else optimizer.accumulating():
        visit = StepContext(store, adding)
        visit.begin_backward()
        places = store.places
        for n, gradient in enumerate(gradients):
            if gradient is not None:
                store.parameters[n].grad = gradient.clone()
                optimizer._arrived(n)
            visit.send_gradient(n, places[n])
            visit.wait_for_gradient(n)
            visit.free_gradient(n)
            (visit.accumulate if adding else visit.optimize)(n)
        for n in range(len(gradients)):
            visit.wait_for_gradient(n)
        visit.end_step()


def plain_step(module: nn.Module, optimizer: Any, parts: list[list[Any]]) -> None:
    for parameter, *own in zip(module.parameters(), *parts, strict=True):
        found = [gradient for gradient in own if gradient is not None]
        parameter.grad = found[0].clone() if found else None
        for gradient in found[1:]:
            assert parameter.grad is not None
            parameter.grad += gradient
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_as_torch_optim(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], parts: int
) -> None:
    plain, own = model(), model()
    expected = kind(groups_of(plain), **options)
    store, found = lodged(own, kind(groups_of(own), **options), parts > 1, there=[2])
    schedules = [torch.optim.lr_scheduler.StepLR(each, 1, 0.5) for each in (expected, found)]
    mixed = kind is torch.optim.SGD and "fused" in options
    for step in range(3):
        gradients: list[list[Any]] = [gradients_of(plain, 10 * step + n) for n in range(parts)]
        if not mixed:
            # PyTorch's own fused SGD takes no parameter that has a momentum later than others.
            gradients[0][1] = None
            for each in gradients:
                each[3] = None
            gradients[-1][2] = None if parts > 1 else gradients[-1][2]
        plain_step(plain, expected, gradients)
        for number, each in enumerate(gradients):
            run(store, found, each, number == parts - 1)
        found.step()
        found.zero_grad()
        for schedule in schedules:
            schedule.step()
    assert_alike(expected.state_dict(), found.state_dict())
    for one, n in zip(plain.parameters(), range(len(store.parameters)), strict=True):
        assert torch.equal(one, store.read(n))
    # States and parameters that were updated there are taken up on the device, and vice versa.
    found.load_state_dict(copy.deepcopy(expected.state_dict()))
    with found.gathered():
        for parameter, gradient in zip(own.parameters(), gradients_of(own, 99), strict=True):
            parameter.grad = gradient
    found.step()
    plain_step(plain, expected, [gradients_of(plain, 99)])
    run(store, found, list(gradients_of(own, 100)), True)
    found.step()
    plain_step(plain, expected, [gradients_of(plain, 100)])
    found.close()
    assert all(map(torch.equal, plain.parameters(), own.parameters()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_parameters_of_any_dtype(dtype: torch.dtype) -> None:
    plain, own = model(dtype), model(dtype)
    expected = torch.optim.AdamW(groups_of(plain))
    store, found = lodged(own, torch.optim.AdamW(groups_of(own)))
    for step in range(2):
        gradients = gradients_of(plain, step)
        plain_step(plain, expected, [gradients])
        run(store, found, list(gradients), True)
        found.step()
    found.close()
    assert all(map(torch.equal, plain.parameters(), own.parameters()))


class AtOnce:
    """A disk whose stream beside is the thread that issues."""

    def __init__(self, disk: Any) -> None:
        self.disk = disk
        self.after: list[TransferHandle] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.disk, name)

    def beside(self, work: TargetWork, *after: TransferHandle) -> TransferHandle:
        self.after += after
        for ticket in after:
            ticket.done.result()
        work(self.disk.reach())
        done: Future[tuple[float, float]] = Future()
        done.set_result((0.0, 0.0))
        return TransferHandle(done, None)


@pytest.mark.parametrize(("kind", "options"), CASES[1::3])
def test_the_lane_takes_the_bytes_that_were_measured(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    like = [nn.Parameter(torch.zeros(40, 33))]
    groups = kind(like, **options).param_groups
    cost = measure_updates(kind, groups, ["weight"], PIECE)["weight"]
    with memory_session("cpu"):
        own = nn.Linear(33, 40, bias=False)
        store, found = lodged(own, kind(own.parameters(), **options))
    store.memory.memory = AtOnce(store.memory.memory)
    peaks = []
    for step in range(2):
        gradient = gradients_of(own, step)[0]
        visit = StepContext(store)
        own.weight.grad = gradient
        found._arrived(0)
        del gradient
        visit.send_gradient(0, 0)
        visit.wait_for_gradient(0)
        visit.free_gradient(0)
        gc.collect()
        with memory_session("cpu", lines=True) as running, running.section("update"):
            visit.optimize(0)
        visit.end_step()
        found.step()
        peaks.append(running.section_usage("update").peak)
    assert max(peaks) == cost.host_peak
    found.close()


def interrupted(
    store: ParameterStore,
    optimizer: Any,
    gradient: torch.Tensor,
    until: Callable[[StepContext], None],
) -> None:
    """A run that ends after a part of what it does with a gradient."""
    visit = StepContext(store)
    store.parameters[0].grad = gradient.clone()
    optimizer._arrived(0)
    until(visit)
    del visit


def is_consumed(parameter: torch.Tensor) -> bool:
    """Whether reading the gradient raises, since the optimizer has consumed it."""
    try:
        return parameter.grad is None
    except RuntimeError as error:
        assert "is gone: the optimizer of the plan has updated the parameter" in str(error)
        return True


def test_a_run_that_ends_early_loses_no_gradient() -> None:
    def nothing(visit: StepContext) -> None:
        pass

    def sent(visit: StepContext) -> None:
        visit.send_gradient(0, 0)

    def freed(visit: StepContext) -> None:
        sent(visit)
        visit.wait_for_gradient(0)
        visit.free_gradient(0)

    def updated(visit: StepContext) -> None:
        freed(visit)
        visit.optimize(0)

    for until in (nothing, sent, freed, updated):
        plain, own = nn.Linear(9, 33), nn.Linear(9, 33)
        own.load_state_dict(plain.state_dict())
        expected = torch.optim.AdamW(plain.parameters())
        store, found = lodged(own, torch.optim.AdamW(own.parameters()), there=[0])
        gradient = gradients_of(plain, 0)[0]
        interrupted(store, found, gradient, until)
        assert is_consumed(store.parameters[0]) is (until is updated)
        found.step()
        plain_step(plain, expected, [[gradient, None]])
        assert torch.equal(store.read(0), plain.weight)
        with found.gathered():
            assert all(map(torch.equal, own.parameters(), plain.parameters()))
        assert_alike(expected.state_dict(), found.state_dict())
        found.close()


def test_a_step_behind_a_backward_that_was_interrupted_takes_its_gradients() -> None:
    """Also while the run is still there, as in the handler of an exception."""
    plain, own = nn.Linear(9, 33), nn.Linear(9, 33)
    own.load_state_dict(plain.state_dict())
    expected = torch.optim.AdamW(plain.parameters())
    store, found = lodged(own, torch.optim.AdamW(own.parameters()))
    gradients = gradients_of(plain, 0)
    visit = StepContext(store)
    for n, gradient in enumerate(gradients):
        store.parameters[n].grad = gradient.clone()
    found._arrived(0)
    assert is_consumed(store.parameters[0])
    found.step()
    del visit
    plain_step(plain, expected, [gradients])
    assert all(is_consumed(parameter) for parameter in store.parameters)
    found.close()
    assert all(map(torch.equal, plain.parameters(), own.parameters()))


@pytest.mark.parametrize("adding", [False, True])
def test_what_is_done_with_a_gradient_comes_after_its_transfer(adding: bool) -> None:
    """On a GPU a wait returns at once, and the thread of the host has to wait itself."""
    own = nn.Linear(9, 33)
    store, found = lodged(own, torch.optim.AdamW(own.parameters()), adding)
    memory = AtOnce(store.memory.memory)
    store.memory.memory = memory
    with found.accumulating() if adding else contextlib.nullcontext():
        visit = StepContext(store, adding)
        store.parameters[0].grad = gradients_of(own, 0)[0]
        found._arrived(0)
        visit.send_gradient(0, 0)
        assert store.host_updater is not None
        sent = store.host_updater.moving[0]
        visit.wait_for_gradient(0)
        visit.free_gradient(0)
        (visit.accumulate if adding else visit.optimize)(0)
    assert sent in memory.after
    visit.end_step()
    found.close()


def test_the_lane_takes_tiny_numbers_for_zero_where_its_caller_does() -> None:
    own = nn.Linear(9, 33, bias=False)
    store, found = lodged(own, torch.optim.SGD(own.parameters(), lr=1.0))
    run(store, found, list(gradients_of(own, 0)), True)
    found.step()
    tiny = torch.full((33, 9), 1e-39)
    for flushes in (True, False):
        store.write(0, torch.zeros(33, 9))
        assert torch.set_flush_denormal(flushes)
        try:
            run(store, found, [tiny], True)
            found.step()
        finally:
            torch.set_flush_denormal(False)
        assert store.read(0).eq(0).all() == flushes
    found.close()


@pytest.mark.cuda
@pytest.mark.parametrize("parts", [1, 2])
def test_the_host_of_a_gpu_updates_as_torch_optim_does_on_a_cpu(parts: int) -> None:
    plain, own = model(), model().cuda()
    expected = torch.optim.AdamW(groups_of(plain), foreach=False)
    store, found = lodged(own, torch.optim.AdamW(groups_of(own), foreach=False), parts > 1, [2])
    for step in range(3):
        gradients = [gradients_of(plain, 10 * step + n) for n in range(parts)]
        plain_step(plain, expected, gradients)
        for number, each in enumerate(gradients):
            run(store, found, [gradient.cuda() for gradient in each], number == parts - 1)
        found.step()
    found.close()
    for one, other in zip(plain.parameters(), own.parameters(), strict=True):
        assert torch.equal(one, other.cpu())


def test_a_file_that_was_cut_off_ends_in_one_sentence() -> None:
    own = nn.Linear(9, 33)
    store, found = lodged(own, torch.optim.AdamW(own.parameters()))
    disk: Any = store.memory.memory
    run(store, found, list(gradients_of(own, 0)), True)
    found.step()
    visit = StepContext(store)
    store.parameters[0].grad = gradients_of(own, 0)[0]
    found._arrived(0)
    visit.send_gradient(0, 0)
    visit.wait_for_gradient(0)
    os.ftruncate(disk.file.fileno(), 8)
    visit.optimize(0)
    with pytest.raises(RuntimeError, match=r"tensors cannot wait in files of .* shorter than what"):
        visit.wait_for_gradient(0)
    for use in (lambda: StepContext(store), found.state_dict, lambda: store.read(0)):
        with pytest.raises(RuntimeError, match=r"has failed, and some of them may be lost: make"):
            use()


def test_settings_that_ask_for_more_states_are_told_ahead_of_all() -> None:
    own = nn.Linear(9, 33)
    before = copy.deepcopy(own.state_dict())
    store, found = lodged(own, torch.optim.SGD(own.parameters(), lr=0.1))
    found.param_groups[0]["momentum"] = 0.9
    with pytest.raises(RuntimeError, match=r"has momentum 0\.9 now, which takes more states"):
        run(store, found, list(gradients_of(own, 0)), True)
    found.close()
    assert_alike(own.state_dict(), before)


def test_a_lane_that_is_another_one_than_planned_is_refused() -> None:
    own = nn.Linear(9, 33)
    before = copy.deepcopy(own.state_dict())
    with pytest.raises(RuntimeError, match=r"pass through .* bytes, in the plan 7: plan again"):
        lodged(own, torch.optim.AdamW(own.parameters()), workspace=7)
    assert type(own.weight) is nn.Parameter
    assert_alike(own.state_dict(), before)
