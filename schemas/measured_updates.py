"""What the updates of a model's parameters take, as they were measured: `updates.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tightfit.schemas.errors import ArtifactError
from tightfit.schemas.store import read_json, write_json
from tightfit.schemas.updates import LinkSpeed, UpdateCost, Updates, updates_of

ARTIFACT = "tightfit.updates/1"
OPTIMISERS = ("SGD", "Adam", "AdamW")
"""The classes of `torch.optim` that update parameters element by element."""
_MOST_BYTES = 1 << 28


@dataclass(frozen=True)
class MeasuredUpdates:
    """The `costs` of updates by the path of the parameter, with an `optimizer` (a class of
    `torch.optim`), in pieces of `piece` bytes of a parameter; `spare` where a processor is left
    beside those that the device takes, which updates in the other memory have for themselves."""

    optimizer: str
    piece: int
    costs: Mapping[str, UpdateCost]
    spare: bool = True


def write_measured(path: Path | str, measured: MeasuredUpdates) -> None:
    """Writes measured updates; raises ArtifactError where that cannot be done."""
    text = _as_updates(measured).text()
    write_json(Path(path), {"artifact": ARTIFACT, "updates": text, "spare": measured.spare})


def read_measured(path: Path | str) -> MeasuredUpdates:
    """Reads measured updates; raises ArtifactError where the file holds none."""
    found = read_json(path, _MOST_BYTES)
    text = found.get("updates") if isinstance(found, dict) else None
    if not isinstance(text, str) or found.get("artifact") != ARTIFACT:
        raise ArtifactError(f"{path}: is no {ARTIFACT}")
    spare = found.get("spare", True)
    if not isinstance(spare, bool):
        raise ArtifactError(f"{path}: what it says of a spare processor is neither true nor false")
    updates = updates_of(text, str(path))
    if not updates.optimizer or not updates.piece:
        raise ArtifactError(f"{path}: does not say of which optimiser it is")
    if updates.optimizer not in OPTIMISERS:
        known = ", ".join(OPTIMISERS)
        raise ArtifactError(f"{path}: {updates.optimizer!r} is no optimiser that is known: {known}")
    paths = Counter(cost.path for cost in updates.costs.values())
    if twice := [name for name, count in paths.items() if count > 1]:
        raise ArtifactError(f"{path}: the parameter {twice[0]!r} is updated twice")
    costs = {cost.path: cost for cost in updates.costs.values()}
    return MeasuredUpdates(updates.optimizer, updates.piece, costs, spare)


def _as_updates(measured: MeasuredUpdates) -> Updates:
    """The same as an optimiser of a step, by numbers in order, over a link that is not known."""
    return Updates(
        costs=dict(enumerate(measured.costs.values())),
        speed=LinkSpeed(0.0, 0.0, (0.0, 0.0), 0.0),
        buffers=0,
        optimizer=measured.optimizer,
        piece=measured.piece,
    )
