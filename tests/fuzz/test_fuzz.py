"""A few random modules, and those that once failed; `make fuzz` tries a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fuzz.program import _used, case_of, text_of
from tests.fuzz.trial import kept, trial

torch.set_num_threads(1)

SEEDS = range(8)


@pytest.mark.sample(8)
@pytest.mark.parametrize("seed", dict.fromkeys([*kept(), *SEEDS]))
def test_no_third_outcome(seed: int, tmp_path: Path) -> None:
    assert not trial(seed, tmp_path).failed


def test_lines_that_nothing_uses_are_told() -> None:
    """Seed 700446: an index out of what is not a number, which only an unused line makes."""
    text = text_of(700446)
    used = [line.operation for line in _used(text)]
    assert "bag" in [line.operation for line in text.lines] and "bag" not in used
    assert used[-1] == "log_softmax" and text.outputs["first"] == len(text.lines)


def test_a_seed_always_gives_the_same_module() -> None:
    for seed in range(5):
        one, two = case_of(seed), case_of(seed)
        mine, theirs = one.make().state_dict(), two.make().state_dict()
        assert list(mine) == list(theirs)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
