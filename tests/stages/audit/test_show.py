"""`tightfit show` prints any file of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.schemas.test_irregular_files import PLACES
from tests.schemas.test_pipeline import PIPELINE
from tests.schemas.test_pipeline_pattern import PLAN
from tests.stages.audit.towers import MODEL, POINT
from tightfit.__main__ import CLOSED_PIPE_CODE, main
from tightfit.schemas import store
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.machine import MACHINES
from tightfit.schemas.measured_link import LINK_ARTIFACT, MeasuredLink, write_measured_link
from tightfit.schemas.measurement import MEMORY_TIMELINE, TimelinePoint, write_memory_timeline
from tightfit.schemas.optimizer_plan import (
    OPTIMIZER_COSTS_ARTIFACT,
    LinkSpeed,
    OptimizerCosts,
    ParameterUpdateCost,
    write_optimizer_costs,
)
from tightfit.schemas.pipeline import PIPELINE_ARTIFACT, write_pipeline
from tightfit.schemas.pipeline_measurement import (
    PIPELINE_MEASUREMENT_ARTIFACT,
    PipelineMeasurement,
    write_pipeline_measurement,
)
from tightfit.schemas.pipeline_plan import write_pipeline_plan
from tightfit.schemas.schedule import read_schedule

TIMELINE = [TimelinePoint("planned" if i % 2 else "original", 0.5 * i, 7 * i) for i in range(3000)]


@pytest.fixture
def timeline(tmp_path: Path) -> Path:
    path = tmp_path / "memory_timeline.arrow"
    write_memory_timeline(path, TIMELINE)
    return path


def show(capsys: pytest.CaptureFixture[str], *words: object) -> list[str]:
    """The lines that a call prints."""
    capsys.readouterr()
    assert main(["show", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def refuse(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The sentence of a call that fails."""
    capsys.readouterr()
    assert main(["show", *map(str, words)]) == 1
    out, error = capsys.readouterr()
    assert out == "" and error.count("\n") == 1
    return error.removeprefix("tightfit show: ").rstrip()


def test_every_file_of_a_run_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [path for path in run.rglob("*") if path.suffix in (".arrow", ".json")]
    shown = [path for path in files if path.name != "guards.json"]
    assert {"graph.arrow", "plan.json", "made_from.json", "frontier.arrow"} <= {
        path.name for path in shown
    }
    for path in shown:
        lines = show(capsys, path)
        assert lines[0].startswith(f"{path}: ") and len(lines) > 1
        document = json.loads("\n".join(show(capsys, path, "--json")))
        assert document["digest"] in lines[0]
        assert f"{len(document['rows']):,} row" in lines[0]


