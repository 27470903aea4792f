"""What a program does for transfers, and where in the other memory what it sends has its place.

Places follow from the order of issue alone, so that the memory is taken once, whatever the speed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tightfit.schemas.actions import Free, FreeCopy, Linked, Offload, Prefetch, Updating, Wait
from tightfit.schemas.graph import Graph
from tightfit.schemas.link import HostLink
from tightfit.schemas.schedule import Step
from tightfit.schemas.updates import LinkSpeed, UpdateCost, Updates
from tightfit.stages.generate.calls import Statement
from tightfit.stages.replay.walk import Effect

TRANSFERS, SENDING = "transfers", "sending"
"""The names, in a program, of what does its transfers, and of what says how."""


@dataclass(frozen=True)
class Places:
    """The bytes that a program takes of the other memory, and where what leaves at a position of
    the schedule begins there."""

    size: int
    begins: dict[int, int]


def places(graph: Graph, steps: Sequence[Step], remote: Collection[int] = ()) -> Places:
    """The places of all copies of a schedule that the referee accepts: each the first one that is
    free for as long as the copy is there. The storages `remote` have places of their own."""
    there: dict[int, tuple[int, int]] = {}
    begins: dict[int, int] = {}
    size = 0
    for position, step in enumerate(steps):
        match step.action:
            case Offload(value):
                storage = graph.values[value].storage
                if storage in remote:
                    continue
                bytes_ = graph.storages[storage]
                begin = _first(sorted(there.values()), bytes_)
                there[storage] = (begin, begin + bytes_)
                begins[position] = begin
                size = max(size, begin + bytes_)
            case FreeCopy(value):
                del there[graph.values[value].storage]
    return Places(size, begins)


def _first(taken: Sequence[tuple[int, int]], size: int) -> int:
    """The first gap of a size between spans in order, or the end of the last one."""
    begin = 0
    for start, end in taken:
        if begin + size <= start:
            break
        begin = end
    return begin


def sent(walked: Iterable[Effect]) -> set[int]:
    """The storages that a schedule sends."""
    return {effect.moves for effect in walked if isinstance(effect.step.action, Offload)}


def vacated(graph: Graph, walked: Iterable[Effect], remote: Collection[int] = ()) -> dict[int, int]:
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


def vacating(storage: int, name: str) -> str:
    """The line by which a storage goes so; `name` is that of the value."""
    return f"{TRANSFERS}.vacate({storage}, {name})"


def transfer(
    graph: Graph,
    action: Linked,
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
            return Statement("", f"{TRANSFERS}.refill", [number])
        case Prefetch():
            shape, strides = repr(tuple(value.shape)), repr(tuple(value.strides))
            taken = [number, f"torch.{value.dtype}", shape, strides, str(value.offset)]
            return Statement(name, f"{TRANSFERS}.prefetch", taken)
        case Wait():
            return Statement("", f"{TRANSFERS}.wait", [number])
        case FreeCopy():
            return Statement("", f"{TRANSFERS}.free", [number])


def any_link(graph: Graph) -> HostLink:
    """A link for the referee where only the order of steps and the sizes of storages matter."""
    return HostLink(float("inf"), device=graph.device)


def any_updates(steps: Sequence[Step]) -> Updates | None:
    """An optimiser for the referee, as `any_link`; None for a schedule that updates nothing."""
    actions = [step.action for step in steps]
    updated = [a.value for a in actions if isinstance(a, Updating)]
    nothing = UpdateCost("", (), 0.0, 0, 0, (0, 0))
    speed = LinkSpeed(float("inf"), float("inf"), (float("inf"), float("inf")), 0.0)
    return Updates(dict.fromkeys(updated, nothing), speed, 0) if updated else None
