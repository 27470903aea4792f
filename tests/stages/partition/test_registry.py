"""A partitioner from outside is taken by the command, an unknown one refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.audit.towers import solve_tower
from tightfit.__main__ import main
from tightfit.schemas.blocks import Blocks, read_blocks
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.partition import block_chain
from tightfit.stages.partition.block_chain import partition_step


def renamed(graph: Graph, costs: Costs) -> Blocks:
    """The usual blocks under another name."""
    return replace(partition_step(graph, costs), model="renamed")


def test_a_partitioner_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    solve_tower(Path(), Path("store"))
    files = ["partition", "--graph", "graph.arrow", "--costs", "costs.arrow", "--out", "b.arrow"]
    monkeypatch.setitem(block_chain.PARTITIONERS, "renamed", renamed)
    assert main([*files, "--partitioner", "renamed"]) == 0
    assert read_blocks("b.arrow").model == "renamed"
    assert main([*files, "--partitioner", "halves"]) == 1
    said = capsys.readouterr().err
    assert "partitioner 'halves' is not known, expected one of cuts, renamed" in said
