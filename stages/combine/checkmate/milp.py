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
from dataclasses import dataclass

from tightfit.stages.combine.checkmate.tasks import NOTHING_KEPT, TaskGraph, TaskOption, find_makers
from tightfit.stages.combine.milp import (
    ONE_TERM,
    ZERO_TERM,
    FloatArray,
    LinearTerm,
    MilpBuilder,
    MilpProgram,
    SolverLimits,
    solve_milp,
)
from tightfit.stages.simulate.unroll import UnrolledStage

WeightedSum = list[tuple[float, LinearTerm]]
TaskRun = tuple[int, int, TaskOption]
"""A run: its stage, its task and the way."""


class CheckmateMilp:
    """The program of tasks in stages for a peak in bytes, and for what may be there at the loss
    (`save`), where that is limited. The value of `matrix` are seconds in shares of `unit`."""

    def __init__(
        self, tasks: TaskGraph, stages: Sequence[UnrolledStage], peak: int, save: int | None = None
    ) -> None:
        self.tasks = tasks
        self.stages = stages
        self.unit = tasks.seconds or 1.0
        self.bytes = max(peak, 1)
        self.matrix = MilpBuilder()
        self.stage_of = {k: t for t, stage in enumerate(stages) for k in stage.tail}
        self.backward = {task.forward: k for k, task in enumerate(tasks.tasks) if task.forward >= 0}
        self.runs: dict[tuple[int, int], list[tuple[TaskOption, LinearTerm]]] = {}
        self.kept: dict[tuple[int, int], LinearTerm] = {}
        self.option: dict[tuple[int, int, int], LinearTerm] = {}
        self.certain_seconds = 0.0
        for t, stage in enumerate(stages):
            for k in stage.steps:
                self._add_runs(t, k)
        self.readers = [self._readers(t) for t in range(len(stages))]
        for value in range(len(tasks.values)):
            for t in range(1, len(stages) + 1):
                self._add_kept(t, value)
        for task, option in tasks.saved:
            self._add_option(task, option)
        for t in range(len(stages)):
            self._dependencies(t)
            self._memory(t, peak, peak if save is None else min(save, peak))

    def sparse(self) -> MilpProgram:
        """The program as arrays."""
        return self.matrix.sparse()

    def seconds(self, value: float) -> float:
        """The seconds that a value of the program stands for."""
        return self.certain_seconds + self.unit * value

    def solution(self, values: FloatArray) -> list[TaskRun]:
        """The runs of a solution in order."""
        return [
            (t, k, way)
            for t, stage in enumerate(self.stages)
            for k in stage.steps
            for way, term in self.runs[t, k]
            if _term_value(term, values) > 0.5
        ]

    def start(self, chosen: Sequence[TaskRun]) -> list[tuple[int, float]]:
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
        first = self.stage_of[k] == t
        late = k in self.backward and self.stage_of[self.backward[k]] == t and bool(task.late)
        ways = task.first if first else task.late if late else task.further
        if first and len(ways) == 1:
            self.runs[t, k] = [(ways[0], ONE_TERM)]
            self.certain_seconds += ways[0].seconds
            return
        found = [(way, self.matrix.binary(way.seconds / self.unit)) for way in ways]
        self.runs[t, k] = found
        terms = [(1.0, term) for _, term in found]
        if first:
            self.matrix.at_least(1.0, terms)
        if len(found) > 1:
            self.matrix.at_least(-1.0, [(-weight, term) for weight, term in terms])

    def _readers(self, t: int) -> dict[int, dict[int, list[LinearTerm]]]:
        """By value and task the runs of a stage that read it."""
        found: dict[int, dict[int, list[LinearTerm]]] = {}
        for k in self.stages[t].steps:
            for way, term in self.runs[t, k]:
                for value in way.reads:
                    found.setdefault(value, {}).setdefault(k, []).append(term)
        return found

    def _made(self, t: int, value: int) -> list[LinearTerm]:
        """The runs of a stage that make a value."""
        runs = self.runs.get((t, self.tasks.values[value].maker), [])
        return [term for way, term in runs if value in way.makes]

    def _add_kept(self, t: int, value: int) -> None:
        """P, fixed where it cannot be chosen."""
        kind = self.tasks.values[value]
        if kind.maker < 0 or t <= self.stage_of[kind.maker]:
            return
        if kind.stays:
            self.kept[t, value] = ONE_TERM
            return
        later = range(t, len(self.stages))
        if not any(value in self.readers[stage] for stage in later):
            return
        for stage in later:
            if self._made(stage, value):
                break
            if any(ONE_TERM in terms for terms in self.readers[stage].get(value, {}).values()):
                self.kept[t, value] = ONE_TERM
                return
        self.kept[t, value] = self.matrix.binary()

    def _add_option(self, task: int, option: int) -> None:
        """What an option of a cluster keeps is there from a run of its forward by it on."""
        backward = self.backward[task]
        last = self.stage_of[backward]
        for t in range(self.stage_of[task] + 1, last + 1):
            term = self.matrix.binary()
            self.option[t, task, option] = term
            self.matrix.add_implication(term, self._begun(t - 1, task, option))
        claims = [term for way, term in self.runs[last, backward] if way.option == option]
        for claim in claims:
            self.matrix.add_implication(claim, self._begun(last, task, option))

    def _begun(self, t: int, task: int, option: int) -> list[LinearTerm]:
        """What an option keeps is there at the end of a stage: it was there or is made."""
        runs = [term for way, term in self.runs.get((t, task), []) if way.option == option]
        return [self.option.get((t, task, option), ZERO_TERM), *runs]

    def _dependencies(self, t: int) -> None:
        """What a run reads is there, and only what was there or is made stays (Z 3.12 to 3.14)."""
        for value, kind in enumerate(self.tasks.values):
            if kind.maker < 0:
                continue
            here, made = self.kept.get((t, value), ZERO_TERM), self._made(t, value)
            self._implied([self.kept.get((t + 1, value), ZERO_TERM)], [here, *made])
            for k, claims in self.readers[t].get(value, {}).items():
                self._implied(claims, [here, *(made if kind.maker < k else [])])

    def _implied(self, claims: Sequence[LinearTerm], grounds: Sequence[LinearTerm]) -> None:
        """The sum of claims, of which one at most holds, is at most that of grounds."""
        if ONE_TERM in grounds or all(claim is ZERO_TERM for claim in claims):
            return
        terms = [*((1.0, ground) for ground in grounds), *((-1.0, claim) for claim in claims)]
        self.matrix.at_least(0.0, terms)

    def _memory(self, t: int, peak: int, save: int) -> None:
        """The rows of memory of a stage."""
        steps = self.stages[t].steps
        there: list[dict[int, LinearTerm]] = [{} for _ in range(len(steps) + 1)]
        for value, kind in enumerate(self.tasks.values):
            if kind.maker >= 0 and kind.bytes:
                for step, term in enumerate(self._there(t, value)):
                    if term is not ZERO_TERM:
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

    def _at_most(self, limit: int, terms: WeightedSum) -> None:
        self.matrix.at_least(-limit, [(-weight, term) for weight, term in terms], self.bytes)

    def _there(self, t: int, value: int) -> list[LinearTerm]:
        """Whether a value is there before each step of a stage, and at its end."""
        steps = self.stages[t].steps
        made = self._made(t, value)
        maker = self.tasks.values[value].maker
        at = steps.index(maker) if made else -1
        here = self.kept.get((t, value), ZERO_TERM)
        need = self.kept.get((t + 1, value), ZERO_TERM)
        found = [need]
        if here is ZERO_TERM and not made:
            return [ZERO_TERM] * (len(steps) + 1)
        for step in reversed(range(len(steps))):
            if step <= at:
                found.append(here)
                continue
            claims = self.readers[t].get(value, {}).get(steps[step], [])
            need = self._either(need, claims)
            found.append(need)
        return found[::-1]

    def _either(self, need: LinearTerm, claims: Sequence[LinearTerm]) -> LinearTerm:
        """What is at least a need and at least the sum of claims, of which one at most holds."""
        if not claims or need is ONE_TERM:
            return need
        if ONE_TERM in claims:
            return ONE_TERM
        if need is ZERO_TERM and len(claims) == 1:
            return claims[0]
        either = self.matrix.share()
        if need is not ZERO_TERM:
            self.matrix.add_implication(need, [either])
        self.matrix.at_least(0.0, [(1.0, either), *((-1.0, claim) for claim in claims)])
        return either

    def _options_there(self, t: int, step: int) -> WeightedSum:
        """The bytes kept by options of clusters, but for the one whose backward runs."""
        steps = self.stages[t].steps
        k = steps[step]
        found: WeightedSum = []
        for (task, option), size in self.tasks.saved.items():
            backward = self.backward[task]
            if k == backward or not self.stage_of[task] <= t <= self.stage_of[backward]:
                continue
            begins = steps.index(task) if task in steps else -1
            if step <= begins:
                term = self.option.get((t, task, option), ZERO_TERM)
                found.append((float(size), term))
            elif t < self.stage_of[backward]:
                found.append((float(size), self.option.get((t + 1, task, option), ZERO_TERM)))
            elif step < steps.index(backward):
                ways = self.runs[t, backward]
                found += [(float(size), term) for way, term in ways if way.option == option]
        return found


