"""Handing over gradients: each once, complete, and after the last read of what it belongs to, since
an optimiser may take it up at once."""

from __future__ import annotations

from tightfit.schemas.actions import Gradient
from tightfit.stages.replay.rules.rule import Rule
from tightfit.stages.replay.state import State
from tightfit.stages.replay.walk import Effect


def _play(state: State, effect: Effect) -> int:
    [value] = effect.reads
    if value not in state.gradients or value in state.handed:
        raise state.refuse(f"value {value} is no gradient left to hand over")
    if not state.is_live(value):
        raise state.refuse(f"the gradient {value} is not live")
    state.handed.add(value)
    owner = state.owners[value]
    if value in state.further:
        _add_contribution(state, value, state.parts[owner][0])
    elif missing := set(state.parts[owner]) - state.handed:
        raise state.refuse(f"the gradient {value} lacks contributions {sorted(missing)}")
    else:
        left = f"the gradient of value {owner} was handed over"
        state.gone[state.storage(owner)] = left
    for storage in effect.drops:
        state.forget(storage)
    return state.live_bytes


def _add_contribution(state: State, value: int, first: int) -> None:
    """A further contribution is added to the first one, which nothing reads any more."""
    before = state.further[value]
    if not state.is_live(first) or before not in state.handed | {first}:
        raise state.refuse(f"the contribution {value} is handed over before {before}")
    state.gone[state.storage(first)] = f"contributions were added to the gradient {first}"


def _finish(state: State) -> None:
    missing = state.gradients - state.handed
    if missing:
        raise state.refuse(f"the gradients {sorted(missing)} are missing")


RULE = Rule((Gradient,), _play, _finish)
