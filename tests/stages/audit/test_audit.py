"""Whatever is changed after a run, an audit names it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stages.audit.test_stale_results import configure
from tests.stages.audit.towers import MODEL, POINT
from tightfit.__main__ import main
from tightfit.schemas import store
from tightfit.schemas.costs import read_costs, write_costs
from tightfit.schemas.measurement import read_measurement, write_measurement
from tightfit.schemas.package_manifest import module_digest
from tightfit.schemas.plan import read_plan, write_plan
from tightfit.schemas.schedule import SCHEDULE, read_schedule, write_schedule
from tightfit.util.budget import parse_budget
from tightfit.util.processes import lock_file

ROOT = Path(__file__).parents[3]


def complaints(capsys: pytest.CaptureFixture[str], folder: str = "results") -> list[str]:
    """What an audit prints; its exit code is 1 where there is something."""
    capsys.readouterr()
    code = main(["audit", folder])
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    if code == 0:
        assert len(lines) == 1 and "all is well with" in lines[0]
        return []
    number = "1 thing is" if len(lines) == 1 else f"{len(lines)} things are"
    assert captured.err == f"tightfit audit: {folder}: {number} wrong\n"
    return lines


@pytest.mark.parametrize("folder", ["results", MODEL, f"{MODEL}/rockmate"])
def test_nothing_is_wrong_with_a_run(
    run: Path, folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert complaints(capsys, folder) == []
    assert main(["audit", folder]) == 0
    said = capsys.readouterr().out
    assert "2 plans, 2 modules, 2 measurements" in said
    gap = store.read_json(f"{POINT}/plan.json")["gap"]
    share = re.search(r"no plan could save more than ([0-9.]+)% of its time, by its bound", said)
    assert share is not None and gap <= float(share[1]) / 100 <= gap + 1e-3


def test_steps_that_failed_are_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of a plan without its result and of a model that has nothing else; not those that run,
    or have nothing to say."""
    ranks = "results/tower/pipeline/madpipe/logs/validate.txt"
    logs = {
        ranks: "validate: rank 1 of the pipeline ended: ValueError: 7\nmore\n\ndetails\n",
        "results/house/logs/trace.txt": "trace: the factory raises\n",
        f"{POINT}/logs/validate.txt": "",
        f"{POINT}/logs/select.txt": "select: did not end\n",
    }
    for name, said in logs.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(said)
    with lock_file(Path(POINT, "logs/select.txt")):
        assert complaints(capsys) == [
            "results/house/logs/trace.txt: the step failed: trace: the factory raises",
            f"{ranks}: the step failed: validate: rank 1 of the pipeline ended: ValueError: 7",
        ]
        assert len(complaints(capsys, "results/house")) == 1
        shutil.rmtree("results/house")
        configure()
        assert main(["audit", "results", "--configuration", "config.yaml"]) == 0
        assert "results/tower/pipeline: is left over" in capsys.readouterr().out