def _term_value(term: LinearTerm, values: FloatArray) -> float:
    return term.constant if term.column < 0 else float(values[term.column])


OPTIMALITY_TOLERANCE = 2e-6
"""Seconds, in shares of a run's, by which one that is proven optimal may be above the bound."""


@dataclass(frozen=True)
class CheckmateSolution:
    """Runs within `peak` bytes (as the program counts them) and `save` that take `seconds`; no runs
    of the same stages within them take less than `bound`."""

    chosen: list[TaskRun]
    peak: int
    save: int | None
    seconds: float
    bound: float

    @property
    def gap(self) -> float:
        """The share of its seconds that other runs could save."""
        return max(1.0 - self.bound / self.seconds, 0.0) if self.seconds > 0 else 0.0

    @property
    def optimal(self) -> bool:
        """Whether none of the stages' runs are faster."""
        return self.gap <= OPTIMALITY_TOLERANCE


def solve_checkmate(
    tasks: TaskGraph,
    stages: Sequence[UnrolledStage],
    peak: int,
    save: int | None,
    limits: SolverLimits,
    known: CheckmateSolution | None = None,
) -> CheckmateSolution | None:
    """The fastest runs within limits that the work suffices for; those `known` to keep them where
    none are faster. None where there are none, or none were found."""
    program = CheckmateMilp(tasks, stages, peak, save)
    arrays = program.sparse()
    if arrays.possible and not len(arrays.cost):
        return CheckmateSolution(
            program.solution(arrays.cost),
            peak,
            save,
            program.certain_seconds,
            program.certain_seconds,
        )
    start = [] if known is None else program.start(known.chosen)
    solved = solve_milp(arrays, limits, start)
    bound = program.seconds(solved.bound)
    found = known
    if len(solved.values):
        seconds = program.seconds(float(arrays.cost @ solved.values.round()))
        if known is None or seconds < known.seconds:
            found = CheckmateSolution(program.solution(solved.values), peak, save, seconds, bound)
    if found is None:
        return None
    return CheckmateSolution(found.chosen, peak, save, found.seconds, min(bound, found.seconds))


