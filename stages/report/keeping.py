"""What each plan keeps and what it computes again: by block, and by kind of op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tightfit.schemas.blocks import Blocks
from tightfit.schemas.graph import NONE, Graph
from tightfit.schemas.options import Option
from tightfit.schemas.repeat import makes_of
from tightfit.schemas.sequence import NO_OPTION, Operation
from tightfit.stages.report.timeline import Timeline
from tightfit.stages.report.words import pattern


@dataclass(frozen=True)
class Cell:
    """One block under one plan: bytes kept to the backward, ops run again and their seconds.

    `actions` are the strategy's own words for the block, before polish, and `option` the label of
    the option that they choose, "" where there is none.
    """

    kept: int
    repeats: int
    seconds: float
    actions: list[str]
    option: str


@dataclass(frozen=True)
class BlockRow:
    """One block: its position in the chain from 1, label, digest, the most it can keep, cells."""

    position: int
    label: str
    digest: str
    most: int
    cells: list[Cell]


@dataclass(frozen=True)
class Repeated:
    """Like ops that run again: the op, the modules with their numbers left open, the paths, how
    many executions beyond the first, their seconds, and the bytes of what they make."""

    target: str
    module: str
    paths: list[str]
    source: str
    times: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Column:
    """What the matrix needs of one plan: its memory line and its strategy's sequence."""

    line: Timeline
    sequence: Sequence[Operation]


def block_rows(
    graph: Graph, blocks: Blocks, options: dict[str, list[Option]], columns: Sequence[Column]
) -> list[BlockRow]:
    """The matrix of blocks by plans, blocks in the order of the forward.

    A row's `most` is the largest of its cells. What is kept or repeated outside all blocks has a
    row of position 0 at the end, where there is such a thing.
    """
    makers = _makers(graph)
    rows = []
    rest = {op.id for op in graph.all_ops}
    for position, block in enumerate(blocks.blocks, start=1):
        own = set(block.forward)
        own |= {each for each, origin in graph.origins.items() if origin in own}
        rest -= own
        cells = [
            _cell(own, position, makers, options.get(block.digest, []), column)
            for column in columns
        ]
        rows.append(BlockRow(position, block.label, block.digest, _most(cells), cells))
    cells = [_cell(rest, NONE, makers, [], column) for column in columns]
    if any(cell.kept or cell.repeats for cell in cells):
        rows.append(BlockRow(0, "outside the blocks", "", _most(cells), cells))
    return rows


def repeated_ops(graph: Graph, line: Timeline) -> list[Repeated]:
    """The ops that a plan runs again, like ops of like modules together, most time first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for op in line.repeats:
        at = graph.op(op)
        groups.setdefault((at.target, pattern(at.module)), []).append(op)
    rows = []
    for (target, module), members in groups.items():
        members.sort()
        rows.append(
            Repeated(
                target=target,
                module=module,
                paths=list(dict.fromkeys(graph.op(op).module for op in members)),
                source=graph.op(members[0]).source,
                times=sum(line.repeats[op] for op in members),
                seconds=sum(line.repeat_seconds[op] for op in members),
                bytes=sum(_made_bytes(graph, op) for op in members),
            )
        )
    return sorted(rows, key=lambda row: (-row.seconds, row.target, row.module))


def _makers(graph: Graph) -> dict[int, int]:
    """The op that makes each storage."""
    makers: dict[int, int] = {}
    for op in graph.ops:
        for value in op.outputs:
            if value != NONE:
                makers.setdefault(graph.values[value].storage, op.id)
    return makers


def _cell(
    own: set[int], position: int, makers: dict[int, int], options: list[Option], column: Column
) -> Cell:
    repeated = [op for op in column.line.repeats if op in own]
    actions = [action for action in column.sequence if action.block == position]
    return Cell(
        kept=sum(size for storage, size in column.line.kept.items() if makers[storage] in own),
        repeats=sum(column.line.repeats[op] for op in repeated),
        seconds=sum(column.line.repeat_seconds[op] for op in repeated),
        actions=[str(action) for action in actions],
        option=_option(actions, options),
    )


def _most(cells: list[Cell]) -> int:
    return max((cell.kept for cell in cells), default=0)


def _option(actions: list[Operation], options: list[Option]) -> str:
    """The label of the last option chosen, which is what the backward reads."""
    chosen = [action.option for action in actions if action.option != NO_OPTION]
    return options[chosen[-1]].label if chosen and chosen[-1] < len(options) else ""


def _made_bytes(graph: Graph, op: int) -> int:
    values = makes_of(graph, graph.op(op), repeated=True)
    return sum(graph.storages[s] for s in {graph.values[value].storage for value in values})
