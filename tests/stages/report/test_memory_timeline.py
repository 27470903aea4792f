"""The memory line: what it adds up to, and whose bytes they are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.stages.report.cases import (
    WEIGHT,
    WIDE,
    keep_all,
    played,
    run_again,
    small_blocks,
    small_costs,
    small_graph,
    small_options,
)
from tightfit.schemas.actions import Compute, ComputeLoss
from tightfit.schemas.sequence import ChainOperation
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.report.memory_plot import (
    PLOT_COLUMNS,
    peak_occupancy,
    peak_segments,
    plot_memory,
)
from tightfit.stages.report.memory_timeline import LOSS_MODULE, MEMORY_OWNERS, build_timeline
from tightfit.stages.report.model_breakdown import PlanColumn, block_rows, find_recomputed_ops
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import SimulationResult, simulate

GRAPH = small_graph()
COSTS = small_costs(GRAPH)
EVERYTHING = played(GRAPH, COSTS, keep_all(GRAPH))
AGAIN = played(GRAPH, COSTS, run_again(GRAPH))


@pytest.mark.parametrize("simulated", [EVERYTHING, AGAIN], ids=["kept", "again"])
def test_segments_agree_with_the_simulator(simulated: SimulationResult) -> None:
    line = build_timeline(GRAPH, simulated.steps)
    computed = [step for step in simulated.steps if isinstance(step.action, Compute | ComputeLoss)]
    assert [segment.total for segment in line.segments] == [step.peak for step in computed]
    assert line.peak == simulated.peak
    assert line.boundary == pytest.approx(simulated.forward_seconds)
    assert line.seconds == pytest.approx(simulated.seconds)
    assert min(min(segment.bytes) for segment in line.segments) >= 0


def test_kept_bytes_are_what_waits_at_the_loss() -> None:
    held = WIDE  # the output, which the caller holds
    assert sum(build_timeline(GRAPH, EVERYTHING.steps).kept.values()) == EVERYTHING.saved - held
    assert sum(build_timeline(GRAPH, AGAIN.steps).kept.values()) == AGAIN.saved - held
    assert EVERYTHING.saved - AGAIN.saved == 2 * WIDE


def test_repeats_are_counted() -> None:
    line = build_timeline(GRAPH, AGAIN.steps)
    assert line.repeats == {0: 1, 2: 1}
    assert sum(line.repeat_seconds.values()) == pytest.approx(AGAIN.repeated_seconds)
    assert build_timeline(GRAPH, EVERYTHING.steps).repeats == {}


def test_owners_at_the_end_are_outputs_and_gradients() -> None:
    last = build_timeline(GRAPH, EVERYTHING.steps).segments[-1]
    assert dict(zip(MEMORY_OWNERS, last.bytes, strict=True))["held"] == 2 * WIDE
    assert dict(zip(MEMORY_OWNERS, last.bytes, strict=True))["gradients"] == 2 * WEIGHT


def test_occupants_and_temporaries_make_up_the_peak() -> None:
    line = build_timeline(GRAPH, EVERYTHING.steps)
    assert sum(row.bytes for row in line.occupants) + line.peak_temporary == line.peak
    assert LOSS_MODULE in {row.module for row in line.occupants}
    rows = peak_occupancy(GRAPH, line)
    assert sum(row.bytes for row in rows) == line.peak
    assert sum(row.share for row in rows) == pytest.approx(100)


def test_few_rows_of_occupancy_keep_the_sum() -> None:
    line = build_timeline(GRAPH, EVERYTHING.steps)
    rows = peak_occupancy(GRAPH, line, most=2)
    assert len(rows) == 3
    assert sum(row.bytes for row in rows) == line.peak
    assert rows[-1].module.endswith("smaller")


def test_accumulated_gradients_leave_the_line() -> None:
    steps = ScheduleLowering(GRAPH, build_planning_graph(GRAPH, COSTS)).schedule(
        keep_all(GRAPH), False
    )
    simulated = simulate(GRAPH, COSTS, steps, accumulate=True)
    line = build_timeline(GRAPH, simulated.steps, accumulate=True)
    gradients = MEMORY_OWNERS.index("gradients")
    assert max(segment.bytes[gradients] for segment in line.segments) < 2 * WEIGHT
    assert line.peak == simulated.peak


def test_columns_never_lose_the_peak() -> None:
    for simulated in (EVERYTHING, AGAIN):
        line = build_timeline(GRAPH, simulated.steps)
        cells = peak_segments(line.segments, line.seconds)
        assert len(cells) == PLOT_COLUMNS and None not in cells
        assert max(cell.total for cell in cells if cell) == line.peak


def test_a_shorter_line_leaves_columns_empty() -> None:
    line = build_timeline(GRAPH, EVERYTHING.steps)
    cells = peak_segments(line.segments, 2 * line.seconds)
    assert cells[-1] is None and cells[0] is not None


def test_plot_places_lie_within_the_picture() -> None:
    line = build_timeline(GRAPH, AGAIN.steps)
    plot = plot_memory(GRAPH, line, AGAIN.peak, build_timeline(GRAPH, EVERYTHING.steps), None)
    shown = [area.owner for area in plot.areas]
    assert shown == [owner for owner in MEMORY_OWNERS if owner != "brought"]
    assert plot.budget == plot.peak_y
    assert 0 < plot.boundary < 100 and 0 < plot.peak_x < 100 and 0 < plot.peak_y < 100
    assert plot.keep_all and not plot.measured
    assert len(plot.hover["columns"]) == PLOT_COLUMNS
    names = {plot.hover["ops"][column[-1]] for column in plot.hover["columns"]}
    assert "gelu_backward · h.0.act · backward" in names


def test_a_budget_far_above_is_not_drawn() -> None:
    line = build_timeline(GRAPH, AGAIN.steps)
    assert plot_memory(GRAPH, line, 100 * AGAIN.peak, None, None).budget is None
    assert plot_memory(GRAPH, line, None, None, None).budget is None


def test_matrix_adds_up_to_what_is_kept_and_repeated() -> None:
    line = build_timeline(GRAPH, AGAIN.steps)
    blocks = small_blocks(GRAPH)
    options = {digest: small_options(blocks) for digest in blocks.distinct}
    rows = block_rows(GRAPH, blocks, options, [PlanColumn(line, [])])
    assert [row.label for row in rows] == ["h.0", "h.1", "h.2"]
    cells = [row.cells[0] for row in rows]
    assert sum(cell.kept for cell in cells) == sum(line.kept.values())
    assert [cell.repeats for cell in cells] == [1, 1, 0]
    assert sum(cell.seconds for cell in cells) == pytest.approx(AGAIN.repeated_seconds)


def test_what_no_block_owns_has_a_row() -> None:
    blocks = small_blocks(GRAPH)
    fewer = replace(blocks, blocks=blocks.blocks[1:])
    line = build_timeline(GRAPH, AGAIN.steps)
    rows = block_rows(GRAPH, fewer, {}, [PlanColumn(line, [])])
    assert rows[-1].position == 0
    assert sum(row.cells[0].kept for row in rows) == sum(line.kept.values())


def test_cells_tell_the_strategys_words() -> None:
    blocks = small_blocks(GRAPH)
    options = {digest: small_options(blocks) for digest in blocks.distinct}
    actions = [ChainOperation("F", 1, 1), ChainOperation("F_ck", 2), ChainOperation("B", 1)]
    line = build_timeline(GRAPH, EVERYTHING.steps)
    rows = block_rows(GRAPH, blocks, options, [PlanColumn(line, actions)])
    assert rows[0].cells[0].actions == ["F 1 option 1", "B 1"]
    assert rows[0].cells[0].option == "keeps everything"
    assert rows[1].cells[0].option == ""


def test_like_ops_of_like_layers_are_one_row() -> None:
    rows = find_recomputed_ops(GRAPH, build_timeline(GRAPH, AGAIN.steps))
    assert [(row.target, row.module, row.times) for row in rows] == [
        ("aten.mm.default", "h.*.proj", 2)
    ]
    assert rows[0].paths == ["h.0.proj", "h.1.proj"]
    assert rows[0].seconds == pytest.approx(0.008)
    assert rows[0].bytes == 2 * WIDE
