"""What each plan keeps and what it computes again: by block, and by kind of op."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.costs import Costs
from tightfit.schemas.graph.recompute_variants import execution_outputs
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph
from tightfit.schemas.sequence import NO_OPTION, ChainOperation
from tightfit.stages.report.formatting import module_pattern
from tightfit.stages.report.memory_timeline import StepTimeline


@dataclass(frozen=True)
class BlockCell:
    """One block under one plan: bytes kept to the backward, ops run again and their seconds.

    `actions` are the strategy's own words for the block, before local search, and `option` the
    label of the option that they choose, "" where there is none.
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
    cells: list[BlockCell]


@dataclass(frozen=True)
class RecomputedOps:
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
class PlanColumn:
    """What the matrix needs of one plan: its memory line and its strategy's sequence."""

    line: StepTimeline
    sequence: Sequence[ChainOperation]


def block_rows(
    graph: Graph,
    blocks: Blocks,
    options: dict[str, list[BlockOption]],
    columns: Sequence[PlanColumn],
) -> list[BlockRow]:
    """The matrix of blocks by plans, blocks in the order of the forward.

    A row's `most` is the largest of its cells. What is kept or repeated outside all blocks has a
    row of position 0 at the end, where there is such a thing.
    """
    makers = _storage_producers(graph)
    rows = []
    rest = {op.id for op in graph.all_ops}
    for position, block in enumerate(blocks.blocks, start=1):
        own = set(block.forward)
        own |= {each for each, origin in graph.alternative_origins.items() if origin in own}
        rest -= own
        cells = [
            _build_cell(own, position, makers, options.get(block.digest, []), column)
            for column in columns
        ]
        rows.append(BlockRow(position, block.label, block.digest, _max_saved_bytes(cells), cells))
    cells = [_build_cell(rest, NO_VALUE, makers, [], column) for column in columns]
    if any(cell.kept or cell.repeats for cell in cells):
        rows.append(BlockRow(0, "outside the blocks", "", _max_saved_bytes(cells), cells))
    return rows


def find_recomputed_ops(graph: Graph, line: StepTimeline) -> list[RecomputedOps]:
    """The ops that a plan runs again, like ops of like modules together, most time first."""
    groups: dict[tuple[str, str], list[int]] = {}
    for op in line.repeats:
        at = graph.op(op)
        groups.setdefault((at.target, module_pattern(at.module)), []).append(op)
    rows = []
    for (target, module), members in groups.items():
        members.sort()
        rows.append(
            RecomputedOps(
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


def _storage_producers(graph: Graph) -> dict[int, int]:
    """The op that makes each storage."""
    makers: dict[int, int] = {}
    for op in graph.ops:
        for value in op.outputs:
            if value != NO_VALUE:
                makers.setdefault(graph.values[value].storage, op.id)
    return makers


def _build_cell(
    own: set[int],
    position: int,
    makers: dict[int, int],
    options: list[BlockOption],
    column: PlanColumn,
) -> BlockCell:
    repeated = [op for op in column.line.repeats if op in own]
    actions = [action for action in column.sequence if action.block == position]
    return BlockCell(
        kept=sum(size for storage, size in column.line.kept.items() if makers[storage] in own),
        repeats=sum(column.line.repeats[op] for op in repeated),
        seconds=sum(column.line.repeat_seconds[op] for op in repeated),
        actions=[str(action) for action in actions],
        option=_chosen_option(actions, options),
    )


def _max_saved_bytes(cells: list[BlockCell]) -> int:
    return max((cell.kept for cell in cells), default=0)


def _chosen_option(actions: list[ChainOperation], options: list[BlockOption]) -> str:
    """The label of the last option chosen, which is what the backward reads."""
    chosen = [action.option for action in actions if action.option != NO_OPTION]
    return options[chosen[-1]].label if chosen and chosen[-1] < len(options) else ""


def _made_bytes(graph: Graph, op: int) -> int:
    values = execution_outputs(graph, graph.op(op), repeated=True)
    return sum(graph.storages[s] for s in {graph.values[value].storage for value in values})


@dataclass
class ModuleShare:
    """One module with all below it: seconds of its forward and backward ops, bytes that its
    forward makes and its backward reads (`kept`), bytes of its parameters."""

    name: str
    path: str
    forward: float = 0.0
    backward: float = 0.0
    kept: int = 0
    parameters: int = 0
    children: list[ModuleShare] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward + self.backward


def build_module_tree(graph: Graph, costs: Costs) -> ModuleShare:
    """The tree of modules that ops or parameters come from; children in the order of the run.

    A tied parameter counts where it is named first.
    """
    tree = _ModuleTree(graph.model)
    for op in graph.ops:
        seconds = costs.of(graph, op).seconds
        for module in tree.line(op.module):
            if op.phase == "forward":
                module.forward += seconds
            else:
                module.backward += seconds
    for storage, path in _saved_storages(graph).items():
        for module in tree.line(path):
            module.kept += graph.storages[storage]
    for path, size in _parameter_sizes(graph):
        for module in tree.line(path):
            module.parameters += size
    return tree.root


class _ModuleTree:
    def __init__(self, name: str) -> None:
        self.root = ModuleShare(name, "")
        self.known = {"": self.root}

    def line(self, path: str) -> list[ModuleShare]:
        """The modules from the root down to a path, made where they are new."""
        line = [self.root]
        names = path.split(".") if path else []
        for depth, name in enumerate(names, start=1):
            prefix = ".".join(names[:depth])
            if prefix not in self.known:
                self.known[prefix] = ModuleShare(name, prefix)
                line[-1].children.append(self.known[prefix])
            line.append(self.known[prefix])
        return line


def _saved_storages(graph: Graph) -> dict[int, str]:
    """Storages that the forward makes and the backward reads, with the module that makes them."""
    fixed = graph.baseline_storages()
    made: dict[int, str] = {}
    kept: dict[int, str] = {}
    for op in graph.ops:
        if op.phase == "forward":
            for value in op.outputs:
                if value != NO_VALUE:
                    made.setdefault(graph.values[value].storage, op.module)
        elif op.phase == "backward":
            read = {graph.values[value].storage for value in op.inputs}
            kept.update({storage: made[storage] for storage in read & made.keys()})
    return {storage: path for storage, path in kept.items() if storage not in fixed}


def _parameter_sizes(graph: Graph) -> list[tuple[str, int]]:
    """The module path and the bytes of each parameter's storage, each storage once."""
    seen: set[int] = set()
    rows = []
    for value in graph.values:
        if value.kind == "parameter" and value.storage not in seen:
            seen.add(value.storage)
            rows.append((value.path.rpartition(".")[0], graph.storages[value.storage]))
    return rows
