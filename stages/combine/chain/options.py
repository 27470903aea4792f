"""The chain that the dynamic programs plan: positions with the ways to run them.

Ways are made from a chain alone (each position keeps everything or nothing), from a chain with the
options of its blocks, or from the blocks of a model with their options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.blocks import Blocks
from tightfit.schemas.chain import MAX_BYTES, Chain, ChainPosition
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.sequence import NO_OPTION
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class PositionOption:
    """One way to run a position forward so that its backward can follow; `option` is its number,
    NO_OPTION for keeping everything.

    `save` stays from forward to backward, the output included. `forward_peak` and `backward_peak`
    are the most during each, counting all that the position itself brings: what it saves, its
    output and the gradients of output, input and parameters, but not its input. A forward that
    the backward follows at once takes `output_seconds` less, unless the loss comes between. A way
    that is `at_once` keeps nothing, not even the output: its backward has to follow at once. Bytes
    and seconds.
    """

    option: int
    save: int
    forward_peak: int
    backward_peak: int
    forward_seconds: float
    backward_seconds: float
    output_seconds: float = 0.0
    at_once: bool = False

    @property
    def seconds(self) -> float:
        """Forward and backward together."""
        return self.forward_seconds + self.backward_seconds


@dataclass(frozen=True)
class PositionOptions:
    """One position: the sizes of its output, of the output's gradient and of the parameter
    gradients that its backward leaves; `pass_seconds` and `pass_peak` (at least the output) of a
    forward that keeps nothing; and its ways, at least one. One that is `in_place` writes over an
    input that it does not keep."""

    output: int
    delta: int
    gradient: int
    pass_seconds: float
    pass_peak: int
    ways: list[PositionOption]
    in_place: bool = False

    @property
    def most(self) -> int:
        """Bytes that nothing which the position brings is above."""
        peaks = [max(way.save, way.forward_peak, way.backward_peak) for way in self.ways]
        return max(peaks) + self.output + self.delta + abs(self.gradient) + self.pass_peak


@dataclass(frozen=True)
class ChainProblem:
    """Positions 1..L+1 (`positions[0]` is position 1, the last is the loss) and the bytes that are
    there `throughout`: the chain's input and what planning with positions does not see.

    The seconds of ways are those of further forwards; the first ones of all positions together,
    which every sequence runs, take `first_seconds` more. A branch of a join has no position for the
    `loss`, and `released` of those bytes are given back by its last backward.
    """

    positions: list[PositionOptions]
    always_resident: int
    first_seconds: float = 0.0
    loss: bool = True
    released: int = 0

    def __post_init__(self) -> None:
        """Raises ArtifactError where the sizes are more bytes than there are anywhere: the programs
        add them up in 64 bits."""
        if self.most >= MAX_BYTES:
            raise ArtifactError("the sizes of the chain are more bytes than there are anywhere")

    @property
    def most(self) -> int:
        """Bytes that nothing which sequences need is above."""
        return self.always_resident + sum(one.most for one in self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def loss_position(self) -> int:
        """The position of the loss, 0 where there is none."""
        return len(self.positions) if self.loss else 0

    def at(self, position: int) -> PositionOptions:
        """The position at a place 1..L+1."""
        return self.positions[position - 1]

    def way(self, position: int, option: int) -> PositionOption:
        """The way with the given option number; raises ArtifactError when there is none."""
        for way in self.at(position).ways:
            if way.option == option:
                return way
        raise ArtifactError(f"position {position} has no option {option}")


def build_chain_problem(
    chain: Chain, options: Mapping[str, list[BlockOption]] | None = None
) -> ChainProblem:
    """The ways of a chain.

    Positions whose label is a block of `options` are run with those options, the others keep
    everything or nothing. Random states that option 0 leaves behind are there throughout.
    """
    ways = []
    throughout = chain.a_0
    before = chain.delta_0
    for position in chain.positions:
        if options is None or position.label not in options:
            ways.append(_plain_position(position, before))
        else:
            rows = find_block_options(options, position.label)
            ways.append(_position_with_options(rows, position.a, position.delta, position.grad))
            throughout += max(0, rows[0].save - position.a)
        before = position.delta
    return ChainProblem(ways, throughout)


def build_model_chain_problem(
    blocks: Blocks, options: Mapping[str, list[BlockOption]], keep_all_only: bool = False
) -> ChainProblem:
    """The ways of a model: its blocks, then the loss. With `keep_all_only` each block has the one
    way that `keep_all` picks, as option NO_OPTION."""
    ways = []
    throughout, first = blocks.held_bytes, 0.0
    for block in blocks.blocks:
        rows = find_block_options(options, block.digest)
        more = _first_forward_surplus(blocks.distinct[block.digest])
        chosen = [rows[0], keep_all_option(rows)] if keep_all_only else rows
        further = [replace(row, forward_seconds=row.forward_seconds - more) for row in chosen]
        one = _position_with_options(
            further, block.output_bytes, block.incoming_bytes, block.gradient_bytes, keep_all_only
        )
        ways.append(one)
        throughout += max(0, rows[0].save - block.output_bytes)
        first += more
    loss = PositionOption(NO_OPTION, 0, 0, blocks.loss_peak, 0.0, blocks.loss_seconds)
    ways.append(PositionOptions(0, 0, 0, 0.0, 0, [loss]))
    return ChainProblem(ways, throughout, first)


def _first_forward_surplus(problem: PlanningGraph) -> float:
    """What the first forward of a block takes more than a further one, which leaves out what must
    run once and runs some nodes in a shorter form."""
    nodes = problem.nodes[: problem.loss]
    further = sum(node.form(True).seconds for node in nodes if node.repeatable)
    return sum(node.seconds for node in nodes) - further


def find_block_options(options: Mapping[str, list[BlockOption]], digest: str) -> list[BlockOption]:
    """The options of a block, 0 first; raises ArtifactError when none of them has a backward."""
    rows = options.get(digest, [])
    if len(rows) < 2:
        raise ArtifactError(f"the options lack the block {digest[:12]}")
    return rows


def keep_all_option(rows: Sequence[BlockOption]) -> BlockOption:
    """The option that runs nothing twice; the fastest where there are several, and the fastest of
    all where there is none."""
    once = [row for row in rows[1:] if _runs_once(row)]
    return min(once or rows[1:], key=lambda row: (row.seconds, row.save, row.option))


def _runs_once(row: BlockOption) -> bool:
    nodes = [*row.forward, *row.backward]
    return len(set(nodes)) == len(nodes)


def _plain_position(position: ChainPosition, delta_before: int) -> PositionOptions:
    way = PositionOption(
        option=NO_OPTION,
        save=position.abar,
        forward_peak=position.abar + position.o_f,
        backward_peak=position.abar + position.delta + delta_before + position.grad + position.o_b,
        forward_seconds=position.u_f,
        backward_seconds=position.u_b,
    )
    return PositionOptions(
        output=position.a,
        delta=position.delta,
        gradient=position.grad,
        pass_seconds=position.u_f,
        pass_peak=position.a + position.o_f,
        ways=[way],
    )


def _position_with_options(
    rows: Sequence[BlockOption], output: int, delta: int, gradient: int, plain: bool = False
) -> PositionOptions:
    nothing = rows[0]
    ways = [
        PositionOption(
            option=NO_OPTION if plain else row.option,
            save=row.save,
            forward_peak=row.forward_peak,
            backward_peak=row.backward_peak,
            forward_seconds=row.forward_seconds,
            backward_seconds=row.backward_seconds,
            output_seconds=min(row.output_seconds, nothing.forward_seconds),
        )
        for row in rows[1:]
    ]
    peak = max(nothing.forward_peak, output)
    return PositionOptions(output, delta, gradient, nothing.forward_seconds, peak, ways)
