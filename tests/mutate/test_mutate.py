"""Faults that are surely noticed, in a copy; `make mutate` tries a hundred."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from cosmic_ray.operators.operator import Operator

from tests.mutate.__main__ import exit_code
from tests.mutate.mutants import EQUIVALENT, equivalent, mutant, sample, sites_of
from tests.mutate.operators import Omit, ReplaceMembership
from tests.mutate.rooms import ROOMS, Capacity
from tests.mutate.trial import KILLED, SURVIVED, TIMED_OUT, Copy
from tests.workflow.conftest import ROOT

SMALL = Capacity("small", ("schemas/sequence.py",), ("tests/schemas/test_sequence.py",))
LINES = (
    'if row.pop("step") != expected:',
    'raise ArtifactError(f"{what} has the unknown action {found.action!r}")',
    'actions.append(operation(row, f"{path}: step {expected}"))',
)
LOOP = """
@cache(size=4)
def least(values: list[int]) -> int | None:
    found = None
    while values:
        found = min(values.pop(), found or 9)
    return found
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return Copy.make(tmp_path_factory.mktemp("mutate") / "checkout")


def changes_of(text: str) -> list[tuple[str, str]]:
    """The line before and after each fault that can be planted in a text."""
    choices = itertools.chain.from_iterable(sites_of(text).values())
    made = [mutant("file.py", text, choice) for choice in choices]
    return [(one.before, one.after) for one in made if one is not None]


@pytest.mark.parametrize("operator", [Omit(), ReplaceMembership()], ids=["omit", "in"])
def test_an_operator_of_our_own_does_what_its_examples_say(operator: Operator) -> None:
    for example in operator.examples():
        made = mutant("", example.pre_mutation_code + "\n", (operator, 0))
        assert made is not None
        assert made.text.strip() == example.post_mutation_code


def test_faults_are_planted_in_what_runs() -> None:
    """Not in annotations, nor in decorators."""
    assert sorted(changes_of(LOOP)) == [
        ("found = min(values.pop(), found or 9)", "found = min(values.pop(), found and 9)"),
        ("found = min(values.pop(), found or 9)", "found = min(values.pop(), found or 10)"),
        ("found = min(values.pop(), found or 9)", "found = min(values.pop(), found or 8)"),
        ("while values:", "while not values:"),
    ]


def test_statements_are_left_out() -> None:
    text = "def f(a):\n    a.b = 'b'\n    c = 'c'\n    c += a\n    a.d(c)\n    raise a\n"
    left_out = ["a.b = 'b'", "a.d(c)", "c += a", "raise a"]
    assert sorted(changes_of(text)) == [(line, "pass") for line in left_out]


def test_every_room_has_files_and_tests() -> None:
    for room in ROOMS:
        assert room.files(ROOT)
        assert all((ROOT / test).exists() for test in (*room.quick, *room.folders))


def test_what_is_called_equivalent_is_still_there() -> None:
    for file, before, _ in equivalent():
        text = " ".join((ROOT / file).read_text().split())
        assert before in text, f"{file} no longer says {before}: take it out of {EQUIVALENT.name}"


def test_a_sample_depends_on_its_seed_alone() -> None:
    files = ["schemas/sequence.py", "schemas/schedule.py"]
    one, two, other = (sample(ROOT, files, 5, seed) for seed in ("0", "0", "1"))
    assert one == two != other
    assert len({(made.file, made.text) for made in one}) == 5


@pytest.mark.sample(3)
@pytest.mark.parametrize("line", LINES)
def test_a_fault_is_killed_and_the_copy_is_whole_again(line: str, copy: Copy) -> None:
    file = SMALL.patterns[0]
    text = (ROOT / file).read_text()
    choices = itertools.chain.from_iterable(sites_of(text).values())
    made_of = {one.before: one for one in (mutant(file, text, each) for each in choices) if one}
    assert copy.outcome(SMALL, made_of[line]) == KILLED, line
    assert (copy.folder / file).read_text() == text
    assert (ROOT / file).read_text() == text


def test_fewer_than_nine_in_ten_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    [survivor] = sample(ROOT, ["schemas/sequence.py"], 1, "0")
    found = {"room": Counter({KILLED: 8, TIMED_OUT: 1, SURVIVED: 1})}
    assert exit_code(found, [survivor]) == 0
    assert str(survivor) in capsys.readouterr().out
    assert exit_code({"room": Counter({KILLED: 8, SURVIVED: 1})}, [survivor]) == 1
