"""The streams of a link, as clocks see them: a transfer begins when the one before it in its stream
has ended; where the link is shared, when those of both streams have."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import OptimizerPlan, ParameterUpdateCost


@dataclass
class TransferStreams:
    """When each stream of a `link` is free, by name, and those that others count with them."""

    link: HostLink
    free_at: dict[str, float] = field(default_factory=dict)

    def begin(self, leaves: bool, ready: float, seconds: float) -> tuple[float, float]:
        """The begin and end of a transfer that goes into its stream, `ready` at a moment."""
        streams = [self.link.stream(leaves), *([self.link.stream(not leaves)] * self.link.shared)]
        start = max(ready, *(self.free(stream) for stream in streams))
        self.free_at[streams[0]] = start + seconds
        return start, start + seconds

    def free(self, stream: str) -> float:
        """When a stream is free."""
        return self.free_at.get(stream, 0.0)

    def through(self, clock: float) -> float:
        """When all streams are through, and the compute stream at its `clock`."""
        return max([clock, *self.free_at.values()])


TransferTimes = Callable[[int, bool, float], tuple[float, float]]
"""From bytes, whether they leave, and a moment before which they do not: begin and end."""


@dataclass
class StagingTimeline:
    """The buffers: when each of the `free` ones is free, and the ends of the pieces that are
    `coming`; `expected` are the bytes of the pieces still to come. In a `first` step none come."""

    transfer: TransferTimes
    first: bool
    free: deque[float]
    expected: deque[int]
    coming: deque[float] = field(default_factory=deque)

    @classmethod
    def of(
        cls, transfer: TransferTimes, first: bool, buffers: int, sizes: Iterable[int]
    ) -> StagingTimeline:
        """The buffers before a step that updates pieces of these sizes, in order."""
        return cls(transfer, first, deque([0.0] * buffers), deque(sizes))

    def restart(self, transfer: TransferTimes, clock: float) -> None:
        """Goes on with clocks that begin at a moment."""
        self.transfer = transfer
        self.free = deque(max(end - clock, 0.0) for end in self.free)
        self.coming = deque(max(end - clock, 0.0) for end in self.coming)

    def ahead(self) -> None:
        """Fetches what is expected, as far as there are buffers for more than one piece."""
        while self.expected and len(self.free) > 1:
            self._fetch()

    def arrives(self) -> float:
        """When the next piece is there; it leaves by `leaves`."""
        if not self.coming:
            self._fetch()
        return self.coming.popleft()

    def leaves(self, size: int) -> None:
        """What was updated goes back, and what is next comes."""
        end = self.transfer(size, True, 0.0)[1] if size else 0.0
        self.free.append(end)
        self.ahead()

    def _fetch(self) -> None:
        size, free = self.expected.popleft(), self.free.popleft()
        comes = size and not self.first
        self.coming.append(self.transfer(size, False, free)[1] if comes else free)


@dataclass
class HostUpdateStream:
    """The stream `name` of the offload target, in which parameters are updated there; states of
    some come from a second offload tier through `staging` and go back, in `streams`. `passing` are
    these transfers: stream, begin and end."""

    name: str
    updates: OptimizerPlan
    free_at: dict[str, float]
    staging: StagingTimeline | None = None
    streams: TransferStreams | None = None
    passing: list[tuple[str, float, float]] = field(default_factory=list)

    @classmethod
    def of(
        cls, name: str, updates: OptimizerPlan, order: Iterable[int], free_at: dict[str, float]
    ) -> HostUpdateStream:
        """The stream before a step that updates parameters there in this order; the first states
        are on their way. `free_at` is when each stream is free."""
        found, far = cls(name, updates, free_at), updates.second_tier
        values = [value for value in order if value in updates.second_tier_parameters]
        sizes = [size for value in values for size in updates.costs[value].pieces]
        if far is not None and sizes:
            found.streams = TransferStreams(far.link, free_at)
            found.staging = StagingTimeline.of(found.transfer, updates.first, far.buffers, sizes)
            found.staging.ahead()
        return found

    def transfer(self, size: int, leaves: bool, after: float) -> tuple[float, float]:
        """A transfer of states between the offload target and the third one."""
        assert self.streams is not None
        link = self.streams.link
        own = self.free_at.get(self.name, 0.0) + link.overhead_of(size)
        self.free_at[self.name] = own
        ready = max(own, after)
        span = self.streams.begin(leaves, ready, link.seconds(size))
        self.passing.append((link.stream(leaves), *span))
        return span

    def seconds(self, cost: ParameterUpdateCost) -> float:
        """What a parameter takes there beside waiting for its states: its gradient is added to a
        sum, or it is updated, or both; infinite where nothing computes there."""
        updates = self.updates
        adding = cost.add_seconds if updates.accumulates or updates.has_sums else 0.0
        return adding + (0.0 if updates.accumulates else cost.host_seconds)

    def run(self, value: int, ready: float) -> tuple[float, float]:
        """The begin and end of what a parameter takes there, `ready` at a moment."""
        cost = self.updates.costs[value]
        start = max(ready, self.free_at.get(self.name, 0.0))
        if (
            self.updates.accumulates
            or value not in self.updates.second_tier_parameters
            or self.staging is None
        ):
            self.free_at[self.name] = start + self.seconds(cost)
            return start, self.free_at[self.name]
        adding = cost.add_seconds if self.updates.has_sums else 0.0
        self.free_at[self.name] = start + adding
        for share, size in cost.piece_shares():
            arrives = self.staging.arrives()
            end = max(self.free_at[self.name], arrives) + cost.host_seconds * share
            self.free_at[self.name] = end
            self.staging.leaves(size)
        return start, self.free_at[self.name]
