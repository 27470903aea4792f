"""A chain as the allocators see it: layers with times in ticks and sizes in bytes.

A layer is a position of the chain, the loss among them. Ticks are seconds on a grid. The grid is so
fine that rounding up to it changes no time by more than a millionth of a millionth of all, and so
coarse that sums are exact: two groups of layers take equally long, or one takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from tightfit.schemas.chain import Chain
from tightfit.schemas.pipeline_devices import MAX_DEVICE_BYTES, PipelineLink
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.array_types import IntArray


@dataclass(frozen=True)
class StageOption:
    """How a stage runs: ticks of its forward and backward, bytes `stored` for each batch in flight,
    its input among them, and `work` bytes beyond these while it runs. `there` are the operations of
    its forward, `back` those of its backward; both are empty where everything is kept."""

    forward: int
    backward: int
    stored: int
    work: int
    there: tuple[ChainOperation, ...] = ()
    back: tuple[ChainOperation, ...] = ()


@dataclass(frozen=True)
class StageOptionTable:
    """Rows `begin[k, l]` to `begin[k, l + 1]` are for the stage of layers k..l, the fastest first:
    ticks of both directions, bytes stored for each batch in flight, and bytes beyond these while it
    runs. `plan(k, l, row)` is the plan of one."""

    begin: IntArray
    ticks: IntArray
    stored: IntArray
    work: IntArray
    plan: Callable[[int, int, int], StageOption]

    @property
    def least(self) -> IntArray:
        """The fewest ticks of each layer, entry 0 for nothing."""
        layers = range(1, len(self.begin) - 1)
        return np.array([0, *(self.ticks[self.begin[layer, layer]] for layer in layers)], np.int64)


TICK_BITS = 40
"""All times together are about 2 to the power of so many ticks."""
NO_LIMIT = MAX_DEVICE_BYTES
"""Bytes or ticks that nothing reaches."""


@dataclass(frozen=True)
class PipelineLayers:
    """Layers 1..L and the cuts 0..L between them; entry 0 of arrays by layer stands for nothing.

    `forward` and `backward` are ticks of a layer, `weight` the bytes of its parameters with all
    copies, `stored` what it stores for each batch in flight: its input, and what its backward reads
    beside input and output. `forward_work` and `backward_work` are temporary bytes. By cut, `send`
    and `receive` are the ticks of the output over a link and of its gradient back, `output` and
    `gradient` their bytes, `buffer` the bytes that a cut takes on the devices at both of its sides.
    `tick` is in seconds. Where stages may compute again, `menu` says how.
    """

    forward: IntArray
    backward: IntArray
    weight: IntArray
    stored: IntArray
    forward_work: IntArray
    backward_work: IntArray
    send: IntArray
    receive: IntArray
    output: IntArray
    gradient: IntArray
    buffer: IntArray
    tick: float
    stage_options: StageOptionTable | None = None

    @property
    def count(self) -> int:
        """How many layers there are."""
        return len(self.forward) - 1

    @cached_property
    def load(self) -> IntArray:
        """Ticks of layers 1..l in both directions, by l."""
        return np.cumsum(self.forward + self.backward)

    @cached_property
    def weights(self) -> IntArray:
        """Bytes of the weights of layers 1..l, by l."""
        return np.cumsum(self.weight)

    @cached_property
    def kept(self) -> IntArray:
        """Bytes stored for a batch by layers 1..l, by l."""
        return np.cumsum(self.stored)

    @cached_property
    def work(self) -> IntArray:
        """Temporary bytes of a layer, in the direction that takes more."""
        return np.maximum(self.forward_work, self.backward_work)

    @cached_property
    def cut(self) -> IntArray:
        """Ticks that the link is taken by a cut, in both directions."""
        return self.send + self.receive

    @property
    def all_ticks(self) -> int:
        """Ticks of everything one after the other, all cuts included."""
        return int(self.load[-1] + self.cut.sum())

    @cached_property
    def keep_all_options(self) -> StageOptionTable:
        """The menu where every stage keeps everything, as M counts it (4.2.1)."""
        begin = np.zeros((self.count + 2, self.count + 2), np.int64)
        ticks, stored, work = [], [], []
        rows = 0
        for first in range(1, self.count + 1):
            begin[first, first:] = np.arange(rows, rows + self.count + 2 - first)
            rows += self.count + 1 - first
            ticks.append(self.load[first:] - self.load[first - 1])
            stored.append(self.kept[first:] - self.kept[first - 1])
            work.append(np.maximum.accumulate(self.work[first:]))
        return StageOptionTable(
            begin,
            np.concatenate(ticks),
            np.concatenate(stored),
            np.concatenate(work),
            lambda first, last, _: self.whole(first, last),
        )

    def whole(self, first: int, last: int) -> StageOption:
        """The stage of layers first..last that keeps everything."""
        own = slice(first, last + 1)
        return StageOption(
            int(self.forward[own].sum()),
            int(self.backward[own].sum()),
            int(self.kept[last] - self.kept[first - 1]),
            int(self.work[own].max()),
        )

    @property
    def max_ticks(self) -> int:
        """Ticks that nothing takes longer than, one after the other: `all_ticks`, or more where
        stages compute again."""
        if self.stage_options is None:
            return self.all_ticks
        return self.all_ticks + int(self.stage_options.ticks.max()) * self.count

    def least_period(self, devices: int) -> float:
        """Ticks a batch that no allocation and no pattern is below: those of the largest layer, and
        of a fair share of all of them."""
        each = np.diff(self.load) if self.stage_options is None else self.stage_options.least[1:]
        return max(int(each.sum()) / devices, int(each.max()))

    def memory(self, first: int, last: int, in_flight: int) -> int:
        """The bytes of a device with layers first..last alone and so many batches in flight (M
        4.2.1), the temporary bytes of its largest layer included."""
        weights = int(self.weights[last] - self.weights[first - 1])
        kept = int(self.kept[last] - self.kept[first - 1])
        buffers = int(self.buffer[first - 1] + self.buffer[last])
        work = int(self.work[first : last + 1].max())
        return weights + in_flight * kept + buffers + work

    def seconds(self, ticks: int) -> float:
        """Ticks in seconds."""
        return ticks * self.tick

    def ticks(self, seconds: float) -> int:
        """Seconds in ticks, with what rounding up may have added to the times of a period."""
        return math.floor(seconds / self.tick) + 2 * self.count

    def without_memory(self) -> PipelineLayers:
        """The same layers where nothing takes memory."""
        nothing = np.zeros_like(self.weight)
        return replace(
            self, weight=nothing, stored=nothing, forward_work=nothing, backward_work=nothing,
            output=nothing, gradient=nothing, buffer=nothing, stage_options=None,
        )  # fmt: skip


def layers_of_chain(
    chain: Chain, wire: PipelineLink, weight_copies: int, buffers: bool
) -> PipelineLayers:
    """The layers of a chain whose cuts go over links of one kind.

    A stage keeps for its backward the input of its first layer and all that the backwards of its
    layers read (`abar`), but for its own output, which the next stage stores as its input. Where
    `abar` is the output alone, as in M and in part III of S, a stage keeps the inputs of its
    layers. With `buffers` a cut takes, on both sides, room for the output and its gradient.
    """
    rows = chain.positions
    length = len(rows)
    sizes = [chain.a_0, *(row.a for row in rows)]
    gradients = [chain.delta_0, *(row.delta for row in rows)]
    inner = range(1, length)
    forward = [0.0, *(row.u_f for row in rows)]
    backward = [0.0, *(row.u_b for row in rows)]
    send = [wire.seconds(sizes[cut]) if cut in inner else 0.0 for cut in range(length + 1)]
    receive = [wire.seconds(gradients[cut]) if cut in inner else 0.0 for cut in range(length + 1)]
    tick = tick_seconds(math.fsum([*forward, *backward, *send, *receive]))

    def ticks(times: Sequence[float]) -> IntArray:
        return np.array([math.ceil(time / tick) for time in times], np.int64)

    def of_rows(values: Sequence[int]) -> IntArray:
        return np.array([0, *values], np.int64)

    return PipelineLayers(
        forward=ticks(forward),
        backward=ticks(backward),
        weight=of_rows([weight_copies * row.weight for row in rows]),
        stored=of_rows([sizes[row.position - 1] + row.abar - row.a for row in rows]),
        forward_work=of_rows([row.o_f for row in rows]),
        backward_work=of_rows([row.o_b for row in rows]),
        send=ticks(send),
        receive=ticks(receive),
        output=np.array(sizes, np.int64),
        gradient=np.array(gradients, np.int64),
        buffer=np.array(
            [
                sizes[cut] + gradients[cut] if buffers and cut in inner else 0
                for cut in range(length + 1)
            ],
            np.int64,
        ),
        tick=tick,
    )


def tick_seconds(seconds: float) -> float:
    """The tick where all times add up to so many seconds: a power of two, so that no product or
    sum of ticks is rounded."""
    return 2.0 ** (math.frexp(seconds)[1] - 1 - TICK_BITS)
