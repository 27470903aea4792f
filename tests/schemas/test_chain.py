"""The chain artifact: written, read, refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from tests.stages.combine.chains import chains
from tightfit.schemas import store
from tightfit.schemas.chain import CHAIN, Chain, ChainPosition, read_chain, write_chain
from tightfit.util.errors import ArtifactError

ROW = ChainPosition(1, 1.0, 2.0, 10, 30, 10, 1, 2, 100, 100, "first")
LOSS = ChainPosition(2, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0, "loss")


@given(chains())
@settings(max_examples=20, deadline=None)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, chain: Chain) -> None:
    path = tmp_path_factory.mktemp("chain") / "chain.arrow"
    write_chain(path, chain)
    assert read_chain(path) == chain


def test_the_fields_are_those_other_programs_write(tmp_path: Path) -> None:
    write_chain(tmp_path / "chain.arrow", Chain([ROW, LOSS], 7, 8))
    artifact = store.read(tmp_path / "chain.arrow", CHAIN)
    assert list(artifact.rows[0]) == (
        "position u_f u_b a abar delta o_f o_b weight grad label".split()
    )
    assert artifact.metadata == {"a_0": "7", "delta_0": "8"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": 3}, "position 3 stands where position 1 should"),
        ({"u_f": -1.0}, "u_f = -1.0"),
        ({"u_b": float("nan")}, "u_b = nan"),
        ({"u_b": float("inf")}, "u_b = inf"),
        ({"u_b": 1e308}, "takes 1.0 and 1e+308 seconds, longer than anything does"),
        ({"o_b": -1}, "o_b = -1"),
        ({"grad": -5}, "grad = -5"),
        ({"abar": 9}, "less than its output a = 10"),
    ],
)
def test_a_wrong_position_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    chain = Chain([replace(ROW, **changes), LOSS], 0, 0)
    with pytest.raises(ArtifactError, match=r"chain\.arrow: position") as refused:
        write_chain(tmp_path / "chain.arrow", chain)
    assert words in str(refused.value)
    assert not (tmp_path / "chain.arrow").exists()
    store.write(
        tmp_path / "chain.arrow",
        CHAIN,
        [vars(row) for row in chain.positions],
        {"a_0": "0", "delta_0": "0"},
    )
    with pytest.raises(ArtifactError) as refused:
        read_chain(tmp_path / "chain.arrow")
    assert words in str(refused.value)


def test_a_chain_without_positions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="the loss is missing"):
        write_chain(tmp_path / "chain.arrow", Chain([], 0, 0))


def test_sizes_are_some_that_a_memory_could_have(tmp_path: Path) -> None:
    large = replace(ROW, a=2**57, abar=2**58, delta=2**57, o_f=2**57, weight=0, grad=0)
    whole = [large, LOSS]
    write_chain(tmp_path / "chain.arrow", Chain(whole, 0, 0))
    for chain in (Chain(whole, 2**59, 0), Chain([replace(large, grad=2**60), LOSS], 0, 0)):
        with pytest.raises(ArtifactError, match="more bytes than there are anywhere"):
            write_chain(tmp_path / "chain.arrow", chain)


@pytest.mark.parametrize("written", [None, "-1", "x", "²", "9" * 5000])
def test_the_input_must_have_a_size(tmp_path: Path, written: str | None) -> None:
    metadata = {} if written is None else {"a_0": written, "delta_0": "0"}
    store.write(tmp_path / "chain.arrow", CHAIN, [vars(ROW), vars(replace(LOSS))], metadata)
    with pytest.raises(ArtifactError, match="'a_0' is no size in bytes"):
        read_chain(tmp_path / "chain.arrow")
