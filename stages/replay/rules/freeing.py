"""Freeing storages: each once, none that somebody still owns, and in the end all of them, also the
gradients that parameters were updated by."""

from __future__ import annotations

from tightfit.schemas.actions import Free
from tightfit.stages.replay.rules.rule import Rule
from tightfit.stages.replay.state import State
from tightfit.stages.replay.walk import Effect


def _play(state: State, effect: Effect) -> int:
    action = effect.step.action
    assert isinstance(action, Free)
    for storage in effect.drops:
        if storage in state.remote:
            _check_copy(state, storage)
        if storage in state.held:
            raise state.refuse(f"value {action.value} is freed, but the caller holds it")
        sent = state.updates is not None and storage in state.away.copies
        if not sent and any(_waits(state, v) for v in state.gradients_in.get(storage, ())):
            raise state.refuse(f"the gradient in value {action.value} is freed")
        if storage in state.sums and storage not in state.allocated:
            state.forget_sum(storage)
            continue
        values = state.live.get(storage, set())
        state.forget(storage)
        if storage in state.away.copies and storage not in state.remote:
            state.asleep[storage] = values
    return state.live_bytes


def _check_copy(state: State, storage: int) -> None:
    """A parameter leaves the device when the other memory has it as new."""
    if storage in state.away.stale:
        raise state.refuse(f"storage {storage}, a parameter, is freed before it was sent back")
    state.away.old.discard(storage)
    state.away.dropped.add(storage)


def _waits(state: State, gradient: int) -> bool:
    """Whether a gradient may not go yet: it is to be handed over, or becomes `.grad`."""
    return gradient not in state.handed or _stays(state, gradient)


def _stays(state: State, gradient: int) -> bool:
    """Whether a gradient becomes `.grad`."""
    return state.storage(gradient) not in state.sums and gradient not in state.further


def _finish(state: State) -> None:
    updated = set(state.updated)
    gradients = {
        state.storage(value)
        for value in state.gradients
        if _stays(state, value) and state.owners[value] not in updated
    }
    leaked = state.allocated - state.held - gradients - state.remote
    if leaked:
        raise state.refuse(f"the storages {sorted(leaked)} are never freed")


RULE = Rule((Free,), _play, _finish)
