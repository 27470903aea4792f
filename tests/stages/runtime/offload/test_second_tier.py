"""States on a disk behind the one that parameters live on: bit for bit those of torch.optim, or one
sentence."""

from __future__ import annotations

import copy
import errno
import os
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
from tests.stages.runtime.offload.test_host_update import gradients_of, lodged, plain_step, run
from tightfit.stages.runtime.offload import setup
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE, DiskTarget
from tightfit.stages.runtime.offload.host_target import HostTarget
from tightfit.stages.runtime.offload.second_tier import SecondTier
from tightfit.stages.runtime.offload.target import MemoryRegion, TransferHandle


@pytest.fixture(autouse=True)
def far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the second offload tier, beside that of the second one."""
    (tmp_path / "near").mkdir()
    (tmp_path / "far").mkdir()
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path / "near"))
    return tmp_path / "far"


@pytest.mark.parametrize("bounce", [1, 64, 1 << 18])
def test_areas_leave_and_come_back_as_they_were(far: Path, bounce: int) -> None:
    near = DiskTarget(300)
    behind = SecondTier(near, 200, far, first=1000, bounce=bounce)
    sent = torch.randint(0, 256, (100,), dtype=torch.uint8)
    near.wait(near.write(sent, 7))
    there = behind.write(MemoryRegion(7, 100), 1100)
    behind.wait(behind.read(MemoryRegion(200, 100), 1100, there))
    found = torch.zeros_like(sent)
    near.wait(near.read(found, 200))
    assert torch.equal(found, sent) and behind.size == 200
    with pytest.raises(ValueError, match="do not lie within 200 bytes"):
        behind.wait(behind.write(MemoryRegion(7, 100), 1101))
    behind.close()
    near.close()
    assert not list(far.iterdir())


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize(("kind", "options"), [CASES[n] for n in (2, 5, 8)])
def test_as_torch_optim(
    kind: type[torch.optim.Optimizer], options: dict[str, Any], parts: int, far: Path
) -> None:
    """More pieces than buffers, in steps that differ in which parameters have gradients."""
    plain, own = model(), model()
    expected = kind(groups_of(plain), **options)
    made = kind(groups_of(own), **options)
    store, found = lodged(own, made, parts > 1, there=[2], far=[0, 2, 3], second_disk=far)
    updates = found._updates
    states = sum(p.size for pieces in updates.pieces for p in pieces if updates.far.has(p))
    file = updates.far.behind.disk.file.fileno()
    assert 0 < states == found.far_bytes == os.fstat(file).st_size
    for step in range(4):
        gradients: list[list[Any]] = [gradients_of(plain, 10 * step + n) for n in range(parts)]
        for each in gradients if step else ():
            each[(0, 2, 3)[step - 1]] = None
        plain_step(plain, expected, gradients)
        for number, each in enumerate(gradients):
            run(store, found, each, number == parts - 1)
        found.step()
        found.zero_grad()
        if step == 1:
            assert_alike(expected.state_dict(), found.state_dict())
    assert_alike(expected.state_dict(), found.state_dict())
    # States that were updated there are taken up on the device, and vice versa; some are new.
    fewer = copy.deepcopy(expected.state_dict())
    del fewer["state"][0]
    found.load_state_dict(copy.deepcopy(fewer))
    expected.load_state_dict(fewer)
    with found.gathered():
        for parameter, gradient in zip(own.parameters(), gradients_of(own, 99), strict=True):
            parameter.grad = gradient
    found.step()
    plain_step(plain, expected, [gradients_of(plain, 99)])
    for step in (100, 101):
        run(store, found, list(gradients_of(own, step)), True)
        found.step()
        plain_step(plain, expected, [gradients_of(plain, step)])
    wanted = expected.state_dict()
    assert_alike({**wanted, "state": dict(sorted(wanted["state"].items()))}, found.state_dict())
    found.close()
    assert all(map(torch.equal, plain.parameters(), own.parameters()))
    assert not list(far.iterdir())


class Ram(DiskTarget):
    """An offload target whose bytes are computed where they are, as the host's beside a GPU."""

    def __init__(self, size: int, folder: Any = None) -> None:
        super().__init__(0, folder)
        self.size = size
        self.bytes = torch.zeros(size, dtype=torch.uint8)

    def reach(self) -> Any:
        return HostTarget.reach(self)  # type: ignore[arg-type]

    def write(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        return self._at_once(tensor, offset, after, leaves=True)

    def read(self, tensor: torch.Tensor, offset: int, *after: TransferHandle) -> TransferHandle:
        return self._at_once(tensor, offset, after, leaves=False)

    def _at_once(
        self, tensor: torch.Tensor, offset: int, after: tuple[TransferHandle, ...], leaves: bool
    ) -> TransferHandle:
        for ticket in after:
            ticket.done.result()
        here = self.bytes[offset : offset + tensor.numel()]
        (here if leaves else tensor).copy_(tensor if leaves else here)
        done: Future[tuple[float, float]] = Future()
        done.set_result((0.0, 0.0))
        return TransferHandle(done, None)


def test_states_are_updated_in_buffers_of_the_host(
    far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come from the disk into their place, without another copy."""
    monkeypatch.setattr(
        setup, "create_offload_target", lambda device, size, folder: Ram(size, folder)
    )
    plain, own = model(), model()
    expected = torch.optim.AdamW(groups_of(plain))
    store, found = lodged(own, torch.optim.AdamW(groups_of(own)), far=[0, 2], second_disk=far)
    bounces = found._updates.far.behind.bounce_buffers
    for bounce in bounces:
        bounce.fill_(7)
    for step in range(3):
        gradients = gradients_of(plain, step)
        plain_step(plain, expected, [gradients])
        run(store, found, list(gradients), True)
        found.step()
    assert_alike(expected.state_dict(), found.state_dict())
    assert all(bounce.eq(7).all() for bounce in bounces)
    found.close()
    assert all(map(torch.equal, plain.parameters(), own.parameters()))


@pytest.mark.cuda
def test_states_behind_the_host_of_a_gpu(far: Path) -> None:
    plain, own = model(), model().cuda()
    expected = torch.optim.AdamW(groups_of(plain), foreach=False)
    made = torch.optim.AdamW(groups_of(own), foreach=False)
    store, found = lodged(own, made, far=[0, 2], second_disk=far)
    for step in range(4):
        gradients = gradients_of(plain, step)
        plain_step(plain, expected, [gradients])
        run(store, found, [gradient.cuda() for gradient in gradients], True)
        found.step()
        if step == 1:
            found.load_state_dict(found.state_dict())
    found.close()
    for one, other in zip(plain.parameters(), own.parameters(), strict=True):
        assert torch.equal(one, other.cpu())


def trained(far: Path) -> tuple[Any, Any, Any]:
    """A model with a parameter store after two steps, so that the first states are on their way."""
    own = nn.Linear(30, 40)
    store, found = lodged(own, torch.optim.AdamW(own.parameters()), far=[0], second_disk=far)
    for step in range(2):
        run(store, found, list(gradients_of(own, step)), True)
        found.step()
    return own, store, found


def test_a_third_file_that_was_cut_off_ends_in_one_sentence(far: Path) -> None:
    own, store, found = trained(far)
    disk = found._updates.far.behind.disk
    disk.idle()
    os.ftruncate(disk.file.fileno(), 8)
    words = rf"tensors cannot wait in files of {far} .*shorter than what.* as second_disk$"
    with pytest.raises(RuntimeError, match=words):
        run(store, found, list(gradients_of(own, 2)), True)
    for use in (lambda: store.read(0), found.state_dict, lambda: run(store, found, [], True)):
        with pytest.raises(RuntimeError, match=r"has failed, and some of them may be lost: make"):
            use()
    found.close()
    assert disk.file.closed and store.memory.memory.file.closed


def test_a_third_file_that_fails_where_states_are_asked_for(far: Path) -> None:
    own, store, found = trained(far)
    os.ftruncate(found._updates.far.behind.disk.file.fileno(), 8)
    with pytest.raises(RuntimeError, match=rf"files of {far} .* a folder .* as second_disk$"):
        found.state_dict()
    words = (
        rf"has failed, and some of them may be lost: make .* in files of {far} .* as second_disk$"
    )
    with pytest.raises(RuntimeError, match=words):
        run(store, found, list(gradients_of(own, 2)), True)
    found.close()


def test_the_disk_that_fails_is_named(far: Path) -> None:
    """Where states pass from one to the other, either may."""
    own, store, found = trained(far)
    os.ftruncate(store.memory.memory.file.fileno(), 8)
    words = rf"files of {far.parent / 'near'} .* as disk, or in {DISK_VARIABLE}$"
    with pytest.raises(RuntimeError, match=words):
        run(store, found, list(gradients_of(own, 2)), True)
    found.close()


def test_a_third_disk_without_room_is_told_and_all_is_as_it_was(
    far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = nn.Linear(30, 40)
    before = copy.deepcopy(own.state_dict())
    given: dict[str, Any] = {"far": [0]}

    def refused(words: str) -> None:
        with pytest.raises(RuntimeError, match=words):
            lodged(own, torch.optim.AdamW(own.parameters()), **given)
        assert type(own.weight) is nn.Parameter
        assert_alike(own.state_dict(), before)

    refused("states on a disk behind the memory of parameters: name its folder, second_disk")
    given["second_disk"] = far / "gone"
    refused(r"files of .*gone \(No such file or directory\): name a folder .* as second_disk")
    given["second_disk"] = far
    take = os.posix_fallocate

    def full(file: int, begin: int, size: int) -> None:
        if size == 9600:
            raise OSError(errno.ENOSPC, "No space left on device")
        take(file, begin, size)

    monkeypatch.setattr(os, "posix_fallocate", full)
    refused(r"does not give the 9600 bytes .*\(No space left on device\).* as second_disk")
    monkeypatch.undo()
    given["workspace"] = 7
    refused(r"pass through .* bytes, in the plan 7")


def test_a_full_disk_within_a_step_ends_in_one_sentence(
    far: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system that takes no bytes ahead, as over a network."""
    own, store, found = trained(far)
    file = found._updates.far.behind.disk.file.fileno()
    write = os.pwrite

    def full(into: int, data: Any, offset: int) -> int:
        if into == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(into, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    words = rf"files of {far} \(No space left on device\)"
    with pytest.raises(RuntimeError, match=words):
        for step in (2, 3):
            run(store, found, list(gradients_of(own, step)), True)
            found.step()
            found.state_dict()
    found.close()
