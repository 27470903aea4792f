"""Which states of an optimizer are in a second offload tier, where the other one has no room for
all."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from tightfit.schemas.actions import UpdateOnDevice
from tightfit.schemas.link import HostLink
from tightfit.schemas.optimizer_plan import SecondTierStates
from tightfit.stages.combine.optimizer_offload.activation_schedule import ActivationProblem
from tightfit.stages.combine.optimizer_offload.min_memory import check_min_memory
from tightfit.stages.combine.optimizer_offload.problem import OffloadProblem
from tightfit.stages.combine.optimizer_offload.search import OffloadSearch, OffloadSearchResult
from tightfit.stages.combine.optimizer_offload.search_space import STAGING_BUFFERS, OffloadChoice
from tightfit.util.errors import ConfigError

EXTRA_TIER_SHARES = (0.0, 0.05, 0.15, 0.4, 1.0)
"""Parts of the states that need not be in the second offload tier, which are put there too where no
plan is found otherwise."""


def second_tier_problems(task: OffloadProblem, link: HostLink | None) -> Iterator[OffloadProblem]:
    """The task with those states in the memory behind a `link` from the other one that this has no
    room for, and then with more of them; with none where there is no such link. Raises
    ConfigError where a memory has no room."""
    tried: set[frozenset[int]] = set()
    for share in EXTRA_TIER_SHARES if link else EXTRA_TIER_SHARES[:1]:
        found = replace(task, far=None if link is None else assign_second_tier(task, link, share))
        values = found.far.values if found.far else frozenset()
        if values not in tried:
            yield found
        tried.add(values)


def spread_evenly(values: Sequence[int], sizes: Sequence[int], wanted: float) -> list[int]:
    """Some of the values, evenly along their order, of about so many bytes."""
    whole = sum(sizes)
    due, chosen, left = 0.0, [], wanted
    for value, size in zip(values, sizes, strict=True):
        due += size * wanted / whole if whole else 0.0
        if left > 0 and due >= size / 2:
            chosen.append(value)
            due -= size
            left -= size
    return chosen


def assign_second_tier(
    task: OffloadProblem, link: HostLink, share: float
) -> SecondTierStates | None:
    """What of the states has no room in the offload target, and a share of the rest, evenly along
    the backward, behind a `link`; None where all has room. Raises ConfigError where nothing
    computes beside the offload target."""
    costs, may = task.updates, task.leaving
    candidates = [v for v in task.remote.values() if v in costs and v in may and costs[v].states]
    whole = sum(costs[value].states for value in candidates)
    stays = task.played(frozenset(), here=False).host_bytes(task.graph)
    everything = SecondTierStates(link, frozenset(candidates), STAGING_BUFFERS)
    lacking = max(stays + everything.staging(costs) - task.link.room, 0)
    if stays <= task.link.room and not share:
        return None
    wanted = min(lacking + share * max(whole - lacking, 0), whole)
    candidates.reverse()
    chosen = spread_evenly(candidates, [costs[value].states for value in candidates], wanted)
    left = wanted - sum(costs[value].states for value in chosen)
    for value in candidates:
        if left > 0 and value not in chosen:
            chosen.append(value)
            left -= costs[value].states
    if not chosen:
        return None
    if any(costs[value].host_seconds == float("inf") for value in chosen):
        raise ConfigError(
            f"nothing computes beside {task.link.to}, where states of {link.to} are updated"
        )
    return SecondTierStates(link, frozenset(chosen), STAGING_BUFFERS)


RESIDENT_PARAMETER_SHARES = (0.1, 0.25, 0.4, 0.55, 0.7)
"""Parts of the device's room for parameters that stay there with their states."""
MAX_ACTIVATION_SIZES = 4
"""How many sizes are tried for activations beside these."""


def search_resident_parameters(
    search: OffloadSearch, begun: OffloadSearchResult
) -> tuple[OffloadSearch, OffloadSearchResult]:
    """A search with the plan that it has begun with or, where states are in a second offload tier
    and some parameters on the device with theirs make a faster one, that of the task in which they
    are, so that one search goes on from the better. Activations get bytes that sequences are known
    for."""
    best, better = (search, begun), False
    for task in resident_parameter_problems(search.task):
        own = OffloadSearch(task, _reusable_activation_problems(search))
        try:
            check_min_memory(task)
            own.check()
        except ConfigError:
            continue
        found = own.first(_known_activation_shares(search, own))
        if found is not None and found.seconds < best[1].seconds:
            best, better = (own, found), True
        elif better:
            break
    return best


def candidate_problems(task: OffloadProblem, link: HostLink | None) -> Iterator[OffloadProblem]:
    """The tasks of `second_tier_problems` and, where the second offload tier has no room for the
    fewest states, those in which parameters live on the device with theirs."""
    first: OffloadProblem | None = None
    for each in second_tier_problems(task, link):
        first = first or each
        yield each
    if first and first.far and first.far.states(first.updates) > first.far.link.room:
        yield from resident_parameter_problems(first)


def resident_parameter_problems(task: OffloadProblem) -> Iterator[OffloadProblem]:
    """Tasks in which ever more parameters live on the device with their states, and the rest of the
    states where it has room; none without a second offload tier, nor where updates were measured,
    whose states stay by themselves (`stages.combine.optimizer_offload.state_placement`)."""
    if task.far is None or task.measured is not None:
        return
    for share in RESIDENT_PARAMETER_SHARES:
        kept = _resident_parameters(task, int(share * task.room))
        remote = {storage: value for storage, value in task.remote.items() if value not in kept}
        if kept and remote:
            own = replace(
                task,
                remote=remote,
                far=None,
                unrestricted_problem=task.unrestricted_problem or task,
            )
            yield replace(own, far=assign_second_tier(own, task.far.link, 0.0))


