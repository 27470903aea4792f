"""Tree decompositions are what they say, and what is scheduled by them can run."""

from __future__ import annotations

from hypothesis import given, settings

from tests.stages.combine.problems import problems
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.combine.bounds.lower_bounds import peak_lower_bound
from tightfit.stages.combine.tree_decomposition import (
    MAX_RUN_RATIO,
    TreeDecomposition,
    build_recursive_schedule,
    build_tree_decomposition,
)
from tightfit.stages.simulate.liveness import simulate_executions


def edges_of(problem: PlanningGraph) -> set[tuple[int, int]]:
    return {
        (problem.storages[storage].producer, position)
        for position, node in enumerate(problem.nodes)
        for storage in node.inputs
        if problem.storages[storage].producer >= 0
    }


@settings(deadline=None, max_examples=50)
@given(problems())
def test_a_decomposition_is_one(problem: PlanningGraph) -> None:
    found = build_tree_decomposition(problem)
    assert set().union(*found.bags) == set(range(len(problem.nodes)))
    for one, other in edges_of(problem):
        assert any({one, other} <= bag for bag in found.bags)
    for place, above in enumerate(found.parent):
        assert above < place
    for node in range(len(problem.nodes)):
        places = {place for place, bag in enumerate(found.bags) if node in bag}
        roots = [place for place in places if found.parent[place] not in places]
        assert roots == [found.first_bag[node]] == [min(places)]


@settings(deadline=None, max_examples=50)
@given(problems())
def test_a_bag_halves(problem: PlanningGraph) -> None:
    found = build_tree_decomposition(problem)
    nodes = set(range(len(problem.nodes)))
    bag = found.halving_bag(nodes, [1.0] * len(nodes))
    near: dict[int, set[int]] = {node: set() for node in nodes - bag}
    for one, other in edges_of(problem):
        if one not in bag and other not in bag:
            near[one].add(other)
            near[other].add(one)
    for node in near:
        rest, pending = {node}, [node]
        while pending:
            new = near[pending.pop()] - rest
            rest |= new
            pending += new
        assert 2 * len(rest) <= len(nodes)


def test_the_bag_in_the_middle_of_a_chain() -> None:
    bags = [frozenset({place, place + 1}) for place in range(6)]
    chain = TreeDecomposition(bags, list(range(-1, 5)))
    assert chain.halving_bag(range(7), [1.0] * 7) & {2, 3, 4}
    assert chain.halving_bag(range(7), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]) == {5, 6}


@settings(deadline=None, max_examples=150)
@given(problems(repeats=True))
def test_what_is_scheduled_can_run(problem: PlanningGraph) -> None:
    decomposition = build_tree_decomposition(problem)
    nodes = problem.nodes
    highest = max(
        run.peak for run in simulate_executions(problem, range(len(nodes)), in_place=False)
    )
    in_turn = [p for p, n in enumerate(nodes[: problem.loss]) if n.random or not n.repeatable]
    for limit in (0, peak_lower_bound(problem), highest // 2, highest):
        sequence = build_recursive_schedule(problem, decomposition, limit)
        if sequence is None:
            continue
        assert len(sequence) <= MAX_RUN_RATIO * len(nodes) + 1
        assert set(sequence) == set(range(len(nodes)))
        made: set[int] = set()
        for run in simulate_executions(problem, sequence, in_place=False):
            assert made.issuperset(run.form.inputs)
            made.update(run.form.outputs)
        first = list(dict.fromkeys(sequence))
        assert [p for p in first if p in in_turn] == in_turn
        assert all(first.index(p) < first.index(problem.loss) for p in in_turn)
        assert min(first.index(p) for p in range(problem.loss, len(nodes))) == first.index(
            problem.loss
        )
        for position, node in enumerate(nodes):
            stays = any(problem.storages[s].stays for s in node.form(True).outputs)
            assert sequence.count(position) == 1 or (node.repeatable and not stays)
        if limit == highest:
            assert sequence == list(range(len(nodes)))
