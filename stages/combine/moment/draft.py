"""A sequence that does what a solution of the program says, complete but not always within the
budget: it is a start for the search."""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.schemas.problem import Problem
from tightfit.stages.combine.moment.matrix import Floats, Term
from tightfit.stages.combine.moment.program import Program


def sequence_of(
    program: Program, values: Sequence[float] | Floats, again: Problem | None = None
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
            if number == interval and _value(term, values) > 0.5
        }
        first = {
            position
            for (position, number), term in program.first.items()
            if number == interval and _value(term, values) > 0.5
        }
        moment = [intervals.moments[interval - 1]] if interval else []
        for position in [*moment, *sorted(first.difference(moment))]:
            _run(problem, position, there, done, found)
    return found


def _run(problem: Problem, node: int, there: set[int], done: set[int], found: list[int]) -> None:
    """Appends a node's first run, ahead of it the makers of what it misses, the deepest first."""
    pending = [node]
    while pending:
        position = pending[-1]
        repeated = position in done
        form = problem.form_at(position, repeated)
        if (position == node and repeated) or (position != node and there.issuperset(form.outputs)):
            pending.pop()
            continue
        wanted = [s for s in form.inputs if s not in there and problem.storages[s].producer >= 0]
        missing = {storage: _maker(problem, storage, there, done) for storage in wanted}
        if wanted:
            there.update(storage for storage, maker in missing.items() if maker is None)
            pending += [maker for maker in missing.values() if maker is not None]
            continue
        pending.pop()
        found.append(position)
        done.add(position)
        there.update(form.outputs)


def _maker(problem: Problem, storage: int, there: set[int], done: set[int]) -> int | None:
    """What makes a storage: its node, or the fastest of the alternatives that need nothing else;
    None where nothing makes it a second time, so that it has to stay."""
    node = problem.storages[storage].producer
    if node not in done:
        return node
    ready = [
        position
        for position in problem.again[storage]
        if problem.is_alternative(position)
        and there.issuperset(problem.form_at(position, True).inputs)
    ]
    own = [node] if storage in problem.form_at(node, True).outputs else []
    ways = [*own, *ready]
    return min(ways, key=lambda way: problem.form_at(way, True).least_seconds, default=None)


def _value(term: Term, values: Sequence[float] | Floats) -> float:
    return term.constant if term.column < 0 else float(values[term.column])
