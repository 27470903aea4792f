"""What a schedule can do, one class an action. One exists once the simulator plays it.

Ids are those of the graph: of ops (`op`) and of values (`value`, `in_place`).

By the semantics of issue order memory changes only where an action stands in the order of issue,
and never at a moment that hangs on speed. All actions but transfers and those in the offload target
are in the stream `DEVICE/compute`, one after the other. A transfer is in a stream of its own,
begins when what stands before it in the compute stream has ended and its stream is free, and is
waited for by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any, TypeAlias

from tightfit.schemas.arrow_fields import integer_field, text_field
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Op
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class Compute:
    """Runs an op; `in_place` is the value that it overwrites, NONE where it overwrites none."""

    op: int
    in_place: int = NO_VALUE


@dataclass(frozen=True)
class WriteBuffer:
    """Runs an op that writes a buffer."""

    op: int
    in_place: int = NO_VALUE


@dataclass(frozen=True)
class ComputeLoss:
    """Ends the forward, runs the caller's loss and begins the backward."""

    op: int


@dataclass(frozen=True)
class Free:
    """Forgets the storage of a value with all its views."""

    value: int


@dataclass(frozen=True)
class Offload:
    """Copies the storage of a value to the offload target, in the stream `DEVICE/to-MEMORY`.

    From here on the copy takes its bytes there; the device's stay until `Free`."""

    value: int


@dataclass(frozen=True)
class Prefetch:
    """Brings the storage of a value back as that value, in the stream `DEVICE/from-MEMORY`.

    From here on it takes its bytes on the device; those of the copy stay until `FreeHostCopy`. With
    it come the views that were there when it was freed, but for a parameter that lives in the other
    memory, and for a storage that was overwritten."""

    value: int


@dataclass(frozen=True)
class Wait:
    """Lets the compute stream stand still until the transfer of a value's storage has ended.

    What was sent may be freed after it, and what comes back may be read."""

    value: int


@dataclass(frozen=True)
class FreeHostCopy:
    """Forgets the copy of a value's storage in the offload target, which has its bytes back."""

    value: int


@dataclass(frozen=True)
class FreeRandomState:
    """Forgets the random state that was saved for an op."""

    op: int


@dataclass(frozen=True)
class PassGradient:
    """Hands a finished gradient to autograd."""

    value: int


@dataclass(frozen=True)
class UpdateOnDevice:
    """Updates a parameter on the device by its whole gradient, which is gone after it.

    Its states are on the device, or pass through staging on their way from the offload target and
    back."""

    value: int


@dataclass(frozen=True)
class UpdateOnHost:
    """Updates a parameter in the offload target, in the stream `MEMORY/compute`.

    The copy of its gradient there is read until that has ended, which a `Wait` for the gradient
    says; the parameter on the device is as it was, and may be brought anew."""

    value: int


@dataclass(frozen=True)
class AccumulateOnHost:
    """Adds the copy of a parameter's gradient to the sum of earlier microbatches in the other
    memory, in the stream `MEMORY/compute`. The copy is read until that has ended, which a `Wait`
    for the gradient says."""

    value: int


@dataclass(frozen=True)
class SaveRandomState:
    """Keeps the generator's state from before an op."""

    op: int


@dataclass(frozen=True)
class RestoreRandomState:
    """Lets the next action, a run of the same op, draw from its saved state."""

    op: int


OpAction: TypeAlias = Compute | WriteBuffer | ComputeLoss
"""The actions that run an op."""
TransferAction: TypeAlias = Offload | Prefetch
"""The actions that take a link to the offload target."""
LinkAction: TypeAlias = Offload | Prefetch | Wait | FreeHostCopy
"""The actions that only a schedule with transfers has."""
OptimizerAction: TypeAlias = UpdateOnDevice | UpdateOnHost | AccumulateOnHost
"""The actions that only a schedule with an optimizer has."""
Action: TypeAlias = (
    Compute
    | WriteBuffer
    | ComputeLoss
    | Free
    | FreeRandomState
    | PassGradient
    | SaveRandomState
    | RestoreRandomState
    | LinkAction
    | OptimizerAction
)

ACTION_NAMES: dict[type[Action], str] = {
    Compute: "compute",
    WriteBuffer: "write_buffer",
    ComputeLoss: "loss",
    Free: "free",
    FreeRandomState: "free",
    PassGradient: "pass_gradient",
    SaveRandomState: "save_random",
    RestoreRandomState: "restore_random",
    Offload: "offload",
    Prefetch: "prefetch",
    Wait: "wait",
    FreeHostCopy: "free_host_copy",
    UpdateOnDevice: "update_on_device",
    UpdateOnHost: "update_on_host",
    AccumulateOnHost: "accumulate_on_host",
}
"""What the actions are called in artifacts."""
ACTION_COLUMNS = ("op", "value", "in_place")
"""What the actions of an artifact say beside their name, NONE where it does not apply."""
ACTION_FIELDS = (text_field("action"), *(integer_field(column) for column in ACTION_COLUMNS))
"""Arrow fields of an action, for artifacts that hold some."""


def op_action(op: Op, in_place: int = NO_VALUE) -> OpAction:
    """The action that runs an op."""
    if op.target == LOSS_TARGET:
        return ComputeLoss(op.id)
    return WriteBuffer(op.id, in_place) if op.writes else Compute(op.id, in_place)


def action_to_row(action: Action) -> dict[str, Any]:
    """An action as a row: its name and `COLUMNS`; raises ArtifactError where it says more."""
    said = asdict(action)
    if more := sorted(said.keys() - set(ACTION_COLUMNS)):
        raise ArtifactError(
            f"a {ACTION_NAMES[type(action)]} says {more[0]!r}, which no column holds"
        )
    return {"action": ACTION_NAMES[type(action)], **dict.fromkeys(ACTION_COLUMNS, NO_VALUE), **said}


def action_from_row(row: Mapping[str, Any], what: str) -> Action:
    """The action of a row; raises ArtifactError, naming `what`, where it is none."""
    said = {column: row[column] for column in ACTION_COLUMNS if row[column] != NO_VALUE}
    named = [kind for kind, name in ACTION_NAMES.items() if name == row["action"]]
    if not named:
        raise ArtifactError(f"{what} has the unknown action {row['action']!r}")
    if min(said.values(), default=0) < 0:
        raise ArtifactError(f"{what} ({row['action']}) names an id below zero")
    for kind in named:
        known = {field.name: field.default is MISSING for field in fields(kind)}
        needed = {name for name, required in known.items() if required}
        if needed <= set(said) <= set(known):
            return kind(**said)
    raise ArtifactError(f"{what} ({row['action']}) does not name what it is about")
