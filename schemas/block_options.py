"""`tightfit.options/2`: the ways to run each distinct block, with what each way costs.

An option is a list of nodes for the block's forward and one for its backward, recomputations
repeated in place. All its sizes are bytes that the block itself brings; nothing is rounded:

* not counted at all: parameters, gradients of other blocks, the block's inputs (its predecessor
  counts them in its `save`), and what `Blocks.held_bytes` counts once for the whole step;
* `forward_peak`: the most during the block's forward: its temporaries, what it keeps, its output;
* `save`: what stays between the block's forward and its backward, the block's output included;
* `backward_peak`: the most during the block's backward: what was saved (the output only where the
  backward reads it), recomputed storages, the incoming gradient, the gradient for the block's
  input, the block's parameter gradients, temporaries. All of them are included in the number.

After the backward two things remain: the gradient for the block's input
(`Block.outgoing_bytes`) and parameter gradients (`Block.gradient_bytes`).

Option 0 of a block runs the forward, keeps nothing but the output (and the random states that
running the block again will need) and has no backward. Every other option has one. Nodes that serve
the output alone are `output_only`, together `output_seconds`. A forward that runs when the gradient
of the output is already there can leave them out: it is not the block's first, and costs
`output_seconds` less. `forward_seconds` are those of the block's first forward; in a further one
ops may run in a cheaper form (`schemas.graph.planning_graph.RecomputeVariant`), and the nodes
listed in `Block.once` do not run.

Options that were made for a link say what of their `save` may leave over it between forward and
backward: the storages `leaves`, `leaving_bytes` together, what is dearest to make again first. None
of that is taken off the sizes above: where blocks are combined is decided how much of it leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import (
    integer_field,
    integer_list_field,
    number_field,
    text_field,
)
from tightfit.schemas.chain import are_valid_times
from tightfit.util.command_line import is_integer_text
from tightfit.util.errors import ArtifactError

OptionStatus = Literal["optimal", "feasible"]
OPTION_STATUSES = ("optimal", "feasible")
SEARCH_LIMITS = ("", "gap", "work", "clock")


@dataclass(frozen=True)
class BlockOption:
    """One way to run a block.

    `block` is the digest of the block's problem, `option` its number among the block's options and
    `label` says in words how it was found. `forward` and `backward` are positions of nodes in the
    block's problem, in the order they run. `status` "optimal": no run of the class that was
    searched is faster within this option's save and the larger of its peaks. "feasible": one may be
    faster by at most a share `gap` of `seconds`. `limit` says what ended the search for this
    option: the accepted "gap", "work" (nodes of the search tree) or "clock"; it is empty where the
    option was made by hand. `leaves` are storages of the block's problem.
    """

    block: str
    option: int
    label: str
    save: int
    forward_peak: int
    backward_peak: int
    forward_seconds: float
    backward_seconds: float
    output_seconds: float
    forward: list[int]
    backward: list[int]
    output_only: list[int] = field(default_factory=list)
    status: OptionStatus = "feasible"
    gap: float = 1.0
    limit: str = ""
    leaves: list[int] = field(default_factory=list)
    leaving_bytes: int = 0

    @property
    def seconds(self) -> float:
        """Time of forward and backward together."""
        return self.forward_seconds + self.backward_seconds


BLOCK_OPTIONS = store.ArtifactType(
    "tightfit.options",
    2,
    pa.schema(
        [
            text_field("block"),
            integer_field("option"),
            text_field("label"),
            integer_field("save"),
            integer_field("forward_peak"),
            integer_field("backward_peak"),
            number_field("forward_seconds"),
            number_field("backward_seconds"),
            number_field("output_seconds"),
            integer_list_field("forward"),
            integer_list_field("backward"),
            integer_list_field("output_only"),
            text_field("status"),
            number_field("gap"),
            text_field("limit"),
            integer_list_field("leaves"),
            integer_field("leaving_bytes"),
        ]
    ),
)


def write_block_options(
    path: Path | str, options: Iterable[BlockOption], metadata: Mapping[str, str] | None = None
) -> str:
    """Checks the options, writes them in the order given and returns the digest."""
    options = list(options)
    _check(options, str(path))
    return store.write(path, BLOCK_OPTIONS, [asdict(option) for option in options], metadata)


def read_block_options(path: Path | str) -> dict[str, list[BlockOption]]:
    """The options of each block by its digest, ordered by number, 0 first.

    Raises ArtifactError when sizes are negative, numbers do not run from 0, or a list is amiss.
    """
    options = [BlockOption(**row) for row in store.read(path, BLOCK_OPTIONS).rows]
    _check(options, str(path))
    return group_options(options)


def clock_limited_solves(path: Path | str) -> int:
    """How many solves of a file of options the clock ended.

    Raises ArtifactError where the file does not say it as a number.
    """
    written = store.read_header(path).metadata.get("clock", "0")
    if not is_integer_text(written):
        raise ArtifactError(f"{path}: the metadata 'clock' is no number: {written}")
    return int(written)


def options_link_speed(path: Path | str) -> str:
    """The speed of the link that options were made for (`HostLink.speed`), "" for none."""
    return store.read_header(path).metadata.get("link", "")


def group_options(options: Iterable[BlockOption]) -> dict[str, list[BlockOption]]:
    """Options by block, in the order of the blocks' first appearance."""
    groups: dict[str, list[BlockOption]] = {}
    for option in options:
        groups.setdefault(option.block, []).append(option)
    return groups


def _check(options: list[BlockOption], where: str) -> None:
    for block, rows in group_options(options).items():
        for index, row in enumerate(rows):
            what = f"{where}: option {row.option} of block {block[:12]}"
            if row.option != index:
                raise ArtifactError(f"{what} stands where option {index} should")
            sizes = (row.save, row.forward_peak, row.backward_peak, *row.forward, *row.backward)
            sizes += (*row.leaves, row.leaving_bytes)
            times = (row.forward_seconds, row.backward_seconds, row.output_seconds, row.gap)
            if min(sizes) < 0 or not are_valid_times(times):
                raise ArtifactError(
                    f"{what} has a negative size, time or node, or a time without end"
                )
            if row.save > row.forward_peak:
                raise ArtifactError(f"{what} saves more than its forward ever holds")
            if row.leaving_bytes > row.save or len(set(row.leaves)) < len(row.leaves):
                raise ArtifactError(f"{what} lets leave what it does not save")
            if not set(row.output_only) <= set(row.forward):
                raise ArtifactError(f"{what} lists nodes for its output that it does not run")
            if row.status not in OPTION_STATUSES or row.limit not in SEARCH_LIMITS:
                raise ArtifactError(f"{what} has the unknown status {row.status!r} {row.limit!r}")
            if index == 0 and (row.backward or row.leaves):
                raise ArtifactError(f"{what} has a backward, or lets something leave")
