"""Updates of parameters, each once: by its whole gradient, with its states, where both are.

On the device, states pass through staging buffers or are there; in the offload target, an update
reads the copy of the gradient in a stream of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from tightfit.schemas.actions import ACTION_NAMES, AccumulateOnHost, UpdateOnDevice, UpdateOnHost
from tightfit.schemas.optimizer_plan import OptimizerPlan, ParameterUpdateCost
from tightfit.schemas.schedule import ScheduleStep
from tightfit.stages.simulate.effects import Effect
from tightfit.stages.simulate.state import ActionCheck, SimulatorState
from tightfit.stages.simulate.transfer_streams import HostUpdateStream, StagingTimeline
from tightfit.util.errors import ScheduleError


def begin_updates(state: SimulatorState, steps: Sequence[ScheduleStep]) -> None:
    """Fetches the first states of a step's updates. Raises ScheduleError where what lives in the
    offload target has no room there, or no way from it."""
    updates = state.updates
    if updates is None:
        return
    away, link = state.away, state.link
    if away.bytes and link is None:
        raise ScheduleError(
            "parameters or states are in an offload target, to which there is no link"
        )
    if link is not None and away.bytes > link.room:
        raise ScheduleError(
            f"parameters and states take {away.bytes:,} bytes in {link.other}, which has "
            f"{int(link.room):,}"
        )
    _begin_second_tier(state, updates, steps)
    sizes = passing_state_sizes(updates, steps)
    if away.bytes and sizes and 0.0 in updates.speed.both:
        raise ScheduleError("states are in an offload target, and the link has no bandwidth")
    if sizes:
        state.staging = StagingTimeline.of(
            state.transfer_states, updates.first, updates.buffers, sizes
        )
        state.staging.ahead()


def passing_state_sizes(updates: OptimizerPlan, steps: Sequence[ScheduleStep]) -> list[int]:
    """The bytes of the pieces of states that pass through staging buffers in a step, in order."""
    order = [step.action.value for step in steps if isinstance(step.action, UpdateOnDevice)]
    passing = [updates.costs[v] for v in order if v in updates.costs and v not in updates.on_device]
    return [size for cost in passing for size in cost.pieces]


def _begin_second_tier(
    state: SimulatorState, updates: OptimizerPlan, steps: Sequence[ScheduleStep]
) -> None:
    """Fetches the first states that come from a second offload tier."""
    link, far = state.link, updates.second_tier
    if far is not None:
        states = far.states(updates.costs)
        if link is None or far.link.device != link.to:
            raise ScheduleError(f"states are in {far.link.other}, to which no link leads")
        if states > far.link.room:
            raise ScheduleError(
                f"states take {states:,} bytes in {far.link.other}, which has "
                f"{int(far.link.room):,}"
            )
        if states and far.link.bandwidth == 0:
            raise ScheduleError(f"states are in {far.link.other}, and its link has no bandwidth")
    if link is not None:
        order = [step.action.value for step in steps if isinstance(step.action, UpdateOnHost)]
        known = [value for value in order if value in updates.costs]
        free_at = state.away.free_at
        state.beside = HostUpdateStream.of(f"{link.to}/compute", updates, known, free_at)


def _simulate_update(state: SimulatorState, effect: Effect) -> int:
    action = effect.step.action
    assert isinstance(action, UpdateOnDevice | UpdateOnHost | AccumulateOnHost)
    updates, value = state.updates, action.value
    cost = None if updates is None else updates.costs.get(value)
    if updates is None or cost is None:
        raise state.refuse(f"parameter {value} is updated, which no optimizer has")
    carried = state.carried
    if isinstance(action, UpdateOnHost) and carried is not None and value in carried.updates:
        _update_on_host(state, updates, value, effect.moves)
        carried.updates.remove(value)
        carried.parameters.discard(state.storage(value))
        return state.live_bytes
    if value in state.updated:
        raise state.refuse(f"parameter {value} is updated again")
    if missing := sorted(set(state.parts[value]) - state.handed):
        raise state.refuse(
            f"parameter {value} is updated before its gradient is whole: {missing} are missing"
        )
    if isinstance(action, AccumulateOnHost) is not updates.accumulates:
        which = "is not the last" if updates.accumulates else "is the last"
        raise state.refuse(f"{ACTION_NAMES[type(action)]} of {value} in a microbatch that {which}")
    state.updated.append(value)
    if not isinstance(action, UpdateOnDevice):
        _update_on_host(state, updates, value, effect.moves)
        return state.live_bytes
    if value in updates.second_tier_parameters:
        raise state.refuse(f"parameter {value} is updated on the device, and its states are not")
    return _update_on_device(state, updates, value, cost, effect)


def _update_on_device(
    state: SimulatorState,
    updates: OptimizerPlan,
    value: int,
    cost: ParameterUpdateCost,
    effect: Effect,
) -> int:
    """An update on the device; returns the most bytes within it."""
    gradient, own = state.storage(state.parts[value][0]), state.storage(value)
    if gradient not in state.allocated | state.held | state.sums - state.spent:
        raise state.refuse(f"parameter {value} is updated, whose gradient is not on the device")
    if own in state.remote:
        if own not in state.allocated or own in state.away.coming:
            raise state.refuse(f"parameter {value} is updated, which is not on the device")
        state.away.stale.add(own)
    peak, net = cost.first if updates.first else (cost.peak, cost.net)
    peak += state.live_bytes
    state.live_bytes += net
    _stream_states(state, cost, value in updates.on_device)
    for storage in effect.drops:
        state.forget(storage)
    if gradient in state.sums - state.held and _is_last_owner(state, gradient):
        state.forget_sum(gradient)
    return peak


def _stream_states(state: SimulatorState, cost: ParameterUpdateCost, on_device: bool) -> None:
    """The clocks of an update, piece by piece."""
    staging = state.staging
    for seconds, size in cost.parts():
        if on_device or staging is None:
            state.clock += seconds
            continue
        state.wait(staging.arrives())
        state.clock += seconds
        staging.leaves(size)
        state.away.left += size
        state.away.returned += 0 if staging.first else size


def _is_last_owner(state: SimulatorState, gradient: int) -> bool:
    """Whether all parameters whose gradients share a storage have been updated."""
    owners = {value for value, parts in state.parts.items() if state.storage(parts[0]) == gradient}
    return owners.issubset(state.updated)


def _update_on_host(
    state: SimulatorState, updates: OptimizerPlan, value: int, gradient: int
) -> None:
    """An update in the offload target, in the stream of that."""
    away, beside = state.away, state.beside
    if value not in updates.offloaded:
        raise state.refuse(f"parameter {value} is updated in the offload target, and lives here")
    if value in updates.on_device:
        raise state.refuse(f"parameter {value} is updated there, and its states are here")
    assert beside is not None
    if beside.seconds(updates.costs[value]) == float("inf"):
        raise state.refuse(f"parameter {value} is updated in a memory where nothing computes")
    if gradient not in away.copies:
        raise state.refuse(f"parameter {value} is updated there, and its gradient is not there")
    if gradient in away.moving:
        raise state.refuse(f"parameter {value} is updated while its gradient is on its way")
    away.span = beside.run(value, state.clock)
    own, end = state.storage(value), away.span[1]
    away.moving[gradient] = end
    if updates.accumulates:
        return
    away.ready[own] = end
    if own in state.allocated:
        away.old.add(own)


def _check_all_updated(state: SimulatorState) -> None:
    updates = state.updates
    if updates is None:
        return
    due = updates.offloaded & updates.costs.keys() if updates.accumulates else updates.costs.keys()
    if missing := sorted(due - set(state.updated)):
        raise state.refuse(f"the parameters {missing} are never updated")
    check_parameter_places(state)


def check_parameter_places(state: SimulatorState) -> None:
    """Parameters that live in the offload target are where a step begins with them, as new as
    there."""
    if moving := sorted(state.remote.intersection(state.away.moving)):
        raise state.refuse(f"the parameters in the storages {moving} are still on their way")
    there = state.allocated & state.remote
    if odd := sorted(there ^ state.there):
        raise state.refuse(
            f"the parameters in the storages {odd} are not where they were before the step"
        )
    if old := sorted(there & state.away.old):
        raise state.refuse(f"the parameters in the storages {old} are older than in their memory")
    if stale := sorted(state.away.stale & (state.away.dropped | (state.remote - there))):
        raise state.refuse(f"the parameters in the storages {stale} are never sent back")


UPDATE_CHECK = ActionCheck(
    (UpdateOnDevice, UpdateOnHost, AccumulateOnHost), _simulate_update, _check_all_updated
)
