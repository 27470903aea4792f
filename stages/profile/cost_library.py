"""The library of costs: one file a device, for all models and machines that share the store."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import socket
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

from tightfit.schemas.costs import (
    RANDOM_STATE_TARGET,
    RECOMPUTE_VARIANT,
    Costs,
    OpCost,
    ProfileDevice,
    op_cost_key,
    read_costs,
    write_costs,
)
from tightfit.schemas.graph.recompute_variants import find_recompute_values
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, Op
from tightfit.util.errors import ArtifactError

WRITE_LOCK = "lock"
"""The file in a store that whoever writes costs keeps locked meanwhile. Whoever measures keeps one
locked that is named by the machine besides."""


MEASUREMENT_VERSION = 2
"""Raised if ops are measured in another way: libraries of earlier versions are not used then."""


class CostLibrary:
    """The costs of one device that are known so far; `open_cost_library` gives one."""

    def __init__(self, path: Path, device: ProfileDevice) -> None:
        self.path = path
        self.costs = read_costs(path) if path.exists() else Costs([], device)
        if self.costs.device != device:
            raise ArtifactError(f"{path}: holds the costs of another device, {self.costs.device}")

    def find(self, key: str) -> OpCost | None:
        """The cost with this key, None where it has not been measured."""
        return self.costs.rows.get(key)

    def add(self, rows: Iterable[OpCost]) -> None:
        """Adds rows, or replaces those that were there when the library was opened, in the file
        too. A row that another machine has added since then stays: later runs will find it, too."""
        fresh = {row.key: row for row in rows}
        if not fresh:
            return
        try:
            opened = (self.path.parent / WRITE_LOCK).open("a")
        except OSError as error:
            raise ArtifactError(
                f"{self.path.parent}: cannot be written ({error.strerror or error}), and lacks "
                "costs that were measured: name a store to write to"
            ) from error
        with opened as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = read_costs(self.path).rows if self.path.exists() else {}
            later = {key: row for key, row in found.items() if key not in self.costs.rows}
            self.costs = Costs([*{**found, **fresh, **later}.values()], self.costs.device)
            write_costs(self.path, self.costs)


@contextmanager
def open_cost_library(store: Path | str, device: ProfileDevice) -> Iterator[CostLibrary]:
    """The library of a device in a store, reserved for this process until the context ends.

    Measuring needs the machine to itself, so all devices of a machine have one lock; whoever waits
    for it says so on standard error. Machines that share a store measure side by side. A store that
    is read-only can be read: nobody writes to it. Raises ArtifactError when the library's file is
    damaged, or neither there nor to be made.
    """
    folder = Path(store) / "profile"
    path = folder / f"{device_digest(device)}.arrow"
    with ExitStack() as locked:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            name = f"{WRITE_LOCK}.{socket.gethostname()}"
            lock = locked.enter_context(_require_regular_file(folder / name).open("a"))
        except OSError as error:
            if not path.exists():
                reason = error.strerror or error
                raise ArtifactError(f"{folder}: cannot be written ({reason})") from error
        else:
            _acquire_lock(lock.fileno(), folder)
        yield CostLibrary(path, device)


def _require_regular_file(path: Path) -> Path:
    """The path of a file, or of none; raises OSError for anything else, which may never open."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"{path.name} is no file")
    return path


def device_digest(device: ProfileDevice) -> str:
    """The first 32 hex digits of the SHA-256 of what costs depend on beyond the op: the device, and
    how ops are measured."""
    text = json.dumps({**asdict(device), "measurement": MEASUREMENT_VERSION}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _acquire_lock(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for another profile that uses {folder} to end", file=sys.stderr)
        fcntl.flock(handle, fcntl.LOCK_EX)


RANDOM_STATE_KEY = hashlib.sha256(RANDOM_STATE_TARGET.encode()).hexdigest()
"""The key of the row that prices the random state."""


def distinct_op_variants(graph: Graph) -> dict[str, tuple[Op, int]]:
    """The key of each distinct op and in-place form, with the first op that has it and the value
    overwritten, NONE for the ordinary form, REPEATED for that of a repeated run. A loss that only
    makes tangents has no row."""
    forms: dict[str, tuple[Op, int]] = {}
    for op in graph.all_ops:
        if op.target == LOSS_TARGET and not graph.has_loss:
            continue
        repeated = [] if find_recompute_values(graph, op) is None else [RECOMPUTE_VARIANT]
        for value in (NO_VALUE, *repeated, *op.in_place):
            forms.setdefault(op_cost_key(graph, op, value), (op, value))
    return forms


def costs_from_file(graph: Graph, path: Path | str) -> Costs:
    """The costs of a graph from a file; raises ArtifactError when one of them is missing."""
    costs = read_costs(path)
    for key, (op, _) in distinct_op_variants(graph).items():
        if key not in costs.rows:
            raise ArtifactError(f"{path}: lacks the cost of op {op.id} ({op.target})")
    keys = [key for key in (*distinct_op_variants(graph), RANDOM_STATE_KEY) if key in costs.rows]
    return Costs([costs.rows[key] for key in keys], costs.device)
