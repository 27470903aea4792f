"""Plans whose parameters are updated on the disk that they live on, beside the device: trained as
without, in the bytes predicted."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import tightfit
from tests.tightfit import test_parameter_offload as away
from tests.tightfit.optimizer_steps import Measured, alike, check_three_steps, loss
from tests.tightfit.test_parameter_offload import SETTINGS, adamw, deep, momentum
from tightfit import ParameterOffloadOptions
from tightfit.api import parameter_offload
from tightfit.stages.torch_utils.memory_meter import memory_session

pytestmark = pytest.mark.usefixtures("traced_once")


@pytest.fixture(autouse=True, scope="module")
def _slow_device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Updates on the device are said to take long, so that the disk's stream does them."""
    known = parameter_offload.measure_optimizer

    def measured(*args: Any, **kwargs: Any) -> Any:
        found = known(*args, **kwargs)
        costs = {
            path: replace(cost, seconds=1.0, host_seconds=1e-6, add_seconds=1e-6)
            for path, cost in found.costs.items()
        }
        return replace(found, costs=costs, spare=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIGHTFIT_DISK", str(tmp_path_factory.mktemp("disk")))
        patch.setattr("tightfit.stages.profile.link_cache.CACHED_LINK_BYTES", 4 << 20)
        patch.setattr("tightfit.api.parameter_offload.MIN_OFFLOAD_BYTES", 1 << 10)
        patch.setattr(parameter_offload, "measure_optimizer", measured)
        yield


def plain_sgd(model: nn.Module) -> Any:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)


def made_of(model: Any, args: Any, kind: Any, budget: int | str, store: Path, **more: Any) -> Any:
    return tightfit.plan(
        model, args, loss=loss, optimizer=kind(model), budget=budget, store=store, check=False,
        **{**SETTINGS, **more},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "budget"),
    [(adamw, 150_000), (plain_sgd, 110_000)],
)
def test_updates_on_disk_are_those_of_torch_in_the_bytes_predicted(
    kind: Any, budget: int, store: Path
) -> None:
    model, args = deep()
    plain = copy.deepcopy(model)
    with memory_session("cpu"):
        model = copy.deepcopy(model)
    expected = kind(plain)
    fitted, made = made_of(model, args, kind, budget, store)
    optimizer: Any = made.optimizer
    whole = made.optimizer_step
    assert whole is not None and whole.total <= budget and whole.away > 10_000 and whole.workspace
    check_three_steps(fitted, optimizer, plain, expected, args, whole)
    optimizer.close()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))


@pytest.fixture(scope="module")
def one_microbatch(store: Path) -> tuple[Path, Any]:
    """The folder of a package that updates on the disk, and what is predicted of it."""
    model, args = deep()
    _, made = made_of(model, args, adamw, 150_000, store)
    return made.package, made.optimizer_step


@pytest.mark.parametrize(
    "use",
    [
        away.test_what_asks_for_values_elsewhere_is_refused_or_right,
        away.test_gradients_of_microbatches_add_up_and_are_clipped,
        away.test_a_forward_without_its_backward_changes_nothing,
        away.test_a_module_without_its_optimizer_does_not_train,
        away.test_a_backward_that_is_interrupted_leaves_whole_parameters,
    ],
)
def test_parameters_that_are_updated_on_disk_are_used_as_others(
    use: Any, one_microbatch: tuple[Path, Any]
) -> None:
    use(one_microbatch[0])


def test_gradients_that_add_up_on_the_device_leave_with_the_last_one(
    one_microbatch: tuple[Path, Any],
) -> None:
    """Where a step was planned as one microbatch, `accumulating_peak` is that of the last one."""
    package, whole = one_microbatch
    fitted, optimizer, plain, expected = planned(package)
    measured, peaks = Measured(fitted), []
    for part in range(2):
        args = inputs_of(part)
        peaks.append(measured.peak(args, None if part else optimizer.accumulating()))
        loss(plain(*args)).backward()
    optimizer.step()
    expected.step()
    assert peaks[1] == whole.accumulating_peak
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    optimizer.close()


@pytest.fixture(scope="module")
def microbatches(store: Path) -> tuple[Path, Any]:
    """The folder of a package of two microbatches, and what is predicted of them."""
    model, args = deep()
    _, made = made_of(
        model, args, adamw, 170_000, store, offload=ParameterOffloadOptions(microbatches=2)
    )
    return made.package, made.optimizer_step


