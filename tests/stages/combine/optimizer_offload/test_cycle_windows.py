"""Which parameters stay on the device between their uses in steps that overlap."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from tests.stages.combine.optimizer_offload.test_search import GRAPH, task
from tests.stages.report.cases import WEIGHT
from tightfit.stages.combine.optimizer_offload.activation_schedule import ActivationSchedule
from tightfit.stages.combine.optimizer_offload.cycle_placement import cycle_windows
from tightfit.stages.combine.optimizer_offload.residency import ResidencyWindow
from tightfit.stages.combine.optimizer_offload.search import OffloadSearch
from tightfit.stages.combine.optimizer_offload.search_space import OffloadChoice

PLANNED = task(16_000_000)
OWN = list(PLANNED.remote.values())


@pytest.fixture(scope="module")
def base() -> ActivationSchedule:
    found = OffloadSearch(PLANNED).schedules.base(OffloadChoice(0.9))
    assert found is not None
    return found


def windows(base: ActivationSchedule, here: Collection[int], room: int) -> list[ResidencyWindow]:
    none = dict.fromkeys(PLANNED.remote, 0.0)
    return cycle_windows(base, PLANNED.remote, here, PLANNED.updates, room, none)


def test_all_stay_where_there_is_room_and_the_device_updates_them(base: ActivationSchedule) -> None:
    found = windows(base, OWN, 10**9)
    assert found == [ResidencyWindow(storage, -1, len(base)) for storage in PLANNED.remote]


def test_what_is_updated_elsewhere_comes_anew_for_each_step(base: ActivationSchedule) -> None:
    found = windows(base, (), 10**9)
    assert {window.storage for window in found} == PLANNED.remote.keys()
    assert all(0 <= window.first <= window.last < len(base) for window in found)
    uses = base.reading_steps
    assert [(w.first, w.last) for w in found] == sorted((u[0], u[-1]) for u in uses.values())


def test_without_room_each_use_has_a_window(base: ActivationSchedule) -> None:
    found = windows(base, OWN, 0)
    uses = sum(
        len({*base.reading_steps[s], base.gradient_steps[v]}) for s, v in PLANNED.remote.items()
    )
    # Uses next to each other have no step in between for which there has to be room.
    assert len(PLANNED.remote) < len(found) <= uses


def test_windows_over_the_seam_end_in_the_next_step(base: ActivationSchedule) -> None:
    count = len(base)
    seam = max(int(base.peak[: count // 8].max()), int(base.peak[-count // 8 :].max()))
    found = windows(base, OWN, seam + 3 * WEIGHT)
    over = [window for window in found if window.last >= count]
    assert over and all(window.first < count <= window.last < 2 * count for window in over)
    for window in over:
        assert window.last - count in base.reading_steps[window.storage]
    line = base.peak[:count].copy()
    for window in found:
        for step in range(max(window.first, 0), window.last + 1):
            line[step % count] += GRAPH.storages[window.storage]
    stays = {step % count for window in over for step in range(window.first + 1, window.last)}
    assert max(int(line[step]) for step in stays) <= max(
        seam + 3 * WEIGHT, int(base.peak.max()) + 2 * WEIGHT
    )
