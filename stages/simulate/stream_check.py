"""Plays the streams of a chain with a link again, from what is written of them alone.

Whether a sequence can run at true sizes is for the chain simulator, which knows the chain. Here
each stream does one thing at a time, memory changes only in the order of issue, and
nothing reads what has not come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.schemas.operation_timeline import TimedOperation
from tightfit.schemas.sequence import StorageMove, StoredItem
from tightfit.util.errors import ScheduleError

_STREAM_PREFIXES: dict[StorageMove | None, str] = {"offload": "to-", "prefetch": "from-"}


@dataclass(frozen=True)
class StreamTotals:
    """What all streams come to: `seconds` until the last one is through, the seconds that
    computations `waited`, the most bytes seen on the device after a step (`live`) and on the host,
    and the bytes that `left` and `returned`."""

    seconds: float
    waited: float
    live: int
    host_peak: int
    left: int
    returned: int


def check_streams(steps: Sequence[TimedOperation]) -> StreamTotals:
    """What the streams come to; raises ScheduleError naming the first step that cannot be so."""
    player = _StreamSimulator()
    for index, step in enumerate(steps):
        player.play(f"step {index} ({step.operation})", step, index == 0)
    return StreamTotals(
        player.seconds, player.waited, player.most, player.host_peak, player.left, player.returned
    )


class _StreamSimulator:
    """`ends` is when each stream is through; `sent` and `back` when each store is on the host and
    on the device again, and `sizes` its bytes."""

    def __init__(self) -> None:
        self.ends: dict[str, float] = {}
        self.sent: dict[StoredItem, float] = {}
        self.back: dict[StoredItem, float] = {}
        self.sizes: dict[StoredItem, int] = {}
        self.live = self.host = self.most = self.host_peak = self.left = self.returned = 0
        self.seconds = self.waited = 0.0

    def play(self, where: str, step: TimedOperation, first: bool) -> None:
        """Plays one step; the chain's input is there before the first."""
        operation = step.operation
        device, _, name = step.stream.rpartition("/")
        wanted = _STREAM_PREFIXES.get(operation.move, "compute")
        _require(
            bool(device) and name.startswith(wanted),
            f"{where} is in {step.stream}, not in {wanted}",
        )
        begun = self.ends.get(step.stream, 0.0)
        _require(step.start >= begun, f"{where} begins before its stream is free")
        if operation.transfers:
            change = 0 if first else step.live - self.live
            self._transfer(where, step, change)
        else:
            self._computes(where, step)
            self.waited += step.wait_seconds
        self.ends[step.stream] = step.end
        self.live, self.host = step.live, step.host_bytes
        self.most, self.host_peak = max(self.most, step.live), max(self.host_peak, step.host_bytes)
        self.seconds = max(self.seconds, step.end)

    def _transfer(self, where: str, step: TimedOperation, change: int) -> None:
        store, grown = step.operation.store, step.host_bytes - self.host
        if step.operation.move == "offload":
            _require(change == 0, f"{where} changes the memory of the device by {change} bytes")
            _require(grown >= 0, f"{where} takes {-grown} bytes from the host")
            self.sent[store], self.sizes[store] = step.end, grown
            self.left += grown
            return
        _require(store in self.sent, f"{where} brings back what did not leave")
        size = self.sizes[store]
        _require(step.start >= self.sent[store], f"{where} begins before it is on the host")
        _require(change == size, f"{where} takes {change} bytes where {size} left")
        _require(grown == 0, f"{where} changes the memory of the host by {grown} bytes")
        self.back[store] = step.end
        self.returned += size

    def _computes(self, where: str, step: TimedOperation) -> None:
        operation = step.operation
        _require(
            step.host_bytes <= self.host,
            f"{where} brings {step.host_bytes - self.host} bytes to the host",
        )
        if operation.move == "free":
            store = operation.store
            ended = max(self.sent.get(store, 0.0), self.back.pop(store, 0.0))
            _require(step.end >= ended, f"{where} frees what is still on its way")
            gone = self.live - step.live
            size = self.sizes.get(store, gone)
            _require(gone == size, f"{where} frees {gone} bytes where {size} left")
        elif operation.action in ("B", "loss"):
            kept = (True, operation.block)
            ready = self.back.pop(kept, 0.0)
            _require(step.start >= ready, f"{where} reads what has not come back")


def _require(condition: bool, sentence: str) -> None:
    if not condition:
        raise ScheduleError(sentence)
