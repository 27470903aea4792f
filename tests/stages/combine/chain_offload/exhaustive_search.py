"""Sequences with transfers by exhaustive search: all orders of what the simulator plays."""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Iterator
from copy import copy
from pathlib import Path

from tightfit.schemas.link import HostLink
from tightfit.schemas.sequence import ChainOperation, OperationKind
from tightfit.stages.combine.chain.options import ChainProblem
from tightfit.stages.combine.chain_offload.simulate import ChainOffloadSimulator
from tightfit.stages.simulate.transfer_streams import TransferStreams
from tightfit.util.errors import ScheduleError

CASES = Path(__file__).parents[3] / "cases" / "offload.json"
Key = tuple[object, ...]
Times = tuple[float, ...]
ONCE: tuple[OperationKind, ...] = ("F_all", "B", "offload_all", "prefetch_all", "free_all")
AGAIN: tuple[OperationKind, ...] = (*ONCE, "F_ck", "F_none", "offload", "prefetch", "free")
INPUTS: tuple[OperationKind, ...] = ("offload", "prefetch", "free")


def offload_cases() -> list[dict]:
    """The instances with known optima."""
    return json.loads(CASES.read_text())["cases"]


def optimum(ways: ChainProblem, link: HostLink, budget: int, recomputes: bool) -> float:
    """The least seconds of any sequence within `budget` bytes, infinite without one; none runs
    anything twice unless it `recomputes`."""
    best, number = math.inf, 0
    queue: list[tuple[float, int, ChainOffloadSimulator]] = [
        (0.0, 0, ChainOffloadSimulator(ways, link))
    ]
    known: dict[Key, list[Times]] = {}
    while queue and queue[0][0] < best:
        _, _, player = heapq.heappop(queue)
        if player.gradient == 0:
            best = min(best, player.streams.through(player.clock))
            continue
        for operation in _operations(ways, player, recomputes):
            after = _played(player, operation)
            if after is None or after.peak > budget or after.clock >= best:
                continue
            if _is_new(known, after):
                number += 1
                heapq.heappush(queue, (after.clock, number, after))
    return best


def _operations(
    ways: ChainProblem, player: ChainOffloadSimulator, recomputes: bool
) -> Iterator[ChainOperation]:
    for kind in INPUTS:
        if kind != "free" or (False, 0) in player.leaving:
            yield ChainOperation(kind, 0)
    for position in range(1, player.gradient + 1):
        for kind in AGAIN if recomputes else ONCE:
            if position == len(ways) and kind not in ("F_all", "B"):
                continue
            if kind == "F_all" and not recomputes and position in player.ran:
                continue
            if kind == "free_all" and not recomputes and (True, position) not in player.leaving:
                continue
            yield ChainOperation(kind, position)


def _played(
    player: ChainOffloadSimulator, operation: ChainOperation
) -> ChainOffloadSimulator | None:
    """The player after one more operation, None where the simulator refuses it."""
    after = copy(player)
    for name in ("outputs", "kept", "ran", "sent", "leaving", "arrives"):
        setattr(after, name, getattr(player, name).copy())
    after.steps = []
    after.streams = TransferStreams(player.link, dict(player.streams.free_at))
    try:
        after.play(0, operation, None)
    except ScheduleError:
        return None
    return after


def _is_new(known: dict[Key, list[Times]], player: ChainOffloadSimulator) -> bool:
    """Whether nothing known has the same stored, earlier; what is later is forgotten."""
    sent, arrives = sorted(player.sent.items()), sorted(player.arrives.items())
    key = (
        player.gradient,
        frozenset(player.outputs),
        frozenset(player.kept),
        frozenset(player.ran),
        frozenset(player.leaving),
        tuple(store for store, _ in sent),
        tuple(store for store, _ in arrives),
    )
    times = (
        player.clock,
        *(player.streams.free(player.link.stream(leaves)) for leaves in (True, False)),
        *(end for _, (end, _) in sent),
        *(end for _, end in arrives),
    )
    fronts = known.setdefault(key, [])
    if any(all(a <= b for a, b in zip(other, times, strict=True)) for other in fronts):
        return False
    fronts[:] = [
        other for other in fronts if not all(b <= a for a, b in zip(other, times, strict=True))
    ]
    fronts.append(times)
    return True
