"""`tightfit.blocks/3`: a training step as a sequence of blocks, and the distinct problems in it.

The step runs the `prelude` once, then the blocks' forwards in order, the loss (which is position
L+1 of the chain, on its own), and the blocks' backwards in reverse order. Between neighbors only
the `outputs` of one (the `inputs` of the next) and their gradients pass. What every block may read
besides, and what the caller holds, is allocated throughout as far as planning with blocks goes:
`held_bytes`, which no block counts.

A step that is a join too (parts that meet in the loss) has a row more for each branch: a sequence
of blocks whose loss is all that happens between the branch's forward and its backward.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import (
    integer_field,
    integer_list_field,
    number_field,
    record_list_field,
    text_field,
)
from tightfit.schemas.chain import MAX_BYTES, are_valid_times
from tightfit.schemas.graph.planning_graph import (
    PLANNING_GRAPH_FIELDS,
    InPlaceVariant,
    PlanningGraph,
    PlanningNode,
    PlanningStorage,
    RecomputeVariant,
)
from tightfit.schemas.graph.training_graph import NO_VALUE, PHASES
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class Block:
    """One position of the chain.

    `digest` names its problem in `Blocks.distinct`; `label` is the submodule it mostly comes from,
    numbered where several blocks come from one. `forward` and `backward` are op ids of the graph in
    captured order. Node p of the problem is forward[p]; then comes the problem's own loss, which is
    all that happens between the block's forward and its backward; then the backward. `storages`
    gives the graph's storage for each storage of the problem. `once` lists the ops of `forward`
    that run in the block's first forward only.

    `inputs` and `outputs` are the storages that a block takes from the block before and gives to
    the next. `incoming` are the gradients of its outputs, which it is given; `outgoing` those of
    its inputs, which it makes. `output_bytes`, `incoming_bytes` and `outgoing_bytes` are their sums
    without what `held_bytes` counts. `gradient_bytes` is by how much the block's backward makes the
    sum of the parameter gradients grow; `carried_bytes` is the part of it that are contributions to
    gradients that another block finishes (it is negative where this block finishes them).
    """

    digest: str
    label: str
    forward: list[int]
    backward: list[int]
    once: list[int]
    storages: list[int]
    inputs: list[int]
    outputs: list[int]
    incoming: list[int]
    outgoing: list[int]
    output_bytes: int
    incoming_bytes: int
    outgoing_bytes: int
    gradient_bytes: int
    carried_bytes: int

    def ops(self, positions: list[int]) -> list[int]:
        """The op ids of nodes of the block's problem, given by position."""
        nodes = [*self.forward, NO_VALUE, *self.backward]
        return [nodes[position] for position in positions]


@dataclass(frozen=True)
class Blocks:
    """The chain of a model.

    `prelude` are the ops that make what several blocks read and no gradient crosses. `loss` is
    the loss's op id, `loss_seconds` its time and `loss_peak` its bytes above what is live before
    it, the gradients for the last block included, what `held_bytes` counts excluded.
    `distinct` are the problems of the blocks by digest. `branches` are those of a join, none where
    the step is no join.
    """

    model: str
    prelude: list[int]
    prelude_seconds: float
    held_bytes: int
    loss: int
    loss_seconds: float
    loss_peak: int
    blocks: list[Block]
    distinct: dict[str, PlanningGraph]
    branches: list[Blocks] = field(default_factory=list)

    @property
    def problems(self) -> dict[str, PlanningGraph]:
        """The distinct problems of the chain and of all branches."""
        found = dict(self.distinct)
        for branch in self.branches:
            found.update(branch.distinct)
        return found

    @property
    def labels(self) -> dict[str, str]:
        """By digest the label of the first block with it, of the chain or else of a branch."""
        chains = [self, *self.branches]
        rows = [block for chain in chains for block in chain.blocks]
        return {block.digest: block.label for block in reversed(rows)}


