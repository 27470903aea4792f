"""Branches of a step that meet in the loss."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stages.partition.steps import traced
from tightfit.schemas.blocks import Blocks, read_blocks, write_blocks
from tightfit.stages.partition.block_chain import partition_step
from tightfit.stages.simulate.block import check_execution_order
from tightfit.util.errors import ArtifactError

TOWERS = "tests.stages.partition.towers"
JOINS = {"unlike": 2, "three": 3, "siamese": 2, "drawing": 2, "turns": 2}


def blocks_of(name: str) -> Blocks:
    return partition_step(*traced(f"{TOWERS}:{name}"))


@pytest.mark.parametrize("name", JOINS)
def test_branches_are_cut_into_blocks(name: str) -> None:
    blocks = blocks_of(name)
    assert len(blocks.branches) == JOINS[name]
    ops = [
        op
        for branch in blocks.branches
        for block in branch.blocks
        for op in (*block.forward, *block.backward)
    ]
    assert len(set(ops)) == len(ops)
    for branch in blocks.branches:
        assert len(branch.blocks) >= 2
        for block in branch.blocks:
            problem = branch.distinct[block.digest]
            check_execution_order(problem, list(range(len(problem.nodes))))


def test_equal_layers_of_towers_are_one_problem() -> None:
    blocks = blocks_of("unlike")
    assert [len(branch.blocks) for branch in blocks.branches] == [5, 3]
    one, other = (set(branch.distinct) for branch in blocks.branches)
    assert len(one) == 4
    assert other < one


@pytest.mark.parametrize("name", ["headed", "talking"])
def test_what_is_no_join(name: str) -> None:
    assert not blocks_of(name).branches


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        ("tests.stages.partition.modules:layers", {}),
        (
            "data.models:gpt2",
            {"width": 64, "heads": 2, "vocabulary": 100, "batch": 2, "tokens": 16},
        ),
    ],
)
def test_a_sequence_is_no_join(factory: str, arguments: dict[str, int]) -> None:
    assert not partition_step(*traced(factory, **arguments)).branches


def test_branches_are_read_as_they_were_written(tmp_path: Path) -> None:
    blocks = blocks_of("three")
    write_blocks(tmp_path / "blocks", blocks)
    assert read_blocks(tmp_path / "blocks") == blocks
    assert blocks.problems.keys() > blocks.distinct.keys()
    assert blocks.labels.keys() == blocks.problems.keys()


def test_a_branch_alone_is_refused(tmp_path: Path) -> None:
    blocks = blocks_of("unlike")
    write_blocks(tmp_path / "blocks", Blocks(**{**vars(blocks), "branches": blocks.branches[:1]}))
    with pytest.raises(ArtifactError, match="holds 2 chains, expected one, or a join's three"):
        read_blocks(tmp_path / "blocks")


def test_branches_of_another_model_are_refused(tmp_path: Path) -> None:
    blocks = blocks_of("unlike")
    other = Blocks(**{**vars(blocks.branches[1]), "model": "another"})
    branches = [blocks.branches[0], other]
    write_blocks(tmp_path / "blocks", Blocks(**{**vars(blocks), "branches": branches}))
    with pytest.raises(ArtifactError, match="holds chains of several models"):
        read_blocks(tmp_path / "blocks")
