"""What pages and index say of what failed, and of what is not there."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.stages.report.cases import small_graph
from tests.stages.report.pages import Page, index_of, page_of, write_error
from tightfit.__main__ import main
from tightfit.schemas.error_logs import upstream_error
from tightfit.schemas.graph.training_graph import write_graph
from tightfit.stages.report import command
from tightfit.stages.report.index_page import build_run_index
from tightfit.stages.report.load import (
    NOT_PLANNED_YET,
    load_model_results,
    load_run_results,
)
from tightfit.stages.report.outcomes import plan_outcome
from tightfit.util.errors import ArtifactError, ConfigError


def test_a_model_that_failed_has_a_page(tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    write_error(folder, "trace: the factory data.models:none does not exist\n")
    _, page = page_of(folder)
    assert "the factory data.models:none does not exist" in page.text
    assert "There is no traced graph" in page.text


@pytest.mark.parametrize(
    ("missing", "gone"),
    [
        ("graph.arrow", ("path", "band")),
        ("costs.arrow", ("div", "tree")),
        ("blocks.arrow", ("table", "matrix")),
        ("rockmate/50pct/memory_timeline.arrow", ("nothing", "")),
        ("rockmate/50pct/schedule.arrow", ("nothing", "")),
        ("rockmate/50pct/sequence.arrow", ("nothing", "")),
        ("rockmate/50pct/measurement.arrow", ("nothing", "")),
        ("rockmate/frontier.arrow", ("nothing", "")),
        ("options.arrow", ("nothing", "")),
    ],
)
def test_parts_that_are_missing(
    results: Path, tmp_path: Path, missing: str, gone: tuple[str, str]
) -> None:
    folder = tmp_path / "small"
    shutil.copytree(results / "small", folder)
    (folder / missing).unlink()
    _, page = page_of(folder)
    assert not page.all(*gone)
    assert len(page.all("section", "card")) == 3


def test_a_folder_without_plans_has_a_page(tmp_path: Path) -> None:
    write_graph(tmp_path / "new" / "graph.arrow", small_graph())
    _, page = page_of(tmp_path / "new")
    assert "No plan was chosen yet." in page.text


def test_a_damaged_artifact_is_one_sentence(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(results / "small", folder)
    path = folder / "rockmate" / "50pct" / "schedule.arrow"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError, match=r"schedule\.arrow"):
        load_model_results(folder)


@pytest.mark.parametrize(
    ("place", "stage", "outdated"),
    [
        ("small", "trace", {"rockmate", "keep_all"}),
        ("small", "solve", {"rockmate", "keep_all"}),
        ("small", "report", set()),
        ("small/rockmate", "candidates", {"rockmate"}),
        ("small/rockmate", "frontier", set()),
    ],
)
def test_a_plan_that_could_not_be_made_anew_does_not_fit(
    results: Path, tmp_path: Path, place: str, stage: str, outdated: set[str]
) -> None:
    shutil.copytree(results, tmp_path / "results")
    write_error(tmp_path / "results" / place, "no operator", stage)
    plans = load_model_results(tmp_path / "results" / "small").plans
    assert {plan.plan.strategy for plan in plans} == {"rockmate", "keep_all"}
    for plan in plans:
        old = plan.plan.strategy in outdated
        assert plan.error == ("no operator (this plan is from an earlier run)" if old else "")
        assert (plan_outcome(plan).word == "failed") == old


def test_a_frontier_that_failed_is_told_beside_its_plans(results: Path, tmp_path: Path) -> None:
    shutil.copytree(results, tmp_path / "results")
    write_error(tmp_path / "results" / "small" / "rockmate", "no memory", "frontier")
    assert load_model_results(tmp_path / "results" / "small").failures == {"rockmate": "no memory"}


def test_chains_are_counted_apart_from_models(results: Path) -> None:
    models = load_run_results(results)
    of_chain = replace(build_run_index(models).rows[0], model="towers")
    counts = dict(build_run_index(models, further=[of_chain, of_chain]).tally)
    assert counts["models" if len(models) > 1 else "model"] == len(models)
    assert counts["chain"] == 1
    alone = build_run_index([], further=[of_chain]).tally
    assert alone[:2] == [("chain", 1), ("plan", 1)]


def test_index_has_a_row_for_every_plan_and_failure(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    write_error(folder / "broken", "the model cannot be traced")
    write_error(folder / "small" / "rotor", "rotor: no options")
    (folder / "not a model").mkdir()
    index = build_run_index(load_run_results(folder))
    assert [(row.model, row.strategy, row.word) for row in index.rows] == [
        ("broken", "", "failed"),
        ("small", "rotor", "failed"),
        ("small", "rockmate", "should fit"),
        ("small", "rockmate", "fits"),
        ("small", "rockmate", "infeasible"),
        ("small", "keep_all", "baseline"),
    ]
    assert dict(index.tally) == {
        "models": 2,
        "plans": 4,
        "fits": 1,
        "should fit": 1,
        "infeasible": 1,
        "baseline": 1,
        "failed": 2,
    }
    fitting = index.rows[3]
    assert fitting.link == "" and not index_of(folder)[1].all("a")
    (folder / "small" / "report.html").touch()
    fitting = build_run_index(load_run_results(folder)).rows[3]
    assert fitting.link == "small/report.html#plan-rockmate-50pct"
    assert fitting.dot and all(0 <= place <= 1000 for place in fitting.dot)
    assert index.rows[4].dot is None
    _, page = index_of(folder)
    assert len(page.all("svg", "spark")) == 3
    assert len([a for a in page.all("tr") if "data-text" in a]) == 6


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no results of a model"):
        load_model_results(tmp_path)


PLANNED = ["rockmate/50pct", "offload/50pct", "offmate/10pct", "hiremate/none", "auto/50pct"]
"""Points that a run was for; the results have the first one alone."""


def failing(results: Path, folder: Path) -> Path:
    """Results of which plans wait for a link, options and clusters that failed."""
    shutil.copytree(results, folder)
    write_error(folder, "machine: the disk is full", "link_cpu")
    write_error(folder / "small", "solve: no option", "solve_linked")
    (folder / "small" / "logs" / "hierarchy.txt").write_text("partition: no cluster")
    return folder


def test_what_was_planned_and_is_not_there_has_the_reason(results: Path, tmp_path: Path) -> None:
    folder = failing(results, tmp_path / "results")
    found = load_model_results(folder / "small", planned=PLANNED)
    assert found.error == "" and not any(plan.error for plan in found.plans)
    assert found.failures == {
        "offload/50pct": "machine: the disk is full",
        "offmate/10pct": "solve: no option",
        "hiremate/none": "partition: no cluster",
        "auto/50pct": NOT_PLANNED_YET,
    }
    write_error(folder / "small" / "auto", "combine: no plan", "candidates")
    assert load_model_results(folder / "small").failures == {"auto": "combine: no plan"}
    found = load_model_results(folder / "small", planned=PLANNED)
    assert found.failures["auto/50pct"] == "combine: no plan" and "auto" not in found.failures
    (folder / "small" / "logs" / "trace.txt").write_text("trace: no model")
    found = load_model_results(folder / "small", planned=PLANNED)
    assert found.error == "trace: no model"
    assert found.failures == {
        "offload/50pct": "trace: no model",
        "offmate/10pct": "trace: no model",
        "hiremate/none": "trace: no model",
        "auto/50pct": "combine: no plan",
    }


def test_a_link_that_failed_is_told_of_older_plans_alone(results: Path, tmp_path: Path) -> None:
    folder = failing(results, tmp_path / "results") / "small"
    shutil.copytree(folder / "rockmate", folder / "offload")
    made, log = folder / "offload" / "candidates.arrow", folder.parent / "logs" / "link_cpu.txt"
    (folder / "offload" / "frontier.arrow").rename(made)
    for later, said in ((-1, "the disk is full"), (1, "")):
        os.utime(made, ns=(log.stat().st_mtime_ns + later,) * 2)
        assert said in upstream_error(folder / "offload" / "50pct")
        assert bool(upstream_error(folder / "offload" / "50pct")) == bool(said)


def failed(folder: Path, *planned: Path) -> None:
    """What a failed run leaves of results, for these plans."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    words = ["--failed", folder, "--out", folder / "index.html", "--planned", *planned]
    command.run(parser.parse_args(list(map(str, words))))


