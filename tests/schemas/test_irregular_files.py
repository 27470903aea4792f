"""What is no regular file is refused in a sentence, and nobody waits for it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tightfit.schemas import store
from tightfit.schemas.lineage import lineage_path, path_digest, read_lineage
from tightfit.schemas.package_manifest import module_digest, module_file_digests, read_manifest
from tightfit.schemas.plan import read_plan
from tightfit.stages.audit.artifact_kinds import ARTIFACT_READERS
from tightfit.stages.audit.audit import audit
from tightfit.util.errors import ArtifactError


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        folder = os.open(path.parent, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.close(folder)


PLACES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "zeros": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/tty"),
    "itself": lambda path: path.symlink_to(path.name),
    "nowhere": lambda path: path.symlink_to("no/such/file"),
    "socket": listening,
}


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_no_reader_waits(make: Callable[[Path], object], tmp_path: Path) -> None:
    for name, read in {**ARTIFACT_READERS, "plan": read_plan, "json": store.read_json}.items():
        path = tmp_path / f"{name}.arrow"
        make(path)
        with pytest.raises(ArtifactError, match=rf"^{path}: [^\n]*$"):
            read(path)


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
def test_records_and_modules(make: Callable[[Path], object], tmp_path: Path) -> None:
    made = tmp_path / "graph.arrow"
    lineage_path(made).parent.mkdir()
    make(lineage_path(made))
    (tmp_path / "module").mkdir()
    make(tmp_path / "module/made_from.json")
    for read in (
        lambda: read_lineage(made),
        lambda: read_manifest(tmp_path / "module"),
        lambda: store.read_header(lineage_path(made)),
    ):
        with pytest.raises(ArtifactError, match=r"^[^\n]*$"):
            read()
    if make is not Path.mkdir:
        for digest in (module_digest, module_file_digests, path_digest):
            make(tmp_path / f"module/{digest.__name__}.py")
            with pytest.raises(ArtifactError, match=r"^[^\n]*$"):
                digest(tmp_path / "module")


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("file", ["point/plan.json", "graph.arrow", "lineage/graph.arrow.json"])
def test_an_audit_ends(make: Callable[[Path], object], file: str, tmp_path: Path) -> None:
    store.write_json(tmp_path / "plan.json", {"no": "plan"})
    (tmp_path / "graph.arrow").write_bytes(b"none") if "lineage" in file else None
    (tmp_path / file).parent.mkdir(exist_ok=True)
    make(tmp_path / file)
    found = audit(tmp_path)
    assert any(sentence.startswith(f"{tmp_path}/plan.json") for sentence in found.complaints)
    assert all("\n" not in sentence for sentence in found.complaints)


RECORD = {
    **dict.fromkeys(("digest", "stage", "code", "source"), "a"),
    **{"settings": {}, "versions": {}},
}


@pytest.mark.parametrize(
    "path",
    ["/dev/zero", "/", "/proc", "\0", "a" * 300, "a/" * 2000, "", "\ud800", 3, None, ["a"], {}],
    ids=range(12),
)
def test_records_that_point_elsewhere(path: object, tmp_path: Path) -> None:
    store.write_json(tmp_path / "plan.json", {})
    page = tmp_path / "report.html"
    page.write_text("")
    record = {**RECORD, "digest": store.file_digest(page)}
    inputs = [{"path": path, "digest": "b" * 64}]
    store.write_json(lineage_path(page), {**record, "inputs": inputs})
    sentences = audit(tmp_path).complaints
    assert len(sentences) == 2 and all("\n" not in sentence for sentence in sentences)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 10**6,
        '{"a":' * 10**5,
        "NaN",
        '{"a": NaN}',
        '{"a": -Infinity}',
        "9" * 10**4,
        "\0",
        "[]",
    ],
    ids=lambda text: text[:8],
)
def test_json_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ArtifactError, match=r"a\.json: is not [^\n]*$"):
        store.read_json(tmp_path / "a.json")


def test_large_files_are_not_read_where_small_ones_belong(tmp_path: Path) -> None:
    with (tmp_path / "plan.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ArtifactError, match=r"plan\.json: has \d+ bytes"):
        read_plan(tmp_path / "plan.json")
