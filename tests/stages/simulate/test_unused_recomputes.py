"""Further runs that a sequence can do without: all of these go, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems, sequences
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.stages.simulate.liveness import drop_unused_recomputes, execution_forms


def useless(problem: PlanningGraph, sequence: list[int], place: int) -> bool:
    """Whether nothing reads what a further run makes before it is made again."""
    if sequence[place] not in sequence[:place]:
        return False
    made = set(execution_forms(problem, sequence)[place].outputs)
    for form in execution_forms(problem, sequence)[place + 1 :]:
        if not made.isdisjoint(form.inputs):
            return False
        made.difference_update(form.outputs)
    return True


@settings(max_examples=100, deadline=None)
@given(problems(repeats=True), st.data())
def test_what_is_useless_goes(problem: PlanningGraph, data: st.DataObject) -> None:
    sequence = data.draw(sequences(problem))
    begin = data.draw(st.integers(0, len(sequence)))
    among = data.draw(st.sets(st.integers(0, len(problem.nodes) - 1)))
    kept = drop_unused_recomputes(problem, sequence)
    assert not any(useless(problem, kept, place) for place in range(len(kept)))
    assert list(dict.fromkeys(kept)) == list(dict.fromkeys(sequence))
    assert drop_unused_recomputes(problem, kept) == kept
    later = drop_unused_recomputes(problem, sequence, begin)
    assert later[:begin] == sequence[:begin]
    assert not any(useless(problem, later, place) for place in range(begin, len(later)))
    some = drop_unused_recomputes(problem, sequence, begin, among)
    assert [node for node in some if node not in among] == [
        node for node in sequence if node not in among
    ]
