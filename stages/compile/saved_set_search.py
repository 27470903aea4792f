"""Searches for the values to save: the fastest sets at each peak, for one joint graph.

The search does not know the budget. It makes one Pareto frontier of peak and time, so that a larger
budget never gets a slower set, and never one of fewer bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tightfit.stages.compile.partition_memory import JointArrays, backward_nodes, simulate_partition

LEVELS = 10
"""Peaks that the search aims at, from the least that it found to that of the first set."""
NODE_VISITS = 30_000_000
"""How many nodes it simulates in all."""
MAX_MOVES = 4_000
"""Moves at one level at most."""
MAX_POINTS = 256
"""Sets that the frontier keeps."""

Saved = NDArray[np.bool_]


@dataclass(frozen=True)
class SavedSet:
    """Values to save, with what the simulator says of them: the peaks of the step and of
    its backward and the bytes at the end of the forward, without parameters and inputs, and seconds
    of forward and backward."""

    saved: Saved
    peak: int
    backward_peak: int
    end_bytes: int
    seconds: float


def simulate_set(graph: JointArrays, saved: Saved, between: int) -> SavedSet:
    """A set of saved values with its peak and time (see `simulate_partition`)."""
    peak, backward_peak, end, seconds, _ = simulate_partition(graph, saved, between)
    return SavedSet(saved, int(peak), int(backward_peak), int(end), float(seconds))


def search_saved_sets(
    graph: JointArrays, candidates: NDArray[np.int64], usual: Saved, between: int
) -> list[SavedSet]:
    """The Pareto frontier of saved sets, by rising peak.

    Args:
        graph: The joint graph.
        candidates: The nodes that may be saved, in order.
        usual: The set that the compiler takes without a budget; bool[nodes].
        between: Bytes that a loss takes between forward and backward (see `simulate_partition`).

    Returns:
        Sets of fewer bytes than `usual`, each faster than those before it; the one of the fewest
        bytes if there are none.

    Example:
        >>> frontier = search_saved_sets(arrays, candidates, usual, 0)
        >>> [point.peak for point in frontier]
    """
    limit, longest = (first := simulate_set(graph, usual, between)).peak, first.seconds
    # What the compiler itself recomputes may be recomputed.
    recomputed = backward_nodes(graph, usual)[0] & graph.is_forward
    graph = graph._replace(never_again=graph.never_again & ~recomputed)
    usual = usual.copy()
    usual[graph.forward_outputs] = graph.is_forward[graph.forward_outputs]
    points = _Points(len(usual))
    least = _smallest_of(graph, usual, between)
    for start in (usual, *_start_sets(graph, candidates, usual, least)):
        points.add(graph, start, between)
    classes = _equal_candidates(graph, candidates)
    moves = min(MAX_MOVES, NODE_VISITS // (len(usual) * (LEVELS + 2)))
    bottom = points.table[: points.count, 0].min()
    for level in range(-1, LEVELS):
        if level == 0:
            bottom = points.table[: points.count, 0].min()
        aim = bottom + (limit - bottom) * max(level, 0) / LEVELS if level >= 0 else 0.0
        start = points.best_within(aim)
        points.count = _anneal(
            (graph, candidates, *classes, usual),
            start,
            (aim, float(limit), longest, between),
            (moves, level + 2),
            (points.table, points.sets, points.count),
        )
    return points.frontier(graph, between, limit)


class _Points:
    """The sets of a frontier: rows of peak and seconds, and their bits."""

    def __init__(self, nodes: int) -> None:
        self.table = np.zeros((MAX_POINTS, 2))
        self.sets = np.zeros((MAX_POINTS, nodes), np.bool_)
        self.count = 0

    def add(self, graph: JointArrays, saved: Saved, between: int) -> None:
        """Adds a set unless another is as good."""
        peak, _, _, seconds, wrong = simulate_partition(graph, saved, between)
        if not wrong:
            self.count = _insert_point(
                self.table, self.sets, self.count, saved, float(peak), seconds
            )

    def best_within(self, aim: float) -> Saved:
        """The fastest set of at most so many bytes, or that of the fewest."""
        table = self.table[: self.count]
        fits = np.flatnonzero(table[:, 0] <= aim)
        best = fits[table[fits, 1].argmin()] if len(fits) else table[:, 0].argmin()
        found: Saved = self.sets[best].copy()
        return found

    def frontier(self, graph: JointArrays, between: int, limit: int) -> list[SavedSet]:
        """The sets of fewer bytes than a limit, or that of the fewest."""
        order = self.table[: self.count, 0].argsort()
        sets = [self.sets[at].copy() for at in order if self.table[at, 0] < limit or at == order[0]]
        return [simulate_set(graph, saved, between) for saved in sets]


def _smallest_of(graph: JointArrays, usual: Saved, between: int) -> Saved:
    """The usual set without all that can be recomputed: the largest values go first."""
    least = usual.copy()
    for node in np.flatnonzero(usual):
        if not _own_bytes(graph, int(node)):
            continue
        least[node] = False
        if simulate_partition(graph, least, between)[4]:
            least[node] = True
    return least


def _start_sets(
    graph: JointArrays, candidates: NDArray[np.int64], usual: Saved, least: Saved
) -> Iterator[Saved]:
    """Sets to begin with: values across which little is live, such as residual sums, each one to
    each eighth, alone and with the usual set behind the last."""
    yield least
    narrow = _narrow_cuts(graph, candidates)
    for step in (1, 2, 3, 4, 6, 8):
        cuts = narrow[step - 1 :: step]
        saved = least.copy()
        for cut in cuts:
            saved[cut] = True
        yield saved
        for last in cuts[-2:]:
            tail = saved.copy()
            tail[last[-1] :] |= usual[last[-1] :]
            yield tail


def _narrow_cuts(graph: JointArrays, candidates: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """The candidates that are live between two operators of the forward, at the positions that
    have fewer live bytes than those around them."""
    count = len(graph.is_forward)
    last = np.arange(count)
    for node in range(count - 1, -1, -1):
        if graph.is_forward[node] and not graph.is_input[node]:
            for at in range(graph.input_starts[node], graph.input_starts[node + 1]):
                given = graph.inputs[at]
                view = _same_storage(graph, node, given)
                last[given] = max(last[given], last[node] if view else node)
    sizes = np.array([_own_bytes(graph, node) for node in candidates])
    ends = last[candidates]
    change = np.zeros(count + 1)
    np.add.at(change, candidates, sizes)
    np.add.at(change, ends, -sizes)
    live = change.cumsum()[candidates]
    threshold = np.quantile(live, 0.2) if len(live) else 0.0
    found, previous = [], np.zeros(0, np.int64)
    for place, node in enumerate(candidates):
        crossing = candidates[(candidates <= node) & (ends > node)]
        if (
            0 < live[place] <= threshold
            and len(crossing)
            and not np.array_equal(crossing, previous)
        ):
            found.append(crossing)
            previous = crossing
    return found


def _same_storage(graph: JointArrays, node: int, given: int) -> bool:
    own = graph.storages[graph.storage_starts[node] : graph.storage_starts[node + 1]]
    base = graph.storages[graph.storage_starts[given] : graph.storage_starts[given + 1]]
    return bool(len(own)) and bool(len(base)) and own[0] in base


def _own_bytes(graph: JointArrays, node: int) -> int:
    own = graph.storages[graph.storage_starts[node] : graph.storage_starts[node + 1]]
    return int(graph.storage_bytes[own].sum())


def _equal_candidates(
    graph: JointArrays, candidates: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Candidates that are alike in bytes and time, as those of equal layers are: starts and places
    in `candidates`."""
    groups: dict[tuple[int, float, int], list[int]] = {}
    for place, node in enumerate(candidates):
        inputs = graph.input_starts[node + 1] - graph.input_starts[node]
        key = (_own_bytes(graph, node), float(graph.seconds[node]), int(inputs))
        groups.setdefault(key, []).append(place)
    starts = np.cumsum([0, *map(len, groups.values())], dtype=np.int64)
    return starts, np.array([each for row in groups.values() for each in row], np.int64)


