"""Looks for a plan of a whole step: how much of the device activations have, how much of the link
they take, which parameters are there when the step begins, and how many are updated on the device.

Each choice makes a schedule, which the simulator plays; from the best so far, one choice at a time
is changed as long as that helps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.stages.combine.optimizer_offload.activation_schedule import (
    ActivationProblem,
    ActivationSchedule,
    ActivationScheduleCache,
)
from tightfit.stages.combine.optimizer_offload.gradient_accumulation import accumulation_peaks
from tightfit.stages.combine.optimizer_offload.min_memory import (
    OffloadTargetTooSmallError,
    UnknownPlanError,
    describe_op,
)
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.combine.optimizer_offload.residency import (
    PlacementMemoryError,
    PlacementRequest,
    PlacementTimeError,
    residency_windows,
)
from tightfit.stages.combine.optimizer_offload.search_space import (
    ActivationProblemKey,
    OffloadChoice,
    vary_activations,
    vary_placement,
)
from tightfit.stages.combine.optimizer_offload.transfer_placement import place_transfers
from tightfit.stages.simulate.cyclic_schedule import CycleResult
from tightfit.stages.simulate.liveness import simulate_executions
from tightfit.stages.simulate.simulate import SimulationResult, simulate, sum_microbatches
from tightfit.util.errors import ConfigError

ACTIVATION_SHARES = (0.9, 0.8, 0.7, 0.55, 0.4, 0.25)
"""Parts of the room that activations may have, which are tried at first."""
FINE_ACTIVATION_SHARES = tuple(number / 20 for number in range(19, 1, -1))
"""Those that are tried where none of the first leads to a plan."""
RESIDENT_STARTS = ((0.25, 0.0), (0.5, 1.0), (0.75, 1.0))
"""Parts of the room for parameters that are there when the step begins, and which (`Choice.last`),
that are tried with each."""
MAX_TRIES = 4
"""How often activations have less where hardly anything fits."""


@dataclass(frozen=True)
class OffloadSearchResult:
    """A plan: the choice, the optimizer as the simulator takes it, and what that says; `adding` is
    what it says of each microbatch that is not the last one, where there are several. `seconds` are
    those of all. Where steps follow each other without a seam, they are a `cycle`, and the
    simulation is that of one of them."""

    choice: OffloadChoice
    updates: OptimizerPlan
    simulation: SimulationResult
    adding: SimulationResult | None
    seconds: float
    cycle: CycleResult | None = None


PlacementKey = tuple[ActivationProblemKey, int, float, frozenset[int], frozenset[int], int]
"""What a plan is placed by: its base, the parameters that are there, and updated here, and the
number of staging buffers."""


class OffloadSearch:
    """Plans of one task; `views` may be those of another one that differs in its budget, or in
    which states stay on the device."""

    def __init__(
        self,
        task: OffloadProblem,
        views: dict[ActivationProblemKey, ActivationProblem] | None = None,
    ) -> None:
        self.task = task
        self.schedules = ActivationScheduleCache(task, {} if views is None else views)
        self.tried: dict[OffloadChoice, OffloadSearchResult | None] = {}
        self.made: dict[PlacementKey, tuple[OffloadSearchResult | None, int]] = {}
        """What was placed, also for other choices that come to the same, and what it lacked."""
        self.slow: dict[PlacementKey, float] = {}
        """Seconds that plans take longer than, which were not placed to their ends."""
        self.missing_bytes = 0
        """Bytes by which the last plan that was tried did not fit, where that is known."""
        self.tightest_bytes = 0
        """Those of the device that the closest plan takes where it does not fit."""
        self.tier_bytes = 0
        """The fewest of the offload target that a plan takes for which this has no room."""
        self.host_updatable = task.leaving

    def best(self) -> OffloadSearchResult:
        """The fastest plan found; raises ConfigError where none is found, or a memory has no room
        for what is always in it."""
        return self.improve(self.begun())

    def begun(self) -> OffloadSearchResult:
        """The fastest plan of those that are tried ahead of the neighbors of one; raises
        ConfigError as `best` does."""
        self.check()
        here = self.tightest_choices[0].here
        best = self.first()
        if best is None:
            best = self._best_of(
                OffloadChoice(part, 0.0, 0.0, here) for part in FINE_ACTIVATION_SHARES
            )
        if best is None and self.task.updates_on_host and here:
            best = self._best_of(OffloadChoice(part, 0.0, 0.0, 0.0) for part in ACTIVATION_SHARES)
        for choice in self.tightest_choices:
            best = best or self.closest(choice)
        if best is None:
            raise self._refusal()
        return best

    def first(
        self, shares: Sequence[float] = ACTIVATION_SHARES, most: float = math.inf
    ) -> OffloadSearchResult | None:
        """The fastest plan of those that are tried at first, with parts of the room for
        activations, that takes no longer than `most` seconds; all updates that may be are done in
        one memory, and then in the other one where that can be faster."""
        here = self.tightest_choices[0].here
        best = self._begins(shares, here, most)
        if not self.moves or (
            not here and best and best.seconds <= self.task.min_device_update_seconds
        ):
            return best
        most = best.seconds if best else most
        return fastest_result([best, self._begins(shares, 1.0 - here, most)])

    def _begins(
        self, shares: Sequence[float], here: float, most: float
    ) -> OffloadSearchResult | None:
        choices = [
            OffloadChoice(part, 0.0, there, here, last=last, buffers=buffers)
            for part in shares
            for there, last in RESIDENT_STARTS
            for buffers in self.task.buffer_counts[: 2 if here else 1]
        ]
        return self._best_of(choices, most)

    def check(self) -> None:
        """Raises ConfigError where a memory has no room for what is always in it, or nothing adds
        gradients up."""
        self.task.check_tier_capacities()
        if self.task.microbatches > 1 and not self.task.updates_on_host:
            raise ConfigError(
                f"nothing computes beside {self.task.link.to}, where gradients of several "
                "microbatches are added up"
            )

    def improve(self, best: OffloadSearchResult) -> OffloadSearchResult:
        """The fastest plan that is found from one by changing one choice at a time; the bytes of
        activations, for which a sequence has to be searched, where nothing else helps."""
        while True:
            for choices in (
                vary_placement(
                    best.choice, self.moves, self.task.buffer_counts, self.task.link_shares
                ),
                vary_activations(best.choice),
            ):
                better = fastest_result([best, self._best_of(choices, best.seconds)])
                if better is not None and better.seconds < best.seconds:
                    best = better
                    break
            else:
                return best

    @property
    def moves(self) -> bool:
        """Whether it is looked for which updates are done in the offload target."""
        task, measured = self.task, self.task.measured
        spare = measured is None or measured.spare
        return task.updates_on_host and task.microbatches == 1 and spare

    @property
    def tightest_choices(self) -> list[OffloadChoice]:
        """Those of hardly any room: all updates that may be are the device's, or none. Where either
        can be it depends on the model which takes less."""
        task, first = self.task, float(self.task.device_updates_first)
        either = task.updates_on_host and task.microbatches == 1
        return [
            OffloadChoice(1.0, here=h, close=True)
            for h in ((first, 1 - first) if either else (first,))
        ]

    def closest(self, choice: OffloadChoice) -> OffloadSearchResult | None:
        """A plan that has hardly anything on the device beside what an op or an update needs, where
        the budget is enough for it; what the estimate does not see is taken of activations."""
        view = self.schedules.view(choice.view)
        if view.needed > self.task.room:
            return None
        for _ in range(MAX_TRIES):
            self.missing_bytes = 0
            found = self.look(choice)
            if found is not None:
                return found
            if not self.missing_bytes:
                break
            total = self.task.budget + self.missing_bytes
            self.tightest_bytes = min(self.tightest_bytes or total, total)
            less = choice.activations - (self.missing_bytes + 1) / max(self.task.room, 1)
            choice = replace(choice, activations=less)
        return self.least(choice)

    def least(self, choice: OffloadChoice) -> OffloadSearchResult | None:
        """The plan of a choice in which activations have no more than the least known to do."""
        view = self.schedules.view(choice.view)
        least, room = view.least.peak, self.task.room - view.always
        return self.look(replace(choice, activations=(least + 1) / room)) if least < room else None

    def _best_of(
        self, choices: Iterable[OffloadChoice], most: float = math.inf
    ) -> OffloadSearchResult | None:
        """The fastest plan of some choices; one that takes longer than `most` seconds may be left
        out."""
        asked, best = list(choices), None
        with self.schedules.making(asked) as wait:
            for choice in asked:
                wait(choice)
                found = self.look(choice, most)
                if found is not None and (best is None or found.seconds < best.seconds):
                    best, most = found, min(most, found.seconds)
        return best

    def look(self, choice: OffloadChoice, most: float = math.inf) -> OffloadSearchResult | None:
        """The plan of a choice, None where there is none, or where it takes longer than `most`
        seconds."""
        if choice not in self.tried:
            try:
                self.tried[choice] = self._made(choice, most)
            except PlacementTimeError:
                return None
        return self.tried[choice]

    def _made(self, choice: OffloadChoice, most: float) -> OffloadSearchResult | None:
        """The plan of a choice; raises TooSlowError where it takes longer than `most` seconds."""
        base = self.schedules.base(choice)
        if base is None:
            return None
        there, here = self._there(choice), self._here(base, choice.here)
        key = *self.schedules.key(choice), there, here, choice.buffers
        if self.slow.get(key, 0.0) >= most:
            raise PlacementTimeError
        if key not in self.made:
            try:
                self.made[key] = self._placed(choice, base, there, here, most), self.missing_bytes
            except PlacementTimeError:
                self.slow[key] = most
                raise
        found, self.missing_bytes = self.made[key]
        return found and replace(found, choice=choice)

    def _placed(
        self,
        choice: OffloadChoice,
        base: ActivationSchedule,
        there: frozenset[int],
        here: frozenset[int],
        most: float,
    ) -> OffloadSearchResult | None:
        away = set(self.task.remote.values()) & self.task.updates.keys() - here
        updates = self.task.played(there, bool(here), away=bool(away), buffers=choice.buffers)
        last = self._step(base, updates, here, choice.close, most)
        if last is None:
            return None
        several = self.task.microbatches - 1
        adding = None
        if several:
            adds = self.task.played(there, False, adds=True)
            left = (most - last.seconds) / several
            adding = self._step(base, adds, frozenset(), choice.close, left)
            if adding is None:
                return None
        seconds = sum_microbatches(last, adding, several + 1).seconds
        return OffloadSearchResult(choice, updates, last, adding, seconds)

    def _step(
        self,
        base: ActivationSchedule,
        updates: OptimizerPlan,
        here: frozenset[int],
        close: bool,
        most: float,
    ) -> SimulationResult | None:
        """What the simulator says of one microbatch, None where it does not fit; raises
        TooSlowError where it takes longer than `most` seconds."""
        task = self.task
        own = frozenset() if updates.accumulates else here | task.small
        line = base.peak.copy()
        for value in own & base.gradient_steps.keys():
            line[base.gradient_steps[value]] += task.update_peak(value)
        base = replace(base, peak=line)
        # Where there is room, that of the largest is left to gradients on their way.
        margin = max((task.graph.storages[storage] for storage in task.remote), default=0)
        margin = 0 if close else margin
        seconds_of = {s: task.link.seconds(task.graph.storages[s]) for s in task.remote}
        room = task.room - updates.staging - updates.workspace_bytes - task.scalar_state_bytes
        frozen = updates.offloaded - updates.costs.keys()
        stays = updates.resident if updates.accumulates else updates.resident & (here | frozen)
        windows = residency_windows(
            base, task.remote, updates.resident, here, stays, room - margin, seconds_of, not close
        )
        moved = PlacementRequest(updates, own, windows, room, max(base.seconds), margin)
        try:
            steps = place_transfers(base, moved, task.link, most)
        except PlacementMemoryError as error:
            if error.away:
                self._record_tier_bytes(error.needed)
            else:
                self.missing_bytes = error.needed - room
            return None
        played = simulate(task.graph, task.costs, steps, link=task.link, updates=updates)
        away = played.transfers.host_peak if played.transfers else 0
        most = played.peak
        if task.measured is not None:
            first = replace(updates, first=True)
            begun = simulate(task.graph, task.costs, steps, link=task.link, updates=first)
            most = max(most, begun.peak - (task.sums if updates.accumulates else 0))
        if task.accumulating:
            adding = accumulation_peaks(task.graph, task.costs, steps, task.link, updates)
            most = max(most, adding.most - adding.gradients)
        self.missing_bytes = max(most + updates.staging + updates.workspace_bytes - task.room, 0)
        if self.missing_bytes:
            return None
        if away > task.link.room:
            self._record_tier_bytes(away)
            return None
        return played

    def _record_tier_bytes(self, needed: int) -> None:
        """A plan takes so many bytes of the offload target, which has fewer."""
        self.tier_bytes = min(self.tier_bytes or needed, needed)

    @property
    def tier_overflow(self) -> OffloadTargetTooSmallError | None:
        """What is said where the offload target has no room for what moves, else None."""
        return None if self.missing_bytes else self._tier_error

    @property
    def _tier_error(self) -> OffloadTargetTooSmallError | None:
        """What is said of plans that take more of the offload target than it has, if any do."""
        link = self.task.link
        if not self.tier_bytes:
            return None
        return OffloadTargetTooSmallError(
            f"no plan is known that fits in {link.other}, which has {int(link.room):,} bytes, and "
            f"the closest known takes {self.tier_bytes:,} with what moves"
        )

    def _refusal(self) -> UnknownPlanError | OffloadTargetTooSmallError:
        """What is said where no plan was found: which op stands in the way, or which memory."""
        if self.tier_overflow:
            return self.tier_overflow
        task, view = self.task, self._smallest_view()
        problem, least = view.problem, view.least
        played = simulate_executions(problem, least.sequence, in_place=True, ceiling=least.ceiling)
        worst = max(played, key=lambda run: run.peak)
        total = task.fixed + view.always + worst.peak
        said = f"no plan is known that fits in {task.budget:,} bytes"
        if total <= task.budget and not self.tightest_bytes:
            # Those that come closest fit on the device.
            return self._tier_error or UnknownPlanError(said)
        if total <= task.budget:
            closest = f"in the closest known there are {self.tightest_bytes:,} with what moves"
            return UnknownPlanError(f"{said}: {closest}", said)
        name = describe_op(task.graph, problem.nodes[worst.node])
        return UnknownPlanError(
            f"{said}: in the smallest known there are {total:,} where {name} runs",
            f"{said}: most are there where {name} runs",
        )

    def _smallest_view(self) -> ActivationProblem:
        """That of hardly any room in which the least is known to do."""
        first, *others = (self.schedules.view(choice.view) for choice in self.tightest_choices)
        for other in others:
            known = first.always + first.least.peak
            if other.needed < known and other.always + other.least.peak < known:
                first = other
        return first

    def _there(self, choice: OffloadChoice) -> frozenset[int]:
        """The parameters that are there when a step begins, of a part of the room."""
        task, sizes = self.task, self.task.graph.storages
        room = choice.there * task.room
        if not choice.last:
            ends = accumulate(sizes[storage] for storage in task.remote)
            pairs = zip(task.remote.values(), ends, strict=True)
            return frozenset(value for value, end in pairs if end <= room)
        last = max(choice.last * sum(sizes[storage] for storage in task.remote), room)
        found: list[int] = []
        due, passed, left = 0.0, 0, room
        for storage, value in reversed([*task.remote.items()]):
            size = sizes[storage]
            if passed >= last:
                break
            passed += size
            due += size * room / last
            if due >= size / 2 and size <= left:
                found.append(value)
                due, left = due - size, left - size
        return frozenset(found)

    def _here(self, base: ActivationSchedule, share: float) -> frozenset[int]:
        """A part of the parameters, by bytes, evenly along the backward."""
        far = self.task.far.values if self.task.far else frozenset()
        values = {value: s for s, value in self.task.remote.items() if value not in far}
        stay = values.keys() - self.host_updatable | values.keys() & self.task.resident
        due, found = 0.0, sorted(stay & base.gradient_steps.keys())
        for value in sorted(base.gradient_steps, key=base.gradient_steps.__getitem__):
            if value not in values or value in stay:
                continue
            size = self.task.graph.storages[values[value]]
            due += share * size
            if due >= size / 2:
                found.append(value)
                due -= size
        return frozenset(found)


def fastest_result(found: Sequence[OffloadSearchResult | None]) -> OffloadSearchResult | None:
    """The fastest of some results, None without one."""
    known = [each for each in found if each is not None]
    return min(known, key=lambda each: each.seconds, default=None)
