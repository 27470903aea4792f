"""A faster link never makes a whole step slower, and an infinite one costs next to nothing."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tests.stages.combine.optimizer_offload.test_search import task
from tightfit.stages.combine.optimizer_offload.search import OffloadSearch


@pytest.mark.long
@pytest.mark.parametrize(("budget", "host"), [(9_000_000, None), (7_000_000, 1e9)])
def test_what_a_faster_link_has_time_for_is_found(budget: int, host: float | None) -> None:
    """Activations leave and no parameter is there when the step begins: neither helps alone."""
    links = (2e8, 1e9, 2e9, 1e10, math.inf)
    tasks = [task(budget, bandwidth=bandwidth, host=host) for bandwidth in links]
    seconds = [OffloadSearch(each).best().seconds for each in tasks]
    assert all(faster <= slower for slower, faster in pairwise(seconds))
    assert seconds[-1] < 1.01 * tasks[-1].keep_all_seconds
