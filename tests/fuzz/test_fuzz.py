"""A few random modules, and those that once failed; `make fuzz` tries a thousand."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.fuzz.program import case_of
from tests.fuzz.trial import kept, trial

torch.set_num_threads(1)

SEEDS = range(8)


@pytest.mark.parametrize("seed", dict.fromkeys([*kept(), *SEEDS]))
def test_no_third_outcome(seed: int, tmp_path: Path) -> None:
    assert not trial(seed, tmp_path).failed


def test_a_seed_always_gives_the_same_module() -> None:
    for seed in range(5):
        one, two = case_of(seed), case_of(seed)
        mine, theirs = one.make().state_dict(), two.make().state_dict()
        assert list(mine) == list(theirs)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