@pytest.mark.parametrize("path", sorted(MACHINES.glob("*.json")), ids=lambda path: path.stem)
def test_descriptions_of_machines_are_shown(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(path.read_text())
    assert json.loads("\n".join(show(capsys, path, "--json")))["rows"] == [document]
    lines = [line.split() for line in show(capsys, path, "devices")]
    assert ["flops.float32", f"{document['devices'][0]['flops']['float32']:.6g}"] in lines


SPEED = LinkSpeed(1e9, 1e9, (5e8, 5e8), 1e-5)
UPDATES = {"w": ParameterUpdateCost("w", (64,), 1e-3, 8, 0, (8, 0))}
DOCUMENTS = {
    PIPELINE_ARTIFACT: lambda path: write_pipeline(path, PIPELINE),
    "plan of a pipeline": lambda path: write_pipeline_plan(path, PLAN),
    PIPELINE_MEASUREMENT_ARTIFACT: lambda path: write_pipeline_measurement(
        path, PipelineMeasurement("net", "madpipe", "feasible", "Good.", 2, 1.0, [])
    ),
    LINK_ARTIFACT: lambda path: write_measured_link(path, MeasuredLink(SPEED, "disk", 5)),
    OPTIMIZER_COSTS_ARTIFACT: lambda path: write_optimizer_costs(
        path, OptimizerCosts("AdamW", 1 << 20, UPDATES)
    ),
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_every_json_document_is_known_by_any_name(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    DOCUMENTS[kind](path)
    document = json.loads(path.read_text())
    shown = json.loads("\n".join(show(capsys, path, "--json")))
    assert (shown["artifact"], shown["rows"]) == (kind, [document])
    assert show(capsys, path)[0].startswith(f"{path}: {kind}, 1 row, digest ")
    document.pop([*document][1])
    path.write_text(json.dumps(document))
    assert refuse(capsys, path).startswith(f"{path}: ")


def test_lists_in_json_are_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipeline.json"
    write_pipeline(path, PIPELINE)
    lines = show(capsys, path, "stages", "--where", "rank=1", "--columns", "stage,first,last")
    assert lines[1:] == ["stage  2", "first  3", "last   4", "(1 of 2 rows match; 1 shown)"]
    assert show(capsys, path, "memory")[1:] == ["memory", "   100", "   100"]


def test_json_has_what_the_reader_has(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads("\n".join(show(capsys, f"{POINT}/schedule.arrow", "--json")))["rows"]
    steps = read_schedule(f"{POINT}/schedule.arrow")
    assert [(row["start"], row["live"]) for row in rows] == [
        (step.start, step.live) for step in steps
    ]


def test_the_ops_of_a_graph_by_filter(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [f"{MODEL}/graph.arrow", "ops", "--where", "phase=backward", "--json"]
    rows = json.loads("\n".join(show(capsys, *words, "--where", "outputs>=20")))["rows"]
    ops = read_graph(f"{MODEL}/graph.arrow").ops
    assert [row["id"] for row in rows] == [
        op.id for op in ops if op.phase == "backward" and any(v >= 20 for v in op.outputs)
    ]
    assert 0 < len(rows) < len(ops)


def test_records_of_several_rows_name_their_row(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frontier = f"{MODEL}/rockmate/frontier.arrow"
    points = json.loads("\n".join(show(capsys, frontier, "--json")))["rows"]
    actions = json.loads("\n".join(show(capsys, frontier, "actions", "--json")))["rows"]
    expected = [
        {"row": index, **action}
        for index, point in enumerate(points)
        for action in point["actions"]
    ]
    assert actions == expected and len(points) > 1


def test_rows_columns_and_filters(timeline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert show(capsys, timeline, "--rows", "2998:")[1:] == [
        "run       seconds   live",
        "original     1499  20986",
        "planned    1499.5  20993",
        "(2 of 3,000 rows shown; --rows all shows every one)",
    ]
    with pytest.raises(SystemExit):
        main(["show", str(timeline), "--rows", "5:2"])
    assert "5:2 ends before it begins: type 2:5" in capsys.readouterr().err
    where = ("--where", "run=planned", "--where", "seconds < 3")
    assert show(capsys, timeline, *where, "--columns", "live")[1:] == [
        *("live", "   7", "  21", "  35"),
        "(3 of 3,000 rows match; 3 shown)",
    ]
    assert len(show(capsys, timeline)) == 2 + 20 + 1
    assert len(show(capsys, timeline, "--rows", "all")) == 2 + 3000
    assert show(capsys, timeline, "--where", "run~lann", "--rows", "0")[1:] == [
        "(1,500 of 3,000 rows match; 0 shown)"
    ]


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["run!=planned"], 1500),
        (["live=21"], 1),
        (["live!=21"], 2999),
        (["live<=21"], 4),
        (["live>=20,986"], 2),
        (["seconds=1e3"], 1),
        (["run=none"], 0),
        (["run!=planned", "run!=original"], 0),
    ],
)
def test_each_comparison(
    timeline: Path, filters: list[str], count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [word for text in filters for word in ("--where", text)]
    assert f"({count:,} of 3,000 rows match" in show(capsys, timeline, *words)[-1]


def test_one_row_is_printed_key_by_key(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = show(capsys, f"{POINT}/plan.json", "--columns", "status,baseline")
    status = json.loads(Path(POINT, "plan.json").read_text())["status"]
    assert lines[1].split() == ["status", status]
    assert lines[2].split() == ["baseline.parameters", "3264"]
    assert len(lines) == 7


def test_numbers_that_json_has_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "line.arrow"
    points = [TimelinePoint("planned", float("inf"), 0), TimelinePoint("planned", float("nan"), 0)]
    write_memory_timeline(path, points)
    rows = json.loads("\n".join(show(capsys, path, "--json")))["rows"]
    assert [row["seconds"] for row in rows] == ["inf", "nan"]


def test_unknown_columns_lists_and_filters_name_what_there_is(
    run: Path, timeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = "expected one of run, seconds, live"
    assert refuse(capsys, timeline, "--columns", "x") == f"{timeline}: has no column 'x', {columns}"
    assert refuse(capsys, timeline, "--where", "y=1") == f"{timeline}: has no column 'y', {columns}"
    assert refuse(capsys, timeline, "ops") == f"{timeline}: has no nested list 'ops'; it has none"
    assert refuse(capsys, timeline, "--where", "live=many") == (
        "--where: live holds numbers, 'many' is none"
    )
    assert "'live' is no filter, expected COLUMN=VALUE" in refuse(
        capsys, timeline, "--where", "live"
    )
    graph = f"{MODEL}/graph.arrow"
    assert refuse(capsys, graph, "--where", "phase=forward") == (
        f"{graph}: has no column 'phase', but the records of ops do: tightfit show {graph} ops"
    )


def test_damaged_and_foreign_files(
    run: Path, timeline: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = timeline.read_bytes()
    for changed in (b"", data[:100], data[: len(data) // 2], data.replace(b"planned", b"plannes")):
        timeline.write_bytes(changed)
        assert refuse(capsys, timeline).startswith(f"{timeline}: ")
    with pa.ipc.new_file(str(timeline), pa.schema([("a", pa.int64())])):
        pass
    assert refuse(capsys, timeline) == (f"{timeline}: is an Arrow file but no tightfit artifact")
    store.write(timeline, store.ArtifactType("tightfit.costs", 999, pa.schema([])), [])
    assert "has version 999 of tightfit.costs" in refuse(capsys, timeline)
    store.write(timeline, store.ArtifactType("tightfit.paint", 1, pa.schema([])), [])
    assert "'tightfit.paint', which this program does not know" in refuse(capsys, timeline)
    plan = Path(f"{POINT}/plan.json")
    plan.write_text(plan.read_text().replace('"peak"', '"height"', 1))
    assert refuse(capsys, plan).startswith(f"{plan}: ")
    notes = run / "notes.txt"
    notes.write_text("mine")
    assert refuse(capsys, notes) == f"{notes}: is neither an Arrow file nor a JSON object"
    notes.write_text('{"mine": 1}')
    assert refuse(capsys, notes) == f"{notes}: is JSON of no kind that tightfit writes"
    assert refuse(capsys, run) == f"{run}: is a folder, name one file of it"
    assert "No such file" in refuse(capsys, "absent.arrow")


@pytest.mark.parametrize("make", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("name", ["x", "x.json", "x.arrow"])
def test_what_is_no_regular_file(
    make: Callable[[Path], object], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / name)
    assert refuse(capsys, tmp_path / name).startswith(f"{tmp_path / name}: ")


@pytest.mark.parametrize("words", [[], ["--json"]], ids=["table", "json"])
def test_a_closed_pipe_is_no_traceback(tmp_path: Path, words: list[str]) -> None:
    path = tmp_path / "line.arrow"
    write_memory_timeline(path, [TimelinePoint("planned", i, i) for i in range(50_000)])
    command = [sys.executable, "-m", "tightfit", "show", str(path), "--rows", "all", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == CLOSED_PIPE_CODE


def test_a_large_file_is_not_loaded(timeline: Path) -> None:
    write_memory_timeline(timeline, [TimelinePoint("planned", i, i) for i in range(200_000)])
    before = pa.total_allocated_bytes()
    header, table = store.map_table(timeline, {MEMORY_TIMELINE.name: MEMORY_TIMELINE})
    assert header.name == MEMORY_TIMELINE.name
    assert table.slice(199_999).to_pylist() == [
        {"run": "planned", "seconds": 199_999, "live": 199_999}
    ]
    assert pa.total_allocated_bytes() - before < timeline.stat().st_size / 10


def test_each_document_of_a_run_is_printed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = 0
    for path in sorted(run.rglob("*.json")):
        assert show(capsys, path)[0].startswith(f"{path}: "), path
        printed += 1
    assert printed > 4


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (
            {"traceEvents": [], "displayTimeUnit": "ms", "otherData": {}},
            "trace for ui.perfetto.dev",
        ),
        ({"guards": {}, "written": []}, "guards of a package"),
        (
            {name: [] for name in ("tensors", "needed", "programs", "offsets", "layouts")},
            "pipeline of a package",
        ),
    ],
)
def test_documents_without_a_schema_are_printed(
    document: dict[str, object], kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "document.json"
    path.write_text(json.dumps(document))
    assert show(capsys, path)[0].startswith(f"{path}: {kind}, 1 row, digest ")
