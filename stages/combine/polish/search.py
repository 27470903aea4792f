"""Local search over sequences under a budget: repair what exceeds it, then win time back."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.combine.polish.arrays import Arrays, Integers, Positions, Seconds
from stages.combine.polish.kernel import (
    excess,
    insertion,
    live_before,
    memory_line,
    moved,
    prune,
    rows_of,
    window,
)

DEPTHS = np.array([0, 1, 2, 4, 1 << 20], np.int32)
"""How many levels of missing inputs an insertion makes again before it holds the rest."""
PASSES = 3
WORTHWHILE = 1e-3
"""A further pass of `exchange` is made when the last one saved this part of the time."""
FREE = 1e-7
"""What a step that takes no time counts as, as a part of the whole sequence's."""


@njit(cache=True, nogil=True)
def repair(
    a: Arrays, sequence: Positions, length: int, budget: int, rounds: int, limit: float
) -> tuple[Positions, int, int, float, int]:
    """Lowers a sequence's memory line under the budget by the steps that cost least per byte.

    Each round moves one execution across the excess, where that lowers it; where no move does, it
    makes one storage, which waits for its next use while the line is above the budget, again right
    before that use: the one with the most excess removed per second. Returns the sequence, its
    length, its peak in bytes, its seconds and the rounds used. The peak is above the budget where
    no step helps any more or the sequence takes `limit` seconds.
    """
    sequence = sequence.copy()
    best = np.empty(sequence.size, np.int32)
    line = np.empty(sequence.size, np.int64)
    peak, seconds = memory_line(a, sequence, length, budget, line)
    used = 0
    while peak > budget and used < rounds and seconds < limit:
        used += 1
        found = best_move(a, sequence, length, budget, line, seconds, best)
        if found == 0:
            found = best_insertion(a, sequence, length, budget, line, seconds, best)
        if found == 0:
            break
        length = prune(a, best, found)
        sequence[:length] = best[:length]
        peak, seconds = memory_line(a, sequence, length, budget, line)
    return sequence, length, peak, seconds, used


@njit(cache=True, nogil=True)
def best_move(
    a: Arrays,
    sequence: Positions,
    length: int,
    budget: int,
    line: Integers,
    seconds: float,
    best: Positions,
) -> int:
    """Fills `best` with the sequence after the move of one execution, to the first or the last
    place it may have, that removes most excess without taking longer; returns its length, 0 where
    there is none."""
    trial = np.empty(sequence.size, np.int32)
    trial_line = np.empty(length, np.int64)
    mark = np.zeros(a.size.size, np.int32)
    area = excess(line, length, budget)
    over = count_over(line, length, budget)
    rows = rows_of(a, sequence, length)
    best_gain = 0.0
    for i in range(length):
        low, high = window(a, sequence, rows, length, i, mark, 2 * i + 1)
        for target in (low, high):
            if target == i or over[max(i, target) + 1] == over[min(i, target)]:
                continue
            moved(sequence, length, i, target, trial)
            _, spent = memory_line(a, trial, length, budget, trial_line)
            gain = area - excess(trial_line, length, budget)
            if gain > best_gain and spent <= seconds * (1 + 1e-9):
                best_gain = gain
                best[:length] = trial[:length]
    return length if best_gain > 0 else 0


@njit(cache=True, nogil=True)
def count_over(line: Integers, length: int, budget: int) -> Positions:
    """`over[i]` is the number of executions before position i whose line is above the budget."""
    over = np.zeros(length + 1, np.int32)
    for i in range(length):
        over[i + 1] = over[i] + (1 if line[i] > budget else 0)
    return over


@njit(cache=True, nogil=True)
def best_insertion(
    a: Arrays,
    sequence: Positions,
    length: int,
    budget: int,
    line: Integers,
    seconds: float,
    best: Positions,
) -> int:
    """Fills `best` with the sequence after the insertion that removes most excess per second;
    returns its length, 0 where none removes any.

    Candidates are tried in the order of what they can remove at most, until that is less than
    what one of them did remove.
    """
    storages, places, depths, hopes = candidates(a, sequence, length, budget, line, seconds)
    chain = np.empty(a.fixed_run.size + 1, np.int32)
    trial = np.empty(sequence.size, np.int32)
    trial_line = np.empty(sequence.size, np.int64)
    area = excess(line, length, budget)
    rows = rows_of(a, sequence, length)
    free = seconds * FREE
    best_score = 0.0
    best_length = 0
    for index in np.argsort(-hopes):
        if hopes[index] <= best_score:
            break
        q = places[index]
        live = live_before(a, rows, length, q)
        count = insertion(a, live, storages[index], depths[index], chain)
        if length + count > sequence.size:
            continue
        trial[:q] = sequence[:q]
        trial[q : q + count] = chain[:count]
        trial[q + count : length + count] = sequence[q:length]
        _, spent = memory_line(a, trial, length + count, budget, trial_line)
        gain = area - excess(trial_line, length + count, budget)
        score = gain / (max(spent - seconds, 0.0) + free)
        if gain > 0 and score > best_score:
            best_score = score
            best_length = length + count
            best[:best_length] = trial[:best_length]
    return best_length


