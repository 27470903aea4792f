from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tightfit.schemas.blocks import Block, Blocks, planning_graph_digest, read_blocks, write_blocks
from tightfit.schemas.graph.planning_graph import (
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
)
from tightfit.util.errors import ArtifactError


def node(position: int, phase: str, inputs: list[int], outputs: list[int]) -> PlanningNode:
    reuses = [InPlaceVariant(inputs[0], 0.5, 3)] if phase == "backward" else []
    return PlanningNode(position, phase, 1.5, 8, inputs, outputs, reuses, False, True)  # type: ignore[arg-type]


PROBLEM = PlanningGraph(
    nodes=[
        node(0, "forward", [0], [1]),
        node(1, "loss", [1], [2]),
        node(2, "backward", [2, 0], [3]),
    ],
    storages=[
        PlanningStorage(0, -1, False, False),
        PlanningStorage(8, 0, False, False),
        PlanningStorage(8, 1, False, False),
        PlanningStorage(8, 2, True, False),
    ],
    state_bytes=5056,
)
BLOCK = Block(
    digest=planning_graph_digest(PROBLEM),
    label="layer",
    forward=[3],
    backward=[9],
    once=[3],
    storages=[2, 4, 6, 8],
    inputs=[2],
    outputs=[4],
    incoming=[6],
    outgoing=[8],
    output_bytes=8,
    incoming_bytes=8,
    outgoing_bytes=8,
    gradient_bytes=-4,
    carried_bytes=-4,
)
CHAIN = Blocks("model", [0, 1], 2e-6, 100, 5, 0.1, 16, [BLOCK], {BLOCK.digest: PROBLEM})


def test_a_chain_comes_back_as_it_was(tmp_path: Path) -> None:
    write_blocks(tmp_path / "blocks", CHAIN, {"graph": "digest"})
    assert read_blocks(tmp_path / "blocks") == CHAIN


def test_positions_of_the_problem_become_ops() -> None:
    assert BLOCK.ops([0, 0, 2]) == [3, 3, 9]


def test_a_digest_depends_on_structure_and_costs() -> None:
    longer = replace(PROBLEM.nodes[0], seconds=1.6)
    larger = replace(PROBLEM.storages[1], bytes=9)
    others = [
        replace(PROBLEM, nodes=[longer, *PROBLEM.nodes[1:]]),
        replace(PROBLEM, storages=[PROBLEM.storages[0], larger, *PROBLEM.storages[2:]]),
        replace(PROBLEM, state_bytes=1),
    ]
    digests = {planning_graph_digest(problem) for problem in [PROBLEM, *others]}
    assert len(digests) == 4


def changed(position: int, **changes: object) -> PlanningGraph:
    """The problem with another node at a position."""
    nodes = list(PROBLEM.nodes)
    nodes[position] = replace(nodes[position], **changes)  # type: ignore[arg-type]
    return replace(PROBLEM, nodes=nodes)


def made_by(storage: int, producer: int) -> PlanningGraph:
    """The problem with another producer of a storage."""
    storages = list(PROBLEM.storages)
    storages[storage] = replace(storages[storage], producer=producer)
    return replace(PROBLEM, storages=storages)


def chain_with(problem: PlanningGraph, **changes: object) -> Blocks:
    digest = planning_graph_digest(problem)
    block = replace(BLOCK, digest=digest, **changes)  # type: ignore[arg-type]
    return replace(CHAIN, blocks=[block], distinct={digest: problem})


@pytest.mark.parametrize(
    ("chain", "words"),
    [
        (replace(CHAIN, distinct={"0" * 64: PROBLEM}), "has another digest"),
        (replace(CHAIN, distinct={}), "has no problem"),
        (replace(CHAIN, blocks=[]), "is that of no block"),
        (replace(CHAIN, blocks=[BLOCK, BLOCK]), "an op of another block"),
        (chain_with(PROBLEM, forward=[3, 4]), "does not fit its problem"),
        (chain_with(PROBLEM, storages=[2]), "does not fit its problem"),
        (chain_with(PROBLEM, once=[7]), "runs once what it does not run"),
        (chain_with(replace(PROBLEM, nodes=PROBLEM.nodes[::-1])), "not forward, one loss"),
        (chain_with(replace(PROBLEM, nodes=PROBLEM.nodes[:1])), "not forward, one loss"),
        (chain_with(replace(PROBLEM, storages=PROBLEM.storages[:3])), "has no storage 3"),
        (
            chain_with(
                replace(PROBLEM, nodes=[replace(PROBLEM.nodes[0], op=4), *PROBLEM.nodes[1:]])
            ),
            "node 0 out of place",
        ),
        (
            chain_with(replace(PROBLEM, storages=[PlanningStorage(0, 7, False, False)] * 4)),
            "no size or no producer",
        ),
        (chain_with(changed(0, phase="sideways")), "not forward, one loss"),
        (chain_with(changed(0, seconds=float("nan"))), "node 0 takes a time that is no number"),
        (
            chain_with(changed(2, reuses=[InPlaceVariant(0, -1.0, 3)])),
            "node 2 takes a time that is no",
        ),
        (
            chain_with(changed(2, reuses=[InPlaceVariant(1, 1.0, 3)])),
            "node 2 overwrites what it does not",
        ),
        (chain_with(changed(0, peak=2**61)), "node 0 takes a size that no memory has"),
        (chain_with(changed(0, peak=-1)), "node 0 takes a size that no memory has"),
        (chain_with(changed(0, inputs=[2])), "node 0 reads storage 2 ahead of its maker"),
        (chain_with(changed(2, outputs=[3, 1])), "makes a storage twice"),
        (chain_with(made_by(1, -1)), "storage 1, which its producer does not make"),
        (chain_with(made_by(0, 2)), "storage 0, which its producer does not make"),
        (chain_with(replace(PROBLEM, state_bytes=2**60)), "a size that no memory has"),
        (chain_with(PROBLEM, output_bytes=-1), "a size that no memory has"),
        (chain_with(PROBLEM, gradient_bytes=-(2**60)), "a size that no memory has"),
        (replace(CHAIN, loss_seconds=float("inf")), "a time that is no number of seconds"),
        (replace(CHAIN, loss_seconds=1e300), "a time that is no number of seconds"),
    ],
)
def test_what_does_not_fit_together_is_refused(tmp_path: Path, chain: Blocks, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        write_blocks(tmp_path / "blocks", chain)
    assert not (tmp_path / "blocks").exists()
