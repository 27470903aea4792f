"""Running ops: what they read is there, they run where and as often as they may."""

from __future__ import annotations

from tightfit.schemas.actions import (
    ACTION_NAMES,
    Compute,
    ComputeLoss,
    FreeRandomState,
    RestoreRandomState,
    SaveRandomState,
    WriteBuffer,
    op_action,
)
from tightfit.schemas.costs import RECOMPUTE_VARIANT
from tightfit.schemas.graph.recompute_variants import find_recompute_values
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Op
from tightfit.stages.simulate.effects import Effect
from tightfit.stages.simulate.state import ActionCheck, SimulatorState


def check_random_draw(state: SimulatorState, op: Op) -> int:
    """The bytes that restoring the random state takes while an op runs."""
    if state.restoring == op.id:
        state.restoring = NO_VALUE
        return state.state_bytes
    if op.id in state.done:
        raise state.refuse(f"op {op.id} ({op.target}) draws again without its saved state")
    if op.id < state.last_draw:
        raise state.refuse(f"op {op.id} ({op.target}) draws after op {state.last_draw}")
    state.last_draw = op.id
    return 0


def _simulate_random_state(state: SimulatorState, effect: Effect) -> int:
    op = effect.op
    assert op is not None
    match effect.step.action:
        case SaveRandomState():
            _save_state(state, op)
        case RestoreRandomState():
            _restore_state(state, op)
        case _:
            _free_state(state, op)
    return state.live_bytes


def _save_state(state: SimulatorState, op: Op) -> None:
    if not op.random:
        raise state.refuse(f"op {op.id} draws no random numbers")
    if op.id in state.done or op.id in state.states:
        raise state.refuse(f"the random state of op {op.id} is saved too late")
    state.states.add(op.id)
    state.live_bytes += state.state_bytes


def _restore_state(state: SimulatorState, op: Op) -> None:
    if op.id not in state.states or op.id not in state.done:
        raise state.refuse(f"no random state is saved for op {op.id}")
    state.restoring = op.id
    state.clock += state.costs.random_state().seconds


def _free_state(state: SimulatorState, op: Op) -> None:
    if op.id not in state.states:
        raise state.refuse(f"no random state is saved for op {op.id}")
    state.states.remove(op.id)
    state.live_bytes -= state.state_bytes


def _check_states_freed(state: SimulatorState) -> None:
    if state.states:
        raise state.refuse(f"the random states of the ops {sorted(state.states)} are never freed")


RANDOM_STATE_CHECK = ActionCheck(
    (SaveRandomState, RestoreRandomState, FreeRandomState),
    _simulate_random_state,
    _check_states_freed,
)


def _simulate_compute(state: SimulatorState, effect: Effect) -> int:
    op, action = effect.op, effect.step.action
    assert op is not None and isinstance(action, Compute | WriteBuffer | ComputeLoss)
    _check_place(state, effect, op)
    _check_reads(state, effect, op)
    in_place = NO_VALUE if isinstance(action, ComputeLoss) else action.in_place
    cost = state.costs.of(state.graph, op, _cost_form(state, effect, op, in_place))
    state.clock += cost.seconds
    peak = state.live_bytes + cost.peak
    if op.random:
        peak += check_random_draw(state, op)
    if effect.repeated and op.id not in state.views:
        if not op.repeatable or op.id in state.once:
            raise state.refuse(f"op {op.id} ({op.target}) runs again")
        state.repeated += 1
        state.repeated_seconds += cost.seconds
    if isinstance(action, ComputeLoss):
        _check_outputs(state)
        state.loss_at, state.saved = state.clock - cost.seconds, state.live_bytes
        state.live_bytes += cost.net - state.bytes_of(op.outputs)
    for storage in effect.drops:
        if storage in state.held or storage in state.fixed:
            raise state.refuse(
                f"op {op.id} ({op.target}) overwrites value {in_place}, which is held"
            )
        state.forget(storage)
    _make_outputs(state, effect, op)
    state.done.add(op.id)
    return peak


