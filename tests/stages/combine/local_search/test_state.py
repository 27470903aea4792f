"""The search's own line, moves and their undoing, beside the plain ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import plain_line, problems, sequences, two_layers
from tightfit.schemas.graph.planning_graph import PlanningGraph, PlanningNode, PlanningStorage
from tightfit.schemas.graph.training_graph import Phase
from tightfit.stages.combine.local_search.anneal import FAST, SLOW, AnnealingSchedule, anneal
from tightfit.stages.combine.local_search.arrays import (
    ProblemArrays,
    build_arrays,
    equivalence_classes,
    keeps_fixed_order,
    weight_by_size,
)
from tightfit.stages.combine.local_search.liveness import memory_timeline
from tightfit.stages.combine.local_search.moves import (
    draw_recompute,
    draw_removal,
    draw_shift,
    draw_storage,
    undo,
)
from tightfit.stages.combine.local_search.njit import njit_no_refcount, reference_to
from tightfit.stages.combine.local_search.state import (
    EXCESS,
    JOURNAL_LENGTH,
    SearchState,
    build_state,
    copy_sequence,
    free_run,
    insert_run,
    open_gap,
)
from tightfit.stages.combine.local_search.symmetric_moves import (
    draw_symmetric_recompute,
    draw_symmetric_removal,
)
from tightfit.stages.combine.local_search.views import ViewTimes

AGAIN, REMOVAL, SHIFT, AGAIN_IN_ALL, REMOVAL_IN_ALL, UNDO = range(6)
ALWAYS = -1
"""Bytes above which a run is left as it is: none."""


@njit_no_refcount
def move(state: SearchState, a: ProblemArrays, kind: int) -> None:
    """A move by its kind, or the undoing of one."""
    state, a = reference_to(state), reference_to(a)
    if kind == AGAIN:
        draw_recompute(state, a)
    elif kind == REMOVAL:
        draw_removal(state, a)
    elif kind == SHIFT:
        draw_shift(state, a)
    elif kind == AGAIN_IN_ALL:
        draw_symmetric_recompute(state, a)
    elif kind == REMOVAL_IN_ALL:
        draw_symmetric_removal(state, a)
    else:
        undo(state, a)


@njit_no_refcount
def make_room(state: SearchState, slot: int, count: int) -> int:
    """`open_gap`, to be called from here."""
    return open_gap(reference_to(state), slot, count)


@njit_no_refcount
def run_again(state: SearchState, a: ProblemArrays, node: int, slot: int) -> int:
    """Puts a further run of a node into a slot; returns its number, -1 where there is none."""
    state, a = reference_to(state), reference_to(a)
    run = free_run(state, node)
    if run >= 0:
        insert_run(state, a, run, slot)
    return run


def positions(sequence: list[int]) -> np.ndarray:
    return np.array(sequence, np.int64)


@settings(max_examples=300, deadline=None)
@given(problems(repeats=True, alternatives=True), st.booleans(), st.integers(0, 60), st.data())
def test_the_compiled_memory_line_is_the_plain_one(
    problem: PlanningGraph, in_place: bool, ceiling: int, data: st.DataObject
) -> None:
    sequence = data.draw(sequences(problem))
    line = np.zeros(len(sequence), np.int64)
    given = positions(sequence), len(sequence), ceiling, line
    largest, seconds = memory_timeline(build_arrays(problem, in_place), *given)
    peaks, total = plain_line(problem, sequence, in_place, ceiling)
    assert (line.tolist(), largest) == (peaks, max(peaks))
    assert abs(seconds - total) < 1e-9


def order(state: SearchState) -> list[int]:
    """The nodes that a state runs."""
    out = np.zeros(state.at.size, np.int64)
    return out[: copy_sequence(state, out)].tolist()


@st.composite
def views(draw: st.DrawFn, problem: PlanningGraph) -> ViewTimes:
    """Three views of each storage, of which runs read any."""
    forms = [
        [problem.variant_at(at, repeated) for at in problem.positions] for repeated in (False, True)
    ]
    first = [[draw(st.integers(0, 7)) for _ in form.inputs] for form in forms[0]]
    further = [
        row if form is own else [draw(st.integers(0, 7)) for _ in form.inputs]
        for row, own, form in zip(first, *forms, strict=True)
    ]
    return ViewTimes([[1.0, 2.0, 4.0] for _ in problem.storages], first, further)


def check(state: SearchState, a: ProblemArrays, budget: int) -> list[int]:
    """Compares a state with what its sequence is by itself; returns that."""
    sequence = order(state)
    line = np.zeros(len(sequence), np.int64)
    given = positions(sequence), len(sequence), ALWAYS, line
    seconds = memory_timeline(a, *given)[1]
    unseen = a._replace(input_views=np.zeros_like(a.input_views))
    viewed = seconds - memory_timeline(unseen, *given)[1]
    assert state.line[state.at >= 0].tolist() == line.tolist()
    assert state.line[state.at < 0].max(initial=-1) < 0
    assert state.figures[EXCESS] == np.maximum(line - budget, 0).sum()
    assert abs(state.seconds[0] - state.spent.sum() - viewed) < 1e-6
    return sequence


def check_valid(problem: PlanningGraph, sequence: list[int]) -> None:
    """What is read was made; what runs once does, and nothing crosses the loss before it ran."""
    a, made, seen = build_arrays(problem, True), set[int](), set[int]()
    for node in sequence:
        form = problem.variant_at(node, node in seen)
        assert made.issuperset(form.inputs)
        assert not (a.once[node] and node in seen)
        assert not problem.is_alternative(node) or problem.node_at(node) in seen
        made.update(form.outputs)
        seen.add(node)
        if problem.nodes[problem.node_at(node)].phase == "backward":
            assert problem.loss in seen
    assert seen.issuperset(np.flatnonzero(a.once).tolist())
    fresh = [node for node in dict.fromkeys(sequence) if node in turns(problem)]
    assert fresh == sorted(fresh)


def turns(problem: PlanningGraph) -> list[int]:
    """The nodes whose first runs keep their order."""
    return [at for at, node in enumerate(problem.nodes) if keeps_fixed_order(node)]


@st.composite
def some_once(draw: st.DrawFn, problem: PlanningGraph) -> PlanningGraph:
    """The problem, in which some nodes run once."""
    fixed = {other.node for other in problem.alternatives}
    once = draw(st.sets(st.integers(0, len(problem.nodes) - 1), max_size=3)) - fixed
    nodes = [
        replace(node, repeatable=node.repeatable and place not in once)
        for place, node in enumerate(problem.nodes)
    ]
    return replace(problem, nodes=nodes)


@settings(max_examples=300, deadline=None)
@given(
    problems(repeats=True, alternatives=True),
    st.data(),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(AGAIN, REMOVAL_IN_ALL), st.booleans())),
    st.integers(1, 1000),
    st.booleans(),
)
def test_after_any_moves_the_line_is_that_of_the_sequence(
    problem: PlanningGraph, data: st.DataObject, budget: int, moves: list, seed: int, large: bool
) -> None:
    problem = data.draw(some_once(problem))
    a = build_arrays(problem, True, data.draw(views(problem)))
    a = weight_by_size(a) if large else a
    state = build_state(a, positions(data.draw(sequences(problem))), budget, seed)
    before = check(state, a, budget)
    for kind, taken_back in moves:
        move(state, a, kind)
        after = check(state, a, budget)
        check_valid(problem, after)
        if taken_back:
            move(state, a, UNDO)
            assert check(state, a, budget) == before
        else:
            state.figures[JOURNAL_LENGTH] = 0
            before = after


def test_equal_layers_move_together() -> None:
    """Twelve equal layers, of which each backward reads what its forward read: those inside have
    equal neighbors, and what they read is made again, and no more, in all of them at once."""
    layers = 12
    forward = [
        PlanningNode(i, "forward", 1.0, 4, [i - 1] if i else [], [i], [], False, True)
        for i in range(layers)
    ]
    loss = PlanningNode(layers, "loss", 0.0, 4, [layers - 1], [layers], [], False, False)
    backward = [
        PlanningNode(layers + i, "backward", 1.0, 4, [layers + i - 1, layers - 1 - i], [layers + i],
                     [], False, True)
        for i in range(1, layers + 1)
    ]  # fmt: skip
    nodes = [*forward, loss, *backward]
    storages = [
        PlanningStorage(4, place, False, place == 2 * layers) for place in range(len(nodes))
    ]
    problem = PlanningGraph(nodes, storages, 0)
    kinds = equivalence_classes(problem)
    inside = [position for position, kind in enumerate(kinds) if kinds.count(kind) > 1]
    assert inside and len({kinds[position] for position in inside}) < len(inside) / 2 + 1
    a = build_arrays(problem, True)
    together = {kind: 0 for kind in (AGAIN_IN_ALL, REMOVAL_IN_ALL)}
    state = build_state(a, positions(list(range(len(nodes)))), 20, 5)
    for _ in range(100):
        for kind in together:
            before = check(state, a, 20)
            move(state, a, kind)
            together[kind] = max(together[kind], abs(len(check(state, a, 20)) - len(before)))
            state.figures[JOURNAL_LENGTH] = 0
    assert min(together.values()) >= 2


@njit_no_refcount
def count_draws(state: SearchState, a: ProblemArrays, draws: int, counts: np.ndarray) -> None:
    """Counts how often each storage is drawn."""
    state, a = reference_to(state), reference_to(a)
    for _ in range(draws):
        counts[draw_storage(state, a)] += 1


def test_large_storages_are_drawn_as_often_as_the_roots_of_their_sizes() -> None:
    problem = two_layers()
    sizes = [1, 4, 100, 0, 9]
    storages = [
        replace(storage, bytes=size) for storage, size in zip(problem.storages, sizes, strict=False)
    ]
    a = build_arrays(replace(problem, storages=storages), True)
    roots = np.sqrt(a.size)
    for drawn, likely in ((a, np.ones(len(storages))), (weight_by_size(a), roots)):
        counts = np.zeros(len(storages), np.int64)
        count_draws(build_state(a, positions([0, 1, 2, 3]), 100, 7), drawn, 100_000, counts)
        assert np.abs(counts / 100_000 - likely / likely.sum()).max() < 0.01


@settings(max_examples=100, deadline=None)
@given(
    problems(repeats=True, alternatives=True), st.data(), st.lists(st.integers(0, 400), max_size=20)
)
def test_making_room_moves_nothing_past_another(
    problem: PlanningGraph, data: st.DataObject, places: list[int]
) -> None:
    a = build_arrays(problem, True)
    sequence = data.draw(sequences(problem))
    state = build_state(a, positions(sequence), 10, 1)
    for place in places:
        taken = np.flatnonzero(state.at >= 0)
        run = state.at[taken[place % len(taken)]]
        count = 1 + place % 7
        slot = make_room(state, state.slot[run], count)
        assert state.slot[run] == slot
        assert (state.at[slot - count : slot] == -1).all()
        assert check(state, a, 10) == sequence


@settings(max_examples=100, deadline=None)
@given(
    problems(repeats=True, alternatives=True),
    st.integers(1, 100),
    st.sampled_from([FAST, SLOW]),
)
def test_what_is_found_is_valid_and_no_worse(
    problem: PlanningGraph, percent: int, pace: AnnealingSchedule
) -> None:
    start = list(range(len(problem.nodes)))
    line, _ = plain_line(problem, start, True)
    budget = max(line) * percent // 100
    found = anneal(build_arrays(problem, True), positions(start), budget, 800, 1, pace).tolist()
    check_valid(problem, found)
    above = [sum(max(bytes_ - budget, 0) for bytes_ in plain_line(problem, sequence, True)[0])
             for sequence in (start, found)]  # fmt: skip
    assert above[1] <= above[0]


def test_what_a_run_makes_again_is_read_from_it() -> None:
    a = build_arrays(two_layers(), True)
    state = build_state(a, positions([0, 1, 2, 3]), 100, 1)
    slot = make_room(state, state.slot[state.first[3]], 1)
    assert run_again(state, a, 0, slot - 1) == state.copies[0] + 1
    assert check(state, a, 100) == [0, 1, 2, 0, 3]
    assert run_again(state, a, 2, slot - 1) == -1


def test_makers_of_gradients_move_and_run_once() -> None:
    """The gradient is as large as what it is made of: to make it early costs nothing."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 1, [], [0], [], False, True),
        PlanningNode(1, "loss", 0.0, 1, [0], [1], [], False, False),
        PlanningNode(2, "backward", 1.0, 9, [1], [2], [], False, True),
        PlanningNode(3, "backward", 1.0, 9, [1], [3], [], False, True),
        PlanningNode(4, "backward", 1.0, 1, [3], [4], [], False, True),
        PlanningNode(5, "backward", 1.0, 1, [2], [5], [], False, True),
    ]
    sizes = [1, 1, 9, 9, 1, 1]
    storages = [PlanningStorage(size, op, False, op > 3) for op, size in enumerate(sizes)]
    a = build_arrays(PlanningGraph(nodes, storages, 0), True)
    found = anneal(a, positions([0, 1, 2, 3, 4, 5]), 12, 2000, 1).tolist()
    assert found in ([0, 1, 2, 5, 3, 4], [0, 1, 3, 4, 2, 5])


