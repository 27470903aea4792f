"""From a schedule to the text of the step: a generator that computes, frees and hands over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import assert_never

from tightfit.schemas.actions import (
    AccumulateOnHost,
    Compute,
    ComputeLoss,
    Free,
    FreeHostCopy,
    FreeRandomState,
    LinkAction,
    Offload,
    PassGradient,
    Prefetch,
    RestoreRandomState,
    SaveRandomState,
    UpdateOnDevice,
    UpdateOnHost,
    Wait,
    WriteBuffer,
)
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.recompute_variants import find_recompute_values
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, Op
from tightfit.schemas.optimizer_plan import OptimizerPlan
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.generate.dynamic_sizes import (
    layout_of,
    list_text,
    reserve_dimension_names,
    size_lines,
    tuple_text,
)
from tightfit.stages.generate.layouts import (
    RESHAPE_TARGET,
    VIEW_TARGET,
    gradient_layouts,
)
from tightfit.stages.generate.naming import UniqueNames, comment_text, value_names
from tightfit.stages.generate.operator_calls import (
    INDENT,
    LINE_WIDTH,
    OperatorBindings,
    Statement,
    absent_gradient_imports,
    absent_gradient_statement,
    format_line,
    op_statements,
    statement_lines,
)
from tightfit.stages.generate.step_program import (
    SourceProgram,
    gradient_dependent_values,
    gradient_join_ops,
    program_arguments,
    value_lifetimes,
    version_checked_values,
)
from tightfit.stages.generate.transfers import (
    OFFLOAD_TARGET_ACTIONS,
    PARAMETER_NAMES,
    SENDING,
    TRANSFERS,
    OffloadedParameterCode,
    offloaded_storages,
    refilled_values,
    transfer_statement,
    vacate_line,
)
from tightfit.stages.simulate.effects import Effect, schedule_effects
from tightfit.stages.simulate.offload_layout import offload_layout
from tightfit.util.errors import ScheduleError

_RESERVED_NAMES = (
    "torch", "step", "get_random_state", "use_random_state", "recompute_batch_norm",
    "run_rnn_layer", "combine_gradients", "reshape_for_view", "custom_operator", "outputs",
    "tangents", "gradients", TRANSFERS, "StepTransfers", SENDING, "TransferSettings",
    *PARAMETER_NAMES,
)  # fmt: skip


def write_program(
    graph: Graph, steps: Sequence[ScheduleStep], title: str, updates: OptimizerPlan | None = None
) -> SourceProgram:
    """The program that runs a schedule; `title` heads its text, `updates` say which parameters live
    in an offload target.

    The schedule must have passed the simulator. Raises ArtifactError when an op is not a call that
    PyTorch has, ScheduleError when a gradient is read after it was handed over.
    """
    remote = OffloadedParameterCode.of(graph, updates, steps)
    writer = _StepWriter(graph, steps, list(schedule_effects(graph, steps)), remote)
    writer.write()
    return writer.program(title)


def interface_program(graph: Graph) -> SourceProgram:
    """A program that runs nothing, for what a caller of the whole step must know: what it takes,
    and the outputs with their tangents."""
    return _StepWriter(graph, [], [], OffloadedParameterCode.of(graph, None)).program("")


@dataclass
class _StepWriter:
    graph: Graph
    steps: Sequence[ScheduleStep]
    walked: Sequence[Effect]
    remote: OffloadedParameterCode
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
        self.reserved = UniqueNames()
        for name in _RESERVED_NAMES:
            self.reserved.reserve(name)
        reserve_dimension_names(graph, self.reserved)
        targets = {op.target for op in graph.all_ops} - {LOSS_TARGET}
        self.operators = OperatorBindings(self.reserved, targets)
        self.names = value_names(graph, self.reserved)
        self.uses = value_lifetimes(graph, self.walked, self.remote.numbers, self.remote.gradients)
        self.parts = partial_gradients_by_owner(graph)
        self.owners = {part: owner for owner, parts in self.parts.items() for part in parts}
        self.joined = gradient_join_ops(graph)
        self.layouts = gradient_layouts(graph, self.steps, self.joined)
        self.incoming_storages = self.layouts.incoming_storages(graph)
        self.gradients = {self.names[value] for value in gradient_dependent_values(graph)}
        self.views = graph.view_ops()
        self.places = offload_layout(graph, self.steps, self.remote.numbers)
        self.vacated = refilled_values(graph, self.walked, self.remote.numbers)
        own = {*self.remote.numbers, *self.remote.gradients}
        self.sent = offloaded_storages(self.walked) - own
        self.loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
        source = {output.tangent: output.value for output in graph.outputs}
        self.differentiable = [source[tangent] for tangent in self.loss.outputs]
        others = [
            (output.value, output.requires_grad)
            for output in graph.outputs
            if output.tangent == NO_VALUE and output.value not in self.uses.fixed | {NO_VALUE}
        ]
        known = set(self.differentiable)
        self.unused = [v for v, could in dict.fromkeys(others) if could and v not in known]
        self.plain = [value for value, could in dict.fromkeys(others) if not could]
        self.leaving = self.differentiable + self.unused + self.plain

    def program(self, title: str) -> SourceProgram:
        """The finished text with its head."""
        arguments = program_arguments(self.graph)
        return SourceProgram(
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
        lines = [f'"""{comment_text(title)}"""', "", "import torch", "", *self.remote.imports()]
        absent = ["reshape_for_view"] * bool(self.copies) + absent_gradient_imports(
            self.graph, self.joined
        )
        if absent:
            lines += [f"from .runtime.output_gradients import {', '.join(absent)}"]
        if self.shortened:
            lines += ["from .runtime.operators import recompute_batch_norm"]
        if self.states:
            lines += ["from .runtime.autograd_chain import get_random_state, use_random_state"]
        if self.sent:
            lines += [
                "from .runtime.offload.transfers import "
                f"StepTransfers{'' if self.remote else ', TransferSettings'}"
            ]
        lines += self.operators.imports()
        if len(lines) > 4:
            lines += [""]
        lines += [*self.operators.bindings(), "", "", "def step("]
        lines += self.remote.takes(bool(self.places.begins))
        for value in arguments:
            described = self.graph.values[value]
            path = comment_text(described.path) or described.kind
            shape = tuple_text(layout_of(self.graph, value).shape)
            lines.append(f"{INDENT}{self.names[value]},  # {path} {shape}")
        return [*lines, "):"]

    def write(self) -> None:
        """Writes the body."""
        for line in size_lines(self.graph, self.names):
            self.line(line)
        self.end(self.uses.unread)
        self.lines += self.remote.open_lines()
        for call, value in self.remote.begins(self.names):
            self.statement(call, 1, None)
            self.bound.setdefault(self.graph.values[value].storage, []).append(value)
        if self.sent:
            device = self.names[program_arguments(self.graph)[0]]
            own = f"{device}.device, {self.places.size}, {self.remote.copies()}"
            self.line(f"{TRANSFERS} = StepTransfers({own})")
        self.remark("forward")
        for effect in self.walked:
            self.on(effect, self.uses.ends.get(effect.position, []))
            self.reading.update(self.uses.late.get(effect.position, []))
            if not isinstance(effect.step.action, OFFLOAD_TARGET_ACTIONS):
                self.live = effect.step.live
        self.hand_over()
        if self.remote:
            self.lines += self.remote.ends()
            for parts in (self.slices, self.handed, self.watched):
                parts.append([])

    def on(self, effect: Effect, ends: list[int]) -> None:
        """The lines of one step."""
        match effect.step.action:
            case Compute(_, in_place) | WriteBuffer(_, in_place):
                self.run(effect, in_place, ends)
            case ComputeLoss():
                self.on_loss(effect.step, ends)
            case Free():
                self.free(effect)
            case FreeRandomState(op):
                self.ended.append(self.states[op])
            case PassGradient(value):
                self.give(value)
            case SaveRandomState(op):
                self.save_random(op, effect.step)
            case RestoreRandomState():
                self.hand_over()
                self.restoring = True
            case Offload() | Prefetch() | Wait() | FreeHostCopy():
                self.transfer(effect)
            case UpdateOnDevice(value):
                self.hand_over()
                self.remark(f"updated: {self.graph.values[value].path}")
            case UpdateOnHost() | AccumulateOnHost() as action:
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
            self.line(f'with use_random_state({self.states[op.id]}, "{device}"):')
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
        assert isinstance(action, LinkAction)
        self.hand_over()
        name, place = self.names[action.value], self.places.begins.get(effect.position, 0)
        shown = live if isinstance(action, Prefetch) else None
        moved = self.remote.moves(action, name, effect.moves, place)
        if effect.moves not in self.remote.gradients:
            how = effect.position in self.vacated, effect.moves in self.incoming_storages
            moved = moved or transfer_statement(self.graph, action, name, place, *how)
        if moved is not None:
            self.statement(moved, 1, shown)
        for value in effect.returns if effect.position not in self.vacated else ():
            self.bound.setdefault(self.graph.values[value].storage, []).append(value)

    def free(self, effect: Effect) -> None:
        """The names of a storage end, unless it comes back as it was; a parameter that lives
        elsewhere is free of its bytes."""
        comes_back = self.vacated.get(effect.position, NO_VALUE)
        for storage in effect.drops:
            if comes_back == NO_VALUE:
                self.forget(storage)
                freeing = self.remote.frees(storage)
            else:
                freeing = vacate_line(storage, self.names[comes_back])
            if freeing:
                self.hand_over()
                self.line(freeing, effect.step.live)

    def calls(self, op: Op, in_place: int, repeated: bool) -> list[Statement]:
        """The statements of one run of an op."""
        if op.id in self.layouts.reshaped and op.target != VIEW_TARGET:
            self.copies = True
            apart = ["True"] * (self.graph.values[op.outputs[0]].storage in self.sent)
            operands = [self.names[op.inputs[0]], self.view_shape(op), *apart]
            return [Statement(self.names[op.outputs[0]], "reshape_for_view", operands)]
        if op.id in self.layouts.reshaped:
            op = replace(op, target=RESHAPE_TARGET)
        calls = op_statements(self.graph, op, in_place, self.names, self.operators)
        if op.id in self.joined:
            loose = op.id in self.layouts.loose
            return [absent_gradient_statement(op, call, self.gradients, loose) for call in calls]
        form = find_recompute_values(self.graph, op) if repeated else None
        if form is None:
            return calls
        self.shortened = True
        operands = [self.names[value] for value in form.reads]
        return [Statement(self.names[form.makes], "recompute_batch_norm", operands)]

    def view_shape(self, op: Op) -> str:
        """The text of the shape in which alone a copy is read."""
        reader = next(other for other in self.graph.ops if op.outputs[0] in other.inputs)
        return list_text(layout_of(self.graph, reader.outputs[0]).shape)

    def on_loss(self, step: ScheduleStep, ends: list[int]) -> None:
        """The lines between forward and backward."""
        self.flush()
        self.check_outputs()
        leaving = ", ".join(self.names[value] for value in self.leaving)
        self.line(f"outputs = [{leaving}]")
        made = [value for value in self.loss.outputs if value != NO_VALUE]
        self.end([value for value in ends if value not in made])
        self.flush()
        self.remark("backward")
        self.line("tangents = yield outputs")
        self.lines += self.remote.resume_lines()
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
            self.handing.append((owner, NO_VALUE))

    def save_random(self, op: int, step: ScheduleStep) -> None:
        """The line that keeps the generator's state."""
        self.hand_over()
        self.states[op] = self.reserved.reserve(f"random_state_{op}")
        self.line(f'{self.states[op]} = get_random_state("{self.graph.device}")', step.live)

    def hand_over(self) -> None:
        """Yields the gradients that are waiting, without keeping any of them, and deletes the names
        that have ended."""
        if not self.handing:
            self.flush()
            return
        values = [value for _, value in self.handing]
        names = ["None" if value == NO_VALUE else self.names[value] for value in values]
        ready, self.ended = self.ended, []
        self.statement(Statement("gradients", "", names), 1, None)
        self.end([value for value in values if value != NO_VALUE])
        self.ended += ready
        self.flush()
        self.line("yield gradients", self.live)
        self.slices.append([owner for owner, _ in self.handing])
        self.handed.append(values)
        self.watched.append(version_checked_values(self.graph, self.reading))
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
            while count < len(ended) and len(", ".join(ended[: count + 1])) < LINE_WIDTH - 10:
                count += 1
            names, ended = ended[:count], ended[count:]
            self.line(f"del {', '.join(names)}", None if ended else self.live)

    def mark_place(self, op: Op, repeated: bool) -> None:
        """Says where the next lines come from when that changes."""
        note = ", again" if repeated and op.id not in self.views else ""
        place = f"{comment_text(op.module) or self.shown_model()}{note}"
        if place != self.place and (op.id not in self.views or not self.place):
            self.lines.append(f"{INDENT}# {place}")
            self.place = place

    def shown_model(self) -> str:
        return comment_text(self.graph.model) or "the model"

    def remark(self, text: str) -> None:
        self.lines += ["", f"{INDENT}# ---- {text} ----"]

    def statement(self, call: Statement, depth: int, live: int | None) -> None:
        self.lines += statement_lines(call, depth, live)

    def line(self, text: str, live: int | None = None, depth: int = 1) -> None:
        self.lines.append(format_line(text, live, depth))
