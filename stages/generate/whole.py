"""The package of a training step with its optimiser, whose parameters live in another memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from schemas.actions import Accumulate, Optimise, OptimiseAway
from schemas.errors import ScheduleError
from schemas.graph import Graph
from schemas.schedule import Step
from schemas.updates import LinkSpeed, Updates
from stages.generate.naming import comment
from stages.generate.transfers import places
from stages.replay.referee import device_memory

_RUNTIME = Path(__file__).parent / "runtime"
_DEVICE = Path(__file__).parents[1] / "device"
_OWN = ("lodged.py", "visit.py")
_SHARED = (
    *("away.py", "disk.py", "home.py", "lodging.py", "memories.py", "optimiser.py", "pieces.py"),
    *("ring.py", "slow.py", "spans.py", "streams.py", "updating.py"),
)


def check_whole(graph: Graph, steps: Sequence[Step], updates: Updates | None) -> None:
    """Raises ScheduleError, naming it, for what no program does yet."""
    if any(isinstance(step.action, OptimiseAway | Accumulate) for step in steps):
        raise ScheduleError("the schedule updates in another memory, which no program does yet")
    if updates is None or not updates.remote:
        return
    if updates.on_device:
        some = graph.values[min(updates.on_device)].path
        raise ScheduleError(
            f"the states of {some} stay on the device, which no program does yet: plan with "
            "measured updates (`tightfit profile --optimizer`)"
        )
    if updates.summed or updates.adds:
        raise ScheduleError("the schedule is of several microbatches, which no program does yet")
    if not updates.optimizer or not updates.piece:
        raise ScheduleError(
            "the schedule has described updates, which say of no optimiser what its states take: "
            "plan with measured ones (`tightfit profile --optimizer`)"
        )
    trained = {gradient.value for gradient in graph.gradients}
    for value in sorted(trained):
        described = graph.values[value]
        if described.kind == "parameter" and value not in updates.costs:
            raise ScheduleError(f"{described.path} has a gradient, and is not updated")


def played(updates: Updates) -> Updates:
    """The optimiser for the referee where only the order of steps and sizes matter."""
    nothing = {value: replace(cost, seconds=0.0) for value, cost in updates.costs.items()}
    fast = LinkSpeed(float("inf"), float("inf"), (float("inf"), float("inf")), 0.0)
    return replace(updates, costs=nothing, speed=fast)


def whole_files() -> dict[str, str]:
    """The texts, by name, of what travels with such a package beside the rest."""
    texts = {name: (_RUNTIME / name).read_text() for name in _OWN}
    return texts | {name: (_DEVICE / name).read_text() for name in _SHARED}


def copies_bytes(graph: Graph, steps: Sequence[Step], updates: Updates) -> int:
    """The bytes of the other memory that a step takes for what it sends beside parameters and
    states."""
    remote = {graph.values[value].storage for value in updates.remote}
    return places(graph, steps, remote).size


def peaks(graph: Graph, steps: Sequence[Step], updates: Updates) -> tuple[int, int]:
    """The most bytes of a step above those from before it, and of the first one, which makes the
    states, as the referee has written them into the schedule."""
    there = {graph.values[value].storage for value in updates.there}
    before = sum(graph.storages[storage] for storage in there)
    own = device_memory(graph)
    most = first = more = 0
    for step in steps:
        if step.memory != own:
            continue
        peak = step.peak
        begun = peak + more
        if isinstance(step.action, Optimise):
            cost = updates.costs[step.action.value]
            begun += cost.first[0] - cost.peak
            more += cost.first[1] - cost.net
            begun = max(begun, step.live + more)
        most, first = max(most, peak), max(first, begun)
    return most - before, first - before


def lodging_text(graph: Graph, steps: Sequence[Step], updates: Updates) -> str:
    """What the package says of the optimiser and of where parameters live, as Python."""
    values = sorted(updates.remote)
    paths = tuple(graph.values[value].path for value in values)
    there = tuple(n for n, value in enumerate(values) if value in updates.there)
    own = sum(graph.storages[graph.values[value].storage] for value in values)
    facts = {
        "optimizer": updates.optimizer,
        "paths": paths,
        "there": there,
        "updated": tuple(graph.values[value].path for value in sorted(updates.costs)),
        "piece": updates.piece,
        "staging": updates.staging,
        "parameters": own,
        "states": updates.slow_states,
        "copies": copies_bytes(graph, steps, updates),
        **dict(zip(("peak", "first_peak"), peaks(graph, steps, updates), strict=True)),
    }
    return "\n".join(["Lodging(", *(f"    {name}={fact!r}," for name, fact in facts.items()), ")"])


def whole_init(graph: Graph, lodging: str, constants: str, shown: Mapping[str, str]) -> str:
    """The text of `__init__.py`; `constants` are what the package says of its plan."""
    made = constants.format(**shown)
    return _INIT.format(
        model=comment(graph.model),
        about=shown["budget"],
        constants=made,
        lodging=lodging,
    )


_INIT = '''"""A training step of {model} with its optimiser, planned by tightfit for {about}.

`load(model, optimizer)` gives a module that takes the place of the model, and an optimiser that
takes the place of the optimiser. Sizes are in bytes.
"""

from .interface import INTERFACE
from .lodged import Lodged
from .lodging import Lodging, lodge
from .step import step
from .wrap import PlanMismatch, wrap

__all__ = ["PlanMismatch", "load"]

{constants}LODGING = {lodging}


def load(model, optimizer, disk=None, otherwise="error"):
    """A module that takes the place of `model`, and an optimiser that takes that of `optimizer`.

    Parameters named in LODGING, and all states of the optimiser, live in another memory: in a file
    without a name in the folder `disk` (that which TIGHTFIT_DISK names, else that of temporary
    files), on a GPU in the host's memory. A step brings what it needs. The backward updates each
    parameter as soon as its gradient is whole; `optimizer.step()` ends the step. Parameters stay
    the objects that they were. Their values are to be had within `optimizer.gathered()`, and in
    `state_dict()` of module and optimiser; all else that asks for them is refused.

    The module is called as the model is; a call that differs from what the plan was made for raises
    PlanMismatch. With otherwise="copy" inputs that only lie otherwise in memory than the sample's
    are copied.
    """
    if otherwise == "original":
        raise RuntimeError(
            "the original model needs all parameters on the device, and the plan has them in "
            "another memory: leave otherwise out"
        )
    home, stepping = lodge(model, optimizer, LODGING, disk)
    try:
        lodged = Lodged(home, INTERFACE.remote)
        planned = wrap(model, INTERFACE, step, otherwise, load, lodged=lodged)
    except BaseException:
        stepping.close()
        raise
    return planned, stepping
'''
