"""The artifact of streams."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tightfit.schemas import store
from tightfit.schemas.operation_timeline import (
    OPERATION_TIMELINE,
    TimedOperation,
    read_operation_timeline,
    write_operation_timeline,
)
from tightfit.schemas.sequence import ChainOperation
from tightfit.util.errors import ArtifactError

STEPS = [
    TimedOperation(ChainOperation("offload", 0), "cuda:0/to-host", 0.0, 1.0, 0.0, 3, 3),
    TimedOperation(ChainOperation("F_all", 1), "cuda:0/compute", 0.0, 2.0, 0.0, 5, 3),
    TimedOperation(ChainOperation("free", 0), "cuda:0/compute", 2.0, 2.0, 0.0, 2, 3),
]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_operation_timeline(tmp_path / "streams.arrow", STEPS, "of a chain")
    assert read_operation_timeline(tmp_path / "streams.arrow") == STEPS
    assert store.read_header(tmp_path / "streams.arrow").metadata["chain"] == "of a chain"


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"operation": ChainOperation("magic", 1)}, "unknown action 'magic'"),  # type: ignore[arg-type]
        ({"operation": ChainOperation("offload_all", 0)}, "names no position"),
        ({"operation": ChainOperation("prefetch", 1, branch=2)}, "names no branch"),
        ({"stream": ""}, "is in no stream"),
        ({"end": 1.0, "start": 2.0}, "ends early"),
        ({"start": -1.0}, "negative or not finite"),
        ({"end": float("inf")}, "negative or not finite"),
        ({"live": -1}, "holds less than 0"),
        ({"host_bytes": -1}, "holds less than 0"),
    ],
)
def test_a_step_that_cannot_be_is_refused(changed: dict, sentence: str, tmp_path: Path) -> None:
    write_operation_timeline(tmp_path / "streams.arrow", [STEPS[0], replace(STEPS[1], **changed)])
    with pytest.raises(ArtifactError, match=sentence) as refused:
        read_operation_timeline(tmp_path / "streams.arrow")
    assert "streams.arrow: step 1" in str(refused.value)


def test_a_step_out_of_place_is_refused(tmp_path: Path) -> None:
    write_operation_timeline(tmp_path / "streams.arrow", STEPS)
    rows = store.read(tmp_path / "streams.arrow", OPERATION_TIMELINE).rows
    store.write(tmp_path / "streams.arrow", OPERATION_TIMELINE, rows[1:], {"chain": ""})
    with pytest.raises(ArtifactError, match="step 0 is out of place"):
        read_operation_timeline(tmp_path / "streams.arrow")