@njit(cache=True, nogil=True)
def _insert_point(
    table: NDArray[np.float64],
    sets: NDArray[np.bool_],
    count: int,
    saved: Saved,
    peak: float,
    seconds: float,
) -> int:
    """Puts a set into a frontier unless another is as good; the number of its sets then."""
    kept = 0
    for at in range(count):
        if table[at, 0] <= peak and table[at, 1] <= seconds:
            return count
    for at in range(count):
        if table[at, 0] < peak or table[at, 1] < seconds:
            if kept != at:
                table[kept] = table[at]
                sets[kept] = sets[at]
            kept += 1
    if kept == len(table):
        kept = _drop_closest(table, sets, kept)
    table[kept, 0] = peak
    table[kept, 1] = seconds
    sets[kept] = saved
    return kept + 1


@njit(cache=True, nogil=True)
def _drop_closest(table: NDArray[np.float64], sets: NDArray[np.bool_], count: int) -> int:
    """Drops the set, but for the first and last, whose neighbors in peak are the closest."""
    order = np.argsort(table[:count, 0])
    worst, gap = order[1], np.inf
    for place in range(1, count - 1):
        width = table[order[place + 1], 0] - table[order[place - 1], 0]
        if width < gap:
            worst, gap = order[place], width
    table[worst] = table[count - 1]
    sets[worst] = sets[count - 1]
    return count - 1


