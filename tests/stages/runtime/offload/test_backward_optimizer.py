"""Optimizers that step in the backward: bit for bit those of torch.optim, or refused."""

from __future__ import annotations

import contextlib
import copy
import errno
import gc
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tightfit.stages.runtime.offload.backward_optimizer import in_backward
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE

CASES: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "fused": True}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 0.01}),
    (torch.optim.AdamW, {"lr": 0.01, "amsgrad": True, "foreach": True, "maximize": True}),
    (torch.optim.AdamW, {"lr": 0.01, "fused": True}),
]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))


def model(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(
        nn.Linear(9, 33), nn.ReLU(), nn.Linear(33, 40, bias=False), nn.LayerNorm(40)
    )
    return made.to(dtype)


def groups_of(module: nn.Module) -> list[dict[str, Any]]:
    """Two groups, of which one has a learning rate of its own."""
    first, *rest = module.parameters()
    return [{"params": [first], "lr": 0.03}, {"params": rest}]


def train(module: nn.Module, optimizer: Any, steps: int = 3, parts: int = 1, seed: int = 1) -> None:
    """Steps of several microbatches each, with a scheduler."""
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    generator = torch.Generator().manual_seed(seed)
    some = next(module.parameters())
    for _ in range(steps):
        for part in range(parts):
            inputs = torch.randn(4, 9, generator=generator).to(some.dtype)
            waits = hasattr(optimizer, "accumulating") and part < parts - 1
            with optimizer.accumulating() if waits else contextlib.nullcontext():
                (module(inputs).square().mean() / parts).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


def assert_alike(one: Any, other: Any) -> None:
    """The same structure, types and bits."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_alike(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            assert_alike(mine, its)
    elif isinstance(one, Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert one.stride() == other.stride() and torch.equal(one, other)
    else:
        assert one == other


def assert_trained_alike(one: nn.Module, other: nn.Module) -> None:
    assert_alike([p.detach() for p in one.parameters()], [p.detach() for p in other.parameters()])


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize(("kind", "options"), CASES)
def test_as_torch_optim(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], parts: int
) -> None:
    plain, own = model(), model()
    expected = kind(groups_of(plain), **options)
    found = in_backward(kind(groups_of(own), **options), piece_bytes=512)
    train(plain, expected, parts=parts)
    train(own, found, parts=parts)
    assert_trained_alike(plain, own)
    assert_alike(expected.state_dict(), found.state_dict())
    assert isinstance(found, kind) and all(p.grad is None for p in own.parameters())


@settings(max_examples=25, deadline=None)
@given(
    shapes=st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.complex64]),
    piece_bytes=st.sampled_from([1, 100, 1 << 20]),
    turned=st.booleans(),
)
def test_parameters_of_any_shape_dtype_and_order(
    shapes: list[list[int]], dtype: torch.dtype, piece_bytes: int, turned: bool
) -> None:
    def parameters() -> list[Tensor]:
        torch.manual_seed(0)
        made = [torch.randn(shape).to(dtype) for shape in shapes]
        return [
            (t.permute(tuple(range(t.dim()))[::-1]) if turned else t).requires_grad_() for t in made
        ]

    def steps(tensors: list[Tensor], optimizer: torch.optim.Optimizer) -> None:
        for number in range(3):
            order = tensors if number < 2 else tensors[::-1]
            for tensor in order:
                (tensor * tensor.detach().conj()).abs().sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    plain, own = parameters(), parameters()
    expected = torch.optim.AdamW(plain, lr=0.1)
    found = in_backward(torch.optim.AdamW(own, lr=0.1), piece_bytes=piece_bytes)
    steps(plain, expected)
    steps(own, found)
    assert_alike([p.detach() for p in plain], [p.detach() for p in own])
    assert_alike(expected.state_dict(), found.state_dict())


@pytest.mark.parametrize(("kind", "options"), [CASES[1], CASES[6]])
def test_states_go_from_one_to_the_other_and_back(
    kind: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    plain = model()
    expected = kind(groups_of(plain), **options)
    train(plain, expected)
    moved, loaded = copy.deepcopy(plain), copy.deepcopy(plain)
    before = kind(groups_of(moved), **options)
    before.load_state_dict(expected.state_dict())
    taken = in_backward(before, piece_bytes=512)
    again = in_backward(kind(groups_of(loaded), **options), piece_bytes=512)
    train(loaded, again, steps=1, seed=7)
    loaded.load_state_dict(plain.state_dict())
    again.load_state_dict(expected.state_dict())
    for module, optimizer in ((plain, expected), (moved, taken), (loaded, again)):
        train(module, optimizer, seed=2)
    assert_trained_alike(plain, moved)
    assert_trained_alike(plain, loaded)
    assert not before.state
    other = kind(groups_of(loaded), **options)
    other.load_state_dict(again.state_dict())
    assert_alike(other.state_dict(), expected.state_dict())


def test_states_are_looked_at_one_by_one() -> None:
    own = model()
    first = next(own.parameters())
    found = in_backward(torch.optim.AdamW(own.parameters()))
    assert not found.state and first not in found.state
    train(own, found, steps=1)
    assert found.state[first]["exp_avg"].shape == (33, 9)
    assert len(found.state) == 5


def test_states_are_not_changed_behind_the_optimizers_back() -> None:
    own = model()
    found: Any = in_backward(torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9))
    train(own, found, steps=1)
    first = next(own.parameters())
    with pytest.raises(RuntimeError, match="make a clone"):
        found.state[first]["momentum_buffer"].zero_()
    taken = found.state_dict()["state"][0]["momentum_buffer"]
    assert not taken.zero_().any() and found.state[first]["momentum_buffer"].any()
    found.state = {}
    with pytest.raises(RuntimeError, match=r"optimizer\.state was replaced"):
        train(own, found, steps=1)


def test_a_disk_that_failed_goes_on_failing_in_a_sentence() -> None:
    own = model()
    found: Any = in_backward(torch.optim.AdamW(own.parameters()), piece_bytes=256)
    train(own, found, steps=1)
    os.truncate(found._updates.ring.memory.file.fileno(), 0)
    for _ in range(6):
        with pytest.raises(RuntimeError, match="shorter than what was written"):
            found.state_dict()
    found.close()
    with pytest.raises(RuntimeError, match="what waited there is gone"):
        found.state_dict()


def test_what_comes_behind_a_backward_that_a_disk_ended_names_the_disk(tmp_path: Path) -> None:
    own = model()
    found: Any = in_backward(torch.optim.AdamW(own.parameters()), piece_bytes=256)
    train(own, found, steps=2)
    saved = found.state_dict()
    found._updates.ring.forget()
    for key in list(found._updates.ring.stored)[:4]:
        found._updates.ring.stored[key] = found._updates.ring.memory.beside(_broken)
    words = rf"files of {tmp_path} \(Input/output error\): .*; this ended a backward .* go on"
    with pytest.raises(RuntimeError, match=r"\(Input/output error\): .* as disk, or in \w+$"):
        own(torch.ones(2, 9)).sum().backward()
    uses = (
        lambda: own(torch.ones(2, 9)).sum().backward(),
        found.zero_grad,
        lambda: found.load_state_dict(saved),
    )
    for use in uses:
        with pytest.raises(RuntimeError, match=words):
            use()
    found.close()
    again = in_backward(torch.optim.AdamW(own.parameters()))
    again.load_state_dict(saved)
    train(own, again, steps=1)


def _broken(reach: Any) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_wait_for_states_that_is_interrupted_is_waited_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = model(), model()
    mine: Any = in_backward(torch.optim.Adam(one.parameters()), piece_bytes=64)
    its = torch.optim.Adam(other.parameters())
    train(one, mine)
    train(other, its)
    saved = mine.state_dict()
    ring = mine._updates.ring

    def interrupted(ticket: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ring.memory, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            mine.state_dict()
    assert any(staging.moving for staging in ring.free)
    assert_alike(mine.state_dict(), saved)
    train(one, mine)
    train(other, its)
    assert_trained_alike(one, other)


def test_groups_without_parameters() -> None:
    with pytest.raises(RuntimeError, match="has no parameters"):
        in_backward(torch.optim.SGD([{"params": []}], lr=0.1))
    groups: Any = [{"params": []}, {"params": model().parameters()}]
    found: Any = in_backward(torch.optim.SGD(groups, lr=0.1, momentum=0.9))
    assert found.slow_bytes


def test_gradients_are_clipped_where_a_backward_only_accumulates() -> None:
    plain, own = model(), model()
    expected = torch.optim.AdamW(plain.parameters())
    found: Any = in_backward(torch.optim.AdamW(own.parameters()))
    for module, optimizer in ((plain, expected), (own, found)):
        with optimizer.accumulating() if optimizer is found else contextlib.nullcontext():
            module(torch.ones(2, 9)).sum().backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.1)
        optimizer.step()
    assert_trained_alike(plain, own)


def test_parameters_without_a_gradient_stay_as_they_are() -> None:
    plain, own = model(), model()
    for module in (plain, own):
        module[2].weight.requires_grad_(False)
    expected = torch.optim.AdamW(plain.parameters())
    found = in_backward(torch.optim.AdamW(own.parameters()))
    train(plain, expected)
    train(own, found)
    assert_trained_alike(plain, own)
    assert_alike(expected.state_dict(), found.state_dict())


def test_a_second_backward_before_the_step_is_refused() -> None:
    own = model()
    found = in_backward(torch.optim.SGD(own.parameters(), lr=0.1))
    assert found.param_groups
    own(torch.ones(2, 9)).sum().backward()
    with pytest.raises(RuntimeError, match=r"within optimizer.accumulating\(\)"):
        own(torch.ones(2, 9)).sum().backward()


def test_what_comes_too_late_is_refused() -> None:
    own = model()
    found = in_backward(torch.optim.SGD(own.parameters(), lr=0.1))
    own(torch.ones(2, 9)).sum().backward()
    with pytest.raises(RuntimeError, match=r"zero_grad.. comes before optimizer.step"):
        found.zero_grad()
    with pytest.raises(RuntimeError, match=r"load_state_dict.. comes between"):
        found.load_state_dict(found.state_dict())
    found.param_groups[0]["lr"] = 0.2
    with pytest.raises(RuntimeError, match="lr of the optimizer was changed"):
        found.step()


def test_a_setting_that_asks_for_more_states_is_refused_ahead_of_all() -> None:
    own = model()
    found = in_backward(torch.optim.Adam(own.parameters(), lr=0.1))
    before = copy.deepcopy(own.state_dict())
    found.param_groups[0]["amsgrad"] = True
    for _ in range(6):
        with pytest.raises(RuntimeError, match=r"has amsgrad True now, which takes more .* the 2"):
            own(torch.ones(2, 9)).sum().backward()
        own.zero_grad()
    assert all(map(torch.equal, before.values(), own.state_dict().values()))
    assert len(found._updates.ring.free) == 4  # type: ignore[attr-defined]
    found.param_groups[0]["amsgrad"] = False
    own(torch.ones(2, 9)).sum().backward()
    found.step()
    assert not all(map(torch.equal, before.values(), own.state_dict().values()))


def test_a_scheduler_that_sets_a_momentum_is_named() -> None:
    own = model()
    found = in_backward(torch.optim.SGD(own.parameters(), lr=0.1))
    torch.optim.lr_scheduler.OneCycleLR(found, max_lr=0.1, total_steps=9)
    said = r"has momentum 0.95 now, .* as OneCycleLR or CyclicLR .* with cycle_momentum=False$"
    with pytest.raises(RuntimeError, match=said):
        own(torch.ones(2, 9)).sum().backward()


def test_one_optimizer_at_a_time() -> None:
    own = model()
    found: Any = in_backward(torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.5))
    with pytest.raises(RuntimeError, match="updated in its backward by another optimizer"):
        in_backward(torch.optim.SGD(own.parameters(), lr=0.1))
    found.close()
    own(torch.ones(2, 9)).sum().backward()
    assert own[0].weight.grad is not None
    found = in_backward(torch.optim.SGD(own.parameters(), lr=0.1))
    del found
    gc.collect()
    own.zero_grad()
    own(torch.ones(2, 9)).sum().backward()
    assert own[0].weight.grad is not None
    in_backward(torch.optim.SGD(own.parameters(), lr=0.1))


def test_a_model_is_pickled_without_what_updates_it() -> None:
    own = model()
    found = in_backward(torch.optim.SGD(own.parameters(), lr=0.1))
    again = pickle.loads(pickle.dumps(own))
    assert all(map(torch.equal, own.parameters(), again.parameters()))
    in_backward(torch.optim.SGD(again.parameters(), lr=0.1))
    with pytest.raises(RuntimeError, match="by another optimizer"):
        in_backward(torch.optim.SGD(own.parameters(), lr=0.1))
    found.close()  # type: ignore[attr-defined]


def test_neither_closures_nor_groups_nor_copies() -> None:
    found = in_backward(torch.optim.AdamW(model().parameters()))
    with pytest.raises(RuntimeError, match="takes no closure"):
        found.step(lambda: 0.0)
    with pytest.raises(RuntimeError, match="takes no further group"):
        found.add_param_group({"params": [torch.zeros(1)]})
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(RuntimeError, match="save its"):
            copied(found)


def test_hooks_of_the_step_run_once() -> None:
    own = model()
    found = in_backward(torch.optim.AdamW(own.parameters()))
    calls: list[str] = []
    found.register_step_pre_hook(lambda *_: calls.append("before"))
    found.register_step_post_hook(lambda *_: calls.append("after"))
    train(own, found, steps=2)
    assert calls == ["before", "after"] * 2


def test_a_full_disk_leaves_the_optimizer_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, "/nowhere")
    own = model()
    plain = torch.optim.AdamW(own.parameters())
    train(own, plain, steps=1)
    before = copy.deepcopy(plain.state_dict())
    with pytest.raises(RuntimeError, match="cannot wait in files of /nowhere"):
        in_backward(plain)
    assert_alike(plain.state_dict(), before)
