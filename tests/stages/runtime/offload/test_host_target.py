"""The host's memory of a GPU, with a stand-in for torch.cuda: what waits for what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from tightfit.stages.runtime.offload import transfers
from tightfit.stages.runtime.offload.host_target import HostTarget


class Event:
    """Ends with the last thing that its stream had been given; each second one is recorded."""

    def __init__(self, cuda: Cuda, stream: Stream | None = None) -> None:
        self.cuda = cuda
        if stream is not None:
            self.record(stream)

    def record(self, stream: Stream) -> None:
        self.after = list(stream.jobs)
        self.cuda.seconds += 1
        self.at = self.cuda.seconds

    def elapsed_time(self, other: Event) -> float:
        return 1000.0 * (other.at - self.at)

    def synchronize(self) -> None:
        self.cuda.log.append("synchronize")


class Stream:
    def __init__(self, cuda: Cuda, name: str) -> None:
        self.cuda, self.name = cuda, name
        self.jobs: list[str] = []

    def record_event(self) -> Event:
        return Event(self.cuda, self)

    def wait_event(self, event: Event) -> None:
        self.jobs.extend(job for job in event.after if job not in self.jobs)


class Cuda:
    """Streams that remember what stands before their next job."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.seconds = 0
        self.compute = Stream(self, "compute")
        self.current = self.compute
        self.made: list[Stream] = []

    def stream_of(self, device: torch.device) -> Stream:
        self.made.append(Stream(self, f"side {len(self.made)}"))
        return self.made[-1]

    @contextmanager
    def entered(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake, empty = Cuda(), torch.empty

    def pinned(*size: Any, pin_memory: bool = False, **more: Any) -> torch.Tensor:
        if pin_memory:
            fake.log.append(f"pinned {size[0]}")
        return empty(*size, **more)

    monkeypatch.setattr(torch, "empty", pinned)
    monkeypatch.setattr(torch.cuda, "Stream", fake.stream_of)
    monkeypatch.setattr(torch.cuda, "Event", lambda enable_timing: Event(fake))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: fake.compute)
    monkeypatch.setattr(torch.cuda, "stream", fake.entered)
    return fake


def test_bytes_come_back_and_the_pool_is_pinned_once(cuda: Cuda) -> None:
    host = HostTarget(256, torch.device("cpu"))
    sent, back = torch.arange(16.0), torch.zeros(16)
    there = host.write(sent, 64)
    host.wait(there)
    host.wait(host.read(back, 64, there))
    assert torch.equal(back, sent) and cuda.log == ["pinned 256"]
    assert not host.moving


def test_a_transfer_begins_after_what_was_computed_before_it(cuda: Cuda) -> None:
    host = HostTarget(64, torch.device("cpu"))
    cuda.compute.jobs.append("makes it")
    host.write(torch.zeros(4), 0)
    cuda.compute.jobs.append("another")
    to, _ = cuda.made
    assert to.jobs == ["makes it"]


def test_what_comes_back_waits_for_what_left_and_is_waited_for(cuda: Cuda) -> None:
    host = HostTarget(64, torch.device("cpu"))
    to, back = cuda.made
    to.jobs.append("sends")
    sent = host.write(torch.zeros(4), 0)
    ticket = host.read(torch.zeros(4), 0, sent)
    assert "sends" in back.jobs and "sends" not in cuda.compute.jobs
    back.jobs.append("more of it")
    host.wait(ticket)
    assert "sends" in cuda.compute.jobs and "more of it" not in cuda.compute.jobs


def test_what_computes_beside_is_waited_for_and_its_thread_is_a_daemon(cuda: Cuda) -> None:
    """Such a thread lives as long as the module, and does not keep a process from being forked."""
    host = HostTarget(64, torch.device("cpu"))
    there: list[threading.Thread] = []
    sent = host.write(torch.ones(4), 0)
    first = host.beside(lambda reach: there.append(threading.current_thread()), sent)
    host.wait(
        host.beside(lambda reach: reach.write(torch.full((4,), 2.0).view(torch.uint8), 0), first)
    )
    back = torch.zeros(4)
    host.wait(host.read(back, 0, first))
    assert torch.equal(back, torch.full((4,), 2.0)) and there[0].daemon
    host.close()
    there[0].join(10)
    assert not there[0].is_alive()


def test_what_moves_is_held_until_it_is_waited_for(cuda: Cuda) -> None:
    host = HostTarget(64, torch.device("cpu"))
    tensor = torch.zeros(4)
    ticket = host.write(tensor, 0)
    assert ticket.tensor is tensor
    host.idle()
    assert ticket.tensor is None and cuda.log[-1] == "synchronize"
    host.close()
    assert host.size == 0


def test_the_device_takes_the_times_of_a_transfer_and_of_a_wait(cuda: Cuda) -> None:
    host = HostTarget(64, torch.device("cpu"))
    ticket = host.write(torch.zeros(4), 0)
    begin = host.now()
    host.wait(ticket)
    # Events: one of what is computed, the transfer's begin and its end, and the two of the wait.
    assert host.seconds(*host.passed(ticket)) == 1.0
    assert host.seconds(begin, host.now()) == 1.0 and host.seconds(ticket.began, begin) == 2.0


def test_a_run_on_a_gpu_counts_its_waits(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        transfers, "create_offload_target", lambda device, size, _: HostTarget(size, device)
    )
    sending = transfers.TransferSettings()
    run = transfers.StepTransfers(torch.device("meta"), 64, sending)
    run.device = torch.device("cpu")
    run.offload(0, torch.zeros(4), 0)
    run.wait(0)
    back = run.prefetch(0, torch.float32, (4,), (1,), 0)
    run.wait(0)
    run.free(0)
    moved = sending.last
    assert moved is not None and torch.equal(back, torch.zeros(4))
    assert (moved.left, moved.returned, moved.peak, moved.there) == (16, 16, 16, 0)
    assert len(moved.waits) == 2 and moved.waited == 2.0
    assert [there for _, there in moved.line] == [16, 0]
    assert [len(stream) for stream in moved.streams] == [1, 1]
