"""`tightfit.chain/1`: a model as a chain of positions 1..L+1, the last of which is the loss.

Times are seconds and sizes bytes. A position's forward reads the output of the position before
it; its backward reads that output, all that its own forward kept, and the gradient of its own
output (S ch. 2: Shilova's thesis, Table 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import integer_field, number_field, text_field
from tightfit.util.command_line import is_integer_text
from tightfit.util.errors import ArtifactError

MAX_BYTES = 2**60
"""More bytes than there are anywhere. Sizes that come to less together can be added up, in any
order, in 64 bits."""
MAX_SECONDS = 1e18
"""More than any step takes. Times up to that can be added up and multiplied by counts."""


def are_valid_times(times: Iterable[float]) -> bool:
    """Whether all of these are seconds that something could take."""
    return all(0 <= time <= MAX_SECONDS for time in times)


@dataclass(frozen=True)
class ChainPosition:
    """One position of a chain.

    `u_f` and `u_b` are the seconds of forward and backward. `a` is the size of the output and
    `abar` that of all that the backward reads and the forward made, the output included and the
    input excluded. `delta` is the size of the output's gradient. `o_f` and `o_b` are temporary
    bytes above inputs and outputs. `weight` is the size of the parameters, `grad` that of the
    parameter gradients that the backward finishes, which stay to the end of the step; it is 0
    where gradients are not counted. `label` names the position, or the digest of its block.
    """

    position: int
    u_f: float
    u_b: float
    a: int
    abar: int
    delta: int
    o_f: int
    o_b: int
    weight: int
    grad: int
    label: str


@dataclass(frozen=True)
class Chain:
    """Positions in order, the loss last; `a_0` is the size of the chain's input, which is there
    from the beginning, and `delta_0` that of the gradient of this input."""

    positions: list[ChainPosition]
    a_0: int
    delta_0: int


CHAIN = store.ArtifactType(
    "tightfit.chain",
    1,
    pa.schema(
        [
            integer_field("position"),
            number_field("u_f"),
            number_field("u_b"),
            integer_field("a"),
            integer_field("abar"),
            integer_field("delta"),
            integer_field("o_f"),
            integer_field("o_b"),
            integer_field("weight"),
            integer_field("grad"),
            text_field("label"),
        ]
    ),
)


def write_chain(path: Path | str, chain: Chain) -> str:
    """Checks the chain, writes it and returns the digest."""
    check_chain(chain, str(path))
    rows = [asdict(position) for position in chain.positions]
    sizes = {"a_0": str(chain.a_0), "delta_0": str(chain.delta_0)}
    return store.write(path, CHAIN, rows, sizes)


def read_chain(path: Path | str) -> Chain:
    """Reads a chain; raises ArtifactError naming the file, the position and what is wrong."""
    artifact = store.read(path, CHAIN)
    sizes = {}
    for key in ("a_0", "delta_0"):
        written = artifact.metadata.get(key)
        if written is None or not is_integer_text(written):
            raise ArtifactError(f"{path}: the metadata {key!r} is no size in bytes: {written}")
        sizes[key] = int(written)
    chain = Chain([ChainPosition(**row) for row in artifact.rows], **sizes)
    check_chain(chain, str(path))
    return chain


def check_chain(chain: Chain, where: str) -> None:
    """Raises ArtifactError unless positions run from 1 in order, times are some that a step could
    take, nothing is negative, what a position keeps includes its output, and all sizes together are
    some that a memory could have."""
    if not chain.positions:
        raise ArtifactError(f"{where}: the chain has no positions, the loss is missing")
    if chain.a_0 < 0 or chain.delta_0 < 0:
        raise ArtifactError(f"{where}: the chain's input or its gradient has a negative size")
    numeric = [field.name for field in fields(ChainPosition) if field.name != "label"]
    for expected, row in enumerate(chain.positions, start=1):
        if row.position != expected:
            raise ArtifactError(
                f"{where}: position {row.position} stands where position {expected} should"
            )
        for name in numeric:
            if not (math.isfinite(getattr(row, name)) and getattr(row, name) >= 0):
                raise ArtifactError(
                    f"{where}: position {expected} has {name} = {getattr(row, name)}, "
                    "which is negative or not finite"
                )
        if not are_valid_times((row.u_f, row.u_b)):
            raise ArtifactError(
                f"{where}: position {expected} takes {row.u_f} and {row.u_b} seconds, longer than "
                "anything does"
            )
        if row.abar < row.a:
            raise ArtifactError(
                f"{where}: position {expected} has abar = {row.abar}, less than its output a = "
                f"{row.a}, which abar includes"
            )
    sizes = [name for name in numeric if name not in ("position", "u_f", "u_b")]
    total = sum(getattr(row, name) for row in chain.positions for name in sizes)
    if total + chain.a_0 + chain.delta_0 >= MAX_BYTES:
        raise ArtifactError(f"{where}: the chain's sizes are more bytes than there are anywhere")
