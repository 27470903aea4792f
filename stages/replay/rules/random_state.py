"""Random states: an op that runs again draws what it drew first, all others keep their order."""

from __future__ import annotations

from tightfit.schemas.actions import FreeRandom, RestoreRandom, SaveRandom
from tightfit.schemas.graph import NONE, Op
from tightfit.stages.replay.rules.rule import Rule
from tightfit.stages.replay.state import State
from tightfit.stages.replay.walk import Effect


def check_draw(state: State, op: Op) -> int:
    """The bytes that restoring the random state takes while an op runs."""
    if state.restoring == op.id:
        state.restoring = NONE
        return state.state_bytes
    if op.id in state.done:
        raise state.refuse(f"op {op.id} ({op.target}) draws again without its saved state")
    if op.id < state.last_draw:
        raise state.refuse(f"op {op.id} ({op.target}) draws after op {state.last_draw}")
    state.last_draw = op.id
    return 0


def _play(state: State, effect: Effect) -> int:
    op = effect.op
    assert op is not None
    match effect.step.action:
        case SaveRandom():
            _save(state, op)
        case RestoreRandom():
            _restore(state, op)
        case _:
            _free(state, op)
    return state.live_bytes


def _save(state: State, op: Op) -> None:
    if not op.random:
        raise state.refuse(f"op {op.id} draws no random numbers")
    if op.id in state.done or op.id in state.states:
        raise state.refuse(f"the random state of op {op.id} is saved too late")
    state.states.add(op.id)
    state.live_bytes += state.state_bytes


def _restore(state: State, op: Op) -> None:
    if op.id not in state.states or op.id not in state.done:
        raise state.refuse(f"no random state is saved for op {op.id}")
    state.restoring = op.id
    state.clock += state.costs.random_state().seconds


def _free(state: State, op: Op) -> None:
    if op.id not in state.states:
        raise state.refuse(f"no random state is saved for op {op.id}")
    state.states.remove(op.id)
    state.live_bytes -= state.state_bytes


def _finish(state: State) -> None:
    if state.states:
        raise state.refuse(f"the random states of the ops {sorted(state.states)} are never freed")


RULE = Rule((SaveRandom, RestoreRandom, FreeRandom), _play, _finish)
