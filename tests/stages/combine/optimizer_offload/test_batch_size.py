"""The batch size of a whole step, against all sizes of a grid, and what a scaled problem keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stages.combine.optimizer_offload.test_search import files, machine, task
from tightfit.__main__ import main
from tightfit.stages.combine.optimizer_offload.batch_size import choose_batch_size, scale_batch
from tightfit.stages.combine.optimizer_offload.command import plan_step
from tightfit.util.errors import ConfigError

__all__ = ["files"]

BATCH = 8


def test_a_scale_of_one_changes_nothing() -> None:
    own = task(9_000_000)
    same = scale_batch(own, 1.0)
    assert same.graph == own.graph and same.costs.rows == own.costs.rows
    assert same.problem == own.problem


def test_parameters_gradients_and_updates_stay_as_they_are() -> None:
    own = task(9_000_000)
    twice = scale_batch(own, 2.0)
    kinds = {value.storage: value.kind for value in own.graph.values}
    gradients = {own.graph.values[each.gradient].storage for each in own.graph.gradients}
    for storage, (before, after) in enumerate(
        zip(own.graph.storages, twice.graph.storages, strict=True)
    ):
        fixed = storage in gradients or kinds[storage] == "parameter"
        assert after == (before if fixed else 2 * before), kinds[storage]
    assert twice.updates == own.updates
    seconds = [sum(node.seconds for node in each.problem.nodes) for each in (own, twice)]
    assert seconds[1] == pytest.approx(2 * seconds[0])


@pytest.mark.long
@pytest.mark.parametrize(("budget", "bandwidth"), [(9_000_000, 1e8), (40_000_000, 1e9)])
def test_no_batch_of_a_grid_is_better(budget: int, bandwidth: float) -> None:
    own = task(budget, bandwidth)
    found = choose_batch_size(own, None, str(budget), BATCH)
    grid = {}
    for batch in (1, 2, 4, 8, 12, 16, 32, 64):
        try:
            _, plan = plan_step(scale_batch(own, batch / BATCH), None, str(budget))
        except ConfigError:
            continue
        grid[batch] = batch / plan.seconds
    assert found.batch_rate >= 0.98 * max(grid.values())
    assert abs(found.batch - found.scale * BATCH) < 1
    assert found.traced_rate == pytest.approx(grid[BATCH])


def test_a_budget_that_fits_no_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    module = "tightfit.stages.combine.optimizer_offload.batch_size"
    monkeypatch.setattr(f"{module}.SCALE_TOLERANCE", 100.0)
    with pytest.raises(ConfigError, match="nothing fits 1kB, with a batch of 8 or any other"):
        choose_batch_size(task(9_000_000), None, "1kB", BATCH)


def test_the_command_prints_the_batches_that_it_tried(
    files: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = "tightfit.stages.combine.optimizer_offload.batch_size"
    monkeypatch.setattr(f"{module}.MAX_SCALE", 1.5)
    monkeypatch.setattr(f"{module}.SCALE_TOLERANCE", 2.0)
    given = ["--graph", str(files / "graph.arrow"), "--costs", str(files / "costs.arrow")]
    words = [*given, "--machine", str(machine(tmp_path)), "--budget", "60MB"]
    assert main(["batch-size", *words, "--batch", "8"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("  batch  samples a second\n   8.00  ")
    assert "samples a second as predicted" in out and "the best batch, not rounded, is " in out