def test_a_plan_of_the_smallest_budget_is_as_good(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--graph", f"{MODEL}/graph.arrow", "--costs", f"{MODEL}/costs.arrow"]
    words += ["--frontier", f"{MODEL}/rockmate/frontier.arrow", "--budget", "min"]
    assert main(["select", *words, "--out", f"{MODEL}/rockmate/min"]) == 0
    assert read_plan(f"{MODEL}/rockmate/min/plan.json").feasible
    assert complaints(capsys) == []


def test_a_share_of_a_joint_budget_is_that_of_the_largest_sample(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the plans of the samples that the plan was made of, and of this one alone if it shares no
    budget."""
    Path("larger").mkdir()
    own = read_plan(f"{POINT}/plan.json")
    larger = replace(own, keep_all=replace(own.keep_all, peak=2 * own.keep_all.peak))
    write_plan("larger/plan.json", larger)
    words = ["--graph", f"{MODEL}/graph.arrow", "--costs", f"{MODEL}/costs.arrow", "--no-search"]
    words += ["--frontier", f"{MODEL}/rockmate/frontier.arrow", "--budget", "60%"]
    joint = ["--joint", f"{POINT}/plan.json", "larger/plan.json"]
    path = f"{MODEL}/rockmate/60pct/plan.json"
    assert main(["select", *words, *joint, "--out", str(Path(path).parent)]) == 0
    shared = parse_budget("60%").total(larger.baseline.floor, larger.full_budget_bytes)
    assert read_plan(path).budget_total == shared
    assert complaints(capsys) == []
    write_plan("larger/plan.json", replace(larger, keep_all=own.keep_all))
    alone = parse_budget("60%").total(own.baseline.floor, own.full_budget_bytes)
    assert f"{path}: the budget 60% is {alone} bytes, not {shared}" in complaints(capsys)
    shutil.rmtree("larger")
    assert complaints(capsys) == []


def test_a_moved_run_is_as_good(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("results").rename("elsewhere")
    assert complaints(capsys, "elsewhere") == []


def test_an_audit_loads_no_torch(run: Path) -> None:
    code = "import sys; from tightfit.__main__ import main; main(['audit', 'results']); "
    result = subprocess.run(
        [sys.executable, "-c", f"{code}sys.exit('torch' in sys.modules)"],
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert result.returncode == 0


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("absent", "there is no such directory of results"),
        ("some.file", "is a file: name its folder, ."),
        (
            "empty",
            "holds no results of a run: name the folder that the key results of its configuration "
            "names",
        ),
    ],
)
def test_what_holds_no_results(
    run: Path, name: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("empty").mkdir()
    Path("some.file").touch()
    assert main(["audit", name]) == 1
    assert capsys.readouterr().err == f"tightfit audit: {name}: {sentence}\n"


@pytest.mark.parametrize("kind", ["changed", "truncated", "foreign"])
def test_every_artifact_is_read_and_damage_is_told_once(
    run: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = sorted(Path("results").rglob("*.arrow"))
    assert {path.stem for path in paths} == {
        *("graph", "costs", "blocks", "options", "frontier"),
        *("sequence", "schedule", "measurement", "memory_timeline"),
    }
    for path in paths:
        whole = bytearray(path.read_bytes())
        damaged = {
            "changed": bytes([*whole[:-300], whole[-300] ^ 1, *whole[-299:]]),
            "truncated": bytes(whole[:-9]),
            "foreign": b"something else",
        }
        path.write_bytes(damaged[kind])
        found = complaints(capsys)
        assert sum(line.startswith(f"{path}: ") for line in found) == 1, (path, found)
        path.write_bytes(whole)
    assert complaints(capsys) == []


def test_another_version_and_another_kind(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = store.ArtifactType(SCHEDULE.name, 99, SCHEDULE.schema)
    store.write(f"{POINT}/schedule.arrow", newer, [])
    other = store.ArtifactType("tightfit.dream", 1, SCHEDULE.schema)
    store.write(f"{MODEL}/blocks.arrow", other, [])
    found = "\n".join(complaints(capsys))
    assert "schedule.arrow: has version 99 of tightfit.schedule, this program reads" in found
    assert "blocks.arrow: is a 'tightfit.dream', which this program does not know" in found


def test_an_artifact_with_other_fields(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fewer = store.ArtifactType(SCHEDULE.name, SCHEDULE.version, SCHEDULE.schema.remove(0))
    store.write(f"{POINT}/schedule.arrow", fewer, [])
    assert f"{POINT}/schedule.arrow: the fields are not those of {SCHEDULE}" in complaints(capsys)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"peak": 1}'])
def test_a_plan_that_is_none(run: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"{POINT}/plan.json").write_text(text)
    found = complaints(capsys)
    assert sum(line.startswith(f"{POINT}/plan.json: ") for line in found) == 1, found


def test_a_store_is_whole_or_not(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert complaints(capsys, "store") == []
    solved = sorted(Path("store/options").iterdir())
    solved[0].write_bytes(solved[0].read_bytes()[:-9])
    sentence = f"{solved[0]}: is not a complete Arrow file"
    assert complaints(capsys, "store") == [sentence]
    assert complaints(capsys) == [sentence]


def rewrite_plan(**changes: Any) -> None:
    document = store.read_json(f"{POINT}/plan.json")
    assert set(changes) <= set(document)
    store.write_json(f"{POINT}/plan.json", {**document, **changes})


def rewrite_schedule(drop: int | None = None, **changes: Any) -> None:
    path = f"{POINT}/schedule.arrow"
    graph = store.read_header(path).metadata["graph"]
    steps = read_schedule(path)
    if drop is not None:
        del steps[drop]
    steps[2] = replace(steps[2], **changes)
    write_schedule(path, steps, graph)


def rewrite_measurement(**changes: Any) -> None:
    path = f"{POINT}/measurement.arrow"
    digest = module_digest(f"{POINT}/module")
    write_measurement(path, replace(read_measurement(path), **changes), digest)


def forget_the_module() -> None:
    path = f"{POINT}/measurement.arrow"
    write_measurement(path, read_measurement(path))


def faster() -> None:
    costs = read_costs(f"{MODEL}/costs.arrow")
    for key, row in costs.rows.items():
        costs.rows[key] = replace(row, seconds=row.seconds / 2)
    write_costs(f"{MODEL}/costs.arrow", costs)


def other_module() -> None:
    shutil.rmtree(f"{POINT}/module")
    shutil.copytree(f"{MODEL}/rockmate/1kB/module", f"{POINT}/module")


def edit(name: str) -> None:
    with Path(name).open("a") as file:
        file.write("# x\n")


CHANGES: dict[str, tuple[Callable[[], Any], str]] = {
    "peak": (lambda: rewrite_plan(peak=7), "plan.json: peak is 7, where the simulator finds"),
    "time": (lambda: rewrite_plan(time=1e-9), "plan.json: time is 1e-09, where the simulator"),
    "slower": (lambda: rewrite_plan(time=9.0), "plan.json: takes 9.0 s, its point of the frontier"),
    "recomputed": (lambda: rewrite_plan(recomputed=99), "plan.json: recomputed is 99, where"),
    "gap": (lambda: rewrite_plan(gap=0.0), "plan.json: gap is 0.0, where time and lower_bound"),
    "bound": (lambda: rewrite_plan(lower_bound=0.0), "where time and lower_bound make it 1.0"),
    "bound above": (
        lambda: rewrite_plan(lower_bound=9.0, gap=0.0),
        "is below its lower bound, 9.0 s",
    ),
    "bound refuted": (
        lambda: rewrite_plan(time=9.0, lower_bound=4.5, gap=0.5),
        "bytes in rockmate/frontier.arrow takes",
    ),
    "no bound": (lambda: rewrite_plan(lower_bound=None, gap=None), "says no bound of its time"),
    "optimal": (
        lambda: rewrite_plan(status="optimal", lower_bound=0.0, gap=1.0),
        "plan.json: is optimal, and 1.0 of its time is above its lower bound",
    ),
    "record of another": (
        lambda: shutil.copy(
            f"{MODEL}/lineage/costs.arrow.json", f"{MODEL}/lineage/graph.arrow.json"
        ),
        "graph.arrow: was changed after it was made, by its record",
    ),
    "budget": (
        lambda: rewrite_plan(budget_total=9, budget_bytes=9),
        "is above the budget of 9 bytes",
    ),
    "words": (lambda: rewrite_plan(budget="70%"), "plan.json: the budget 70% is"),
    "status": (lambda: rewrite_plan(status="infeasible"), "plan.json: is infeasible"),
    "no peak": (lambda: rewrite_plan(peak=None), "plan.json: is feasible without a peak"),
    "a figure": (lambda: rewrite_schedule(live=1), "schedule.arrow: step 2 has other figures"),
    "a step": (lambda: rewrite_schedule(drop=0), "schedule.arrow: cannot be run, step"),
    "no schedule": (
        lambda: Path(f"{POINT}/schedule.arrow").unlink(),
        "plan.json: there is no schedule.arrow beside it",
    ),
    "costs": (faster, "plan.json: time is"),
    "code": (lambda: edit(f"{POINT}/module/step.py"), "step.py: was changed after it was gen"),
    "more code": (lambda: edit(f"{POINT}/module/more.py"), "more.py: was not generated"),
    "less code": (
        lambda: Path(f"{POINT}/module/runtime/planned_module.py").unlink(),
        "planned_module.py: is missing",
    ),
    "module": (other_module, "module: was generated from another plan.json than is there now"),
    "no origin": (
        lambda: Path(f"{POINT}/module/made_from.json").unlink(),
        "made_from.json: cannot be read",
    ),
    "module measured": (
        lambda: edit(f"{POINT}/module/step.py"),
        "measurement.arrow: measured another module than the one beside it",
    ),
    "not named": (forget_the_module, "measurement.arrow: does not name the module that"),
    "measurement": (
        lambda: rewrite_measurement(predicted_peak=7),
        "measurement.arrow: predicted_peak is 7, in plan.json",
    ),
    "record": (
        lambda: Path(f"{MODEL}/lineage/graph.arrow.json").unlink(),
        "graph.arrow: there is no record of how it was made",
    ),
    "gone": (
        lambda: Path(f"{POINT}/memory_timeline.arrow").unlink(),
        "memory_timeline.arrow: is gone, and the record of how it was made is still there",
    ),
    "page": (lambda: edit(f"{MODEL}/report.html"), "report.html: was changed after it was made"),
    "input": (faster, f"was made of another {MODEL}/costs.arrow than is there now"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, sentence = CHANGES[name]
    change()
    assert any(sentence in line for line in complaints(capsys)), complaints(capsys)


def test_an_input_that_changed_is_told_once(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faster()
    [line] = [line for line in complaints(capsys) if "than is there now" in line]
    assert f"was made of another {MODEL}/costs.arrow than is there now, and so were " in line
    assert "more; run again, or name the configuration" in line


def test_what_running_a_module_leaves_is_no_change(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (Path(POINT) / "module" / "__pycache__").mkdir(exist_ok=True)
    (Path(POINT) / "module" / "__pycache__" / "step.pyc").touch()
    (Path(POINT) / "module" / ".snakemake_timestamp").touch()
    assert complaints(capsys) == []


def test_a_plan_of_a_chain_needs_no_schedule(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tightfit.schemas.chain import Chain, ChainPosition, write_chain

    last = ChainPosition(3, 1.0, 1.0, 1, 1, 1, 0, 0, 0, 0, "loss")
    layers = [ChainPosition(i, 1.0, 2.0, 10, 30, 10, 0, 0, 0, 0, f"layer {i}") for i in (1, 2)]
    write_chain("chain/chain.arrow", Chain([*layers, last], 10, 10))
    words = ["--chain", "chain/chain.arrow", "--strategy", "rotor", "--budget", "200"]
    assert main(["chain", *words, "--out", "chain/plan"]) == 0
    Path("chain/chain.arrow").rename("chain.arrow")
    assert complaints(capsys, "chain") == []
    sequence = Path("chain/plan/sequence.arrow")
    whole = sequence.read_bytes()
    sequence.write_bytes(whole[:50])
    assert complaints(capsys, "chain") == [f"{sequence}: is not a complete Arrow file"]
    sequence.write_bytes(whole)
    document = json.loads(Path("chain/plan/plan.json").read_text())
    store.write_json("chain/plan/plan.json", {**document, "peak": 10**6})
    assert any("is above the budget of 200 bytes" in line for line in complaints(capsys, "chain"))
