"""The join that the dynamic program plans: branches that meet in the loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tightfit.schemas.block_options import BlockOption
from tightfit.schemas.chain import MAX_BYTES, Chain
from tightfit.stages.combine.chain.options import (
    ChainProblem,
    PositionOption,
    PositionOptions,
    build_chain_problem,
)
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class JoinProblem:
    """Branches without a loss, and the loss that all of them end in.

    The loss has one way; its `backward_peak` counts the gradients of the last outputs of all
    branches. A branch of no positions gives its input to the loss. Branches that are `ordered` go
    forward one after the other, and backward the other way round.
    """

    branches: list[ChainProblem]
    loss: PositionOptions
    ordered: bool = False

    def __post_init__(self) -> None:
        """Raises ArtifactError where the sizes are more bytes than there are anywhere."""
        if self.loss.most + sum(branch.most for branch in self.branches) >= MAX_BYTES:
            raise ArtifactError("the sizes of the join are more bytes than there are anywhere")

    @property
    def always_resident(self) -> int:
        """The bytes that all branches hold from beginning to end."""
        return sum(branch.always_resident for branch in self.branches)

    @property
    def turn(self) -> PositionOption:
        """The way in which the loss runs."""
        return self.loss.ways[0]

    def __len__(self) -> int:
        return sum(len(branch) for branch in self.branches) + 1


def build_join_problem(
    chains: Sequence[Chain], options: Mapping[str, list[BlockOption]] | None = None
) -> JoinProblem:
    """The join of chains whose last position is one loss for all of them.

    Positions whose label is a block of `options` are run with those options, the others and the
    loss keep everything or nothing.
    """
    branches = []
    deltas = 0
    for chain in chains:
        ways = build_chain_problem(replace(chain, positions=chain.positions[:-1]), options)
        branches.append(replace(ways, loss=False))
        deltas += ways.positions[-1].delta if len(ways) else chain.delta_0
    last = chains[0].positions[-1]
    loss = build_chain_problem(Chain([last], 0, deltas)).at(1)
    return JoinProblem(branches, loss)
