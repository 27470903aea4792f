"""What a plan keeps across a few moments and what it runs between them, as an integer program.

The least value of the program is at most the seconds of every plan within the budget, whatever its
order, since each plan gives a solution of at most its seconds. Read off a plan, for each node,
storage, interval (`intervals`) and moment:

- `first`: whether the first run is in the interval; known where dependencies say so;
- `further`: whether further runs are in the interval, those of each alternative by themselves;
- `runs`: how many of them;
- `over`: whether the first run, in the interval, overwrites a certain input;
- `kept`: whether the storage is there when the moment's node starts.

Every plan keeps to the rows:

- What a run reads was there when its interval began, or a run in the interval made it.
- What is there at a moment was there at the one before or was made since. Each making begins a life
  and each overwriting ends one, so that lives begun, less lives that overwriting ended, bound what
  is there. Of the overwriting, only that by first runs is counted.
- What is overwritten is made again ahead of the first runs that read it and depend on that.
- What a moment's node reads is there; held storages and gradients are, once they are made.
- What is there at a moment, and what its node takes beyond that, is within the budget.

A plan takes the seconds of its first runs, less what overwriting saves, and those of its further
runs, each at least the fastest form's. An overwriting that saves neither time nor, at a moment,
bytes counts as the plain form, which takes no longer. Further runs in the interval of the first one
count only where something overwrites what they make, and no more than `_often` do: the rows hold
without the others, since what they make was made in the interval. Random states are left out, and
what would not fit at any other time. All of this only lowers the value.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.schemas.graph.planning_graph import InPlaceVariant, PlanningGraph
from tightfit.stages.combine.bounds.time_windows import TimeWindows
from tightfit.stages.combine.local_search.views import ViewTimes
from tightfit.stages.combine.milp import (
    ONE_TERM,
    ZERO_TERM,
    FloatArray,
    LinearExpression,
    LinearTerm,
    MilpBuilder,
)

MAX_CLOSED_CUTS = 7
"""The most moments of which each has rows to the end of the step as if it were the only one."""


def total_node_seconds(problem: PlanningGraph) -> float:
    """The seconds of all nodes, once each, none in place; 1 where they take none."""
    return sum(node.seconds for node in problem.nodes) or 1.0


class CutProgram:
    """The program of a problem, its intervals and a budget in bytes; without one its rows are left
    to others. The value of `matrix` is the seconds beyond `total_node_seconds`, in shares of these.
    `again` are the seconds that a further run at each position takes at least, by default without
    views. With the `heaviest` moment there are rows that let parts of storages count less often,
    and of many moments rows to the end for that one alone."""

    def __init__(
        self,
        problem: PlanningGraph,
        intervals: TimeWindows,
        budget: int | None,
        again: Sequence[float] | None = None,
        heaviest: int | None = None,
    ) -> None:
        self.problem = problem
        self.intervals = intervals
        self.again = min_recompute_seconds(problem) if again is None else again
        self.matrix = MilpBuilder()
        self.unit = total_node_seconds(problem)
        self.first: dict[tuple[int, int], LinearTerm] = {}
        self.further: dict[tuple[int, int], LinearTerm] = {}
        self.runs: dict[tuple[int, int], LinearTerm] = {}
        self.over: dict[tuple[int, int], list[tuple[InPlaceVariant, LinearTerm]]] = {}
        self.kept: dict[tuple[int, int], LinearTerm] = {}
        self.overwritten: dict[tuple[int, int], list[LinearTerm]] = {}
        self.reuses = [self._useful_reuses(position) for position in range(len(problem.nodes))]
        self._overwriter_counts = self._count_overwriters()
        for position in range(len(problem.nodes)):
            self._add_first(position)
            self._add_over(position)
        for position in problem.positions:
            self._add_further(position)
        for storage, stored in enumerate(problem.storages):
            if stored.producer >= 0:
                self._add_kept(storage)
        for position in problem.positions:
            self._reads(position)
        for position, interval in self.over:
            self._read_after(position, interval)
        for low, high in self._windows(heaviest):
            self._close(low, high)
        if budget is None:
            return
        for number, moment in enumerate(intervals.moments, 1):
            least = problem.nodes[moment].peak - budget
            self.matrix.at_least(least, self.resident_terms(number), unit=max(budget, 1))

    @property
    def last(self) -> int:
        """The last interval."""
        return len(self.intervals.moments)

    def _useful_reuses(self, position: int) -> list[InPlaceVariant]:
        """The forms in place of a first run that may save time, or bytes at a moment."""
        node = self.problem.nodes[position]
        moment = position in self.intervals.moments
        return [
            reuse
            for reuse in node.reuses
            if not self.problem.storages[reuse.storage].stays
            and (reuse.seconds < node.seconds or (moment and reuse.peak < node.peak))
        ]

    def _count_overwriters(self) -> list[int]:
        """For each node and alternative, how many first runs may overwrite what its further runs
        make."""
        count = [0] * len(self.problem.storages)
        for reuses in self.reuses:
            for reuse in reuses:
                count[reuse.storage] += 1
        forms = [self.problem.variant_at(position, True) for position in self.problem.positions]
        return [sum(count[storage] for storage in form.outputs) for form in forms]

    def _add_first(self, position: int) -> None:
        intervals = self.intervals.first(position)
        if len(intervals) == 1:
            self.first[position, intervals[0]] = ONE_TERM
            return
        terms = [self.matrix.binary() for _ in intervals]
        self.matrix.at_least(1.0, [(1.0, term) for term in terms])
        self.matrix.at_least(-1.0, [(-1.0, term) for term in terms])
        for interval, term in zip(intervals, terms, strict=True):
            self.first[position, interval] = term

    def _add_over(self, position: int) -> None:
        """A run overwrites at most one of its inputs."""
        node = self.problem.nodes[position]
        for interval in self.intervals.first(position) if self.reuses[position] else ():
            found = [
                (reuse, self.matrix.binary((reuse.seconds - node.seconds) / self.unit))
                for reuse in self.reuses[position]
            ]
            self.over[position, interval] = found
            for reuse, term in found:
                self.overwritten.setdefault((reuse.storage, interval), []).append(term)
            terms = [(-1.0, term) for _, term in found]
            self.matrix.at_least(0.0, [(1.0, self.first[position, interval]), *terms])

    def _add_further(self, position: int) -> None:
        """Further runs count from the interval after the first one on, where something overwrites
        what they make from that one on."""
        node = self.problem.node_at(position)
        if node == position and not self.problem.can_recompute(self.problem.nodes[node]):
            return
        often = self._overwriter_counts[position]
        cost = self.again[position] / self.unit
        for interval in self.intervals.further(node):
            before = self._first_up_to(node, interval if often else interval - 1)
            if not before:
                continue
            if not often:
                term = self.matrix.binary(cost)
                self.further[position, interval] = self.runs[position, interval] = term
            else:
                term = self.matrix.binary()
                many = self.matrix.share(cost, often + 1.0)
                self.further[position, interval], self.runs[position, interval] = term, many
                self.matrix.add_implication(term, [many])
                self.matrix.at_least(0.0, [(often + 1.0, term), (-1.0, many)])
            self.matrix.add_implication(term, before)

    def _first_up_to(self, position: int, interval: int) -> list[LinearTerm]:
        """Whether the first run is in an interval or before; empty where it cannot be."""
        intervals = range(self.intervals.earliest[position], interval + 1)
        return [self.first[key] for p in intervals if (key := (position, p)) in self.first]

    def _makes(
        self, storage: int, interval: int, runs: dict[tuple[int, int], LinearTerm]
    ) -> list[LinearTerm]:
        """The first and the further runs in an interval that make a storage; `runs` is that field
        or `further`."""
        maker = self.problem.storages[storage].producer
        found = [self.first.get((maker, interval), ZERO_TERM)]
        found += [runs.get((each, interval), ZERO_TERM) for each in self.problem.again[storage]]
        return found

    def _add_kept(self, storage: int) -> None:
        stored = self.problem.storages[storage]
        for number, moment in enumerate(self.intervals.moments, 1):
            before = self._first_up_to(stored.producer, number - 1)
            if not before:
                continue
            needed = storage in self.problem.nodes[moment].inputs
            sure = stored.stays and self.intervals.latest[stored.producer] < number
            term = ONE_TERM if needed or sure else self.matrix.binary()
            self.kept[storage, number] = term
            if stored.stays:
                self.matrix.at_least(0.0, [(1.0, term), *((-1.0, first) for first in before)])
            else:
                self._add_lifetime(term, storage, number - 1)
        if not stored.stays:
            self._add_lifetime(ZERO_TERM, storage, self.last)

    def _add_lifetime(self, after: LinearTerm, storage: int, interval: int) -> None:
        """What is there after an interval was there before or made in it, and not overwritten."""
        overwritten = self.overwritten.get((storage, interval), [])
        if not overwritten and after is ZERO_TERM:
            return
        made = self._makes(storage, interval, self.runs)
        if made[0] is ONE_TERM and not overwritten:
            return
        begun = [self.kept.get((storage, interval), ZERO_TERM), *made]
        ended = [after, *overwritten]
        self.matrix.at_least(0.0, [*((1.0, t) for t in begun), *((-1.0, t) for t in ended)])

    def _reads(self, position: int) -> None:
        first, further = (self.problem.variant_at(position, repeated) for repeated in (False, True))
        node = self.problem.node_at(position)
        for interval in self.intervals.first(node) if node == position else ():
            claim = self.first[position, interval]
            for storage in first.inputs:
                self._there(claim, storage, interval)
        for interval in self.intervals.further(node):
            if (position, interval) in self.further:
                for storage in further.inputs:
                    self._there(self.further[position, interval], storage, interval)

    def _there(self, claim: LinearTerm, storage: int, interval: int) -> None:
        """What a run reads was there before its interval or is made in it."""
        maker = self.problem.storages[storage].producer
        if maker >= 0 and self.first.get((maker, interval)) is not ONE_TERM:
            made = self._makes(storage, interval, self.further)
            self.matrix.add_implication(
                claim, [self.kept.get((storage, interval), ZERO_TERM), *made]
            )

    def _read_after(self, position: int, interval: int) -> None:
        """What a run overwrites is made again ahead of those that read it after that run."""
        for reuse, term in self.over[position, interval]:
            readers = self.problem.readers[reuse.storage]
            after = [r for r in readers if self.intervals.precedes(position, r)]
            if after and not self._may_return(reuse.storage):
                until = min(self.intervals.latest[reader] for reader in after)
                again = self.problem.again[reuse.storage]
                runs = [(each, at) for each in again for at in range(interval, until + 1)]
                self.matrix.add_implication(
                    term, [self.further.get(run, ZERO_TERM) for run in runs]
                )

    def _may_return(self, storage: int) -> bool:
        """Whether a storage that is overwritten may be there again without being made again."""
        return False

    def _windows(self, heaviest: int | None) -> list[tuple[int, int]]:
        """Intervals, the first and the last of some in a row, of which the rows of a moment count
        as if it were the only one."""
        last, moments = self.last, self.intervals.moments
        if heaviest is None:
            return [(number, last) for number in range(1, last)]
        often = moments if len(moments) <= MAX_CLOSED_CUTS else (heaviest,)
        rest = [(number, last) for number in range(1, last - 1) if moments[number - 1] in often]
        return rest + [(number, number + 1) for number in range(1, last)]

    def _close(self, low: int, high: int) -> None:
        """The rows of a moment as if it were the only one, from interval to interval. For whole
        numbers they follow from the others; they keep parts of a storage from counting once more in
        each later interval."""
        late = self._within_window(self.first, low, high)
        further = self._within_window(self.further, low, high)
        once = {
            position: terms[0] if len(terms) == 1 else self.matrix.share()
            for position, terms in further.items()
        }
        for position, terms in further.items():
            if len(terms) > 1:
                self.matrix.add_implication(once[position], terms)

        def there(claims: list[LinearTerm], storage: int) -> None:
            maker = self.problem.storages[storage].producer
            if maker < 0:
                return
            grounds = [self.kept.get((storage, low), ZERO_TERM), *late.get(maker, [])]
            grounds += [once.get(each, ZERO_TERM) for each in self.problem.again[storage]]
            grounds += self._prefetch_terms(storage, low)
            self.matrix.at_least(
                0.0, [*((1.0, ground) for ground in grounds), *((-1.0, c) for c in claims)]
            )

        for position, claims in late.items():
            for storage in self.problem.nodes[position].inputs:
                there(claims, storage)
        for position, term in once.items():
            for storage in self.problem.variant_at(position, True).inputs:
                there([term], storage)
        for (storage, later), term in self.kept.items():
            if low < later <= high + 1:
                there([term], storage)

    def _prefetch_terms(self, storage: int, number: int) -> list[LinearTerm]:
        """What else than runs gives a storage from a moment on."""
        return []

    def _within_window(
        self, terms: dict[tuple[int, int], LinearTerm], low: int, high: int
    ) -> dict[int, list[LinearTerm]]:
        """By node, the terms of some intervals in a row."""
        found: dict[int, list[LinearTerm]] = {}
        for (position, interval), term in terms.items():
            if low <= interval <= high:
                found.setdefault(position, []).append(term)
        return found

    def resident_terms(self, number: int) -> LinearExpression:
        """What is there at a moment, by its number from 1 on, and what its node saves in place."""
        moment = self.intervals.moments[number - 1]
        peak = self.problem.nodes[moment].peak
        terms = [
            (-float(stored.bytes), self.kept.get((storage, number), ZERO_TERM))
            for storage, stored in enumerate(self.problem.storages)
        ]
        saved = [
            (float(peak - reuse.peak), term) for reuse, term in self.over.get((moment, number), [])
        ]
        return terms + saved


def min_recompute_seconds(problem: PlanningGraph, views: ViewTimes | None = None) -> list[float]:
    """By position, the seconds that a further run adds at least to a plan without useless runs.

    A node that makes one storage is read after each of its runs, and each of these reads makes the
    views that all who read the storage have in common. Of these the first run's are not counted
    here, so that they may be for all views once. What draws random numbers keeps the place of its
    first run, be that read or not, and so does what has alternatives, whose views are left out.
    """
    found = [problem.variant_at(position, True).least_seconds for position in problem.positions]
    shared = [0.0] * len(problem.storages) if views is None else views.shared(problem)
    for position, node in enumerate(problem.nodes):
        if len(node.outputs) == 1 and node.repeat is None and not node.random:
            found[position] += shared[node.outputs[0]]
    return found


def sequence_from_solution(
    program: CutProgram, values: Sequence[float] | FloatArray, again: PlanningGraph | None = None
) -> list[int]:
    """The first runs of each interval in captured order, each after what it reads and what is not
    there is made again; what an interval made is taken to be there to its end, as is what nothing
    makes again. Where `again` is given, nodes run again as they do there."""
    problem, intervals = again or program.problem, program.intervals
    found: list[int] = []
    done: set[int] = set()
    for interval in range(program.last + 1):
        there = {
            storage
            for (storage, number), term in program.kept.items()
            if number == interval and _term_value(term, values) > 0.5
        }
        first = {
            position
            for (position, number), term in program.first.items()
            if number == interval and _term_value(term, values) > 0.5
        }
        moment = [intervals.moments[interval - 1]] if interval else []
        for position in [*moment, *sorted(first.difference(moment))]:
            _append_first_run(problem, position, there, done, found)
    return found


def _append_first_run(
    problem: PlanningGraph, node: int, there: set[int], done: set[int], found: list[int]
) -> None:
    """Appends a node's first run, ahead of it the makers of what it misses, the deepest first."""
    pending = [node]
    while pending:
        position = pending[-1]
        repeated = position in done
        form = problem.variant_at(position, repeated)
        if (position == node and repeated) or (position != node and there.issuperset(form.outputs)):
            pending.pop()
            continue
        wanted = [s for s in form.inputs if s not in there and problem.storages[s].producer >= 0]
        missing = {storage: _fastest_maker(problem, storage, there, done) for storage in wanted}
        if wanted:
            there.update(storage for storage, maker in missing.items() if maker is None)
            pending += [maker for maker in missing.values() if maker is not None]
            continue
        pending.pop()
        found.append(position)
        done.add(position)
        there.update(form.outputs)


def _fastest_maker(
    problem: PlanningGraph, storage: int, there: set[int], done: set[int]
) -> int | None:
    """What makes a storage: its node, or the fastest of the alternatives that need nothing else;
    None where nothing makes it a second time, so that it has to stay."""
    node = problem.storages[storage].producer
    if node not in done:
        return node
    ready = [
        position
        for position in problem.again[storage]
        if problem.is_alternative(position)
        and there.issuperset(problem.variant_at(position, True).inputs)
    ]
    own = [node] if storage in problem.variant_at(node, True).outputs else []
    ways = [*own, *ready]
    return min(ways, key=lambda way: problem.variant_at(way, True).least_seconds, default=None)


def _term_value(term: LinearTerm, values: Sequence[float] | FloatArray) -> float:
    return term.constant if term.column < 0 else float(values[term.column])