BLOCKS = store.ArtifactType(
    "tightfit.blocks",
    3,
    pa.schema(
        [
            text_field("model"),
            integer_list_field("prelude"),
            number_field("prelude_seconds"),
            integer_field("held_bytes"),
            integer_field("loss"),
            number_field("loss_seconds"),
            integer_field("loss_peak"),
            record_list_field(
                "blocks",
                text_field("digest"),
                text_field("label"),
                integer_list_field("forward"),
                integer_list_field("backward"),
                integer_list_field("once"),
                integer_list_field("storages"),
                integer_list_field("inputs"),
                integer_list_field("outputs"),
                integer_list_field("incoming"),
                integer_list_field("outgoing"),
                integer_field("output_bytes"),
                integer_field("incoming_bytes"),
                integer_field("outgoing_bytes"),
                integer_field("gradient_bytes"),
                integer_field("carried_bytes"),
            ),
            record_list_field("distinct", text_field("digest"), *PLANNING_GRAPH_FIELDS),
        ]
    ),
)


def planning_graph_to_row(problem: PlanningGraph) -> dict[str, Any]:
    """A block's problem as plain data; blocks have no alternatives."""
    row = asdict(problem)
    del row["alternatives"]
    for node in row["nodes"]:
        node["repeat"] = [] if node["repeat"] is None else [node["repeat"]]
    return row


