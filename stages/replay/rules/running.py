"""Running ops: what they read is there, they run where and as often as they may."""

from __future__ import annotations

from tightfit.schemas.actions import Compute, Loss, Write, run_of
from tightfit.schemas.costs import REPEATED
from tightfit.schemas.graph import LOSS_TARGET, NONE, Op
from tightfit.schemas.repeat import repeat_of
from tightfit.stages.replay.rules.random_state import check_draw
from tightfit.stages.replay.rules.rule import Rule
from tightfit.stages.replay.state import State
from tightfit.stages.replay.walk import Effect


def _play(state: State, effect: Effect) -> int:
    op, action = effect.op, effect.step.action
    assert op is not None and isinstance(action, Compute | Write | Loss)
    _check_place(state, effect, op)
    _check_reads(state, effect, op)
    in_place = NONE if isinstance(action, Loss) else action.in_place
    cost = state.costs.of(state.graph, op, _form(state, effect, op, in_place))
    state.clock += cost.seconds
    peak = state.live_bytes + cost.peak
    if op.random:
        peak += check_draw(state, op)
    if effect.repeated and op.id not in state.views:
        if not op.repeatable or op.id in state.once:
            raise state.refuse(f"op {op.id} ({op.target}) runs again")
        state.repeated += 1
        state.repeated_seconds += cost.seconds
    if isinstance(action, Loss):
        _check_outputs(state)
        state.loss_at, state.saved = state.clock - cost.seconds, state.live_bytes
        state.live_bytes += cost.net - state.bytes_of(op.outputs)
    for storage in effect.drops:
        if storage in state.held or storage in state.fixed:
            raise state.refuse(
                f"op {op.id} ({op.target}) overwrites value {in_place}, which is held"
            )
        state.forget(storage)
    _make(state, effect, op)
    state.done.add(op.id)
    return peak


def _check_place(state: State, effect: Effect, op: Op) -> None:
    wanted, found = type(run_of(op)), type(effect.step.action)
    if found is not wanted:
        raise state.refuse(
            f"op {op.id} ({op.target}) is a {wanted.__name__.lower()}, "
            f"not a {found.__name__.lower()}"
        )
    if op.phase == "backward" and state.loss_at < 0:
        raise state.refuse(f"op {op.id} ({op.target}) of the backward runs before the loss")
    if op.target == LOSS_TARGET and effect.repeated:
        raise state.refuse("the loss runs again")
    origin = state.graph.origins.get(op.id)
    if origin is not None and origin not in state.done:
        raise state.refuse(f"op {op.id} ({op.target}) runs ahead of op {origin}")
    missing = state.contributors.get(op.id, set()) - state.done
    if missing:
        raise state.refuse(
            f"op {op.id} ({op.target}) makes a part of a gradient ahead of op {min(missing)}, "
            f"which makes the one before it"
        )
    if op.phase == "forward" and not effect.repeated and (op.random or not op.repeatable):
        _check_turn(state, op)


def _check_turn(state: State, op: Op) -> None:
    """What of the forward draws, writes buffers or reads what is written runs ahead of the loss,
    and keeps the order of the graph where it is no draw."""
    if state.loss_at >= 0:
        raise state.refuse(f"op {op.id} ({op.target}) of the forward runs after the loss")
    if op.repeatable:
        return
    if op.id < state.last_once:
        raise state.refuse(f"op {op.id} ({op.target}) runs after op {state.last_once}")
    state.last_once = op.id


def _check_reads(state: State, effect: Effect, op: Op) -> None:
    for value in effect.reads:
        if not state.is_live(value):
            raise state.refuse(f"op {op.id} ({op.target}) reads value {value}, which is not live")
        if state.storage(value) in state.away.coming:
            raise state.refuse(
                f"op {op.id} ({op.target}) reads value {value}, which has not come back"
            )
        left = state.gone.get(state.storage(value))
        if left is not None:
            raise state.refuse(f"op {op.id} ({op.target}) reads value {value} after {left}")


def _check_outputs(state: State) -> None:
    """The caller has the outputs from the loss on."""
    missing = sorted(v for v in set(state.graph.output_values()) if not state.is_live(v))
    if missing:
        raise state.refuse(f"the outputs {missing} are not made before the loss")


def _form(state: State, effect: Effect, op: Op, in_place: int) -> int:
    """Which form of the op runs, as costs name it."""
    if in_place != NONE and in_place not in op.in_place:
        raise state.refuse(f"op {op.id} ({op.target}) cannot overwrite value {in_place}")
    if not effect.repeated or repeat_of(state.graph, op) is None:
        return in_place
    if in_place != NONE:
        raise state.refuse(f"op {op.id} ({op.target}) overwrites nothing when it runs again")
    return REPEATED


def _make(state: State, effect: Effect, op: Op) -> None:
    for value in effect.makes:
        storage = state.storage(value)
        if op.id in state.views:
            if storage not in state.allocated and storage not in state.fixed:
                raise state.refuse(f"value {value} is a view of a storage that is not live")
        elif state.is_live(value):
            raise state.refuse(f"op {op.id} ({op.target}) makes value {value}, which is live")
        elif storage not in state.allocated:
            state.allocate(storage)
        state.live.setdefault(storage, set()).add(value)


def _finish(state: State) -> None:
    missing = sorted(v for v in set(state.graph.output_values()) if not state.is_live(v))
    if missing:
        raise state.refuse(f"the outputs {missing} are not live at the end")
    if state.loss_at < 0 and any(op.target == LOSS_TARGET for op in state.graph.ops):
        raise state.refuse("the loss never runs")
    unwritten = {op.id for op in state.graph.ops if op.writes} - state.done
    if unwritten:
        raise state.refuse(f"the buffer updates {sorted(unwritten)} never run")


RULE = Rule((Compute, Write, Loss), _play, _finish)
