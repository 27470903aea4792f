"""The strategy offload in one call: the link of this machine is measured once, what waits is on the
disk of the folder that was named, and the plan says what of that was measured."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.tightfit.conftest import SETTINGS, Tower, gradients, tower
from tightfit import OffloadOptions
from tightfit.schemas.measured_link import MeasuredLink
from tightfit.schemas.optimizer_plan import LinkSpeed
from tightfit.schemas.schedule import schedule_link
from tightfit.stages.profile import link_cache
from tightfit.stages.runtime.offload.disk_target import DiskTarget
from tightfit.util.errors import ConfigError

FAST = LinkSpeed(1e15, 1e15, (1e15, 1e15), 0.0)
GIVEN: dict[str, Any] = {"strategy": "offload", "budget": "60%", "progress": False, **SETTINGS}


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were measured; the link takes no time."""
    found: list[str] = []

    def measured(device: str, folder: Any, size: int, exact: bool = False) -> MeasuredLink:
        found.append(str(folder))
        return MeasuredLink(FAST, "disk", 1 << 40, str(folder))

    monkeypatch.setattr(link_cache, "measure_offload_link", measured)
    return found


def planned(store: Path, **more: Any) -> tuple[Tower, Any, Any, tuple[torch.Tensor]]:
    model, args = tower(width=32, depth=2), (torch.randn(64, 32),)
    fitted, made = tightfit.plan(model, args, store=store, **{**GIVEN, **more})
    return model, fitted, made, args


def test_what_waits_is_on_the_disk_that_was_named(
    tmp_path: Path, measuring: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[str] = []
    begin = DiskTarget.__init__

    def told(self: DiskTarget, size: int, folder: Any = None) -> None:
        folders.append(str(folder))
        begin(self, size, folder)

    monkeypatch.setattr(DiskTarget, "__init__", told)
    disk, store = tmp_path / "disk", tmp_path / "store"
    disk.mkdir()
    model, fitted, made, args = planned(store, offload=OffloadOptions(disk))
    assert measuring == [str(disk)] and made.transfers is not None
    own = rf"has {made.transfers.host_peak:,} bytes in the disk at most, as predicted, and waits"
    assert re.search(own, made.message)
    mine = gradients(fitted, *args)
    moved = type(fitted)._tightfit_transfers.last
    assert (moved.left, moved.peak) == (made.transfers.offloaded_bytes, made.transfers.host_peak)
    again = copy.deepcopy(fitted)
    monkeypatch.chdir(tmp_path)
    loaded = tightfit.load(made.package, copy.deepcopy(model), offload_path="disk")
    monkeypatch.chdir(store)
    assert vars(type(loaded))["_tightfit_transfers"].folder == str(disk)
    for module in (model, again, loaded):
        for one, other in zip(mine, gradients(module, *args), strict=True):
            assert torch.equal(one, other)
    assert not list(disk.iterdir())
    link = schedule_link(made.package.parent / "schedule.arrow")
    assert link is not None and (link.bandwidth, link.to, link.room) == (1e15, "disk", 1 << 40)
    assert link_cache.cached_machine(store, "cpu", disk).exists() and len(measuring) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"strategy": "auto"}, "path is for the states of an optimizer and for strategies that"),
        ({"path": 7}, "path is 7, expected the path of a folder"),
        ({"path": ""}, "path is '', expected the path of a folder"),
        ({"path": "/nowhere"}, "path is '/nowhere', which is no folder: make it"),
    ],
)
def test_a_disk_that_cannot_be_is_refused(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said):
        path = more.pop("path", tmp_path)
        planned(tmp_path / "store", offload=OffloadOptions(path), **more)


def test_what_is_no_folder_is_refused_by_every_call(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for disk in (7, ""):
        given: dict[str, Any] = {"offload_path": disk}
        for name, call in (
            ("load", lambda given=given: tightfit.load(tmp_path, model, **given)),
            (
                "load_whole",
                lambda given=given: tightfit.load_whole(tmp_path, model, optimizer, **given),
            ),
            ("in_backward", lambda given=given: tightfit.in_backward(optimizer, **given)),
        ):
            with pytest.raises(ConfigError, match=f"^{name}: offload_path is {disk!r}, expected"):
                call()