def planning_graph_digest(problem: PlanningGraph) -> str:
    """The digest of a block's structure and costs: 64 hex digits."""
    row = planning_graph_to_row(problem)
    for node in row["nodes"]:
        if not node["repeat"]:
            del node["repeat"]
    document = json.dumps(row, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(document.encode()).hexdigest()


def write_blocks(
    path: Path | str, blocks: Blocks, metadata: Mapping[str, str] | None = None
) -> str:
    """Checks the chain and its branches, writes them and returns the digest."""
    chains = [blocks, *blocks.branches]
    for chain in chains:
        _check(chain, str(path))
    return store.write(path, BLOCKS, [_row(chain) for chain in chains], metadata)


def _row(chain: Blocks) -> dict[str, Any]:
    distinct = [
        {"digest": digest, **planning_graph_to_row(problem)}
        for digest, problem in sorted(chain.distinct.items())
    ]
    row = {name: value for name, value in vars(chain).items() if name != "branches"}
    return {**row, "blocks": [asdict(block) for block in chain.blocks], "distinct": distinct}


def read_blocks(path: Path | str) -> Blocks:
    """Reads a chain with its branches; raises ArtifactError when a block and its problem do not fit
    together, or the rows are no chain and the branches of one."""
    rows = store.read(path, BLOCKS).rows
    if len(rows) in (0, 2):
        raise ArtifactError(f"{path}: holds {len(rows)} chains, expected one, or a join's three")
    chain, *branches = [_chain(row) for row in rows]
    for found in (chain, *branches):
        _check(found, str(path))
    if any((found.model, found.loss) != (chain.model, chain.loss) for found in branches):
        raise ArtifactError(f"{path}: holds chains of several models")
    return replace(chain, branches=branches)


def _chain(row: Mapping[str, Any]) -> Blocks:
    distinct = {entry["digest"]: planning_graph_from_row(entry) for entry in row["distinct"]}
    blocks = [Block(**block) for block in row["blocks"]]
    return Blocks(**{**row, "blocks": blocks, "distinct": distinct})


def planning_graph_from_row(entry: Mapping[str, Any]) -> PlanningGraph:
    """The problem that a row of `planning_graph_to_row` was made of; further keys are ignored."""
    nodes = [_node(node) for node in entry["nodes"]]
    storages = [PlanningStorage(**storage) for storage in entry["storages"]]
    return PlanningGraph(nodes, storages, entry["state_bytes"])


def _node(row: Mapping[str, Any]) -> PlanningNode:
    repeats = [RecomputeVariant(**repeat) for repeat in row["repeat"]]
    if len(repeats) > 1:
        raise ArtifactError(f"node {row['op']} runs again in {len(repeats)} forms")
    reuses = [InPlaceVariant(**reuse) for reuse in row["reuses"]]
    return PlanningNode(**{**row, "reuses": reuses, "repeat": repeats[0] if repeats else None})


def _check(chain: Blocks, where: str) -> None:
    counted = [chain.held_bytes, *(size for block in chain.blocks for size in _sizes(block))]
    if min(counted) < 0 or not _are_bytes(
        [chain.loss_peak, *map(_gradient_growth, chain.blocks), *counted]
    ):
        raise ArtifactError(f"{where}: has a size that no memory has")
    if not are_valid_times([chain.prelude_seconds, chain.loss_seconds]):
        raise ArtifactError(f"{where}: has a time that is no number of seconds")
    for digest, problem in chain.distinct.items():
        if planning_graph_digest(problem) != digest:
            raise ArtifactError(f"{where}: the problem {digest[:12]} has another digest")
        _check_problem(problem, f"{where}: the problem {digest[:12]}")
    seen: set[int] = set()
    for index, block in enumerate(chain.blocks):
        what = f"{where}: block {index} ({block.label})"
        if block.digest not in chain.distinct:
            raise ArtifactError(f"{what} has no problem")
        problem = chain.distinct[block.digest]
        counts = (len(block.forward), len(block.backward), len(block.storages))
        expected = (
            problem.loss,
            len(problem.nodes) - problem.loss - 1,
            len(problem.storages),
        )
        if counts != expected:
            raise ArtifactError(f"{what} does not fit its problem")
        ops = [*block.forward, *block.backward]
        if seen & set(ops) or len(set(ops)) != len(ops):
            raise ArtifactError(f"{what} runs an op of another block")
        seen.update(ops)
        if not set(block.once) <= set(block.forward):
            raise ArtifactError(f"{what} runs once what it does not run")
    for digest in chain.distinct.keys() - {block.digest for block in chain.blocks}:
        raise ArtifactError(f"{where}: the problem {digest[:12]} is that of no block")


def _sizes(block: Block) -> list[int]:
    return [block.output_bytes, block.incoming_bytes, block.outgoing_bytes]


def _gradient_growth(block: Block) -> int:
    return max(abs(block.gradient_bytes), abs(block.carried_bytes))


def _are_bytes(sizes: Iterable[int]) -> bool:
    return all(-MAX_BYTES < size < MAX_BYTES for size in sizes)


def _check_problem(problem: PlanningGraph, what: str) -> None:
    phases = [node.phase for node in problem.nodes]
    if (
        not set(phases) <= set(PHASES)
        or phases.count("loss") != 1
        or phases != sorted(phases, key=PHASES.index)
    ):
        raise ArtifactError(f"{what} is not forward, one loss and backward")
    for position, node in enumerate(problem.nodes):
        if node.op != position:
            raise ArtifactError(f"{what} has node {position} out of place")
        repeat = node.form(True)
        for storage in [*node.inputs, *node.outputs, *repeat.inputs, *repeat.outputs]:
            if not 0 <= storage < len(problem.storages):
                raise ArtifactError(f"{what} has no storage {storage}")
        _check_costs(node, f"{what}: node {position}")
    for index, made in enumerate(problem.storages):
        if made.bytes < 0 or not -1 <= made.producer < len(problem.nodes):
            raise ArtifactError(f"{what} has storage {index} of no size or no producer")
    _check_flow(problem, what)
    if not _are_bytes([problem.state_bytes, sum(made.bytes for made in problem.storages)]):
        raise ArtifactError(f"{what} has a size that no memory has")


def _check_costs(node: PlanningNode, what: str) -> None:
    """Times are finite, and sizes some that a memory could have."""
    forms = [node, node.form(True), *node.reuses]
    if not are_valid_times(form.seconds for form in forms):
        raise ArtifactError(f"{what} takes a time that is no number of seconds")
    if node.peak < 0 or not _are_bytes(form.peak for form in forms):
        raise ArtifactError(f"{what} takes a size that no memory has")


def _check_flow(problem: PlanningGraph, what: str) -> None:
    """Each storage is made by its producer alone, and ahead of what reads it."""
    makes = [(s, position) for position, node in enumerate(problem.nodes) for s in node.outputs]
    maker = dict(makes)
    if len(maker) < len(makes):
        raise ArtifactError(f"{what} makes a storage twice")
    for index, made in enumerate(problem.storages):
        if maker.get(index, NO_VALUE) != made.producer:
            raise ArtifactError(f"{what} has storage {index}, which its producer does not make")
    for position, node in enumerate(problem.nodes):
        late = [s for s in node.inputs if problem.storages[s].producer >= position]
        if late:
            raise ArtifactError(
                f"{what}: node {position} reads storage {late[0]} ahead of its maker"
            )
        if not {reuse.storage for reuse in node.reuses} <= set(node.inputs):
            raise ArtifactError(f"{what}: node {position} overwrites what it does not read")