def executed_nodes(chosen: Sequence[TaskRun]) -> list[int]:
    """The positions of the nodes that runs execute, in order."""
    return [node for _, _, way in chosen for node in way.runs]


def describe_optimality(solution: CheckmateSolution) -> str:
    """What is proven of a solution, as a clause."""
    if solution.optimal:
        return "the fastest of its kind"
    return f"{solution.gap:.1%} above a bound"


def keep_all_runs(tasks: TaskGraph, stages: Sequence[UnrolledStage]) -> list[TaskRun]:
    """Every task once; a cluster by its first option."""
    return [
        (t, k, option_numbered(tasks.tasks[k].first, 1))
        for t, stage in enumerate(stages)
        for k in stage.tail
    ]


def recompute_all_runs(tasks: TaskGraph, stages: Sequence[UnrolledStage]) -> list[TaskRun]:
    """Whatever can is made again right before it is needed: every cluster by its first option, for
    its backward; of single nodes those that the tail of a stage is made of, in each stage after the
    loss."""
    found: list[TaskRun] = []
    backward = {task.forward: k for k, task in enumerate(tasks.tasks) if task.forward >= 0}
    repeatable = {k for k in range(tasks.loss) if tasks.tasks[k].further}
    for t, stage in enumerate(stages):
        late = stage.tail[0] > tasks.loss and not backward
        needed = find_makers(tasks, stage.tail, repeatable) if late else set()
        for k in stage.candidates:
            task = tasks.tasks[k]
            if backward.get(k) in stage.tail and task.late:
                found.append((t, k, option_numbered(task.late, 1)))
            elif k in needed:
                found.append((t, k, task.further[0]))
        for k in stage.tail:
            first = tasks.tasks[k].first
            dropped = k in backward and bool(tasks.tasks[k].further)
            found.append((t, k, option_numbered(first, NOTHING_KEPT if dropped else 1)))
    return found


def total_run_seconds(chosen: Sequence[TaskRun]) -> float:
    """What the program counts as the seconds of runs."""
    return sum(way.seconds for _, _, way in chosen)


def option_numbered(ways: Sequence[TaskOption], option: int) -> TaskOption:
    """The way by an option, the first one where there is none: the option keeps nothing."""
    return next((way for way in ways if way.option == option), ways[0])
