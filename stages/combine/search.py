"""Local search over sequences under a budget: repair what exceeds it, then win time back."""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.combine.arrays import Arrays, Positions
from stages.combine.kernel import (
    excess,
    insertion,
    live_before,
    memory_line,
    moved,
    prune,
    window,
)

DEPTHS = np.array([0, 1, 2, 4, 1 << 20], np.int32)
"""How many levels of missing inputs an insertion makes again before it holds the rest."""


@njit(cache=True, nogil=True)
def repair(
    a: Arrays, sequence: Positions, length: int, budget: int, rounds: int, limit: float
) -> tuple[Positions, int, int, float, int]:
    """Lowers a sequence's memory line under the budget by the steps that cost least per byte.

    Each round tries, for every storage that waits for its next use while the line is above the
    budget, to make it again right before that use, and to move executions across the excess; it
    takes the step with the most excess removed per second. Returns the sequence, its length, its
    peak in bytes, its seconds and the rounds used. The peak is above the budget where no step
    helps any more or the sequence takes `limit` seconds.
    """
    capacity = sequence.size
    best = np.empty(capacity, np.int32)
    trial = np.empty(capacity, np.int32)
    chain = np.empty(a.peak.size + 1, np.int32)
    line = np.empty(capacity, np.int64)
    trial_line = np.empty(capacity, np.int64)
    peak, seconds = memory_line(a, sequence, length, line)
    free = seconds * 1e-7 + 1e-12
    used = 0
    while peak > budget and used < rounds and seconds < limit:
        used += 1
        area = excess(line, length, budget)
        best_score = 0.0
        best_length = 0
        over = np.zeros(length + 1, np.int32)
        for i in range(length):
            over[i + 1] = over[i] + (1 if line[i] > budget else 0)
        last_event = np.full(a.size.size, -1, np.int32)
        for q in range(length):
            node = sequence[q]
            waiting = False
            for k in range(a.input_start[node], a.input_start[node + 1]):
                event = last_event[a.input_item[k]]
                waiting = waiting or (event >= 0 and over[q] > over[event + 1])
            if waiting:
                live = live_before(a, sequence, length, q)
                for k in range(a.input_start[node], a.input_start[node + 1]):
                    storage = a.input_item[k]
                    event = last_event[storage]
                    if event < 0 or over[q] == over[event + 1] or a.stays[storage]:
                        continue
                    previous = 0
                    for depth in DEPTHS:
                        count = insertion(a, live, storage, depth, chain)
                        if count == 0 or count == previous or length + count > capacity:
                            break
                        previous = count
                        bytes_again = 0
                        seconds_again = free
                        for c in range(count):
                            seconds_again += a.seconds[chain[c]]
                            for o in range(a.output_start[chain[c]], a.output_start[chain[c] + 1]):
                                bytes_again += a.size[a.output_item[o]]
                        hope = bytes_again * (over[q] - over[event + 1]) / seconds_again
                        if hope <= best_score:
                            continue
                        trial[:q] = sequence[:q]
                        trial[q : q + count] = chain[:count]
                        trial[q + count : length + count] = sequence[q:length]
                        _, spent = memory_line(a, trial, length + count, trial_line)
                        gain = area - excess(trial_line, length + count, budget)
                        score = gain / (max(spent - seconds, 0.0) + free)
                        if gain > 0 and score > best_score:
                            best_score = score
                            best_length = length + count
                            best[:best_length] = trial[:best_length]
            for k in range(a.input_start[node], a.input_start[node + 1]):
                last_event[a.input_item[k]] = q
            for k in range(a.output_start[node], a.output_start[node + 1]):
                last_event[a.output_item[k]] = q
        for i in range(length):
            low, high = window(a, sequence, length, i)
            for target in (low, high):
                if over[max(i, target) + 1] == over[min(i, target)] or target == i:
                    continue
                moved(sequence, length, i, target, trial)
                _, spent = memory_line(a, trial, length, trial_line)
                gain = area - excess(trial_line, length, budget)
                score = gain / (max(spent - seconds, 0.0) + free)
                if gain > 0 and score > best_score:
                    best_score = score
                    best_length = length
                    best[:best_length] = trial[:best_length]
        if best_length == 0:
            break
        length = prune(a, best, best_length)
        sequence = best.copy()
        peak, seconds = memory_line(a, sequence, length, line)
    return sequence, length, peak, seconds, used


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
    peak, seconds = memory_line(a, sequence, length, line)
    while True:
        best_seconds = seconds
        best_length = 0
        seen = np.zeros(a.peak.size, np.bool_)
        for i in range(length):
            node = sequence[i]
            if seen[node]:
                shorter = without(a, sequence, length, i, trial)
                peak, spent = memory_line(a, trial, shorter, line)
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
    peak, seconds = memory_line(a, sequence, length, line)
    return sequence, length, peak, seconds


@njit(cache=True, nogil=True)
def without(a: Arrays, sequence: Positions, length: int, position: int, out: Positions) -> int:
    """Copies the sequence without one execution and what only it needed; returns the length."""
    out[:position] = sequence[:position]
    out[position : length - 1] = sequence[position + 1 : length]
    return prune(a, out, length - 1)


@njit(cache=True, nogil=True)
def exchange(
    a: Arrays, sequence: Positions, length: int, budget: int, rounds: int
) -> tuple[Positions, int, int, float]:
    """Removes one recomputation after another and repairs otherwise, keeping what saves time."""
    sequence, length, peak, seconds = relax(a, sequence, length, budget)
    trial = np.empty(sequence.size, np.int32)
    improved = True
    while improved:
        improved = False
        seen = np.zeros(a.peak.size, np.bool_)
        for i in range(length):
            node = sequence[i]
            if seen[node]:
                shorter = without(a, sequence, length, i, trial)
                other, count, top, spent, _ = repair(a, trial, shorter, budget, rounds, seconds)
                if top <= budget and spent < seconds * (1 - 1e-9):
                    sequence, length, peak, seconds = relax(a, other, count, budget)
                    improved = True
                    break
            seen[node] = True
    return sequence, length, peak, seconds
