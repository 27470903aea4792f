"""Transfers over the link to an offload target: of what is there, one after the other in their
stream, waited for before what they move is used.

What comes back does so with its views: those that were there when its storage was freed. A
parameter that lives in the offload target, and what was overwritten, come without.

A transfer begins when what stands before it in the compute stream has ended, where it takes its
overhead, and its stream is free.
Both directions take turns where the link is shared.
"""

from __future__ import annotations

from tightfit.schemas.actions import FreeHostCopy, Offload, Prefetch, Wait
from tightfit.schemas.link import HostLink
from tightfit.stages.simulate.effects import Effect
from tightfit.stages.simulate.state import ActionCheck, SimulatorState


def _simulate_transfer(state: SimulatorState, effect: Effect) -> int:
    action, storage = effect.step.action, effect.moves
    match action:
        case Offload(value):
            _offload(state, value, storage)
        case Prefetch(value):
            _prefetch(state, value, storage)
        case Wait():
            _wait(state, storage)
        case FreeHostCopy():
            _free_copy(state, storage)
    return state.live_bytes


def _offload(state: SimulatorState, value: int, storage: int) -> None:
    link, away = _require_link(state, "offload"), state.away
    if storage in state.remote:
        _write_back_parameter(state, value, storage)
        return
    if storage in state.fixed:
        raise state.refuse(f"value {value} leaves, which is there before the step")
    if storage in state.held:
        raise state.refuse(f"value {value} leaves, but the caller holds it")
    if storage in state.gradients_in and not _is_gradient_complete(state, storage):
        raise state.refuse(f"the gradient in value {value} leaves")
    if not state.is_live(value) and storage not in state.sums - state.spent:
        raise state.refuse(f"value {value} leaves, which is not live")
    if storage in away.moving:
        raise state.refuse(f"value {value} leaves while it is on its way")
    if storage in away.copies:
        raise state.refuse(f"value {value} leaves, of which there is a copy")
    size = state.graph.storages[storage]
    if away.bytes + size > link.room:
        raise state.refuse(
            f"value {value} makes {away.bytes + size:,} bytes in {link.other}, which has "
            f"{int(link.room):,}"
        )
    away.copies.add(storage)
    away.bytes += size
    away.peak = max(away.peak, away.bytes)
    away.left += size
    _start_transfer(state, storage, leaves=True)


def _is_gradient_complete(state: SimulatorState, storage: int) -> bool:
    """Whether a gradient is the optimizer's, which may send it."""
    return state.updates is not None and state.handed.issuperset(state.gradients_in[storage])


def _write_back_parameter(state: SimulatorState, value: int, storage: int) -> None:
    """A parameter that was updated on the device renews its copy."""
    if storage not in state.away.stale:
        raise state.refuse(f"parameter {value} leaves, whose copy is as new")
    state.away.stale.remove(storage)
    state.away.left += state.graph.storages[storage]
    _start_transfer(state, storage, leaves=True)


def _prefetch(state: SimulatorState, value: int, storage: int) -> None:
    _require_link(state, "prefetch")
    away = state.away
    if storage not in away.copies | state.remote:
        raise state.refuse(f"value {value} comes back, of which there is no copy")
    if storage in state.allocated:
        raise state.refuse(f"value {value} comes back, which is there")
    if value not in state.whole and storage not in state.remote:
        raise state.refuse(f"value {value} comes back, which is a view")
    if state.carried is not None and storage in state.carried.parameters:
        raise state.refuse(f"parameter {value} comes back before its update of the step before")
    views = state.offloaded_views.pop(storage, set())
    state.allocate(storage)
    state.live[storage] = views | {value}
    away.coming.add(storage)
    away.returned += state.graph.storages[storage]
    _start_transfer(state, storage, leaves=False)


def _start_transfer(state: SimulatorState, storage: int, leaves: bool) -> None:
    """A transfer goes into its stream; a parameter that is updated in the offload target comes
    after that."""
    away, size = state.away, state.graph.storages[storage]
    after = 0.0 if leaves else away.ready.get(storage, 0.0)
    away.span = state.transfer(size, leaves, after)
    away.moving[storage] = away.span[1]


def _wait(state: SimulatorState, storage: int) -> None:
    away = state.away
    if storage not in away.moving:
        raise state.refuse(f"storage {storage} is waited for, which is not on its way")
    state.wait(away.moving.pop(storage))
    away.coming.discard(storage)


def _free_copy(state: SimulatorState, storage: int) -> None:
    away = state.away
    if storage not in away.copies:
        raise state.refuse(f"the copy of storage {storage} is freed, which is not there")
    if storage in away.moving:
        raise state.refuse(f"the copy of storage {storage} is freed while it is on its way")
    away.copies.remove(storage)
    away.bytes -= state.graph.storages[storage]


def _require_link(state: SimulatorState, name: str) -> HostLink:
    if state.link is None:
        raise state.refuse(f"{name} is not possible on one device without a link")
    if state.link.bandwidth == 0:
        raise state.refuse(f"{name} takes a link that has no bandwidth")
    return state.link


def _check_copies_freed(state: SimulatorState) -> None:
    if state.away.copies:
        raise state.refuse(
            f"the copies of the storages {sorted(state.away.copies)} are never freed"
        )


TRANSFER_CHECK = ActionCheck(
    (Offload, Prefetch, Wait, FreeHostCopy), _simulate_transfer, _check_copies_freed
)
