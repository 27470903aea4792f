"""The referee: plays a schedule step by step at true sizes and refuses what could not run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from schemas.again import again, makes_of, reads_of
from schemas.contributions import contributions, further_contributions
from schemas.costs import AGAIN, Costs
from schemas.errors import ScheduleError
from schemas.graph import FIXED_KINDS, LOSS_TARGET, NONE, Graph, Op
from schemas.schedule import Step


@dataclass(frozen=True)
class Replay:
    """What a schedule costs.

    `steps` are the schedule's with times, lanes and memory filled in. `peak` is bytes above what
    was allocated when the step began and `peak_step` where it occurs; `saved` is live when the
    forward has ended. `seconds` add up all steps, `forward_seconds` those before the loss.
    `repeated` counts computations that had been done before, `repeated_seconds` what they take.
    """

    steps: list[Step]
    seconds: float
    peak: int
    peak_step: int
    forward_seconds: float
    saved: int
    repeated: int
    repeated_seconds: float


def replay(graph: Graph, costs: Costs, steps: Sequence[Step], accumulate: bool = False) -> Replay:
    """Plays a schedule of a graph.

    With `accumulate`, `.grad` is already there, so that a gradient is freed once handed over.
    Raises ScheduleError, naming the step, when an input is not live, a storage is freed twice or
    leaked, an op that must run once runs again, random draws change their order, or an output,
    gradient or buffer update is missing. A gradient may be taken up by an optimiser at once, so it
    leaves after the last read of its parameter or input: a later one is refused.
    """
    play = _Play(graph, costs, accumulate)
    filled = [play.step(index, step) for index, step in enumerate(steps)]
    play.finish()
    peak_step = max(range(len(filled)), key=lambda index: filled[index].peak)
    return Replay(
        steps=filled,
        seconds=play.clock,
        peak=filled[peak_step].peak,
        peak_step=peak_step,
        forward_seconds=play.loss_at,
        saved=play.saved,
        repeated=play.repeated,
        repeated_seconds=play.repeated_seconds,
    )


@dataclass
class _Play:
    graph: Graph
    costs: Costs
    accumulate: bool
    clock: float = 0.0
    live_bytes: int = 0
    loss_at: float = -1.0
    saved: int = 0
    repeated: int = 0
    repeated_seconds: float = 0.0
    position: int = -1
    live_values: set[int] = field(default_factory=set)
    live_storages: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)
    handed: set[int] = field(default_factory=set)
    gone: dict[int, str] = field(default_factory=dict)
    states: set[int] = field(default_factory=set)
    restoring: int = NONE
    last_draw: int = -1

    def __post_init__(self) -> None:
        graph = self.graph
        self.fixed = graph.fixed_storages()
        self.live_values |= {v.id for v in graph.values if v.kind in FIXED_KINDS}
        self.views = {op.id for op in graph.ops if graph.is_view(op)}
        self.state_bytes = self.costs.random_state().net
        self.gradients = {gradient.gradient for gradient in graph.gradients}
        self.parts = contributions(graph)
        self.owners = {part: owner for owner, parts in self.parts.items() for part in parts}
        self.further = further_contributions(graph)
        self.held = {graph.values[value].storage for value in graph.held_values()} - self.fixed

    def refuse(self, reason: str) -> ScheduleError:
        return ScheduleError(f"step {self.position} of the schedule: {reason}")

    def step(self, index: int, step: Step) -> Step:
        self.position = index
        start = self.clock
        if self.restoring != NONE and not (step.action == "compute" and step.op == self.restoring):
            raise self.refuse("a restored random state is not used at once")
        actions = {
            "compute": self.compute,
            "write": self.compute,
            "loss": self.compute,
            "free": self.free,
            "gradient": self.gradient,
            "save_random": self.save_random,
            "restore_random": self.restore_random,
        }
        if step.action not in actions:
            raise self.refuse(f"{step.action} is not possible on one device")
        peak = actions[step.action](step)
        device = self.graph.device
        return replace(
            step,
            lane=f"{device}/compute",
            memory=f"{device}/memory",
            start=start,
            end=self.clock,
            live=self.live_bytes,
            peak=max(peak, self.live_bytes),
        )

    def compute(self, step: Step) -> int:
        if not 0 <= step.op < len(self.graph.ops):
            raise self.refuse(f"there is no op {step.op}")
        op = self.graph.ops[step.op]
        self.check_action(step, op)
        repeated = op.id in self.done
        for value in reads_of(self.graph, op, repeated):
            if value not in self.live_values:
                raise self.refuse(
                    f"op {op.id} ({op.target}) reads value {value}, which is not live"
                )
            left = self.gone.get(self.graph.values[value].storage)
            if left is not None:
                raise self.refuse(f"op {op.id} ({op.target}) reads value {value} after {left}")
        if step.in_place != NONE and step.in_place not in op.in_place:
            raise self.refuse(f"op {op.id} ({op.target}) cannot overwrite value {step.in_place}")
        form = step.in_place
        if repeated and again(self.graph, op) is not None:
            if form != NONE:
                raise self.refuse(f"op {op.id} ({op.target}) overwrites nothing when it runs again")
            form = AGAIN
        cost = self.costs.of(self.graph, op, form)
        self.clock += cost.seconds
        peak = self.live_bytes + cost.peak
        if op.random:
            peak += self.check_random(op)
        if repeated and op.id not in self.views:
            if not op.repeatable:
                raise self.refuse(f"op {op.id} ({op.target}) runs again")
            self.repeated += 1
            self.repeated_seconds += cost.seconds
        if step.action == "loss":
            self.loss_at, self.saved = self.clock - cost.seconds, self.live_bytes
            self.live_bytes += cost.net - self.bytes_of(op.outputs)
        if step.in_place != NONE:
            self.overwrite(op, step.in_place)
        self.make(op, makes_of(self.graph, op, repeated))
        self.done.add(op.id)
        return peak

    def check_action(self, step: Step, op: Op) -> None:
        action = "loss" if op.target == LOSS_TARGET else "write" if op.writes else "compute"
        if step.action != action:
            raise self.refuse(f"op {op.id} ({op.target}) is a {action}, not a {step.action}")
        if op.phase == "backward" and self.loss_at < 0:
            raise self.refuse(f"op {op.id} ({op.target}) of the backward runs before the loss")
        if op.target == LOSS_TARGET and op.id in self.done:
            raise self.refuse("the loss runs again")

    def check_random(self, op: Op) -> int:
        """The bytes that restoring the random state takes while the op runs."""
        if self.restoring == op.id:
            self.restoring = NONE
            return self.state_bytes
        if op.id in self.done:
            raise self.refuse(f"op {op.id} ({op.target}) draws again without its saved state")
        if op.id < self.last_draw:
            raise self.refuse(f"op {op.id} ({op.target}) draws after op {self.last_draw}")
        self.last_draw = op.id
        return 0

    def overwrite(self, op: Op, value: int) -> None:
        storage = self.graph.values[value].storage
        if storage in self.held or storage in self.fixed:
            raise self.refuse(f"op {op.id} ({op.target}) overwrites value {value}, which is held")
        self.forget(storage)

    def make(self, op: Op, values: list[int]) -> None:
        for value in values:
            storage = self.graph.values[value].storage
            if op.id in self.views:
                if storage not in self.live_storages and storage not in self.fixed:
                    raise self.refuse(f"value {value} is a view of a storage that is not live")
            elif value in self.live_values:
                raise self.refuse(f"op {op.id} ({op.target}) makes value {value}, which is live")
            elif storage not in self.live_storages:
                self.live_storages.add(storage)
                self.live_bytes += self.graph.storages[storage]
            self.live_values.add(value)

    def bytes_of(self, values: list[int]) -> int:
        storages = {self.graph.values[value].storage for value in values if value != NONE}
        return sum(self.graph.storages[storage] for storage in storages)

    def forget(self, storage: int) -> None:
        if storage not in self.live_storages:
            raise self.refuse(f"storage {storage} is not live")
        self.live_storages.remove(storage)
        self.live_bytes -= self.graph.storages[storage]
        self.live_values -= {
            value for value in self.live_values if self.graph.values[value].storage == storage
        }

    def free(self, step: Step) -> int:
        if step.value == NONE:
            if step.op not in self.states:
                raise self.refuse(f"no random state is saved for op {step.op}")
            self.states.remove(step.op)
            self.live_bytes -= self.state_bytes
            return self.live_bytes
        if not 0 <= step.value < len(self.graph.values):
            raise self.refuse(f"there is no value {step.value}")
        storage = self.graph.values[step.value].storage
        if storage in self.held:
            raise self.refuse(f"value {step.value} is freed, but the caller holds it")
        kept = self.gradients - self.handed
        if not self.accumulate:
            kept |= self.gradients - self.further.keys()
        if any(self.graph.values[value].storage == storage for value in kept):
            raise self.refuse(f"the gradient in value {step.value} is freed")
        self.forget(storage)
        return self.live_bytes

    def gradient(self, step: Step) -> int:
        if step.value not in self.gradients or step.value in self.handed:
            raise self.refuse(f"value {step.value} is no gradient left to hand over")
        if step.value not in self.live_values:
            raise self.refuse(f"the gradient {step.value} is not live")
        self.handed.add(step.value)
        storage = self.graph.values[step.value].storage
        owner = self.owners[step.value]
        if step.value in self.further:
            self.add_contribution(step.value)
        elif missing := set(self.parts[owner]) - self.handed:
            raise self.refuse(f"the gradient {step.value} lacks contributions {sorted(missing)}")
        else:
            left = f"the gradient of value {owner} was handed over"
            self.gone[self.graph.values[owner].storage] = left
        if (self.accumulate or step.value in self.further) and storage not in self.held:
            self.forget(storage)
        return self.live_bytes

    def add_contribution(self, value: int) -> None:
        first, before = self.parts[self.owners[value]][0], self.further[value]
        if first not in self.live_values or before not in self.handed | {first}:
            raise self.refuse(f"the contribution {value} is handed over before {before}")
        left = f"contributions were added to the gradient {first}"
        self.gone[self.graph.values[first].storage] = left

    def save_random(self, step: Step) -> int:
        if not 0 <= step.op < len(self.graph.ops) or not self.graph.ops[step.op].random:
            raise self.refuse(f"op {step.op} draws no random numbers")
        if step.op in self.done or step.op in self.states:
            raise self.refuse(f"the random state of op {step.op} is saved too late")
        self.states.add(step.op)
        self.live_bytes += self.state_bytes
        return self.live_bytes

    def restore_random(self, step: Step) -> int:
        if step.op not in self.states or step.op not in self.done:
            raise self.refuse(f"no random state is saved for op {step.op}")
        self.restoring = step.op
        self.clock += self.costs.random_state().seconds
        return self.live_bytes

    def finish(self) -> None:
        self.position += 1
        graph = self.graph
        wanted = {output.value for output in graph.outputs} - {NONE} - self.live_values
        if wanted:
            raise self.refuse(f"the outputs {sorted(wanted)} are not live at the end")
        if self.gradients - self.handed:
            raise self.refuse(f"the gradients {sorted(self.gradients - self.handed)} are missing")
        unwritten = {op.id for op in graph.ops if op.writes} - self.done
        if unwritten:
            raise self.refuse(f"the buffer updates {sorted(unwritten)} never run")
        first = self.gradients - self.further.keys()
        gradients = {graph.values[value].storage for value in first}
        kept = self.held | (set() if self.accumulate else gradients)
        if self.live_storages - kept or self.states:
            leaked = sorted(self.live_storages - kept)
            raise self.refuse(f"the storages {leaked} are never freed")
