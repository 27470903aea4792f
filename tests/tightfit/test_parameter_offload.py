"""Plans whose parameters live on disk: trained as without, in the bytes predicted, or refused."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightfit
from tests.tightfit.optimizer_steps import alike, check_three_steps, loss
from tightfit import FusedKernelOptions, ParameterOffloadOptions
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.util.errors import ConfigError, ModelError

pytestmark = pytest.mark.usefixtures("traced_once")

SETTINGS: dict[str, Any] = {"progress": False, "offload": ParameterOffloadOptions()}


@pytest.fixture(autouse=True)
def _small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIGHTFIT_DISK", str(tmp_path))
    monkeypatch.setattr("tightfit.stages.profile.link_cache.CACHED_LINK_BYTES", 4 << 20)
    monkeypatch.setattr("tightfit.api.parameter_offload.MIN_OFFLOAD_BYTES", 1 << 10)


class Deep(nn.Module):
    """Reads tokens and predicts them with one table; one layer is used twice, one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(40, 32)
        self.layers = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
        self.norm = nn.LayerNorm(32)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))
        self.layers[1].requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.table(tokens)
        for layer in (*self.layers, self.layers[0]):
            hidden = hidden + nn.functional.gelu(layer(hidden))
        self.seen.add_(1)
        return nn.functional.linear(self.norm(hidden), self.table.weight)


def deep() -> tuple[Any, tuple[Tensor]]:
    torch.manual_seed(0)
    return Deep(), (torch.randint(0, 40, (2, 6)),)


def adamw(model: Any) -> Any:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": trained[:1], "lr": 0.03, "weight_decay": 0.1},
        {"params": trained[1:]},
    ]
    return torch.optim.AdamW(groups, lr=0.01)


def test_parameters_that_are_all_small_are_refused_ahead_of_measurements(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tightfit.api.parameter_offload.MIN_OFFLOAD_BYTES", 1 << 20)
    monkeypatch.delattr("tightfit.api.stage_runner.StageRunner.profile")
    model, args = deep()
    with pytest.raises(ConfigError, match="none has 1048576 bytes or more for itself"):
        tightfit.plan(model, args, optimizer=adamw(model), loss=loss, store=tmp_path, **SETTINGS)


def momentum(model: nn.Module) -> Any:
    return torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=0.01, momentum=0.9, nesterov=True
    )


def adam(model: nn.Module) -> Any:
    return torch.optim.Adam(model.parameters(), amsgrad=True)