def _resident_parameters(task: OffloadProblem, room: int) -> frozenset[int]:
    """Parameters that take so many bytes with their states, evenly along the step."""
    updates, sizes = task.updates, task.graph.storages
    takes = {v: sizes[s] + updates[v].states for s, v in task.remote.items() if v in updates}
    found, left = [], room
    for value in spread_evenly([*takes], [*takes.values()], room):
        if takes[value] <= left:
            found.append(value)
            left -= takes[value]
    return frozenset(found)


def _reusable_activation_problems(
    search: OffloadSearch,
) -> dict[tuple[bool, bool], ActivationProblem]:
    """What is known of activations by themselves, which do not ask where parameters live."""
    return {
        key: replace(view, schedules={})
        for key, view in search.schedules.views.items()
        if key == (False, False)
    }


def _known_activation_shares(search: OffloadSearch, own: OffloadSearch) -> list[float]:
    """The largest parts of a smaller room for which sequences are known."""
    known = [
        size
        for key, view in search.schedules.views.items()
        if key == (False, False)
        for size in view.sequences
        if 0 < size < own.task.room
    ]
    return [
        (size + 0.5) / own.task.room for size in sorted(known, reverse=True)[:MAX_ACTIVATION_SIZES]
    ]


RESIDENT_STATE_SHARES = (0.05, 0.15, 0.35, 0.6, 0.9)
"""Parts of the room that states may have, which are tried beside what a plan leaves of it."""
TIME_TOLERANCE = 0.005
"""A part of the time by which plans differ no more than predictions do anyway."""


def search_resident_states(
    search: OffloadSearch, best: OffloadSearchResult
) -> tuple[OffloadProblem, OffloadSearchResult]:
    """The task and its plan: the best one of a search or, where updates are run, one in which the
    states of some parameters stay on the device. These are updated there, and their states take no
    link. Of plans that are nearly as fast as the fastest one that which moves the fewest bytes."""
    task = search.task
    found = [(search, best)]
    tried: set[frozenset[int]] = {task.resident}
    for size in _state_budgets(search, best) if task.measured is not None else ():
        resident = _resident_states(task, best, size)
        if resident in tried:
            continue
        tried.add(resident)
        own = OffloadSearch(replace(task, resident=resident), search.schedules.views)
        looked = [own.look(choice) for choice in _comparable_choices(search, own, best.choice)]
        found += [(own, other) for other in looked if other is not None]
    fastest = min(found, key=lambda each: each[1].seconds)
    least = min(found, key=lambda each: (_transfer_bytes(each[1]), each[1].seconds))
    for own, other in {id(each): each for each in (fastest, least)}.values():
        if own is not search:
            found.append((own, own.improve(other)))
    first = min(each.seconds for _, each in found)
    near = [each for each in found if each[1].seconds <= first * (1 + TIME_TOLERANCE)]
    chosen, plan = min(near, key=lambda each: (_transfer_bytes(each[1]), each[1].seconds))
    return chosen.task, plan


def _transfer_bytes(found: OffloadSearchResult) -> int:
    """The bytes that a plan sends and brings."""
    moved = [each.transfers for each in (found.simulation, found.adding) if each is not None]
    return sum(each.offloaded_bytes + each.prefetched_bytes for each in moved if each is not None)


def _state_budgets(search: OffloadSearch, best: OffloadSearchResult) -> Iterator[int]:
    """The bytes that states may have: what the plan leaves free, and parts of the room."""
    room, updates = search.task.room, best.updates
    spare = room - best.simulation.peak - updates.staging - updates.workspace_bytes
    yield from (max(spare, 0), *(int(share * room) for share in RESIDENT_STATE_SHARES))


def _resident_states(task: OffloadProblem, best: OffloadSearchResult, most: int) -> frozenset[int]:
    """Parameters whose states take `most` bytes at most: small ones, which would wait longest for
    few bytes, then some of those that the plan updates on the device, evenly along the backward."""
    far = task.far.values if task.far else frozenset()
    last = [
        step.action.value
        for step in best.simulation.steps
        if isinstance(step.action, UpdateOnDevice)
    ]
    may = [v for v in last if v not in far and task.updates[v].states]
    if task.microbatches > 1:
        may = [value for value in may if value in task.small]
    return select_resident_states(
        {value: task.updates[value].states for value in may}, task.small, most
    )


def select_resident_states(
    states: Mapping[int, int], small: Collection[int], most: int
) -> frozenset[int]:
    """Some of the parameters, of which the `states` take so many bytes, `most` in all: the `small`
    ones first, those of the fewest bytes ahead, then some of the others, evenly along their
    order."""
    found: list[int] = []
    left = most
    first = sorted((value for value in states if value in small), key=states.__getitem__)
    others = [value for value in states if value not in small]
    room = max(most - sum(states[value] for value in first), 0)
    chosen = spread_evenly(others, [states[value] for value in others], room)
    for value in (*first, *chosen, *others):
        if value not in found and states[value] <= left:
            found.append(value)
            left -= states[value]
    return frozenset(found)


def _comparable_choices(
    before: OffloadSearch, now: OffloadSearch, choice: OffloadChoice
) -> Iterator[OffloadChoice]:
    """A choice with as many bytes for activations as before, and with so many less as there are
    states."""
    view = now.schedules.view(choice.view)
    whole = now.task.room - view.always
    taken = before.task.room - now.task.room
    known = before.schedules.budget(choice.view, choice.activations)
    for budget in (known, known - taken):
        if 0 < budget < whole:
            yield replace(choice, activations=(budget + 0.5) / whole)
