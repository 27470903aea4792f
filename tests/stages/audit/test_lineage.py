"""Every file of a run tells how it was made."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.stages.audit.towers import MODEL, POINT
from tightfit.__main__ import CLOSED_PIPE_CODE, main
from tightfit.schemas.lineage import read_lineage
from tightfit.util.code_fingerprint import stage_fingerprint

ROOT = Path(__file__).parents[3]

FILES = [
    *(f"{MODEL}/{name}.arrow" for name in ("graph", "costs", "blocks", "options")),
    f"{MODEL}/rockmate/frontier.arrow",
    *(
        f"{POINT}/{name}.arrow"
        for name in ("schedule", "sequence", "measurement", "memory_timeline")
    ),
    f"{POINT}/plan.json",
    f"{POINT}/module",
    f"{MODEL}/report.html",
    "results/index.html",
]


def lineage(capsys: pytest.CaptureFixture[str], file: str, *words: str) -> list[str]:
    capsys.readouterr()
    assert main(["lineage", file, *words]) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("file", FILES)
def test_every_file_tells_what_made_it(
    run: Path, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lineage(capsys, file)
    assert re.fullmatch(rf"{file}  [0-9a-f]{{64}}", lines[0])
    made = next(line.strip() for line in lines if line.strip().startswith("made by: "))
    stage, code = re.findall(r"made by: (\w+), code ([0-9a-f]{16})", made)[0]
    assert code == stage_fingerprint(stage)
    assert any(f"pyarrow {metadata.version('pyarrow')}" in line for line in lines)


def test_the_tree_goes_down_to_the_source(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lineage(capsys, f"{POINT}/module")
    text = "\n".join(lines)
    for name in ("graph", "costs", "blocks", "options", "rockmate/frontier"):
        assert any(line.strip().startswith(f"{MODEL}/{name}.arrow  ") for line in lines), name
    assert any(line.strip().startswith("store/options/") for line in lines)
    assert "settings: budget=80%" in text
    assert "settings: solver=highs, peaks=2, saves=2" in text
    assert "factory=tests.stages.audit.towers:tower, arguments={}, name=tower, device=cpu" in text
    for package in ("torch", "highspy", "pulp"):
        assert f"{package} {metadata.version(package)}" in text
    assert "method=local search" in text
    assert re.search(r"made by: trace, code \w{16}, model's source \w{16}", text)
    assert re.search(r"device_name=\w+", text)


def test_a_file_of_a_module_stands_for_the_module(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lineage(capsys, f"{POINT}/module/step.py") == lineage(capsys, f"{POINT}/module")


def test_what_was_changed_or_removed_since_is_said(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = Path(f"{POINT}/plan.json")
    plan.write_text(plan.read_text().replace('"local search"', '"a guess"'))
    Path(f"{POINT}/schedule.arrow").unlink()
    text = "\n".join(lineage(capsys, f"{POINT}/module"))
    files = json.loads("\n".join(lineage(capsys, f"{POINT}/module", "--json")))["files"]
    [gone] = [each["error"] for each in files if not each["exists"]]
    assert gone == f"{POINT}/schedule.arrow: is gone"
    assert re.search(r"plan\.json  \w{64}  \(was \w{64} when it was read\)", text)
    assert re.search(r"schedule\.arrow  \w{64}  \(is gone\)", text)


def test_a_link_to_a_file_stands_for_the_file(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("latest.json").symlink_to(Path(POINT, "plan.json"))
    assert lineage(capsys, "latest.json") == lineage(capsys, f"{POINT}/plan.json")


def test_a_loop_of_links_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = Path(MODEL, "graph.arrow")
    loop.unlink()
    loop.symlink_to(loop.name)
    told = lineage(capsys, f"{POINT}/module")
    assert any("(is a link that leads nowhere)" in line for line in told)
    files = json.loads("\n".join(lineage(capsys, f"{POINT}/module", "--json")))["files"]
    assert f"{loop}: is a link that leads nowhere" in [each["error"] for each in files]


def test_a_file_without_a_record_is_an_error(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.txt").write_text("mine")
    assert main(["lineage", "notes.txt"]) == 1
    sentence = "notes.txt: there is no record of how it was made"
    assert capsys.readouterr().err == f"tightfit lineage: {sentence}\n"


def test_a_folder_of_results_names_a_file_in_it(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    for folder, said in ((POINT, f"name a file in it: {POINT}/"), ("empty", "and no file in it")):
        assert main(["lineage", folder]) == 1
        error = capsys.readouterr().err
        assert error.startswith(f"tightfit lineage: {folder}: is a folder and no module, {said}")


def test_records_hold_no_time_and_no_absolute_path_of_what_was_made(run: Path) -> None:
    for file in FILES:
        record = read_lineage(file)
        assert all(not Path(entry.path).is_absolute() for entry in record.inputs)
        assert not any("time" in name or "date" in name for name in record.settings)


@pytest.mark.parametrize(
    "change", [{"settings": 1}, {"inputs": [{"name": "x"}]}, {"digest": None}, {"more": ""}]
)
def test_a_record_that_is_none(
    run: Path, change: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(f"{MODEL}/lineage/graph.arrow.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert main(["lineage", f"{MODEL}/graph.arrow"]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"tightfit lineage: {path}: ") and error.count("\n") == 1


def test_the_same_as_json(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = f"{POINT}/module"
    document = json.loads("\n".join(lineage(capsys, module, "--json")))
    files = {each["path"]: each for each in document["files"]}
    assert document["file"] == module and document["files"][0]["path"] == module
    described = (ROOT / "docs/audit.md").read_text().partition("`--json` prints an object")[2]
    named = re.findall(r"`(\w+)`", described)
    assert {*document, *document["files"][0]} <= {*named}
    for path, each in files.items():
        assert each["exists"] and not each["error"], path
        assert all(files[made["path"]]["digest"] == made["digest"] for made in each["made_of"])
    assert files[f"{MODEL}/graph.arrow"]["made_by"]["stage"] == "trace"
    assert files[module]["made_by"]["settings"] == {"backend": "aten"}


@pytest.mark.parametrize("damaged", ["graph.arrow", "lineage/costs.arrow.json"])
def test_a_damaged_ancestor_is_said_and_the_rest_goes_on(
    run: Path, damaged: str, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = lineage(capsys, f"{POINT}/module")
    path = Path(MODEL) / damaged
    path.write_bytes(path.read_bytes()[:50])
    lines = lineage(capsys, f"{POINT}/module")
    assert any(f"(damaged: {path}: " in line for line in lines)
    for line in whole:
        if line.strip().startswith((f"{MODEL}/rockmate/frontier", "store/options/")):
            assert line in lines
    files = json.loads("\n".join(lineage(capsys, f"{POINT}/module", "--json")))["files"]
    [wrong] = [each for each in files if each["error"]]
    assert wrong["error"].startswith(f"{path}: ")
    assert len(files) > 5


def test_a_damaged_file_is_an_error_and_its_record_is_told(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(f"{MODEL}/costs.arrow")
    path.write_bytes(path.read_bytes()[:50])
    capsys.readouterr()
    assert main(["lineage", str(path)]) == 1
    out, error = capsys.readouterr()
    assert error == f"tightfit lineage: {path}: is not a complete Arrow file\n"
    assert "made by: profile" in out


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["tree", "json"])
def test_a_closed_pipe_is_no_traceback(run: Path, words: list[str]) -> None:
    command = [sys.executable, "-m", "tightfit", "lineage", f"{POINT}/module", *words]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (CLOSED_PIPE_CODE, b"")