def train(module: Any, optimizer: Any, args: Any, steps: int = 3) -> list[Tensor]:
    """Steps with a scheduler; the losses."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    found = []
    for _ in range(steps):
        value = loss(module(*args))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        found.append(value.detach())
    return found


@pytest.mark.sample(only=["adamw-min"])
@pytest.mark.parametrize(("kind", "budget"), [(adamw, "min"), (momentum, 90_000), (adam, 260_000)])
def test_three_steps_are_those_of_torch_in_the_bytes_predicted(
    kind: Any, budget: Any, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, args = deep()
    plain = copy.deepcopy(model)
    # All updates are the device's.
    monkeypatch.setattr(
        "tightfit.stages.profile.optimizer_updates.has_spare_core", lambda device: False
    )
    with memory_session("cpu"):
        model = copy.deepcopy(model)
    before = list(model.parameters())
    expected = kind(plain)
    fitted, made = tightfit.plan(
        model, args, loss=loss, optimizer=kind(model), budget=budget, store=store, **SETTINGS
    )
    optimizer: Any = made.optimizer
    assert made.optimizer_step is not None and made.optimizer_step.remote > 20_000
    assert made.budget_total is not None and made.optimizer_step.total <= made.budget_total
    assert budget != "min" or made.budget_total < 90_000
    assert f"feasible: {made.optimizer_step.total:,} bytes of the device" in made.message
    # Where there is room for them, states stay on the device.
    assert optimizer._updates.resident.bytes == made.optimizer_step.resident
    assert budget != 260_000 or made.optimizer_step.resident > 10_000
    check_three_steps(fitted, optimizer, plain, expected, args, made.optimizer_step)
    assert all(map(lambda one, other: one is other, before, model.parameters()))
    optimizer.close()
    assert all(map(torch.equal, model.parameters(), plain.parameters()))
    saved = plain.state_dict()
    assert alike(dict(fitted.state_dict()), dict(saved))
    assert fitted.state_dict()["norm.bias"].data_ptr() == model.norm.bias.data_ptr()
    fitted.load_state_dict({key: value + 1 for key, value in saved.items()})
    module: Any = fitted
    with module.gathered():
        assert torch.equal(model.table.weight, saved["table.weight"] + 1)


@pytest.fixture(scope="module")
def package(store: Path) -> Path:
    """The folder of a package."""
    model, args = deep()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tightfit.stages.profile.link_cache.CACHED_LINK_BYTES", 4 << 20)
        patch.setattr("tightfit.api.parameter_offload.MIN_OFFLOAD_BYTES", 1 << 10)
        _, made = tightfit.plan(
            model, args, loss=loss, optimizer=adamw(model), budget=100_000, store=store,
            check=False, **SETTINGS,
        )  # fmt: skip
    return made.package


def planned(package: Path) -> tuple[Any, ...]:
    """A planned module with its optimizer, its model, and a plain twin with its optimizer."""
    model, _ = deep()
    plain = copy.deepcopy(model)
    fitted, optimizer = tightfit.load_whole(package, model, adamw(model))
    return fitted, optimizer, model, plain, adamw(plain)


def test_a_model_whose_parameters_are_away_is_not_planned(package: Path, store: Path) -> None:
    _, optimizer, model, *_ = planned(package)
    with pytest.raises(ModelError, match=r"in an offload target, .*: close\(\) that optimizer"):
        tightfit.plan(model, deep()[1], loss=loss, progress=False, store=store)
    optimizer.close()


def test_what_asks_for_values_elsewhere_is_refused_or_right(package: Path) -> None:
    fitted, optimizer, model, plain, expected = planned(package)
    _, args = deep()
    weight = model.layers[0].weight
    for use in (
        lambda: model(*args),
        lambda: weight + 1,
        lambda: weight.data,
        lambda: torch.linalg.norm(weight),
        lambda: model.state_dict(),
        lambda: copy.deepcopy(model),
        lambda: model.double(),
        lambda: torch.nn.utils.parameters_to_vector(model.parameters()),
        lambda: torch.stack([weight, weight]),
    ):
        with pytest.raises(
            RuntimeError, match=r"the values of .* are in an offload target: use them"
        ):
            use()
    for mode in (torch.no_grad, lambda: fitted.train(False) and torch.enable_grad()):
        with mode(), pytest.raises(RuntimeError, match=r"use them within optimizer\.gathered"):
            fitted(*args)
        fitted.train()
    with pytest.raises(RuntimeError, match="neither copied nor pickled"):
        copy.deepcopy(fitted)
    assert weight.shape == (32, 32) and weight.dtype == torch.float32 and weight.grad is None
    assert "in an offload target" in repr(weight) and weight.requires_grad and weight.is_leaf
    train(fitted, optimizer, args, 1)
    train(plain, expected, args, 1)
    value, other = loss(fitted(*args)), loss(plain(*args))
    with pytest.warns(UserWarning, match="To copy construct"):
        copied = torch.tensor(weight)
    with pytest.raises(RuntimeError, match=r"not implemented|Float4"):
        copied.sum()
    value.backward(), other.backward()
    optimizer.step(), expected.step()
    expected.zero_grad(), optimizer.zero_grad()
    with optimizer.gathered(), torch.no_grad():
        assert torch.equal(model.eval()(*args), plain.eval()(*args))
        weight.mul_(2)
        plain.layers[0].weight.mul_(2)
    model.train(), plain.train()
    assert all(map(torch.equal, train(fitted, optimizer, args), train(plain, expected, args)))
    with fitted.gathered():
        assert all(map(torch.equal, model.parameters(), plain.parameters()))
        with pytest.raises(RuntimeError, match=r"begins within gathered\(\)"):
            fitted(*args)
    optimizer.close()


def test_state_dicts_are_those_of_torch(package: Path, tmp_path: Path) -> None:
    fitted, optimizer, _, plain, expected = planned(package)
    _, args = deep()
    train(fitted, optimizer, args)
    train(plain, expected, args)
    torch.save((fitted.state_dict(), optimizer.state_dict()), tmp_path / "saved")
    mine, states = torch.load(tmp_path / "saved")
    held, holder = fitted.state_dict(), nn.Sequential(fitted).state_dict(prefix="of.")
    other = deep()[0]
    other.load_state_dict(mine)
    own = adamw(other)
    own.load_state_dict(copy.deepcopy(states))
    wanted = train(plain, expected, args)
    assert all(map(torch.equal, train(other, own, args), wanted))
    train(fitted, optimizer, args, 1)
    assert alike(held, mine)
    assert alike(dict(holder), {f"of.0.{name}": tensor for name, tensor in mine.items()})
    with pytest.raises(RuntimeError, match="assign=True"):
        fitted.load_state_dict(mine, assign=True)
    with pytest.raises(RuntimeError, match=r"size mismatch for layers\.0\.weight"):
        fitted.load_state_dict({**mine, "layers.0.weight": torch.zeros(3)})
    fitted.load_state_dict(mine)
    optimizer.load_state_dict(states)
    assert all(map(torch.equal, train(fitted, optimizer, args), wanted))
    optimizer.close()


def test_gradients_of_microbatches_add_up_and_are_clipped(package: Path) -> None:
    fitted, optimizer, _, plain, expected = planned(package)
    _, args = deep()
    for _ in range(2):
        for module in (fitted, plain):
            own = optimizer if module is fitted else expected
            for _ in range(2):
                if module is fitted:
                    with own.accumulating():
                        loss(module(*args)).backward()
                else:
                    loss(module(*args)).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), 0.01)
            own.step()
            own.zero_grad()
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    optimizer.close()


def test_a_forward_without_its_backward_changes_nothing(package: Path) -> None:
    fitted, optimizer, _, plain, expected = planned(package)
    _, args = deep()
    first = loss(fitted(*args))
    second = loss(fitted(*args))
    with pytest.raises(RuntimeError, match=r"another forward, .* came between a forward and the"):
        first.backward()
    second.backward()
    optimizer.step()
    third = fitted(*args)
    with optimizer.gathered(), pytest.raises(RuntimeError, match=r"gathered\(\), came between"):
        loss(third).backward()
    plain.seen.add_(2)
    loss(plain(*args)).backward()
    expected.step()
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    optimizer.close()


def test_a_module_without_its_optimizer_does_not_train(package: Path) -> None:
    fitted, optimizer, model, plain, _ = planned(package)
    _, args = deep()
    del optimizer
    gc.collect()
    with pytest.raises(RuntimeError, match="the optimizer of the plan is gone"):
        fitted(*args)
    with pytest.raises(RuntimeError, match=r"brings them back, is gone: the .* state_dict\(\) has"):
        model(*args)
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))


class StopError(Exception):
    """What a hook raises."""


def test_a_backward_that_is_interrupted_leaves_whole_parameters(package: Path) -> None:
    fitted, optimizer, model, plain, expected = planned(package)
    _, args = deep()

    def stop(gradient: Tensor) -> None:
        raise StopError

    handle = model.layers[0].weight.register_hook(stop)
    with pytest.raises(StopError):
        loss(fitted(*args)).backward()
    handle.remove()
    before = copy.deepcopy(plain.state_dict())
    loss(plain(*args)).backward()
    expected.step()
    after, found = plain.state_dict(), fitted.state_dict()
    changed = {name for name in found if not torch.equal(found[name], before[name])}
    assert changed
    assert all(torch.equal(found[name], after[name]) for name in changed - {"seen"})
    optimizer.close()


def test_what_cannot_be_is_told(store: Path, package: Path) -> None:
    model, args = deep()

    def refused(words: str, **settings: Any) -> None:
        given = {"optimizer": adamw(model), "budget": 100_000, "store": store, **SETTINGS}
        with pytest.raises(ConfigError, match=words):
            tightfit.plan(model, args, loss=loss, **{**given, **settings})

    refused("needs the optimizer", optimizer=None)
    refused("leave strategy out", strategy="rotor")
    refused("fused kernels", fused_kernels=FusedKernelOptions())
    refused("has no original to run", on_mismatch="original")
    refused(r"no plan fits in 40,000 bytes: aten\.\S+ of table needs \d\d,\d+ with", budget=40_000)
    with pytest.raises(ConfigError, match="path is '/nowhere', which is no folder: make it"):
        ParameterOffloadOptions("/nowhere")
    some = torch.optim.SGD([model.norm.weight], lr=0.1)
    refused("has a gradient, and is not among the parameters", optimizer=some)
    kept = model.layers[2].weight.detach()
    with pytest.raises(tightfit.ArtifactError, match=r"layers\.2\.weight shares its memory with"):
        tightfit.load_whole(package, model, adamw(model))
    del kept
    with pytest.raises(tightfit.ArtifactError, match="loaded with its optimizer"):
        tightfit.load(package, model)
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
    assert loss(model(*args)).isfinite()


@pytest.mark.long
@pytest.mark.parametrize(
    ("budget", "words"),
    [
        (74_000, "no plan is known that fits in 74,000 bytes: in the smallest known"),
        (77_000, r"fits in 77,000 bytes: in the closest known there are \d\d,\d+ with"),
    ],
)
def test_a_budget_that_no_known_plan_keeps_is_told(budget: int, words: str, store: Path) -> None:
    model, args = deep()
    with pytest.raises(ConfigError, match=words):
        tightfit.plan(
            model, args, loss=loss, optimizer=adamw(model), budget=budget, store=store, **SETTINGS
        )


def test_a_model_that_is_not_read_into_memory(store: Path, tmp_path: Path) -> None:
    plain, args = deep()
    torch.save(plain.state_dict(), tmp_path / "model.pt")
    with torch.device("meta"):
        model: Any = Deep()
    model.load_state_dict(torch.load(tmp_path / "model.pt", mmap=True), assign=True)
    model.layers[1].requires_grad_(False)
    fitted, made = tightfit.plan(
        model, args, loss=loss, optimizer=adamw(model), budget=100_000, store=store, check=False,
        **SETTINGS,
    )  # fmt: skip
    optimizer: Any = made.optimizer
    expected = adamw(plain)
    assert all(map(torch.equal, train(fitted, optimizer, args), train(plain, expected, args)))
    assert alike(dict(fitted.state_dict()), dict(plain.state_dict()))
    optimizer.close()