def test_a_failed_run_has_a_page_of_each_model_that_is_not_done(
    results: Path, tmp_path: Path
) -> None:
    folder = failing(results, tmp_path / "results")
    for other in ("done", "begun"):
        shutil.copytree(results / "small", folder / other)
    for name in ("small", "done"):
        (folder / name / "report.done").touch()
    points = {"small": PLANNED, "begun": PLANNED[:1], "done": PLANNED[:1]}
    planned = [folder / name / point / "plan.json" for name in points for point in points[name]]
    failed(folder, *planned)
    assert not (folder / "small" / "report.done").exists()
    assert "machine: the disk is full" in (folder / "small" / "report.html").read_text()
    assert (folder / "begun" / "report.html").exists()
    assert not (folder / "done" / "report.html").exists() and (folder / "done/report.done").exists()
    page = Page((folder / "index.html").read_text())
    assert {a["href"].partition("/")[0] for a in page.all("a") if a["href"]} == {"small", "begun"}
    rows = [(a["data-strategy"], a["data-status"]) for a in page.all("tr") if "data-text" in a]
    assert ("offload", "failed") in rows and ("auto", "not planned") in rows
    with pytest.raises(ConfigError, match=r"--planned plan\.json: expected MODEL/STRATEGY"):
        failed(folder, Path("plan.json"))


