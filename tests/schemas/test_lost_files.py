"""Which outputs of a run are gone or not whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from tightfit.schemas.lineage import LineageInput, LineageRecord, lineage_path
from tightfit.schemas.lost_files import find_lost_outputs, find_missing_files, was_made
from tightfit.schemas.package_manifest import MANIFEST_NAME, PackageManifest, manifest_bytes
from tightfit.schemas.pipeline import (
    PIPELINE_FILE,
    PipelineSchedule,
    PipelineStage,
    stage_files,
    write_pipeline,
)

DIGEST = "0" * 64
WHOLE = {".arrow": "ARROW1...ARROW1", ".json": '{"strategy": "auto"}'}
"""Contents of files that are not damaged: that of a JSON file is a plan's."""


def make(path: Path, *inputs: str) -> Path:
    """Writes a file, unless it is there, and the record of what it was made of."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(WHOLE.get(path.suffix, "made"))
    read = [LineageInput(name, DIGEST) for name in inputs]
    record = LineageRecord(DIGEST, "combine", "code", "", {}, {}, read)
    lineage_path(path).parent.mkdir(exist_ok=True)
    lineage_path(path).write_text(json.dumps(asdict(record)))
    return path


def make_module(path: Path, *inputs: str) -> Path:
    path.mkdir(parents=True)
    (path / "step.py").write_text("")
    manifest = PackageManifest(DIGEST, DIGEST, DIGEST, {"step.py": DIGEST})
    (path / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    return make(path, *inputs)


def make_ranks(folder: Path) -> Path:
    """A pipeline of one rank."""
    stage = PipelineStage(1, 0, 1, 2, False, DIGEST)
    pipeline = PipelineSchedule(
        model="m", graph=DIGEST, devices=["cpu:0"], memory=[9], fixed=[0], peaks=[1],
        microbatches=1, stages=[stage], parcels=[], shared=[], actions=[[]],
    )  # fmt: skip
    for file in stage_files(folder, pipeline):
        make(file)
    folder.mkdir(parents=True, exist_ok=True)
    write_pipeline(folder / PIPELINE_FILE, pipeline)
    return make(folder / PIPELINE_FILE, "../graph.arrow")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Those of a model: a graph, a plan of it, its module, and a page that names a removed plan."""
    make(tmp_path / "m/graph.arrow")
    make(tmp_path / "m/auto/plan.json", "../graph.arrow", "../../../elsewhere.json")
    make_module(tmp_path / "m/auto/module", "plan.json")
    make(tmp_path / "m/report.html", "auto/plan.json", "removed/plan.json")
    make_ranks(tmp_path / "m/ranks")
    return tmp_path


def lost(results: Path, is_known: Callable[[Path], bool] = Path.exists) -> list[str]:
    names = ("auto/module", "report.html", "ranks/pipeline.json")
    wanted = [results / "m" / name for name in names]
    return [str(path.relative_to(results)) for path in find_lost_outputs(results, wanted, is_known)]


def test_a_whole_run_lacks_nothing(results: Path) -> None:
    assert lost(results) == []


def test_what_no_run_is_known_to_have_made_is_lost(results: Path) -> None:
    assert lost(results, lambda path: path.name != "graph.arrow") == ["m/graph.arrow"]


@pytest.mark.parametrize(
    ("gone", "output"),
    [
        ("m/graph.arrow", "m/graph.arrow"),
        ("m/auto/plan.json", "m/auto/plan.json"),
        ("m/auto/module", "m/auto/module"),
        ("m/auto/module/step.py", "m/auto/module"),
        (f"m/auto/module/{MANIFEST_NAME}", "m/auto/module"),
        ("m/auto/lineage/plan.json.json", "m/auto/plan.json"),
        ("m/report.html", "m/report.html"),
        ("m/ranks/stage-1", "m/ranks/pipeline.json"),
        ("m/ranks/stage-1/schedule.arrow", "m/ranks/pipeline.json"),
        ("m/ranks/stage-1/lineage/graph.arrow.json", "m/ranks/pipeline.json"),
        ("m/ranks/pipeline.json", "m/ranks/pipeline.json"),
    ],
)
def test_what_is_gone_is_found_by_what_was_made_of_it(
    results: Path, gone: str, output: str
) -> None:
    path = results / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert lost(results) == [output]


