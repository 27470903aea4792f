"""The one definition of lifetimes beside a slow reading of what it says."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems, sequences
from tightfit.schemas.graph.planning_graph import (
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeVariant,
)
from tightfit.stages.simulate.liveness import simulate_executions, subset_memory


def form_at(
    problem: PlanningGraph, sequence: Sequence[int], position: int
) -> PlanningNode | RecomputeVariant:
    node = sequence[position]
    return problem.variant_at(node, node in sequence[:position])


def ends_after(
    problem: PlanningGraph, sequence: Sequence[int], position: int, storage: int
) -> bool:
    """Whether a storage is made anew or never read after a position."""
    if problem.storages[storage].stays:
        return False
    for later in range(position + 1, len(sequence)):
        form = form_at(problem, sequence, later)
        if storage in form.inputs:
            return False
        if storage in form.outputs:
            return True
    return True


def state_bytes(problem: PlanningGraph, sequence: Sequence[int], position: int) -> int:
    """The bytes of random states while an execution runs."""
    states = 0
    for node in set(sequence):
        places = [place for place, other in enumerate(sequence) if other == node]
        if problem.nodes[problem.node_at(node)].random and len(places) > 1:
            states += places[0] <= position <= places[-1]
            states += position in places[1:]
    return states * problem.state_bytes


@settings(max_examples=200, deadline=None)
@given(problems(repeats=True, alternatives=True), st.booleans(), st.integers(0, 60), st.data())
def test_the_line_is_that_of_looking_ahead_at_each_step(
    problem: PlanningGraph, in_place: bool, ceiling: int, data: st.DataObject
) -> None:
    sequence = data.draw(sequences(problem))
    live: set[int] = set()
    for position, run in enumerate(simulate_executions(problem, sequence, in_place, ceiling)):
        form = form_at(problem, sequence, position)
        size = sum(problem.storages[storage].bytes for storage in live)
        states = state_bytes(problem, sequence, position)
        assert (run.node, run.form) == (problem.node_at(sequence[position]), form)
        assert run.op == problem.op_at(sequence[position])
        assert run.repeated == (run.node in map(problem.node_at, sequence[:position]))
        made = live | set(form.outputs)
        after = {s for s in made if not ends_after(problem, sequence, position, s)}
        assert sorted(run.drops) == sorted({*form.inputs, *made} - after)
        plain = size + states + form.peak
        ending = [reuse for reuse in form.reuses if reuse.storage not in after]
        if in_place and ending and (plain > ceiling or ending[0].seconds <= form.seconds):
            assert (run.reuse, run.seconds) == (ending[0], ending[0].seconds)
        else:
            assert (run.reuse, run.seconds) == (None, form.seconds)
            assert run.peak == plain
        live = after


@settings(max_examples=100, deadline=None)
@given(problems(repeats=True), st.data())
def test_a_part_keeps_what_it_reads_later_and_what_others_need(
    problem: PlanningGraph, data: st.DataObject
) -> None:
    part = data.draw(st.sets(st.integers(0, len(problem.nodes) - 1)))

    def there(storage: int, position: int) -> bool:
        made = problem.storages[storage]
        later = [r for r in problem.readers[storage] if r not in part or r >= position]
        return made.producer in part and made.producer < position and (made.stays or bool(later))

    def live(position: int) -> int:
        storages = range(len(problem.storages))
        return sum(problem.storages[s].bytes for s in storages if there(s, position))

    peaks = [live(position) + problem.nodes[position].peak for position in part]
    assert subset_memory(problem, part) == (max(peaks, default=0), live(len(problem.nodes)))


def test_a_random_state_is_there_from_the_first_of_three_runs_to_the_last() -> None:
    nodes = [
        PlanningNode(0, "forward", 1.0, 4, [], [0], [], True, True),
        PlanningNode(1, "loss", 1.0, 1, [0], [1], [], False, False),
        PlanningNode(2, "backward", 1.0, 1, [0], [2], [], False, True),
        PlanningNode(3, "backward", 1.0, 1, [0], [3], [], False, True),
    ]
    storages = [PlanningStorage(4, 0, False, False), PlanningStorage(1, 1, True, False)]
    storages += [PlanningStorage(1, place, False, True) for place in (2, 3)]
    played = simulate_executions(PlanningGraph(nodes, storages, 2), [0, 1, 0, 2, 0, 3], False)
    assert [run.before for run in played] == [0, 2 + 4, 2 + 1, 2 + 1 + 4, 2 + 1 + 1, 1 + 1 + 4]
    assert [run.peak for run in played] == [6, 7, 3 + 2 + 4, 8, 4 + 2 + 4, 7]