@njit(cache=True, nogil=True)
def _cost(peak: int, seconds: float, aim: float, limit: float, longest: float) -> float:
    """What annealing makes small: the time, and the bytes above the peak that it aims at; with no
    aim the bytes, and a little of the time."""
    if aim <= 0:
        return peak / limit + 0.02 * seconds / longest
    return seconds / longest + 5.0 * max(0.0, peak - aim) / aim


@njit(cache=True, nogil=True)
def _anneal(
    space: tuple[
        JointArrays, NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]
    ],
    start: Saved,
    scale: tuple[float, float, float, int],
    effort: tuple[int, int],
    points: tuple[NDArray[np.float64], NDArray[np.bool_], int],
) -> int:
    """Simulated annealing at one level; the number of sets in the frontier then."""
    graph, candidates, class_starts, class_places, usual = space
    aim, limit, longest, between = scale
    moves, seed = effort
    table, sets, count = points
    np.random.seed(seed)
    saved = start.copy()
    peak, _, _, seconds, _ = simulate_partition(graph, saved, between)
    cost = _cost(peak, seconds, aim, limit, longest)
    for move in range(moves):
        temperature = 0.01 * (1.0 - move / moves) ** 2 + 1e-9
        trial = saved.copy()
        _change_set(trial, candidates, class_starts, class_places, usual)
        peak, _, _, seconds, wrong = simulate_partition(graph, trial, between)
        if wrong:
            continue
        found = _cost(peak, seconds, aim, limit, longest)
        if found <= cost or np.random.random() < np.exp((cost - found) / temperature):
            saved, cost = trial, found
            if peak < limit:
                count = _insert_point(table, sets, count, saved, float(peak), seconds)
    return count


@njit(cache=True, nogil=True)
def _change_set(
    saved: Saved,
    candidates: NDArray[np.int64],
    class_starts: NDArray[np.int64],
    class_places: NDArray[np.int64],
    usual: Saved,
) -> None:
    """Changes a set at random: one value; one for a neighbor; equal values of some layers; all
    values between two operators, to none, the usual ones or one."""
    kind = np.random.random()
    count = len(candidates)
    place = np.random.randint(count)
    node = candidates[place]
    if kind < 0.35:
        saved[node] = not saved[node]
    elif kind < 0.55:
        other = candidates[min(max(place + np.random.randint(-6, 7), 0), count - 1)]
        saved[node], saved[other] = saved[other], saved[node]
    elif kind < 0.85:
        group = np.random.randint(len(class_starts) - 1)
        first, end = class_starts[group], class_starts[group + 1]
        low = np.random.randint(first, end)
        high = np.random.randint(low, end) + 1
        value = np.random.random() < 0.5
        for at in range(low, high):
            saved[candidates[class_places[at]]] = value
    else:
        last = min(place + 1 + np.random.randint(60), count)
        same = np.random.random() < 0.5
        for at in range(place, last):
            saved[candidates[at]] = same and usual[candidates[at]]
        if not same:
            saved[node] = True