@pytest.mark.parametrize(
    ("file", "content", "found"),
    [
        ("m/graph.arrow", b"", ["m/graph.arrow"]),
        ("m/graph.arrow", b"ARROW1 and no more", ["m/graph.arrow"]),
        ("m/auto/plan.json", b"{}x", ["m/auto/plan.json"]),
        ("m/auto/plan.json", b"{}", ["m/auto/plan.json"]),
        ("m/auto/plan.json", b'["strategy"]', ["m/auto/plan.json"]),
        ("m/auto/plan.json", b'{"artifact": "tightfit.pipeline/3"}', ["m/auto/plan.json"]),
        ("m/auto/plan.json", b'["%s"]' % (b"x" * 2**17), ["m/auto/plan.json"]),
        ("m/auto/lineage/plan.json.json", b"{}", ["m/auto/plan.json"]),
        ("m/ranks/pipeline.json", b"{}", ["m/ranks/pipeline.json"]),
        ("m/auto/plan.json", b"\xff", ["m/auto/plan.json"]),
        ("m/auto/plan.json", b'{"long": "%s"' % (b"x" * 2**17), ["m/auto/plan.json"]),
        ("m/auto/plan.json", b'{"long": "%s"}\n' % (b"x" * 2**17), []),
        ("m/ranks/stage-1/graph.arrow", b"cut off", ["m/ranks/pipeline.json"]),
    ],
)
def test_what_is_damaged_counts_as_lost(
    results: Path, file: str, content: bytes, found: list[str]
) -> None:
    (results / file).write_bytes(content)
    assert lost(results) == found


def test_inputs_of_a_lost_file_are_looked_at_too(results: Path) -> None:
    (results / "m/auto/plan.json").unlink()
    (results / "m/graph.arrow").unlink()
    assert lost(results) == ["m/auto/plan.json", "m/graph.arrow"]


@pytest.mark.parametrize(
    ("name", "document", "damaged"),
    [
        ("measurement.json", '{"artifact": "tightfit.pipeline_measurement/3"}', False),
        ("measurement.json", "{}", True),
        ("measurement.json", "[]", True),
        ("measurement.json", '{"strategy": "auto"}', True),
        ("trace.json", '{"traceEvents": []}', False),
        ("trace.json", '{"events": []}', True),
        ("module/eager_guards.json", '{"guards": []}', False),
        ("module/pipeline.json", '{"programs": []}', False),
        ("module/pipeline.json", "{}", True),
        ("updates.json", '{"artifact": "tightfit.updates/2"}', False),
        ("updates.json", "null", True),
    ],
)
def test_a_document_of_another_kind_is_damaged(
    tmp_path: Path, name: str, document: str, damaged: bool
) -> None:
    module, inside = tmp_path / "module", name.startswith("module/")
    if inside:
        module.mkdir()
        manifest = PackageManifest(DIGEST, DIGEST, DIGEST, {Path(name).name: DIGEST})
        (module / MANIFEST_NAME).write_bytes(manifest_bytes(manifest))
    (tmp_path / name).write_text(document)
    made = make(module if inside else tmp_path / name)
    assert find_missing_files(made) == ([tmp_path / name] if damaged else [])


def test_a_mark_has_no_record(tmp_path: Path) -> None:
    (tmp_path / "index.done").touch()
    assert find_missing_files(tmp_path / "index.done") == []


def test_what_failed_since_is_not_taken_for_lost(results: Path) -> None:
    graph = results / "m/graph.arrow"
    graph.unlink()
    assert was_made(graph)
    (results / "m/logs").mkdir()
    (results / "m/logs/trace.txt").write_text("trace: no such luck")
    assert not was_made(graph)


def test_an_output_that_is_gone_with_its_folder_was_made_if_a_page_shows_the_folder(
    results: Path,
) -> None:
    plan, module = results / "m/auto/plan.json", results / "m/auto/module"
    other = results / "m/other/plan.json"
    shutil.rmtree(results / "m/auto")
    assert was_made(plan) and was_made(module)
    assert not was_made(other)
    make(results / "index.html", "m/auto/plan.json")
    shutil.rmtree(results / "m")
    assert was_made(results / "m/graph.arrow") and was_made(plan)
    assert not was_made(results / "n/graph.arrow")
    (results / "m/logs").mkdir(parents=True)
    (results / "m/logs/trace.txt").write_text("trace: no such luck")
    assert not was_made(plan)
