"""Plays a sequence with transfers on a chain, on paper: the simulator of plans with a link.

Memory changes only at places in the order of the sequence: what leaves is freed where `free`
stands, which first waits for the transfer; what comes back is there from where `prefetch` stands.
So the peaks follow from the order alone, whatever the speed of the link, and the clocks say how
long each stream waits. Computations run one after the other in the compute stream. A transfer
begins when all computations before it have ended, with its own overhead, and its stream is free;
both directions are one stream where the link is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.schemas.link import HostLink
from tightfit.schemas.operation_timeline import TimedOperation
from tightfit.schemas.sequence import ChainOperation, StoredItem, iterate_with_next
from tightfit.stages.combine.chain.options import ChainProblem, PositionOption
from tightfit.stages.combine.chain.simulate import ChainSimulator
from tightfit.stages.simulate.transfer_streams import TransferStreams
from tightfit.util.errors import ScheduleError


@dataclass(frozen=True)
class ChainOffloadSimulation:
    """`seconds` until all streams are through, of which the compute stream `waited`, and was busy
    with the `overhead` of transfers; the `peak` of the device in bytes, the input counted, and
    `host_peak`; bytes that `left` and that `returned`; how many forwards ran again
    (`recomputed`)."""

    seconds: float
    waited: float
    overhead: float
    peak: int
    host_peak: int
    left: int
    returned: int
    recomputed: int
    steps: list[TimedOperation]


def simulate_chain_offload(
    ways: ChainProblem, link: HostLink, sequence: Sequence[ChainOperation]
) -> ChainOffloadSimulation:
    """Time and peaks of a sequence at true sizes.

    `ways` are those of a chain without options, which hold nothing but the chain's input. Raises
    ScheduleError naming the step when an operation reads what is not on the device, transfers what
    is not where it should be, or when not every backward has run at the end.
    """
    player = ChainOffloadSimulator(ways, link)
    for step, action, following in iterate_with_next(sequence):
        player.play(step, action, following)
    if player.gradient != 0:
        raise ScheduleError(f"the sequence ends before B {player.gradient}")
    return player.result()


class ChainOffloadSimulator(ChainSimulator):
    """Plays computations as a `ChainSimulator`, and transfers beside them.

    `clock` is when the compute stream is free; `streams` are those of transfers. `sent` has what is
    on the host or on the way to it, with when its transfer ends and, where it was kept, its way;
    `leaving` what has not been freed since; `arrives` when what was prefetched is there.
    """

    def __init__(self, ways: ChainProblem, link: HostLink) -> None:
        super().__init__(ways)
        self.link = link
        self.clock = self.seconds
        self.waited = self.overhead = 0.0
        self.streams = TransferStreams(link)
        self.sent: dict[StoredItem, tuple[float, PositionOption | None]] = {}
        self.leaving: set[StoredItem] = set()
        self.arrives: dict[StoredItem, float] = {}
        self.where = ""
        self.read: list[StoredItem] = []
        self.host = self.host_peak = self.left = self.returned = 0
        self.steps: list[TimedOperation] = []

    def play(self, step: int, action: ChainOperation, following: ChainOperation | None) -> None:
        """Plays one operation; `following` is the next one."""
        where = f"step {step} ({action})"
        known = action.transfers or (action.action == "free" and action.block == 0)
        if known and not 0 <= action.block <= len(self.ways):
            raise ScheduleError(f"{where} is on no position of the chain")
        if action.move == "offload":
            self._offload(where, action)
        elif action.move == "prefetch":
            self._prefetch(where, action)
        elif action.move == "free":
            self._freed(step, where, action)
        else:
            self._computes(step, where, action, following)

    def result(self) -> ChainOffloadSimulation:
        """What is known when all has been played."""
        ended = self.streams.through(self.clock)
        return ChainOffloadSimulation(
            ended, self.waited, self.overhead, self.peak, self.host_peak, self.left,
            self.returned, self.recomputed, self.steps,
        )  # fmt: skip

    def _there(self, store: StoredItem) -> bool:
        kept, position = store
        return position in self.kept if kept else position in self.outputs

    def _offload(self, where: str, action: ChainOperation) -> None:
        store = action.store
        if store in self.sent:
            raise ScheduleError(f"{where} sends what is on the host already")
        if not self._there(store):
            raise ScheduleError(f"{where} sends what is not there")
        end = self._transfer(where, action, True)
        self.sent[store] = (end, self.kept.get(store[1]) if store[0] else None)
        self.leaving.add(store)
        self.left += self.size(store)

    def _prefetch(self, where: str, action: ChainOperation) -> None:
        store = action.store
        if store not in self.sent:
            raise ScheduleError(f"{where} brings back what is not on the host")
        if self._there(store):
            raise ScheduleError(f"{where} brings back what is there")
        way = self.sent[store][1]
        if way is None:
            self.outputs.add(store[1])
        else:
            self.kept[store[1]] = way
        self.stored += self.size(store)
        self._reaches(self.stored + self.delta())
        self.arrives[store] = self._transfer(where, action, False)
        self.returned += self.size(store)

    def _transfer(self, where: str, action: ChainOperation, leaves: bool) -> float:
        """Plays a transfer; when it ends."""
        if self.link.bandwidth == 0:
            raise ScheduleError(f"{where} takes a link that has no bandwidth")
        size = self.size(action.store)
        overhead = self.link.overhead_of(size)
        self.overhead += overhead
        self.clock = ready = self.clock + overhead
        start, end = self.streams.begin(leaves, ready, self.link.seconds(size))
        if leaves:
            self.host += size
            self.host_peak = max(self.host_peak, self.host)
        self._step(action, self.link.stream(leaves), start, end, start - ready)
        return end

    def _freed(self, step: int, where: str, action: ChainOperation) -> None:
        """A free that first waits for the transfer of what leaves, or comes back."""
        store, begun = action.store, self.clock
        if store in self.leaving:
            self.leaving.remove(store)
            self.clock = max(self.clock, self.sent[store][0])
        self.clock = max(self.clock, self.arrives.pop(store, 0.0))
        if store == (False, 0):
            if 0 not in self.outputs or store not in self.sent:
                raise ScheduleError(f"{where} frees the chain's input, which did not leave")
            self.outputs.remove(0)
            self.stored -= self.ways.always_resident
        else:
            super().play(step, action, None)
        self.waited += self.clock - begun
        self._step(action, self._compute_stream, begun, self.clock, self.clock - begun)

    def _computes(
        self, step: int, where: str, action: ChainOperation, following: ChainOperation | None
    ) -> None:
        self.read, self.where = [], where
        if action.action in ("B", "loss") and (True, action.block) in self.leaving:
            raise ScheduleError(f"{where} ends what leaves and was not freed")
        before = self.seconds
        super().play(step, action, following)
        if action.action in ("B", "loss"):
            self.read.append((True, action.block))
            self._ends((True, action.block))
            self._ends((False, action.block - 1))
        start = max(self.clock, *(self.arrives.get(store, 0.0) for store in self.read))
        waited = start - self.clock
        self.waited += waited
        self.clock = start + (self.seconds - before)
        for store in self.read:
            if not self._there(store):
                self.arrives.pop(store, None)
        self._step(action, self._compute_stream, start, self.clock, waited)

    def _ends(self, store: StoredItem) -> None:
        """The backward has used it: the host forgets it, too."""
        if store in self.sent:
            del self.sent[store]
            self.host -= self.size(store)

    @property
    def _compute_stream(self) -> str:
        return f"{self.link.device}/compute"

    def _step(
        self, action: ChainOperation, stream: str, start: float, end: float, waited: float
    ) -> None:
        live = self.stored + self.delta()
        self.steps.append(TimedOperation(action, stream, start, end, waited, live, self.host))

    def _forget(self, position: int) -> None:
        if (False, position) in self.leaving:
            raise ScheduleError(f"{self.where} ends what leaves and was not freed")
        super()._forget(position)

    def _reads(self, where: str, position: int, plain: bool) -> None:
        output, kept = (False, position - 1), (True, position - 1)
        if self._there(output):
            self.read.append(output)
        elif not plain and position > 1 and self._there(kept):
            self.read.append(kept)
        elif output in self.sent or (not plain and kept in self.sent):
            raise ScheduleError(f"{where} reads an input that is on the host")
        else:
            raise ScheduleError(f"{where} reads an input that is not there")
