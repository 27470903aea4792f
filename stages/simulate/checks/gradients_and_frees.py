"""Handing over gradients: each once, complete, and after the last read of what it belongs to, since
an optimizer may take it up at once."""

from __future__ import annotations

from tightfit.schemas.actions import Free, PassGradient
from tightfit.stages.simulate.effects import Effect
from tightfit.stages.simulate.state import ActionCheck, SimulatorState


def _simulate_gradient(state: SimulatorState, effect: Effect) -> int:
    [value] = effect.reads
    if value not in state.gradients or value in state.handed:
        raise state.refuse(f"value {value} is no gradient left to hand over")
    if not state.is_live(value):
        raise state.refuse(f"the gradient {value} is not live")
    state.handed.add(value)
    owner = state.owners[value]
    if value in state.further:
        _add_partial_gradient(state, value, state.parts[owner][0])
    elif missing := set(state.parts[owner]) - state.handed:
        raise state.refuse(f"the gradient {value} lacks contributions {sorted(missing)}")
    else:
        left = f"the gradient of value {owner} was handed over"
        state.gone[state.storage(owner)] = left
    for storage in effect.drops:
        state.forget(storage)
    return state.live_bytes


def _add_partial_gradient(state: SimulatorState, value: int, first: int) -> None:
    """A further contribution is added to the first one, which nothing reads any more."""
    before = state.further[value]
    if not state.is_live(first) or before not in state.handed | {first}:
        raise state.refuse(f"the contribution {value} is handed over before {before}")
    state.gone[state.storage(first)] = f"contributions were added to the gradient {first}"


def _check_all_gradients(state: SimulatorState) -> None:
    missing = state.gradients - state.handed
    if missing:
        raise state.refuse(f"the gradients {sorted(missing)} are missing")


GRADIENT_CHECK = ActionCheck((PassGradient,), _simulate_gradient, _check_all_gradients)


def _simulate_free(state: SimulatorState, effect: Effect) -> int:
    action = effect.step.action
    assert isinstance(action, Free)
    for storage in effect.drops:
        if storage in state.remote:
            _check_host_copy(state, storage)
        if storage in state.held:
            raise state.refuse(f"value {action.value} is freed, but the caller holds it")
        sent = state.updates is not None and storage in state.away.copies
        if not sent and any(_is_pending(state, v) for v in state.gradients_in.get(storage, ())):
            raise state.refuse(f"the gradient in value {action.value} is freed")
        if storage in state.sums and storage not in state.allocated:
            state.forget_sum(storage)
            continue
        values = state.live.get(storage, set())
        state.forget(storage)
        if storage in state.away.copies and storage not in state.remote:
            state.offloaded_views[storage] = values
    return state.live_bytes


def _check_host_copy(state: SimulatorState, storage: int) -> None:
    """A parameter leaves the device when the offload target has it as new."""
    if storage in state.away.stale:
        raise state.refuse(f"storage {storage}, a parameter, is freed before it was sent back")
    state.away.old.discard(storage)
    state.away.dropped.add(storage)


def _is_pending(state: SimulatorState, gradient: int) -> bool:
    """Whether a gradient may not go yet: it is to be handed over, or becomes `.grad`."""
    return gradient not in state.handed or _becomes_grad(state, gradient)


def _becomes_grad(state: SimulatorState, gradient: int) -> bool:
    """Whether a gradient becomes `.grad`."""
    return state.storage(gradient) not in state.sums and gradient not in state.further


def _check_no_leaks(state: SimulatorState) -> None:
    updated = set(state.updated)
    gradients = {
        state.storage(value)
        for value in state.gradients
        if _becomes_grad(state, value) and state.owners[value] not in updated
    }
    leaked = state.allocated - state.held - gradients - state.remote
    if leaked:
        raise state.refuse(f"the storages {sorted(leaked)} are never freed")


FREE_CHECK = ActionCheck((Free,), _simulate_free, _check_no_leaks)
