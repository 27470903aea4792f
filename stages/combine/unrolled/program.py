"""The fastest run of tasks within a peak, as an integer program (Z 2.1.1, 3.4).

The order of tasks is unrolled into stages. A stage runs some of its candidates again, in order, and
then its tail, the tasks that run for the first time. The program's variables are the ways in which
tasks run (`Comp` in Z), the values that are there when a stage begins (`P`), and which option of a
cluster is kept from its forward to its backward (`Sp`). Each value has one maker, so that Z's
contributions `S` are P.

What Z's C, D and A say is how long a value is there. Here need >= every later read in the stage,
and need >= P of the next stage. A value is there before a step where it is needed at the step or
after it. This takes no whole numbers and a variable a read. A task has a row of memory for each of
its levels. There a value that the task has read for the last time counts as after it, which are the
correction terms (Z 3.34). Backwards of clusters run once.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.stages.combine.moment.matrix import NOTHING, ONE, Floats, Matrix, SparseProgram, Term
from tightfit.stages.combine.unrolled.tasks import Tasks, Way
from tightfit.stages.replay.unrolling import ProgramStage

Sum = list[tuple[float, Term]]
Chosen = tuple[int, int, Way]
"""A run: its stage, its task and the way."""


class Unrolled:
    """The program of tasks in stages for a peak in bytes, and for what may be there at the loss
    (`save`), where that is limited. The value of `matrix` are seconds in shares of `unit`."""

    def __init__(
        self, tasks: Tasks, stages: Sequence[ProgramStage], peak: int, save: int | None = None
    ) -> None:
        self.tasks = tasks
        self.stages = stages
        self.unit = tasks.seconds or 1.0
        self.bytes = max(peak, 1)
        self.matrix = Matrix()
        self.home = {k: t for t, stage in enumerate(stages) for k in stage.tail}
        self.backward = {task.forward: k for k, task in enumerate(tasks.tasks) if task.forward >= 0}
        self.runs: dict[tuple[int, int], list[tuple[Way, Term]]] = {}
        self.kept: dict[tuple[int, int], Term] = {}
        self.option: dict[tuple[int, int, int], Term] = {}
        self.sure = 0.0
        for t, stage in enumerate(stages):
            for k in stage.steps:
                self._add_runs(t, k)
        self.readers = [self._readers(t) for t in range(len(stages))]
        for value in range(len(tasks.values)):
            for t in range(1, len(stages) + 1):
                self._add_kept(t, value)
        for (task, option), size in tasks.saved.items():
            self._add_option(task, option, size)
        for t in range(len(stages)):
            self._dependencies(t)
            self._memory(t, peak, peak if save is None else min(save, peak))

    def sparse(self) -> SparseProgram:
        """The program as arrays."""
        return self.matrix.sparse()

    def seconds(self, value: float) -> float:
        """The seconds that a value of the program stands for."""
        return self.sure + self.unit * value

    def solution(self, values: Floats) -> list[Chosen]:
        """The runs of a solution in order."""
        return [
            (t, k, way)
            for t, stage in enumerate(self.stages)
            for k in stage.steps
            for way, term in self.runs[t, k]
            if _value(term, values) > 0.5
        ]

    def start(self, chosen: Sequence[Chosen]) -> list[tuple[int, float]]:
        """The columns of ways with their values in known runs of the same stages."""
        taken = {(t, k, way.option) for t, k, way in chosen}
        return [
            (term.column, float((t, k, way.option) in taken))
            for (t, k), ways in self.runs.items()
            for way, term in ways
            if term.column >= 0
        ]

    def _add_runs(self, t: int, k: int) -> None:
        task = self.tasks.tasks[k]
        first = self.home[k] == t
        late = k in self.backward and self.home[self.backward[k]] == t and bool(task.late)
        ways = task.first if first else task.late if late else task.further
        if first and len(ways) == 1:
            self.runs[t, k] = [(ways[0], ONE)]
            self.sure += ways[0].seconds
            return
        found = [(way, self.matrix.binary(way.seconds / self.unit)) for way in ways]
        self.runs[t, k] = found
        terms = [(1.0, term) for _, term in found]
        if first:
            self.matrix.at_least(1.0, terms)
        if len(found) > 1:
            self.matrix.at_least(-1.0, [(-weight, term) for weight, term in terms])

    def _readers(self, t: int) -> dict[int, dict[int, list[Term]]]:
        """By value and task the runs of a stage that read it."""
        found: dict[int, dict[int, list[Term]]] = {}
        for k in self.stages[t].steps:
            for way, term in self.runs[t, k]:
                for value in way.reads:
                    found.setdefault(value, {}).setdefault(k, []).append(term)
        return found

    def _made(self, t: int, value: int) -> list[Term]:
        """The runs of a stage that make a value."""
        runs = self.runs.get((t, self.tasks.values[value].maker), [])
        return [term for way, term in runs if value in way.makes]

    def _add_kept(self, t: int, value: int) -> None:
        """P, fixed where it cannot be chosen."""
        kind = self.tasks.values[value]
        if kind.maker < 0 or t <= self.home[kind.maker]:
            return
        if kind.stays:
            self.kept[t, value] = ONE
            return
        later = range(t, len(self.stages))
        if not any(value in self.readers[stage] for stage in later):
            return
        for stage in later:
            if self._made(stage, value):
                break
            if any(ONE in terms for terms in self.readers[stage].get(value, {}).values()):
                self.kept[t, value] = ONE
                return
        self.kept[t, value] = self.matrix.binary()

    def _add_option(self, task: int, option: int, size: int) -> None:
        """What an option of a cluster keeps is there from a run of its forward by it on."""
        backward = self.backward[task]
        last = self.home[backward]
        for t in range(self.home[task] + 1, last + 1):
            term = self.matrix.binary()
            self.option[t, task, option] = term
            self.matrix.implied(term, self._begun(t - 1, task, option))
        claims = [term for way, term in self.runs[last, backward] if way.option == option]
        for claim in claims:
            self.matrix.implied(claim, self._begun(last, task, option))

    def _begun(self, t: int, task: int, option: int) -> list[Term]:
        """What an option keeps is there at the end of a stage: it was there or is made."""
        runs = [term for way, term in self.runs.get((t, task), []) if way.option == option]
        return [self.option.get((t, task, option), NOTHING), *runs]

    def _dependencies(self, t: int) -> None:
        """What a run reads is there, and only what was there or is made stays (Z 3.12 to 3.14)."""
        for value, kind in enumerate(self.tasks.values):
            if kind.maker < 0:
                continue
            here, made = self.kept.get((t, value), NOTHING), self._made(t, value)
            self._implied([self.kept.get((t + 1, value), NOTHING)], [here, *made])
            for k, claims in self.readers[t].get(value, {}).items():
                self._implied(claims, [here, *(made if kind.maker < k else [])])

    def _implied(self, claims: Sequence[Term], grounds: Sequence[Term]) -> None:
        """The sum of claims, of which one at most holds, is at most that of grounds."""
        if ONE in grounds or all(claim is NOTHING for claim in claims):
            return
        terms = [*((1.0, ground) for ground in grounds), *((-1.0, claim) for claim in claims)]
        self.matrix.at_least(0.0, terms)

    def _memory(self, t: int, peak: int, save: int) -> None:
        """The rows of memory of a stage."""
        steps = self.stages[t].steps
        there: list[dict[int, Term]] = [{} for _ in range(len(steps) + 1)]
        for value, kind in enumerate(self.tasks.values):
            if kind.maker >= 0 and kind.bytes:
                for step, term in enumerate(self._there(t, value)):
                    if term is not NOTHING:
                        there[step][value] = term
        for step, k in enumerate(steps):
            options = self._options_there(t, step)
            for way, term in self.runs[t, k]:
                for level in way.levels:
                    now = [
                        (float(self.tasks.values[value].bytes), live)
                        for value, live in there[step].items()
                        if value not in level.ended
                    ]
                    now += [
                        (float(self.tasks.values[value].bytes), live)
                        for value in sorted(level.ended)
                        if (live := there[step + 1].get(value)) is not None
                    ]
                    self._at_most(peak, [*now, *options, (float(level.own), term)])
            if k == self.tasks.loss and save < peak:
                now = [(float(self.tasks.values[v].bytes), live) for v, live in there[step].items()]
                self._at_most(save, [*now, *options])

    def _at_most(self, limit: int, terms: Sum) -> None:
        self.matrix.at_least(-limit, [(-weight, term) for weight, term in terms], self.bytes)

    def _there(self, t: int, value: int) -> list[Term]:
        """Whether a value is there before each step of a stage, and at its end."""
        steps = self.stages[t].steps
        made = self._made(t, value)
        maker = self.tasks.values[value].maker
        at = steps.index(maker) if made else -1
        here = self.kept.get((t, value), NOTHING)
        need = self.kept.get((t + 1, value), NOTHING)
        found = [need]
        if here is NOTHING and not made:
            return [NOTHING] * (len(steps) + 1)
        for step in reversed(range(len(steps))):
            if step <= at:
                found.append(here)
                continue
            claims = self.readers[t].get(value, {}).get(steps[step], [])
            need = self._either(need, claims)
            found.append(need)
        return found[::-1]

    def _either(self, need: Term, claims: Sequence[Term]) -> Term:
        """What is at least a need and at least the sum of claims, of which one at most holds."""
        if not claims or need is ONE:
            return need
        if ONE in claims:
            return ONE
        if need is NOTHING and len(claims) == 1:
            return claims[0]
        either = self.matrix.share()
        if need is not NOTHING:
            self.matrix.implied(need, [either])
        self.matrix.at_least(0.0, [(1.0, either), *((-1.0, claim) for claim in claims)])
        return either

    def _options_there(self, t: int, step: int) -> Sum:
        """The bytes kept by options of clusters, but for the one whose backward runs."""
        steps = self.stages[t].steps
        k = steps[step]
        found: Sum = []
        for (task, option), size in self.tasks.saved.items():
            backward = self.backward[task]
            if k == backward or not self.home[task] <= t <= self.home[backward]:
                continue
            begins = steps.index(task) if task in steps else -1
            if step <= begins:
                term = self.option.get((t, task, option), NOTHING)
                found.append((float(size), term))
            elif t < self.home[backward]:
                found.append((float(size), self.option.get((t + 1, task, option), NOTHING)))
            elif step < steps.index(backward):
                ways = self.runs[t, backward]
                found += [(float(size), term) for way, term in ways if way.option == option]
        return found


def _value(term: Term, values: Floats) -> float:
    return term.constant if term.column < 0 else float(values[term.column])