class Turned(nn.Module):
    """Reads a parameter whose elements lie transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(24, 24), nn.Linear(24, 24)
        self.turned = nn.Parameter(torch.randn(24, 29).t() / 9)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        made: Tensor = self.last(hidden + (hidden @ self.turned.t())[..., :24])
        return made


def test_a_parameter_that_lies_transposed_takes_the_bytes_predicted(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightfit.stages.runtime.offload.backward_optimizer.PIECE_BYTES", 512)
    plain, args = Turned(), (torch.randn(4, 24),)
    with memory_session("cpu"):
        model = copy.deepcopy(plain)
    fitted, made = made_of(model, args, momentum, "min", store)
    check_three_steps(fitted, made.optimizer, plain, momentum(plain), args, made.optimizer_step)


def planned(package: Path) -> tuple[Any, Any, Any, Any]:
    """A planned module with its optimizer, and a plain one with its own."""
    with memory_session("cpu"):
        model = deep()[0]
    plain = deep()[0]
    return *tightfit.load_whole(package, model, adamw(model)), plain, adamw(plain)


def inputs_of(number: int) -> tuple[Tensor]:
    return (torch.randint(0, 40, (2, 6), generator=torch.Generator().manual_seed(number)),)


def train_parts(module: Any, optimizer: Any, counts: tuple[int, ...]) -> list[Tensor]:
    """Steps of so many microbatches each; the losses."""
    found = []
    for step, count in enumerate(counts):
        for part in range(count):
            waits = part < count - 1 and hasattr(optimizer, "accumulating")
            with optimizer.accumulating() if waits else contextlib.nullcontext():
                value = loss(module(*inputs_of(10 * step + part)))
                value.backward()
            found.append(value.detach())
        optimizer.step()
        optimizer.zero_grad()
    return found


def test_gradients_of_microbatches_add_up_on_disk(microbatches: tuple[Path, Any]) -> None:
    package, whole = microbatches
    fitted, optimizer, plain, expected = planned(package)
    assert whole.microbatches == 2 and whole.total <= 170_000 and whole.away > 10_000
    assert optimizer.slow_bytes == whole.slow
    counts = (2, 3, 1, 2)
    mine, other = (
        train_parts(fitted, optimizer, counts),
        train_parts(plain, expected, counts),
    )
    assert all(map(torch.equal, mine, other))
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    assert alike(optimizer.state_dict(), expected.state_dict())
    optimizer.close()


def test_each_microbatch_takes_the_bytes_predicted(microbatches: tuple[Path, Any]) -> None:
    package, whole = microbatches
    fitted, optimizer, _, _ = planned(package)
    measured = Measured(fitted)
    for number in range(2):
        peaks = [
            measured.peak(inputs_of(part), optimizer.accumulating() if part < 2 else None)
            for part in range(3)
        ]
        optimizer.step()
        optimizer.zero_grad()
        last = whole.peak if number else whole.first_peak
        assert peaks == [whole.first_microbatch_peak, whole.microbatch_peak, last]
    optimizer.close()
    stays = whole.parameters + whole.buffers + whole.inputs + whole.resident + whole.gradients
    first = whole.first_microbatch_peak - whole.gradients
    most = max(whole.peak, whole.first_peak, whole.microbatch_peak, first)
    assert whole.total == stays + whole.staging + whole.workspace + most and whole.gradients > 0


def test_microbatches_that_could_not_be_are_refused(microbatches: tuple[Path, Any]) -> None:
    fitted, optimizer, plain, expected = planned(microbatches[0])
    value = loss(fitted(*inputs_of(0)))
    with optimizer.accumulating(), pytest.raises(RuntimeError, match="belong within the same"):
        value.backward()
    with optimizer.accumulating():
        value = loss(fitted(*inputs_of(0)))
    with pytest.raises(RuntimeError, match="belong within the same"):
        value.backward()
    with optimizer.accumulating():
        loss(fitted(*inputs_of(0))).backward()
    with pytest.raises(RuntimeError, match="whose gradients wait in an offload target"):
        optimizer.step()
    optimizer.zero_grad()
    plain.seen.add_(3)
    counts = (2,)
    assert all(
        map(
            torch.equal,
            train_parts(fitted, optimizer, counts),
            train_parts(plain, expected, counts),
        )
    )
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    optimizer.close()


def test_the_fastest_number_of_microbatches_is_taken(store: Path) -> None:
    """A number each for samples of several shapes; one that does not fit is left out."""
    model, _ = deep()
    samples: Any = [((torch.zeros(size, 6, dtype=torch.int64),), {}) for size in (200, 2)]
    given: dict[str, Any] = {"samples": samples, "loss": loss, "optimizer": adamw(model)}
    given |= {"budget": 170_000, "store": store, "check": False, **SETTINGS}
    for words, counts in (
        (
            "a number for each shape of samples: given are 1 number for 2 shapes",
            [1],
        ),
        ("is for samples of one shape, or for as many numbers", 1),
        ("microbatches is 0, expected a number from 1 on", [1, 0]),
        ("microbatches is 'a', expected a number from 1 on", "a"),
    ):
        with pytest.raises(tightfit.ConfigError, match=words):
            offload = ParameterOffloadOptions(microbatches=cast(Any, counts))
            tightfit.plan(model, **{**given, "offload": offload})
    fitted, made = tightfit.plan(
        model, **{**given, "offload": ParameterOffloadOptions(microbatches=[1, 2])}
    )
    optimizer: Any = made.optimizer
    assert made.optimizer_step is not None and made.optimizer_step.microbatches == 2
    plain = deep()[0]
    expected = adamw(plain)
    mine, other = train_parts(fitted, optimizer, (2,)), train_parts(plain, expected, (2,))
    assert all(map(torch.equal, mine, other))
    optimizer.close()
