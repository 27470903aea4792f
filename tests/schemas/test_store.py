"""The artifact store: what is on disk is whole and unchanged, or gives one clear sentence."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tightfit.schemas import store
from tightfit.schemas.arrow_fields import (
    boolean_field,
    integer_field,
    integer_list_field,
    number_field,
    record_list_field,
    text_field,
    text_list_field,
)
from tightfit.util.errors import ArtifactError

KIND = store.ArtifactType(
    "tightfit.example",
    3,
    pa.schema(
        [
            text_field("name"),
            integer_field("bytes"),
            number_field("seconds", nullable=True),
            boolean_field("kept"),
            integer_list_field("inputs"),
            text_list_field("labels"),
            record_list_field(
                "parts", integer_field("id"), record_list_field("inner", text_field("word"))
            ),
            pa.field("data", pa.binary(), nullable=False),
        ]
    ),
)

SMALL = store.ArtifactType("tightfit.small", 1, pa.schema([text_field("name")]))

ROW: dict[str, Any] = {
    "name": "addmm",
    "bytes": 4096,
    "seconds": 0.5,
    "kept": True,
    "inputs": [1, 2],
    "labels": ["a", "ä"],
    "parts": [{"id": 1, "inner": [{"word": "x"}]}],
    "data": b"\x00\xff",
}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "example.arrow"
    store.write(path, KIND, [ROW, {**ROW, "name": "mul", "seconds": None}], {"model": "gpt2"})
    return path


def error_of(path: Path, kind: store.ArtifactType = KIND) -> str:
    with pytest.raises(ArtifactError) as caught:
        store.read(path, kind)
    sentence = str(caught.value)
    assert sentence.startswith(f"{path}: ")
    assert "\n" not in sentence
    return sentence.removeprefix(f"{path}: ")


def test_what_is_written_is_read(written: Path) -> None:
    artifact = store.read(written, KIND)
    assert artifact.rows == [ROW, {**ROW, "name": "mul", "seconds": None}]
    assert artifact.metadata == {"model": "gpt2"}
    assert len(artifact.digest) == 64


def test_equal_rows_give_equal_bytes(tmp_path: Path) -> None:
    first = store.write(tmp_path / "a", KIND, [ROW], {"x": "1", "y": "2"})
    second = store.write(tmp_path / "b", KIND, [dict(reversed(ROW.items()))], {"y": "2", "x": "1"})
    assert first == second
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert store.write(tmp_path / "c", KIND, [{**ROW, "bytes": 4097}]) != first


def test_an_artifact_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "small.arrow"
    digest = store.write(path, SMALL, [{"name": "one"}])
    os.utime(path, ns=(7, 7))
    assert store.write(path, SMALL, [{"name": "one"}]) == digest
    assert path.stat().st_mtime_ns == 7
    assert store.write(path, SMALL, [{"name": "two"}]) != digest
    assert store.read(path, SMALL).rows == [{"name": "two"}]
    path.write_bytes(path.read_bytes()[:-1])
    store.write(path, SMALL, [{"name": "two"}])
    assert store.read(path, SMALL).rows == [{"name": "two"}]


def test_an_artifact_without_rows(tmp_path: Path) -> None:
    store.write(tmp_path / "empty", KIND, [])
    assert store.read(tmp_path / "empty", KIND).rows == []


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.arrow"
    store.write(path, SMALL, [{"name": "mul"}])
    return path


def test_every_truncation_is_noticed(small: Path) -> None:
    data = small.read_bytes()
    for length in range(len(data)):
        small.write_bytes(data[:length])
        assert error_of(small, SMALL) == "is not a complete Arrow file"


def test_every_changed_byte_is_noticed(small: Path) -> None:
    data = small.read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= (0x01, 0x80, 0xFF)[position % 3]
        small.write_bytes(changed)
        error_of(small, SMALL)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_changed_byte_of_nested_rows_is_noticed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("changed") / "example.arrow"
    store.write(path, KIND, [ROW])
    whole = bytearray(path.read_bytes())
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(whole)
    error_of(path)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_give_a_sentence(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "file.arrow"
    path.write_bytes(data)
    error_of(path)


def test_bytes_after_the_end_are_noticed(written: Path) -> None:
    written.write_bytes(written.read_bytes() + b"\0")
    error_of(written)


def test_another_version_and_another_artifact(written: Path) -> None:
    newer = store.ArtifactType(KIND.name, 4, KIND.schema)
    assert error_of(written, newer) == (
        "has version 3 of tightfit.example, this program reads tightfit.example/4"
    )
    other = store.ArtifactType("tightfit.other", 3, KIND.schema)
    assert error_of(written, other) == "is a tightfit.example/3, tightfit.other/3 was expected"


def test_other_fields_under_the_same_name(written: Path) -> None:
    narrow = store.ArtifactType(KIND.name, KIND.version, pa.schema([text_field("name")]))
    assert error_of(written, narrow) == "the fields are not those of tightfit.example/3"


def test_an_arrow_file_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "foreign.arrow"
    table = pa.table({"name": ["x"]})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert error_of(path) == (
        "is an Arrow file but no tightfit artifact, tightfit.example/3 was expected"
    )


def test_what_cannot_be_read(tmp_path: Path) -> None:
    assert error_of(tmp_path / "absent.arrow") == "cannot be read (No such file or directory)"
    assert error_of(tmp_path) == "is no regular file"
    assert error_of(Path("a\0b")) == "cannot be read (embedded null byte)"
    os.mkfifo(tmp_path / "pipe")
    assert error_of(tmp_path / "pipe") == "is no regular file"


def test_a_file_may_have_as_many_bytes_as_it_may_have(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert store.read_bytes(path) == store.read_bytes(path, 3) == b"abc"
    with pytest.raises(ArtifactError, match=r"file: has 3 bytes, more than 2$"):
        store.read_bytes(path, 2)
    assert store.file_digest(path) == hashlib.sha256(b"abc").hexdigest()


def test_text_that_is_none_is_noticed_under_a_digest_that_is_right(small: Path) -> None:
    data = small.read_bytes()
    digest = store.read_header(small).digest.encode()
    assert data.count(b"mul") == 1
    blank = data.replace(b"mul", b"\xff\xfe\xfd").replace(digest, store._BLANK_DIGEST)
    right = hashlib.sha256(blank).hexdigest().encode()
    small.write_bytes(blank.replace(store._BLANK_DIGEST, right))
    assert error_of(small, SMALL) == "is not a complete Arrow file"


def test_what_a_header_says(written: Path, tmp_path: Path) -> None:
    found = store.read_header(written)
    assert (found.name, found.version, found.metadata) == (KIND.name, "3", {"model": "gpt2"})
    assert found.digest == store.read(written, KIND).digest
    written.write_bytes(written.read_bytes().replace(b"addmm", b"addnn"))
    with pytest.raises(ArtifactError, match="does not match its digest"):
        store.read_header(written)
    table = pa.table({"name": ["x"]})
    path = tmp_path / "foreign.arrow"
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ArtifactError, match=r"is an Arrow file but no tightfit artifact$"):
        store.read_header(path)


def test_fields_of_a_document_are_exactly_those_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "header.json"
    fields = {"metadata": {}, "name": "x", "version": "1", "digest": ""}
    store.write_json(path, fields)
    assert store.read_fields(path, store.Header) == fields
    for other in ({**fields, "more": 1}, {"name": "x"}):
        store.write_json(path, other)
        with pytest.raises(ArtifactError, match="lacks or does not know the keys "):
            store.read_fields(path, store.Header)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": None}, "row 0: the field 'name' is empty"),
        ({"inputs": [1, None]}, "row 0: the field 'item' is empty"),
        ({"parts": [{"id": 1, "inner": [{"word": None}]}]}, "row 0: the field 'word' is empty"),
        ({"parts": [{"id": 1}]}, "row 0: the field 'inner' is missing"),
        ({"bytes": 2**63}, "a row does not fit the schema"),
        ({"bytes": "many"}, "a row does not fit the schema"),
    ],
)
def test_a_row_that_does_not_fit_is_not_written(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    path = tmp_path / "bad.arrow"
    with pytest.raises(ArtifactError, match=rf"^tightfit\.example/3: {sentence}"):
        store.write(path, KIND, [{**ROW, **change}])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "name"),
        ({"inputs": [1, None]}, "item"),
        ({"parts": [None]}, "item"),
        ({"parts": [{"id": 1, "inner": [{"word": None}]}]}, "word"),
    ],
)
def test_a_file_in_which_something_is_empty_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], field: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store, "_check_nulls", lambda *given: None)
        store.write(tmp_path / "bad.arrow", KIND, [ROW, {**ROW, **change}])
    said = error_of(tmp_path / "bad.arrow")
    assert said.endswith(f"row 1: the field {field!r} is empty")


def test_a_missing_field_and_a_reserved_key_are_not_written(tmp_path: Path) -> None:
    row = {key: value for key, value in ROW.items() if key != "kept"}
    with pytest.raises(ArtifactError, match="row 0 lacks the field 'kept'"):
        store.write(tmp_path / "bad", KIND, [row])
    with pytest.raises(ArtifactError, match="metadata key 'digest' is reserved"):
        store.write(tmp_path / "bad", KIND, [ROW], {"digest": "x"})
    assert list(tmp_path.iterdir()) == []


def test_nulls_written_by_somebody_else_are_refused(tmp_path: Path) -> None:
    loose = pa.schema([field.with_nullable(True) for field in KIND.schema])
    other = store.ArtifactType(KIND.name, KIND.version, loose)
    store.write(tmp_path / "loose", other, [{**ROW, "name": None}])
    assert error_of(tmp_path / "loose") == "the fields are not those of tightfit.example/3"


def test_a_write_that_fails_leaves_the_old_file_alone(written: Path, monkeypatch: Any) -> None:
    before = written.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArtifactError, match=r"cannot be written \(No space left on device\)$"):
        store.write(written, KIND, [])
    assert written.read_bytes() == before
    assert list(written.parent.iterdir()) == [written]


def test_a_process_killed_while_writing_leaves_no_partial_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    code = (
        "import os, sys\n"
        "from tightfit.schemas import store\n"
        "real = os.fsync\n"
        "os.fsync = lambda handle: (real(handle), os.kill(os.getpid(), 9))\n"
        "store.write_bytes(sys.argv[1], b'x' * 100000)\n"
    )
    root = Path(__file__).parents[2]
    result = subprocess.run([sys.executable, "-c", code, str(path)], cwd=root, check=False)
    assert result.returncode == -9
    assert not path.exists()
    store.write_bytes(path, b"whole")
    assert path.read_bytes() == b"whole"


def test_folders_are_made_and_files_are_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "plan.json"
    store.write_json(path, {"strategy": "rotor", "peak": 1})
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(store.read_json(path)) == ["strategy", "peak"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not a JSON object"),
        ("\udcff", "is not JSON"),
        ('{"time": NaN}', r"is not JSON \(NaN is no number\)"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_json_that_is_something_else(tmp_path: Path, content: str, sentence: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ArtifactError, match=f"plan.json: {sentence}"):
        store.read_json(path)


def test_absent_json_and_numbers_that_json_has_not(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be read"):
        store.read_json(tmp_path / "absent.json")
    with pytest.raises(ValueError, match="Out of range float"):
        store.write_json(tmp_path / "plan.json", {"time": float("nan")})
    assert list(tmp_path.iterdir()) == []
