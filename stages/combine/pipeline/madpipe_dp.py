"""The labels of MadPipe's program, compiled; `allocators/madpipe.py` says what they are for.

Labels of the same layers and devices that are left lie in places, by load and memory of the special
device. A place holds few of them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightfit.stages.combine.array_types import IntArray
from tightfit.stages.combine.pipeline.contiguous_dp import add_delay, count_periods

LOAD, MEMORY, DELAY, CARRIED, PARENT, SPECIAL, LAST, ANY, ROW = range(9)
"""What a label says: ticks and bytes of the special device; ticks between the end of the last
forward that is left and the start of its backward; those that the link between the special device
and that of the first stage carries already; the label before it; whether its first stage is on the
special device; this stage's last layer; whether any stage is on the special device; this stage's
row of the menu."""

SPECIAL_ROWS = 6
"""Of a menu with more rows, about so many are tried for a stage on the special device."""

FITS, MISFITS, HOPELESS, TOO_LONG = range(4)
"""Of a stage: it fits; it does not; nor does any with more layers that keeps everything; nor does
any that takes as long."""


class LayerSizes(NamedTuple):
    """The fewest ticks, the weights and the fewest bytes of layers 1..l by l; bytes of buffers and
    ticks of links by cut; the menu of stages."""

    load: IntArray
    weights: IntArray
    least: IntArray
    buffer: IntArray
    cut: IntArray
    begin: IntArray
    ticks: IntArray
    stored: IntArray
    work: IntArray


class LabelLimits(NamedTuple):
    """Devices beside the special one, the bytes of each, the period that batches in flight are
    counted by, and the load that a lane may have. Two rules: whether to count as M prints, and
    whether the special device stores all batches in flight. The places by load and by memory, the
    labels in each, and whether stages may compute again."""

    normal: int
    memory: int
    target: int
    most: int
    printed: bool
    count_all_in_flight: bool
    loads: int
    memories: int
    depth: int
    recomputes: bool


class PlacedStage(NamedTuple):
    """A stage first..last, on the special device or a normal one, whose forward ends `start` ticks
    before its backward begins."""

    special: int
    first: int
    last: int
    start: int


class StageLabels(NamedTuple):
    """Rows of what labels say, the next label in the place of each, and by layers that are left,
    devices in use and place: its first label and how many it has."""

    rows: IntArray
    after: NDArray[np.int32]
    head: NDArray[np.int32]
    filled: NDArray[np.int8]


@njit(cache=True, nogil=True)
def label_stages(sizes: LayerSizes, within: LabelLimits) -> IntArray:
    """(last layer, whether on the special device, row of the menu) of each stage in order, shape
    (stages, 3); empty where nothing was found. Of several the special device with the fewest bytes
    is taken."""
    length = sizes.load.size - 1
    labels = _first_label(length, within)
    count, best = 1, -1
    new = np.zeros(9, np.int64)
    for last in range(length, 0, -1):
        for used in range(within.normal + 1):
            own = _labels_of(labels, last, used)
            for label in own:
                if _is_dominated(labels, own, label):
                    continue
                for special in range(1 if used == within.normal else 0, 2):
                    row = labels.rows[label]
                    start = _entry_delay(row, special, last, sizes, within)
                    if start < 0:
                        continue
                    left = within.normal - used + special
                    room = (left + 1.0) * within.memory
                    begin = _latest_first_layer(row, special, last, left, sizes, within)
                    if within.printed and used == within.normal:
                        # as M prints it, the last device that is left takes all in one stage
                        begin = min(begin, 1)
                    for first in range(begin, 0, -1):
                        hopeless = True
                        begun, ended = sizes.begin[first, last], sizes.begin[first, last + 1]
                        step = special * (ended - begun) // SPECIAL_ROWS or 1
                        for number in range(begun, ended, step):
                            new[ROW] = number
                            stage = PlacedStage(special, first, last, start)
                            fit = _put_stage(new, row, stage, sizes, within)
                            if fit == TOO_LONG:
                                break
                            hopeless = hopeless and fit == HOPELESS and not within.recomputes
                            if fit != FITS:
                                continue
                            if sizes.least[first - 1] > room - new[MEMORY]:
                                continue
                            new[PARENT] = label
                            if count == labels.after.size:
                                labels = _grow_labels(labels)
                            reached = used + 1 - special
                            slot = _insert_label(labels, count, first - 1, reached, new, within)
                            count += slot == count
                            row = labels.rows[label]
                            if (
                                slot >= 0
                                and first == 1
                                and (best < 0 or new[MEMORY] <= labels.rows[best, MEMORY])
                            ):
                                best = slot
                            if not special:
                                break
                        if hopeless:
                            break
    return _trace_stages(labels.rows, best)


@njit(cache=True)
def _first_label(length: int, within: LabelLimits) -> StageLabels:
    normal, places = within.normal, within.loads * within.memories * 2
    head = np.full((length + 1, normal + 1, places), -1, np.int32)
    head[length, 0, 0] = 0
    filled = np.zeros((length + 1, normal + 1, places), np.int8)
    filled[length, 0, 0] = 1
    rows = np.zeros((4096, 9), np.int64)
    return StageLabels(rows, np.full(4096, -1, np.int32), head, filled)


@njit(cache=True)
def _grow_labels(labels: StageLabels) -> StageLabels:
    count = labels.after.size
    rows, after = np.empty((2 * count, 9), np.int64), np.empty(2 * count, np.int32)
    rows[:count], after[:count] = labels.rows, labels.after
    return StageLabels(rows, after, labels.head, labels.filled)


@njit(cache=True)
def _labels_of(labels: StageLabels, last: int, used: int) -> NDArray[np.int32]:
    """The labels that leave layers 1..last, with so many devices in use."""
    total = 0
    for place in range(labels.head.shape[2]):
        total += labels.filled[last, used, place]
    own = np.empty(total, np.int32)
    number = 0
    for place in range(labels.head.shape[2]):
        index = labels.head[last, used, place]
        while index >= 0:
            own[number] = index
            number += 1
            index = labels.after[index]
    return own


@njit(cache=True)
def _dominates(one: IntArray, other: IntArray) -> bool:
    """Whether a label is at least as good as another one with the same kind of first stage."""
    for figure in range(CARRIED + 1):
        if one[figure] > other[figure]:
            return False
    return one[SPECIAL] == other[SPECIAL] and one[ANY] >= other[ANY]


@njit(cache=True)
def _is_dominated(labels: StageLabels, own: NDArray[np.int32], label: int) -> bool:
    """Whether another label is at least as good, and was there earlier or is not as good as it."""
    mine = labels.rows[label]
    for other in own:
        its = labels.rows[other]
        if (
            other != label
            and _dominates(its, mine)
            and (other < label or not _dominates(mine, its))
        ):
            return True
    return False


@njit(cache=True)
def _entry_delay(
    row: IntArray, special: int, last: int, sizes: LayerSizes, within: LabelLimits
) -> int:
    """The delay between the end of the forward of layer `last` and the start of its backward, with
    the transfer between them; -1 where a link has too much to carry."""
    sound = not within.printed
    if last == sizes.load.size - 1 or (sound and special and row[SPECIAL]):
        return row[DELAY]
    carried = row[CARRIED] if sound and special else 0
    if carried + sizes.cut[last] > within.most:
        return -1
    return add_delay(row[DELAY], sizes.cut[last], within.target)


@njit(cache=True)
def _put_stage(
    new: IntArray, row: IntArray, stage: PlacedStage, sizes: LayerSizes, within: LabelLimits
) -> int:
    """Puts the label with a stage before those of `row` into `new`; says whether the stage fits."""
    special, first, last, start = stage
    sound = not within.printed
    number = new[ROW]
    load = sizes.ticks[number]
    new[LOAD] = row[LOAD] + special * load
    if max(load, new[LOAD]) > within.most:
        return TOO_LONG
    flying = max(count_periods(start + load, within.target), 1)
    if special and within.printed:
        flying -= 1
    elif special and row[ANY] and not within.count_all_in_flight:
        flying = max(flying - 1, 1)
    own = sizes.weights[last] - sizes.weights[first - 1]
    own += flying * sizes.stored[number]
    if last < sizes.load.size - 1 and not (sound and special and row[SPECIAL]):
        own += sizes.buffer[last]
    new[MEMORY] = row[MEMORY]
    if special:
        new[MEMORY] += own
        own = new[MEMORY]
        if within.printed:
            new[MEMORY] += sizes.buffer[first - 1]
    elif sound and row[SPECIAL]:
        new[MEMORY] += sizes.buffer[last]
    work = sizes.work[number]
    if own + work > within.memory or (not special and new[MEMORY] > within.memory):
        return HOPELESS
    if own + work + sizes.buffer[first - 1] > within.memory and (within.printed or not special):
        return MISFITS
    new[DELAY] = add_delay(start, load, within.target)
    new[CARRIED] = sizes.cut[last] if not special and row[SPECIAL] else 0
    new[SPECIAL], new[LAST], new[ANY] = special, last, special | row[ANY]
    return FITS


@njit(cache=True)
def _latest_first_layer(
    row: IntArray, special: int, last: int, left: int, sizes: LayerSizes, within: LabelLimits
) -> int:
    """The latest first layer of a stage that leaves no more layers than `left` devices and what is
    left of the special one have time and memory for; 0 where there is none."""
    load = (left + 1.0) * within.most - row[LOAD]
    memory = (left + 1.0) * within.memory - row[MEMORY]
    if special:
        return last if sizes.load[last] <= load else 0
    layers = min(
        np.searchsorted(sizes.load, load, "right"), np.searchsorted(sizes.least, memory, "right")
    )
    return min(layers, last)


@njit(cache=True)
def _insert_label(
    labels: StageLabels, count: int, layers: int, used: int, new: IntArray, within: LabelLimits
) -> int:
    """Adds a label, and says where: at `count`, in the place of another one where its own is full
    of labels of which one has more delay, or -1 where it is not needed."""
    place = new[LOAD] * within.loads // (within.most + 1) * within.memories
    place = 2 * (place + new[MEMORY] * within.memories // (within.memory + 1)) + new[SPECIAL]
    slot = -1
    index = labels.head[layers, used, place]
    while index >= 0:
        row = labels.rows[index]
        if _dominates(row, new):
            return -1
        if slot < 0 or row[DELAY] > labels.rows[slot, DELAY]:
            slot = index
        index = labels.after[index]
    if labels.filled[layers, used, place] < within.depth:
        slot = count
        labels.after[slot] = labels.head[layers, used, place]
        labels.head[layers, used, place] = slot
        labels.filled[layers, used, place] += 1
    elif labels.rows[slot, DELAY] <= new[DELAY]:
        return -1
    labels.rows[slot] = new
    return slot


@njit(cache=True)
def _trace_stages(rows: IntArray, best: int) -> IntArray:
    stages, index = 0, best
    while index > 0:
        stages += 1
        index = rows[index, PARENT]
    found = np.empty((stages, 3), np.int64)
    index = best
    for stage in range(stages):
        found[stage, 0], found[stage, 1] = rows[index, LAST], rows[index, SPECIAL]
        found[stage, 2] = rows[index, ROW]
        index = rows[index, PARENT]
    return found
