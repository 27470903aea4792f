"""What a program does for transfers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tightfit.schemas.actions import (
    AccumulateOnHost,
    Free,
    FreeHostCopy,
    LinkAction,
    Offload,
    OptimizerAction,
    Prefetch,
    UpdateOnHost,
    Wait,
)
from tightfit.schemas.graph.ownership import partial_gradients_by_owner
from tightfit.schemas.graph.training_graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import LinkSpeed, OptimizerPlan, ParameterUpdateCost
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.generate.operator_calls import INDENT, Statement, format_line
from tightfit.stages.simulate.effects import Effect
from tightfit.util.errors import ScheduleError

TRANSFERS, SENDING = "transfers", "transfer_settings"
"""The names, in a program, of what does its transfers, and of what says how."""


def offloaded_storages(walked: Iterable[Effect]) -> set[int]:
    """The storages that a schedule sends."""
    return {effect.moves for effect in walked if isinstance(effect.step.action, Offload)}


def refilled_values(
    graph: Graph, walked: Iterable[Effect], remote: Collection[int] = ()
) -> dict[int, int]:
    """The positions of frees after which a storage comes back as it was, with its views, and those
    of the prefetches that bring it; each with the value that is brought. The storages `remote` come
    back as others."""
    freed: dict[int, int] = {}
    found: dict[int, int] = {}
    for effect in walked:
        match effect.step.action:
            case Free():
                freed.update(dict.fromkeys(effect.drops, effect.position))
            case Prefetch(value) if effect.moves in freed and effect.moves not in remote:
                found[freed.pop(effect.moves)] = found[effect.position] = value
        for value in effect.makes:
            freed.pop(graph.values[value].storage, None)
    return found


def vacate_line(storage: int, name: str) -> str:
    """The line by which a storage goes so; `name` is that of the value."""
    return f"{TRANSFERS}.release_storage({storage}, {name})"


def transfer_statement(
    graph: Graph,
    action: LinkAction,
    name: str,
    place: int,
    as_it_was: bool = False,
    arrived: bool = False,
) -> Statement:
    """The statement of a transfer; `name` is that of the value, `place` where what leaves goes,
    `as_it_was` says that it comes back so, and `arrived` that it is a gradient of an output or may
    share the memory of one."""
    value = graph.values[action.value]
    number = str(value.storage)
    match action:
        case Offload():
            taken = [number, name, str(place), *["arrived=True"] * arrived]
            return Statement("", f"{TRANSFERS}.offload", taken)
        case Prefetch() if as_it_was:
            return Statement("", f"{TRANSFERS}.restore_storage", [number])
        case Prefetch():
            shape, strides = repr(tuple(value.shape)), repr(tuple(value.strides))
            taken = [number, f"torch.{value.dtype}", shape, strides, str(value.offset)]
            return Statement(name, f"{TRANSFERS}.prefetch", taken)
        case Wait():
            return Statement("", f"{TRANSFERS}.wait", [number])
        case FreeHostCopy():
            return Statement("", f"{TRANSFERS}.free", [number])


def unlimited_link(graph: Graph) -> HostLink:
    """A link for the simulator where only the order of steps and the sizes of storages matter."""
    return HostLink(float("inf"), device=graph.device)


def placeholder_updates(steps: Sequence[ScheduleStep]) -> OptimizerPlan | None:
    """An optimizer for the simulator, as `unlimited_link`; None for a schedule that updates
    nothing."""
    actions = [step.action for step in steps]
    updated = [a.value for a in actions if isinstance(a, OptimizerAction)]
    nothing = ParameterUpdateCost("", (), 0.0, 0, 0, (0, 0))
    speed = LinkSpeed(float("inf"), float("inf"), (float("inf"), float("inf")), 0.0)
    return OptimizerPlan(dict.fromkeys(updated, nothing), speed, 0) if updated else None


PARAMETER_STORE, STEP_PARAMETERS = "store", "parameters"
"""The names, in a program, of where such parameters live, and of its visit there."""
PARAMETER_NAMES = (PARAMETER_STORE, STEP_PARAMETERS, "StepContext")
OFFLOAD_TARGET_ACTIONS = (Offload, FreeHostCopy, UpdateOnHost, AccumulateOnHost)
"""The actions whose bytes are those of the offload target."""


@dataclass(frozen=True)
class OffloadedParameterCode:
    """What a program does with its store of parameters, if `has_store`: a step with its optimizer.
    `values` are the parameters that live in an offload target, by their numbers there; of these
    those `there` are on the device when a step begins; `numbers` are by storage, and `gradients` by
    the storage of the gradient for those that are updated there, or added up where the step
    `adds`."""

    values: Sequence[int]
    there: Sequence[int]
    numbers: Mapping[int, int]
    gradients: Mapping[int, int]
    adds: bool = False
    has_store: bool = False

    @classmethod
    def of(
        cls, graph: Graph, updates: OptimizerPlan | None, steps: Sequence[ScheduleStep] = ()
    ) -> OffloadedParameterCode:
        """Those of an optimizer."""
        values = sorted(updates.offloaded) if updates is not None else []
        there = [n for n, value in enumerate(values) if updates and value in updates.resident]
        storages = [graph.values[value].storage for value in values]
        numbers = {storage: number for number, storage in enumerate(storages)}
        parts, gradients = partial_gradients_by_owner(graph), {}
        for owner in host_updated_parameters(steps):
            own = graph.values[owner].storage
            if own in numbers:
                gradients[graph.values[parts[owner][0]].storage] = numbers[own]
        adds = updates is not None and updates.accumulates
        has_store = updates is not None and updates.has_program
        return cls(values, there, numbers, gradients, adds, has_store)

    def __bool__(self) -> bool:
        return self.has_store

    def imports(self) -> list[str]:
        """The lines that a program with such parameters has in its head."""
        return ["from .runtime.offload.step_context import StepContext"] if self else []

    def takes(self, sends: bool) -> list[str]:
        """The line of the first thing that a program takes, where it has such parameters, or else
        `sends`."""
        if self:
            return [f"{INDENT}{PARAMETER_STORE},"]
        return [f"{INDENT}{SENDING}: TransferSettings,"] if sends else []

    def copies(self) -> str:
        """What tells transfers where copies of storages that are none of theirs go."""
        return f"memory={STEP_PARAMETERS}.copies" if self else SENDING

    def open_lines(self) -> list[str]:
        """The line that a program with such parameters begins with."""
        adding = ", accumulates=True" if self.adds else ""
        return (
            [format_line(f"{STEP_PARAMETERS} = StepContext({PARAMETER_STORE}{adding})")]
            if self
            else []
        )

    def begins(self, names: Sequence[str]) -> Iterator[tuple[Statement, int]]:
        """The statements that name what is on the device when a step begins, each with its
        parameter."""
        for number in self.there:
            value = self.values[number]
            yield Statement(names[value], f"{STEP_PARAMETERS}.resident", [str(number)]), value

    def moves(self, action: LinkAction, name: str, storage: int, place: int) -> Statement | None:
        """The statement of a transfer, None for one of another storage; a gradient goes to a
        `place` among what the step sends."""
        if storage in self.gradients:
            return self._gradient(action, str(self.gradients[storage]), place)
        if storage not in self.numbers:
            return None
        number = str(self.numbers[storage])
        match action:
            case Offload():
                return Statement("", f"{STEP_PARAMETERS}.offload", [number])
            case Prefetch():
                return Statement(name, f"{STEP_PARAMETERS}.prefetch", [number])
            case Wait():
                return Statement("", f"{STEP_PARAMETERS}.wait", [number])
        return None

    def _gradient(self, action: LinkAction, number: str, place: int) -> Statement | None:
        match action:
            case Offload():
                return Statement("", f"{STEP_PARAMETERS}.send_gradient", [number, str(place)])
            case Wait():
                return Statement("", f"{STEP_PARAMETERS}.wait_for_gradient", [number])
        return None

    def updates(self, action: UpdateOnHost | AccumulateOnHost, storage: int) -> Statement:
        """The statement that updates a parameter where it lives, or adds its gradient up there;
        `storage` is that of the gradient."""
        if storage not in self.gradients:
            raise ScheduleError("no program updates parameters of the device in an offload target")
        name = "accumulate" if isinstance(action, AccumulateOnHost) else "optimize"
        return Statement("", f"{STEP_PARAMETERS}.{name}", [str(self.gradients[storage])])

    def frees(self, storage: int) -> str:
        """The line that frees the bytes of a parameter or of its gradient, "" for others."""
        if storage in self.gradients:
            return f"{STEP_PARAMETERS}.free_gradient({self.gradients[storage]})"
        return f"{STEP_PARAMETERS}.free({self.numbers[storage]})" if storage in self.numbers else ""

    def resume_lines(self) -> list[str]:
        """The line that the backward begins with."""
        return [format_line(f"{STEP_PARAMETERS}.begin_backward()")] if self else []

    def ends(self) -> list[str]:
        """The lines behind the last gradients: what is left to do has been done by then."""
        return [
            format_line(f"{STEP_PARAMETERS}.end_step()"),
            format_line("gradients = []"),
            format_line("yield gradients"),
        ]


def host_updated_parameters(steps: Sequence[ScheduleStep]) -> list[int]:
    """The parameters that a schedule updates in the offload target, or whose gradients it adds up
    there."""
    actions = [step.action for step in steps]
    return [
        action.value for action in actions if isinstance(action, UpdateOnHost | AccumulateOnHost)
    ]
