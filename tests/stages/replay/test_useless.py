"""Further runs that a sequence can do without: all of these go, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stages.combine.problems import problems, sequences
from tightfit.schemas.problem import Problem
from tightfit.stages.replay.line import forms
from tightfit.stages.replay.useless import without_useless


def useless(problem: Problem, sequence: list[int], place: int) -> bool:
    """Whether nothing reads what a further run makes before it is made again."""
    if sequence[place] not in sequence[:place]:
        return False
    made = set(forms(problem, sequence)[place].outputs)
    for form in forms(problem, sequence)[place + 1 :]:
        if not made.isdisjoint(form.inputs):
            return False
        made.difference_update(form.outputs)
    return True


@settings(max_examples=100, deadline=None)
@given(problems(repeats=True), st.data())
def test_what_is_useless_goes(problem: Problem, data: st.DataObject) -> None:
    sequence = data.draw(sequences(problem))
    begin = data.draw(st.integers(0, len(sequence)))
    among = data.draw(st.sets(st.integers(0, len(problem.nodes) - 1)))
    kept = without_useless(problem, sequence)
    assert not any(useless(problem, kept, place) for place in range(len(kept)))
    assert list(dict.fromkeys(kept)) == list(dict.fromkeys(sequence))
    assert without_useless(problem, kept) == kept
    later = without_useless(problem, sequence, begin)
    assert later[:begin] == sequence[:begin]
    assert not any(useless(problem, later, place) for place in range(begin, len(later)))
    some = without_useless(problem, sequence, begin, among)
    assert [node for node in some if node not in among] == [
        node for node in sequence if node not in among
    ]
