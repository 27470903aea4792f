"""The disk as offload target: exact bytes in order, and one sentence where it fails."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tightfit.stages.runtime.offload import disk_target as disks
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE, DiskTarget
from tightfit.stages.runtime.offload.transfers import StepTransfers, TransferSettings, _idle_targets


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))
    yield
    _idle_targets.clear()


def test_bytes_come_back_as_they_were() -> None:
    disk = DiskTarget(4096)
    sent = torch.randint(0, 256, (1000,), dtype=torch.uint8)
    back = torch.zeros_like(sent)
    ticket = disk.write(sent, 96)
    disk.wait(disk.read(back, 96, ticket))
    assert torch.equal(back, sent)


def test_transfers_of_a_stream_are_done_in_the_order_of_issue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[int] = []
    release = threading.Event()

    def write(file: int, address: int, size: int, offset: int) -> None:
        release.wait(10)
        done.append(offset)

    monkeypatch.setattr(disks, "_write", write)
    disk = DiskTarget(64)
    tickets = [disk.write(torch.zeros(1), 4 * place) for place in (3, 1, 2)]
    assert not done and not tickets[0].done.done()
    release.set()
    for ticket in reversed(tickets):
        disk.wait(ticket)
    assert done == [12, 4, 8]


def test_what_comes_back_waits_for_what_is_still_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    release, write = threading.Event(), disks._write

    def late(*where: int) -> None:
        release.wait(10)
        write(*where)

    monkeypatch.setattr(disks, "_write", late)
    disk = DiskTarget(16)
    back = torch.zeros(4)
    ticket = disk.read(back, 0, disk.write(torch.arange(4.0), 0))
    assert not ticket.done.done()
    release.set()
    disk.wait(ticket)
    assert back.tolist() == [0, 1, 2, 3]


def test_a_tensor_is_held_until_it_is_waited_for_and_no_longer() -> None:
    disk = DiskTarget(4 << 20)
    tensor = torch.zeros(1 << 20)
    count = sys.getrefcount(tensor)
    ticket = disk.write(tensor, 0)
    assert sys.getrefcount(tensor) > count
    disk.wait(ticket)
    assert sys.getrefcount(tensor) == count


def test_what_is_on_its_way_ends_before_the_disk_does(monkeypatch: pytest.MonkeyPatch) -> None:
    release, written = threading.Event(), []

    def late(*where: int) -> None:
        release.wait(10)
        written.append(where)

    monkeypatch.setattr(disks, "_write", late)
    disk = DiskTarget(16)
    disk.write(torch.zeros(4), 0)
    threading.Timer(0.05, release.set).start()
    del disk
    gc.collect()
    assert len(written) == 1


def test_two_disks_of_one_folder_do_not_meet(tmp_path: Path) -> None:
    one, other = DiskTarget(16), DiskTarget(16)
    one.wait(one.write(torch.ones(4), 0))
    other.wait(other.write(torch.zeros(4), 0))
    back = torch.zeros(4)
    one.wait(one.read(back, 0))
    assert back.tolist() == [1, 1, 1, 1] and not list(tmp_path.iterdir())


def test_nothing_is_left_where_a_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import os, torch\n"
        "from tightfit.stages.runtime.offload.disk_target import DiskTarget\n"
        "disk = DiskTarget(1 << 20)\n"
        "disk.wait(disk.write(torch.ones(1 << 18), 0))\n"
        f"os.kill(os.getpid(), {int(signal.SIGKILL)})\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[4], check=False)
    assert ended.returncode == -signal.SIGKILL and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=rf"files of {tmp_path}/gone \(No such file.* as disk$"):
        DiskTarget(16, tmp_path / "gone")
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path / "other"))
    with pytest.raises(RuntimeError, match=r"/other .* written as disk, or in TIGHTFIT_DISK$"):
        DiskTarget(16)
    for none in (7, b"/tmp", True):
        with pytest.raises(ValueError, match=f"disk is {none!r}, it can be the path of a folder"):
            DiskTarget(16, none)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("kept")
    with pytest.raises(RuntimeError, match="Not a directory"):
        DiskTarget(16, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_full_disk_says_so_before_anything_is_sent() -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        with pytest.raises(RuntimeError, match=r"does not give the 1000000 bytes .*: free some"):
            DiskTarget(1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_fails_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    disk = DiskTarget(16)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(RuntimeError, match=r"cannot wait in files of .* \(No space left"):
        disk.wait(disk.write(torch.zeros(4), 0))
    assert not disk.healthy and not disk.moving


def test_a_write_that_fails_fails_what_comes_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    disk = DiskTarget(16)
    monkeypatch.setattr(os, "pwrite", full)
    sent = disk.write(torch.zeros(4), 0)
    with pytest.raises(RuntimeError, match="No space left"):
        disk.wait(disk.read(torch.zeros(4), 0, sent))


def test_short_writes_and_reads_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    write, read = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda file, rest, at: write(file, rest[:7], at))
    monkeypatch.setattr(os, "preadv", lambda file, rest, at: read(file, [rest[0][:5]], at))
    disk, sent, back = DiskTarget(400), torch.arange(100.0), torch.zeros(100)
    disk.wait(disk.read(back, 0, disk.write(sent, 0)))
    assert torch.equal(back, sent)


def test_a_file_that_was_cut_off() -> None:
    disk = DiskTarget(64)
    disk.wait(disk.write(torch.ones(16), 0))
    os.ftruncate(disk.file.fileno(), 10)
    with pytest.raises(RuntimeError, match="shorter than what was written"):
        disk.wait(disk.read(torch.zeros(16), 0))


def test_a_place_outside_is_refused() -> None:
    disk = DiskTarget(64)
    with pytest.raises(ValueError, match="64 bytes at 4 do not lie within 64 bytes"):
        disk.write(torch.zeros(16), 4)
    with pytest.raises(ValueError, match="do not lie"):
        disk.write(torch.zeros(4, 4).t()[:2], 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.complex64])
def test_storages_come_back_with_every_view(dtype: torch.dtype) -> None:
    base = torch.randn(6, 8).to(dtype)
    view = base.t()[1:, ::2]
    transfers = StepTransfers(torch.device("cpu"), 1024)
    transfers.offload(3, view, 64)
    transfers.wait(3)
    back = transfers.prefetch(3, dtype, base.shape, base.stride(), 0)
    transfers.wait(3)
    transfers.free(3)
    assert torch.equal(back, base) and back.untyped_storage().nbytes() == base.nbytes
    again = back.as_strided(view.shape, view.stride(), view.storage_offset())
    assert torch.equal(again, view)


def test_a_run_leaves_its_memory_to_the_next_and_two_at_once_have_two() -> None:
    one, other = StepTransfers(torch.device("cpu"), 64), StepTransfers(torch.device("cpu"), 64)
    first = one.memory
    assert other.memory is not first
    del one
    assert StepTransfers(torch.device("cpu"), 64).memory is first


def test_what_a_run_counted_holds_no_memory() -> None:
    sending = TransferSettings()
    run = StepTransfers(torch.device("cpu"), 64, sending)
    run.offload(0, torch.zeros(4), 0)
    run.wait(0)
    file, moved = run.memory.file, sending.last  # type: ignore[attr-defined]
    assert moved is not None and (moved.left, moved.peak, moved.there) == (16, 16, 16)
    [(begin, end, size)] = moved.waits
    assert size == 16 and moved.waited == end - begin and moved.since(moved.began) == 0.0
    [(begun, done, size)] = moved.streams[0]
    assert moved.began <= begun <= done <= end and size == 16
    del run
    for size in (8, 9, 10):
        StepTransfers(torch.device("cpu"), size)
    gc.collect()
    assert file.closed and sending.last is moved


def test_a_memory_that_failed_is_left_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    run = StepTransfers(torch.device("cpu"), 64)
    failed = run.memory
    monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(5, "broken")))
    run.offload(0, torch.zeros(4), 0)
    del run
    assert StepTransfers(torch.device("cpu"), 64).memory is not failed


def test_a_forked_process_and_a_closed_disk_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = DiskTarget(64)
    ticket = disk.write(torch.zeros(4), 0)
    own = os.getpid()
    with monkeypatch.context() as forked:
        forked.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(RuntimeError, match="for the process that this one was forked from"):
            disk.wait(ticket)
        with pytest.raises(RuntimeError, match="for the process that this one was forked from"):
            disk.write(torch.zeros(4), 0)
    disk.close()
    with pytest.raises(RuntimeError, match="the disk has its bytes back"):
        disk.read(torch.zeros(4), 0)


def test_the_end_of_a_disk_waits_for_no_thread() -> None:
    """The garbage collector may end it while the lock is held that a thread takes at its end."""
    disk = DiskTarget(64)
    disk.wait(disk.write(torch.ones(4), 0))
    lock: Any = threading._active_limbo_lock  # type: ignore[attr-defined]
    ended = threading.Event()

    def end() -> None:
        with lock:
            disk.close()
        ended.set()

    runner = threading.Thread(target=end, daemon=True)
    runner.start()
    assert ended.wait(20)


def test_a_disk_that_ends_in_its_own_stream_is_closed_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = DiskTarget(64)
    file = disk.file

    def write(number: int, address: int, size: int, offset: int) -> None:
        disk.ended()

    monkeypatch.setattr(disks, "_write", write)
    disk.write(torch.ones(4), 0).done.result(20)
    assert not file.closed
    DiskTarget(8).close()
    assert file.closed