@pytest.mark.parametrize("file", ["rockmate/50pct/schedule.arrow", "rockmate/frontier.arrow"])
def test_a_failed_run_with_a_damaged_file_has_all_other_pages(
    file: str, results: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    for name in ("damaged", "other"):
        shutil.copytree(results / "small", folder / name)
    (folder / "damaged" / "report.html").touch()
    (folder / "damaged" / file).write_bytes(b"nothing")
    failed(folder)
    assert not (folder / "damaged" / "report.html").exists()
    assert (folder / "other" / "report.html").exists()
    page = Page((folder / "index.html").read_text())
    assert {a["href"].partition("/")[0] for a in page.all("a") if a["href"]} == {"other"}
    assert {a["data-model"] for a in page.all("tr") if "data-text" in a} == {"damaged", "other"}


def test_a_damaged_plan_is_a_row_of_index_and_table_and_hides_no_other(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results / "small", folder / "small")
    chain = folder / "chains/towers/rotor/50pct/plan.json"
    pipeline = folder / "small/pipeline/madpipe/plan/plan.json"
    for path in (folder / "small/rockmate/50pct/plan.json", chain, pipeline):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    failed(folder, *folder.glob("small/*/*/plan.json"), chain, pipeline)
    rows = {
        (row["data-model"], row["data-strategy"], row["data-status"])
        for row in Page((folder / "index.html").read_text()).all("tr")
        if "data-text" in row
    }
    damaged = {
        ("small", "rockmate", "damaged"),
        ("small", "madpipe", "damaged"),
        ("chains/towers", "rotor", "damaged"),
    }
    assert damaged <= rows
    assert {("small", "keep_all", "baseline"), ("small", "rockmate", "infeasible")} <= rows
    capsys.readouterr()
    assert main(["summary", str(folder)]) == 1
    told = capsys.readouterr().out
    assert told.count(" damaged ") == 3 and " baseline " in told and " infeasible " in told
    assert f"small rockmate 50%: {folder}/small/rockmate/50pct/plan.json: lacks" in told
    assert f"small madpipe -: {pipeline}: lacks" in told
    assert f"chains/towers rotor 50%: {chain}: lacks" in told


def test_a_model_that_failed_as_a_whole_has_the_rows_of_the_table(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results / "small", folder / "small")
    write_error(folder / "broken", "no such factory", "trace")
    for name in ("rockmate", "keep_all"):
        shutil.copytree(folder / "small" / name, folder / "half" / name)
    write_error(folder / "half", "no such factory", "trace")
    budgets = ["50%", "10%", "90%"]
    model = {"factory": "nowhere:model", "strategies": ["rockmate"], "budgets": budgets}
    document = {"results": str(folder), "models": {"broken": model, "half": model}}
    (tmp_path / "config.yaml").write_text(json.dumps(document))
    main(["summary", "--configuration", str(tmp_path / "config.yaml")])
    lines = capsys.readouterr().out.splitlines()
    told = [line.split("│") for line in lines if "rockmate │" in line]
    points = [f"rockmate/{budget}" for budget in ("50pct", "10pct", "90pct")]
    planned = {"broken": points, "half": points}
    rows = build_run_index(load_run_results(folder, planned)).rows
    shown = [(row.strategy, row.budget, row.word) for row in rows]
    # In one order: that of the configuration.
    assert shown == [tuple(word.strip() for word in line[2:5]) for line in told]
    assert len(shown) == 6 and {word for _, _, word in shown} == {"failed"}
    page = page_of(folder / "broken")[1]
    assert page.text.count("no such factory") == 1


def write_page(*words: object) -> str:
    """Runs the stage, and returns the page that it wrote."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    options = parser.parse_args(list(map(str, words)))
    command.run(options)
    [record] = command.lineage_entries(options)
    assert not [path for path in record.inputs if "keep_all" in str(path) or "gone" in str(path)]
    return Path(options.out).read_text()


def test_plans_and_models_that_left_the_configuration_leave_the_pages(
    results: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    shutil.copytree(results / "small", folder / "gone")
    write_error(folder / "small" / "rotor", "rotor: no options")
    model, points = folder / "small", ["rockmate/50pct"]
    words = ["--model-dir", model, "--out", model / "report.html", "--done", model / "report.done"]
    page = Page(write_page(*words, "--points", *points))
    plans = {a["id"] for _, a in page.tags if (a.get("id") or "").startswith("plan-")}
    assert plans == {"plan-rockmate-50pct", "plan-rockmate-50pct-hover"}
    assert (model / "report.done").read_text() == "rockmate/50pct\n"
    index = folder / "index.html"
    page = Page(write_page("--index", folder, "--models", "small", "new", "--out", index))
    rows = [(a["data-model"], a["data-strategy"]) for a in page.all("tr") if "data-text" in a]
    assert rows == [("small", "rockmate")]
    shown = load_model_results(model, planned=points)
    assert not shown.failures and list(shown.frontiers) == ["rockmate"]
    folders = {name.rpartition("/")[0] for name in shown.digests}
    assert folders == {"", "rockmate", "rockmate/50pct"}