def _check_place(state: SimulatorState, effect: Effect, op: Op) -> None:
    wanted, found = type(op_action(op)), type(effect.step.action)
    if found is not wanted:
        raise state.refuse(
            f"op {op.id} ({op.target}) is a {ACTION_NAMES[wanted]}, not a {ACTION_NAMES[found]}"
        )
    if op.phase == "backward" and state.loss_at < 0:
        raise state.refuse(f"op {op.id} ({op.target}) of the backward runs before the loss")
    if op.target == LOSS_TARGET and effect.repeated:
        raise state.refuse("the loss runs again")
    origin = state.graph.alternative_origins.get(op.id)
    if origin is not None and origin not in state.done:
        raise state.refuse(f"op {op.id} ({op.target}) runs ahead of op {origin}")
    missing = state.contributors.get(op.id, set()) - state.done
    if missing:
        raise state.refuse(
            f"op {op.id} ({op.target}) makes a part of a gradient ahead of op {min(missing)}, "
            f"which makes the one before it"
        )
    if op.phase == "forward" and not effect.repeated and (op.random or not op.repeatable):
        _check_fixed_order(state, op)


def _check_fixed_order(state: SimulatorState, op: Op) -> None:
    """What of the forward draws, writes buffers or reads what is written runs ahead of the loss,
    and keeps the order of the graph where it is no draw."""
    if state.loss_at >= 0:
        raise state.refuse(f"op {op.id} ({op.target}) of the forward runs after the loss")
    if op.repeatable:
        return
    if op.id < state.last_single_run:
        raise state.refuse(f"op {op.id} ({op.target}) runs after op {state.last_single_run}")
    state.last_single_run = op.id


def _check_reads(state: SimulatorState, effect: Effect, op: Op) -> None:
    for value in effect.reads:
        if not state.is_live(value):
            raise state.refuse(f"op {op.id} ({op.target}) reads value {value}, which is not live")
        if state.storage(value) in state.away.coming:
            raise state.refuse(
                f"op {op.id} ({op.target}) reads value {value}, which has not come back"
            )
        if state.carried is not None and state.is_outdated(state.storage(value)):
            raise state.refuse(
                f"op {op.id} ({op.target}) reads value {value} of a parameter that lacks its "
                "update of the step before"
            )
        left = state.gone.get(state.storage(value))
        if left is not None:
            raise state.refuse(f"op {op.id} ({op.target}) reads value {value} after {left}")


def _check_outputs(state: SimulatorState) -> None:
    """The caller has the outputs from the loss on."""
    missing = sorted(v for v in set(state.graph.output_values()) if not state.is_live(v))
    if missing:
        raise state.refuse(f"the outputs {missing} are not made before the loss")


def _cost_form(state: SimulatorState, effect: Effect, op: Op, in_place: int) -> int:
    """Which form of the op runs, as costs name it."""
    if in_place != NO_VALUE and in_place not in op.in_place:
        raise state.refuse(f"op {op.id} ({op.target}) cannot overwrite value {in_place}")
    if not effect.repeated or find_recompute_values(state.graph, op) is None:
        return in_place
    if in_place != NO_VALUE:
        raise state.refuse(f"op {op.id} ({op.target}) overwrites nothing when it runs again")
    return RECOMPUTE_VARIANT


def _make_outputs(state: SimulatorState, effect: Effect, op: Op) -> None:
    for value in effect.makes:
        storage = state.storage(value)
        if op.id in state.views:
            if storage not in state.allocated and storage not in state.fixed:
                raise state.refuse(f"value {value} is a view of a storage that is not live")
        elif state.is_live(value):
            raise state.refuse(f"op {op.id} ({op.target}) makes value {value}, which is live")
        elif storage not in state.allocated:
            state.allocate(storage)
        elif state.carried is not None and storage in state.carried.gradients:
            raise state.refuse(
                f"op {op.id} ({op.target}) makes value {value} in a gradient of the step before, "
                "which has not been freed"
            )
        state.live.setdefault(storage, set()).add(value)


def _check_all_ran(state: SimulatorState) -> None:
    missing = sorted(v for v in set(state.graph.output_values()) if not state.is_live(v))
    if missing:
        raise state.refuse(f"the outputs {missing} are not live at the end")
    if state.loss_at < 0 and any(op.target == LOSS_TARGET for op in state.graph.ops):
        raise state.refuse("the loss never runs")
    unwritten = {op.id for op in state.graph.ops if op.writes} - state.done
    if unwritten:
        raise state.refuse(f"the buffer updates {sorted(unwritten)} never run")


COMPUTE_CHECK = ActionCheck((Compute, WriteBuffer, ComputeLoss), _simulate_compute, _check_all_ran)