def test_what_runs_once_moves_in_its_turn() -> None:
    """The second and the fifth node of the forward run once, as what writes buffers does."""
    inputs, once = [[], [0], [0], [2], [0], [1, 3, 4]], (1, 4, 5)
    phases: list[Phase] = ["forward", "forward", "forward", "forward", "forward", "loss"]
    nodes = [
        PlanningNode(at, phase, 1.0, 1, read, [at], [], False, at not in once)
        for at, (phase, read) in enumerate(zip(phases, inputs, strict=True))
    ]
    problem = PlanningGraph(nodes, [PlanningStorage(1, at, False, False) for at in range(6)], 5)
    a = build_arrays(problem, True)
    state = build_state(a, positions(list(range(6))), 100, 1)
    found = set[tuple[int, ...]]()
    for _ in range(400):
        move(state, a, SHIFT)
        found.add(tuple(order(state)))
        move(state, a, UNDO)
    assert (0, 2, 3, 1, 4, 5) in found and (0, 1, 4, 2, 3, 5) in found
    assert all(each.index(1) < each.index(4) < each.index(5) for each in found)


def test_makers_of_contributions_to_different_gradients_change_places() -> None:
    """They run once. The one of the large gradient waits for the one that a large storage ends
    with."""
    nodes = [
        PlanningNode(0, "forward", 1.0, 1, [], [0], [], False, True),
        PlanningNode(1, "loss", 0.0, 1, [0], [1], [], False, False),
        PlanningNode(2, "backward", 1.0, 8, [1], [2], [], False, True),
        PlanningNode(3, "backward", 1.0, 8, [1], [3], [], False, False),
        PlanningNode(4, "backward", 1.0, 1, [2], [4], [], False, False),
    ]
    sizes = [1, 1, 8, 8, 1]
    storages = [PlanningStorage(size, op, op == 1, op > 2) for op, size in enumerate(sizes)]
    a = build_arrays(PlanningGraph(nodes, storages, 0), True)
    assert anneal(a, positions([0, 1, 2, 3, 4]), 12, 2000, 1).tolist() == [0, 1, 2, 4, 3]
