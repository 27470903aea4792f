"""From a schedule to the text of the step: a generator that computes, frees and hands over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from tightfit.schemas.actions import (
    Accumulate,
    Compute,
    Free,
    FreeCopy,
    FreeRandom,
    Gradient,
    Linked,
    Loss,
    Offload,
    Optimise,
    OptimiseAway,
    Prefetch,
    RestoreRandom,
    SaveRandom,
    Wait,
    Write,
)
from tightfit.schemas.contributions import contributions
from tightfit.schemas.errors import ScheduleError
from tightfit.schemas.graph import LOSS_TARGET, NONE, Graph, Op
from tightfit.schemas.repeat import repeat_of
from tightfit.schemas.schedule import Step
from tightfit.schemas.updates import Updates
from tightfit.stages.generate.calls import Operators, Statement, joining, joining_names, statements
from tightfit.stages.generate.layouts import RESHAPE, VIEW, layouts, view_shape
from tightfit.stages.generate.lifetimes import flowing, joined, uses, watched
from tightfit.stages.generate.lines import INDENT, WIDTH, line, statement_lines
from tightfit.stages.generate.naming import Names, comment, value_names
from tightfit.stages.generate.programs import Program, arguments_of
from tightfit.stages.generate.remote import NAMES, OTHER_MEMORY, Remote
from tightfit.stages.generate.transfers import (
    SENDING,
    TRANSFERS,
    places,
    sent,
    transfer,
    vacated,
    vacating,
)
from tightfit.stages.replay.walk import Effect, effects

_RUNTIME = (
    "torch", "step", "random_state", "drawing_from", "batch_norm_repeat", "recurrent_layer",
    "joining", "for_view", "operator", "outputs", "tangents", "gradients", TRANSFERS, "Moving",
    SENDING, "Sending", *NAMES,
)  # fmt: skip


def write_program(
    graph: Graph, steps: Sequence[Step], title: str, updates: Updates | None = None
) -> Program:
    """The program that runs a schedule; `title` heads its text, `updates` say which parameters live
    in another memory.

    The schedule must have passed the referee. Raises ArtifactError when an op is not a call that
    PyTorch has, ScheduleError when a gradient is read after it was handed over.
    """
    remote = Remote.of(graph, updates, steps)
    writer = _Writer(graph, steps, list(effects(graph, steps)), remote)
    writer.write()
    return writer.program(title)


def interface_program(graph: Graph) -> Program:
    """A program that runs nothing, for what a caller of the whole step must know: what it takes,
    and the outputs with their tangents."""
    return _Writer(graph, [], [], Remote.of(graph, None)).program("")


@dataclass
class _Writer:
    graph: Graph
    steps: Sequence[Step]
    walked: Sequence[Effect]
    remote: Remote
    lines: list[str] = field(default_factory=list)
    slices: list[list[int]] = field(default_factory=list)
    handed: list[list[int]] = field(default_factory=list)
    watched: list[list[int]] = field(default_factory=list)
    reading: set[int] = field(default_factory=set)
    handing: list[tuple[int, int]] = field(default_factory=list)
    delivered: set[int] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)
    bound: dict[int, list[int]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)
    restoring: bool = False
    shortened: bool = False
    copies: bool = False
    place: str = ""
    live: int = 0

    def __post_init__(self) -> None:
        graph = self.graph
        self.reserved = Names()
        for name in _RUNTIME:
            self.reserved.reserve(name)
        targets = {op.target for op in graph.all_ops} - {LOSS_TARGET}
        self.operators = Operators(self.reserved, targets)
        self.names = value_names(graph, self.reserved)
        self.uses = uses(graph, self.walked, self.remote.numbers, self.remote.gradients)
        self.parts = contributions(graph)
        self.owners = {part: owner for owner, parts in self.parts.items() for part in parts}
        self.joined = joined(graph)
        self.layouts = layouts(graph, self.steps, self.joined)
        self.arriving = self.layouts.arriving(graph)
        self.gradients = {self.names[value] for value in flowing(graph)}
        self.views = graph.view_ops()
        self.places = places(graph, self.steps, self.remote.numbers)
        self.vacated = vacated(graph, self.walked, self.remote.numbers)
        own = {*self.remote.numbers, *self.remote.gradients}
        self.sent = sent(self.walked) - own
        self.loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
        source = {output.tangent: output.value for output in graph.outputs}
        self.differentiable = [source[tangent] for tangent in self.loss.outputs]
        others = [
            (output.value, output.requires_grad)
            for output in graph.outputs
            if output.tangent == NONE and output.value not in self.uses.fixed | {NONE}
        ]
        known = set(self.differentiable)
        self.unused = [v for v, could in dict.fromkeys(others) if could and v not in known]
        self.plain = [value for value, could in dict.fromkeys(others) if not could]
        self.leaving = self.differentiable + self.unused + self.plain

    def program(self, title: str) -> Program:
        """The finished text with its head."""
        arguments = arguments_of(self.graph)
        return Program(
            text="\n".join([*self.head(title, arguments), *self.lines, ""]),
            arguments=arguments,
            differentiable=self.differentiable,
            unused=self.unused,
            plain=self.plain,
            tangents=self.loss.outputs,
            slices=self.slices,
            handed=self.handed,
            watched=self.watched,
            overwritten=self.overwritten(),
            taken=self.layouts.taken,
            remote=list(self.remote.values),
        )

    def overwritten(self) -> set[int]:
        """The tangents in whose storage a step puts something else, and those that it sends."""
        storage = [value.storage for value in self.graph.values]
        written = {each for effect in self.walked if effect.runs for each in effect.drops}
        return {each for each in self.loss.outputs if storage[each] in written | self.sent}

    def head(self, title: str, arguments: list[int]) -> list[str]:
        """Everything above the body."""
        lines = [f'"""{comment(title)}"""', "", "import torch", "", *self.remote.imports()]
        absent = ["for_view"] * bool(self.copies) + joining_names(self.graph, self.joined)
        if absent:
            lines += [f"from .absent import {', '.join(absent)}"]
        if self.shortened:
            lines += ["from .repeat import batch_norm_repeat"]
        if self.states:
            lines += ["from .chain import drawing_from, random_state"]
        if self.sent:
            lines += [f"from .transfers import Moving{'' if self.remote else ', Sending'}"]
        lines += self.operators.imports()
        if len(lines) > 4:
            lines += [""]
        lines += [*self.operators.bindings(), "", "", "def step("]
        lines += self.remote.takes(bool(self.places.begins))
        for value in arguments:
            described = self.graph.values[value]
            path = comment(described.path) or described.kind
            lines.append(f"{INDENT}{self.names[value]},  # {path} {tuple(described.shape)}")
        return [*lines, "):"]

    def write(self) -> None:
        """Writes the body."""
        self.end(self.uses.unread)
        self.lines += self.remote.opens()
        for call, value in self.remote.begins(self.names):
            self.statement(call, 1, None)
            self.bound.setdefault(self.graph.values[value].storage, []).append(value)
        if self.sent:
            device = self.names[arguments_of(self.graph)[0]]
            own = f"{device}.device, {self.places.size}, {self.remote.copies()}"
            self.line(f"{TRANSFERS} = Moving({own})")
        self.remark("forward")
        for effect in self.walked:
            self.on(effect, self.uses.ends.get(effect.position, []))
            self.reading.update(self.uses.late.get(effect.position, []))
            if not isinstance(effect.step.action, OTHER_MEMORY):
                self.live = effect.step.live
        self.hand_over()
        if self.remote:
            self.lines += self.remote.ends()
            for parts in (self.slices, self.handed, self.watched):
                parts.append([])

    def on(self, effect: Effect, ends: list[int]) -> None:
        """The lines of one step."""
        match effect.step.action:
            case Compute(_, in_place) | Write(_, in_place):
                self.run(effect, in_place, ends)
            case Loss():
                self.on_loss(effect.step, ends)
            case Free():
                self.free(effect)
            case FreeRandom(op):
                self.ended.append(self.states[op])
            case Gradient(value):
                self.give(value)
            case SaveRandom(op):
                self.save_random(op, effect.step)
            case RestoreRandom():
                self.hand_over()
                self.restoring = True
            case Offload() | Prefetch() | Wait() | FreeCopy():
                self.transfer(effect)
            case Optimise(value):
                self.hand_over()
                self.remark(f"updated: {self.graph.values[value].path}")
            case OptimiseAway() | Accumulate() as action:
                self.hand_over()
                self.statement(self.remote.updates(action, effect.moves), 1, None)
            case unknown:
                assert_never(unknown)

    def run(self, effect: Effect, in_place: int, ends: list[int]) -> None:
        """The lines that run an op."""
        op, step = effect.op, effect.step
        assert op is not None
        (self.flush if op.id in self.views else self.hand_over)()
        self.mark_place(op, effect.repeated)
        calls = self.calls(op, in_place, effect.repeated)
        depth = 1
        if self.restoring:
            device = self.graph.device
            self.line(f'with drawing_from({self.states[op.id]}, "{device}"):')
            self.restoring, depth = False, 2
        for call in calls:
            self.statement(call, depth, step.live if call is calls[-1] else None)
        for value in effect.makes:
            names = self.bound.setdefault(self.graph.values[value].storage, [])
            names.extend({value} - set(names))
        for storage in effect.drops:
            self.forget(storage)
        self.end(ends)

    def transfer(self, effect: Effect) -> None:
        """The line of a transfer: what comes back takes its bytes there."""
        action, live = effect.step.action, effect.step.live
        assert isinstance(action, Linked)
        self.hand_over()
        name, place = self.names[action.value], self.places.begins.get(effect.position, 0)
        shown = live if isinstance(action, Prefetch) else None
        moved = self.remote.moves(action, name, effect.moves, place)
        if effect.moves not in self.remote.gradients:
            how = effect.position in self.vacated, effect.moves in self.arriving
            moved = moved or transfer(self.graph, action, name, place, *how)
        if moved is not None:
            self.statement(moved, 1, shown)
        for value in effect.returns if effect.position not in self.vacated else ():
            self.bound.setdefault(self.graph.values[value].storage, []).append(value)

    def free(self, effect: Effect) -> None:
        """The names of a storage end, unless it comes back as it was; a parameter that lives
        elsewhere is free of its bytes."""
        comes_back = self.vacated.get(effect.position, NONE)
        for storage in effect.drops:
            if comes_back == NONE:
                self.forget(storage)
                freeing = self.remote.frees(storage)
            else:
                freeing = vacating(storage, self.names[comes_back])
            if freeing:
                self.hand_over()
                self.line(freeing, effect.step.live)

    def calls(self, op: Op, in_place: int, repeated: bool) -> list[Statement]:
        """The statements of one run of an op."""
        if op.id in self.layouts.reshaped and op.target != VIEW:
            self.copies = True
            apart = ["True"] * (self.graph.values[op.outputs[0]].storage in self.sent)
            operands = [self.names[op.inputs[0]], repr(view_shape(self.graph, op)), *apart]
            return [Statement(self.names[op.outputs[0]], "for_view", operands)]
        if op.id in self.layouts.reshaped:
            op = replace(op, target=RESHAPE)
        calls = statements(self.graph, op, in_place, self.names, self.operators)
        if op.id in self.joined:
            loose = op.id in self.layouts.loose
            return [joining(op, call, self.gradients, loose) for call in calls]
        form = repeat_of(self.graph, op) if repeated else None
        if form is None:
            return calls
        self.shortened = True
        operands = [self.names[value] for value in form.reads]
        return [Statement(self.names[form.makes], "batch_norm_repeat", operands)]

    def on_loss(self, step: Step, ends: list[int]) -> None:
        """The lines between forward and backward."""
        self.flush()
        self.check_outputs()
        leaving = ", ".join(self.names[value] for value in self.leaving)
        self.line(f"outputs = [{leaving}]")
        made = [value for value in self.loss.outputs if value != NONE]
        self.end([value for value in ends if value not in made])
        self.flush()
        self.remark("backward")
        self.line("tangents = yield outputs")
        self.lines += self.remote.goes_on()
        self.line(f"[{', '.join(self.names[value] for value in made)}] = tangents")
        self.line("tangents.clear()", step.live)
        for value in made:
            self.bound.setdefault(self.graph.values[value].storage, []).append(value)
        self.end([value for value in ends if value in made])
        self.place = ""

    def check_outputs(self) -> None:
        """The outputs leave before the loss, so they must be there."""
        for value in self.leaving:
            storage = self.graph.values[value].storage
            if value not in self.uses.fixed and value not in self.bound.get(storage, []):
                raise ScheduleError(f"the schedule has not made the output {value} before the loss")

    def give(self, value: int) -> None:
        """A first contribution leaves with the second one; its own step says that all have left."""
        owner = self.owners[value]
        first = self.parts[owner][0]
        parts = list(dict.fromkeys((first, value)))
        new = [part for part in parts if part not in self.delivered]
        self.delivered.update(new)
        self.handing += [(owner, part) for part in new]
        if not new and owner not in {waiting for waiting, _ in self.handing}:
            self.handing.append((owner, NONE))

    def save_random(self, op: int, step: Step) -> None:
        """The line that keeps the generator's state."""
        self.hand_over()
        self.states[op] = self.reserved.reserve(f"random_state_{op}")
        self.line(f'{self.states[op]} = random_state("{self.graph.device}")', step.live)

    def hand_over(self) -> None:
        """Yields the gradients that are waiting, without keeping any of them, and deletes the names
        that have ended."""
        if not self.handing:
            self.flush()
            return
        values = [value for _, value in self.handing]
        names = ["None" if value == NONE else self.names[value] for value in values]
        ready, self.ended = self.ended, []
        self.statement(Statement("gradients", "", names), 1, None)
        self.end([value for value in values if value != NONE])
        self.ended += ready
        self.flush()
        self.line("yield gradients", self.live)
        self.slices.append([owner for owner, _ in self.handing])
        self.handed.append(values)
        self.watched.append(watched(self.graph, self.reading))
        self.handing, self.reading = [], set()

    def forget(self, storage: int) -> None:
        """All names of a storage end."""
        self.end(list(self.bound.get(storage, [])))

    def end(self, values: Iterable[int]) -> None:
        """Names end here; they are deleted before the next line."""
        for value in values:
            self.ended.append(self.names[value])
            names = self.bound.get(self.graph.values[value].storage, [])
            if value in names:
                names.remove(value)

    def flush(self) -> None:
        """Deletes the names that have ended."""
        ended, self.ended = self.ended, []
        while ended:
            count = 1
            while count < len(ended) and len(", ".join(ended[: count + 1])) < WIDTH - 10:
                count += 1
            names, ended = ended[:count], ended[count:]
            self.line(f"del {', '.join(names)}", None if ended else self.live)

    def mark_place(self, op: Op, repeated: bool) -> None:
        """Says where the next lines come from when that changes."""
        note = ", again" if repeated and op.id not in self.views else ""
        place = f"{comment(op.module) or self.shown_model()}{note}"
        if place != self.place and (op.id not in self.views or not self.place):
            self.lines.append(f"{INDENT}# {place}")
            self.place = place

    def shown_model(self) -> str:
        return comment(self.graph.model) or "the model"

    def remark(self, text: str) -> None:
        self.lines += ["", f"{INDENT}# ---- {text} ----"]

    def statement(self, call: Statement, depth: int, live: int | None) -> None:
        self.lines += statement_lines(call, depth, live)

    def line(self, text: str, live: int | None = None, depth: int = 1) -> None:
        self.lines.append(line(text, live, depth))
