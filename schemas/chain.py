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
    """One position of a chain. Times are seconds, sizes bytes (S Table 2.1).

    Attributes:
        position: Its place in the chain, from 1 on.
        u_f: Seconds of the forward.
        u_b: Seconds of the backward.
        a: Size of the output.
        abar: Size of all that the forward made and the backward reads, the output included and the
            input excluded.
        delta: Size of the output's gradient.
        o_f: Temporary bytes of the forward, above inputs and outputs.
        o_b: Temporary bytes of the backward.
        weight: Size of the parameters.
        grad: Size of the parameter gradients that the backward finishes, which stay to the end of
            the step; 0 if gradients are not counted.
        label: A name, or the digest of the block.

    Example:
        >>> ChainPosition(1, u_f=1e-3, u_b=2e-3, a=400, abar=900, delta=400, o_f=0, o_b=50,
        ...               weight=80, grad=80, label="encoder")
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
    """A model as a sequence of blocks that ends in its loss.

    Attributes:
        positions: Positions in order, the loss last.
        a_0: Bytes of the chain's input, which is there from the beginning.
        delta_0: Bytes of the gradient of this input.

    Example:
        >>> Chain([layer, loss], a_0=100, delta_0=0)
    """

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
    """Checks a chain and writes it as a file for `tightfit chain`.

    Args:
        path: The file to write (`.arrow`). Its folder is made if it is not there.
        chain: Positions and sizes.

    Returns:
        The digest of the file: 64 hex digits.

    Raises:
        ArtifactError: A position is out of order, or one of its values is impossible.

    Example:
        >>> write_chain("left.arrow", Chain([layer, loss], a_0=100, delta_0=0))
    """
    check_chain(chain, str(path))
    rows = [asdict(position) for position in chain.positions]
    sizes = {"a_0": str(chain.a_0), "delta_0": str(chain.delta_0)}
    return store.write(path, CHAIN, rows, sizes)


def read_chain(path: Path | str) -> Chain:
    """Reads the file of a chain.

    Args:
        path: The file (`.arrow`), as `write_chain` or `tightfit partition --chain` writes it.

    Returns:
        The chain.

    Raises:
        ArtifactError: The file is none of a chain or is damaged. The message names the file, the
            position and what is wrong.

    Example:
        >>> chain = read_chain("left.arrow")
        >>> print(sum(position.u_f for position in chain.positions))
    """
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


def describe_loss_difference(path: Path | str, chain: Chain, other: Path | str, rest: Chain) -> str:
    """In which column the last positions of two chains differ, "" if they are the same loss;
    places and labels do not count. `path` and `other` name the chains."""
    own, theirs = asdict(chain.positions[-1]), asdict(rest.positions[-1])
    for name in own:
        if name not in ("position", "label") and own[name] != theirs[name]:
            return (
                f"{path}: its loss has {name} = {own[name]}, that of {other} has {theirs[name]}; "
                "the branches of a join end in the same loss"
            )
    return ""