@njit(cache=True, nogil=True)
def candidates(
    a: Arrays,
    sequence: Positions,
    length: int,
    budget: int,
    line: Integers,
    seconds: float,
) -> tuple[Positions, Positions, Positions, Seconds]:
    """Insertions to try: the storage to make again, the position before whose execution, the depth
    and an estimate of the most excess it removes per second."""
    capacity = 64
    count = 0
    storages = np.empty(capacity, np.int32)
    places = np.empty(capacity, np.int32)
    depths = np.empty(capacity, np.int32)
    hopes = np.empty(capacity, np.float64)
    chain = np.empty(a.fixed_run.size + 1, np.int32)
    over = count_over(line, length, budget)
    last_event = np.full(a.size.size, -1, np.int32)
    rows = rows_of(a, sequence, length)
    for q in range(length):
        row = rows[q]
        live = last_event >= 0
        known = False
        for k in range(a.input_start[row], a.input_start[row + 1]):
            storage = a.input_item[k]
            event = last_event[storage]
            if event < 0 or over[q] == over[event + 1] or a.stays[storage]:
                continue
            if not known:
                live = live_before(a, rows, length, q)
                known = True
            previous = 0
            for depth in DEPTHS:
                made = insertion(a, live, storage, depth, chain)
                if made == 0 or made == previous:
                    break
                previous = made
                if count == capacity:
                    capacity *= 2
                    storages = np.append(storages, np.empty(count, np.int32))
                    places = np.append(places, np.empty(count, np.int32))
                    depths = np.append(depths, np.empty(count, np.int32))
                    hopes = np.append(hopes, np.empty(count, np.float64))
                storages[count] = storage
                places[count] = q
                depths[count] = depth
                hopes[count] = hope(a, chain, made, line, event, q, budget, seconds * FREE)
                count += 1
        for k in range(a.input_start[row], a.input_start[row + 1]):
            last_event[a.input_item[k]] = q
        for k in range(a.output_start[row], a.output_start[row + 1]):
            last_event[a.output_item[k]] = q
    return storages[:count], places[:count], depths[:count], hopes[:count]


@njit(cache=True, nogil=True)
def hope(
    a: Arrays,
    chain: Positions,
    made: int,
    line: Integers,
    first: int,
    last: int,
    budget: int,
    free: float,
) -> float:
    """The excess per second that making a chain's outputs again would remove, were all of them
    absent between the positions `first` and `last`."""
    size = 0
    seconds = free
    for c in range(made):
        row = chain[c] + a.fixed_run.size
        seconds += a.seconds[row]
        for k in range(a.output_start[row], a.output_start[row + 1]):
            size += a.size[a.output_item[k]]
    removed = 0.0
    for i in range(first + 1, last):
        if line[i] > budget:
            removed += min(size, line[i] - budget)
    return removed / seconds


@njit(cache=True, nogil=True)
def relax(
    a: Arrays, sequence: Positions, length: int, budget: int
) -> tuple[Positions, int, int, float]:
    """Removes recomputations, the most expensive first, as long as the budget holds."""
    capacity = sequence.size
    best = np.empty(capacity, np.int32)
    trial = np.empty(capacity, np.int32)
    line = np.empty(capacity, np.int64)
    sequence = sequence.copy()
    peak, seconds = memory_line(a, sequence, length, budget, line)
    while True:
        best_seconds = seconds
        best_length = 0
        seen = np.zeros(a.fixed_run.size, np.bool_)
        for i in range(length):
            node = sequence[i]
            if seen[node]:
                shorter = without(a, sequence, length, i, trial)
                peak, spent = memory_line(a, trial, shorter, budget, line)
                if peak <= budget and spent < best_seconds:
                    best_seconds = spent
                    best_length = shorter
                    best[:shorter] = trial[:shorter]
            seen[node] = True
        if best_length == 0:
            break
        length = best_length
        sequence[:length] = best[:length]
        seconds = best_seconds
    peak, seconds = memory_line(a, sequence, length, budget, line)
    return sequence, length, peak, seconds


@njit(cache=True, nogil=True)
def without(a: Arrays, sequence: Positions, length: int, position: int, out: Positions) -> int:
    """Copies the sequence without one execution and what only it needed; returns the length."""
    out[:position] = sequence[:position]
    out[position : length - 1] = sequence[position + 1 : length]
    return prune(a, out, length - 1)


@njit(cache=True, nogil=True)
def runs_before(sequence: Positions, position: int) -> bool:
    """True when the execution at `position` is not its node's first."""
    return bool((sequence[:position] == sequence[position]).any())


@njit(cache=True, nogil=True)
def exchange(
    a: Arrays, sequence: Positions, length: int, budget: int, rounds: int
) -> tuple[Positions, int, int, float]:
    """Removes one recomputation after another and repairs otherwise, keeping what saves time."""
    sequence, length, peak, seconds = relax(a, sequence, length, budget)
    trial = np.empty(sequence.size, np.int32)
    for _ in range(PASSES):
        before = seconds
        i = 0
        while i < length:
            if runs_before(sequence, i):
                shorter = without(a, sequence, length, i, trial)
                other, count, top, spent, _ = repair(a, trial, shorter, budget, rounds, seconds)
                if top <= budget and spent < seconds * (1 - 1e-9):
                    sequence, length, peak, seconds = relax(a, other, count, budget)
            i += 1
        if seconds > before * (1 - WORTHWHILE):
            break
    return sequence, length, peak, seconds
