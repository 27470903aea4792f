"""Pages from results on disk: structure, escaping, and what is shown when parts are missing."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from schemas.errors import ArtifactError, ConfigError
from schemas.graph import write_graph
from schemas.measurement import read_measurement, write_measurement
from schemas.plan import GpuMemory, Transfers, read_plan, write_plan
from stages.report import cli, summary
from stages.report.index import run_index
from stages.report.load import load_model, load_run
from stages.report.page import model_page
from stages.report.render import render_index, render_model
from stages.report.verdicts import outcome
from tests.stages.report.cases import small_graph, write_results

EVIL = '<script>alert("x")</script>&\'"><img src=x onerror=alert(1)>'


class Page(HTMLParser):
    """Tags with their attributes, ids, and the text outside of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.text += data

    def all(self, tag: str, css_class: str = "") -> list[dict[str, str | None]]:
        return [
            attributes
            for name, attributes in self.tags
            if name == tag
            and (not css_class or css_class in (attributes.get("class") or "").split())
        ]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "results"
    write_results(folder / "small", small_graph())
    return folder


def page_of(folder: Path) -> tuple[str, Page]:
    html = render_model(model_page(load_model(folder)))
    return html, Page(html)


def index_of(folder: Path) -> tuple[str, Page]:
    html = render_index(run_index(load_run(folder)))
    return html, Page(html)


def test_structure_of_a_models_page(results: Path) -> None:
    _, page = page_of(results / "small")
    assert len(page.all("section", "card")) == 3
    assert len(page.all("section", "panel")) == 4
    assert len(page.all("button", "mark")) == 2
    assert len(page.all("table", "plans")) == 1
    assert len(page.all("table", "matrix")) == 1
    assert len(page.all("path", "band")) == 3 * 4
    assert len(page.all("path", "measured")) == 2
    assert "Fits 50% (6.3 MB for the step): 6.3 MB measured, 1.20x the unplanned step." in page.text
    assert "Does not fit 10%" in page.text
    assert "Not measured yet: rockmate at 90%." in page.text


def test_a_plan_for_a_gpu_states_its_bytes_in_three_ways(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    shutil.copytree(results / "small", folder)
    place = folder / "rockmate" / "50pct"
    gpu = GpuMemory(8_000_001, 8_000_512, 8_388_608, 10_000_000, 1_000_000, 9_000_000, 2_097_152)
    plan = replace(read_plan(place / "plan.json"), gpu=gpu)
    write_plan(place / "plan.json", plan)
    found = replace(
        read_measurement(place / "measurement.arrow"),
        predicted_allocated=gpu.allocated, allocated_peak=gpu.allocated,
        predicted_reserved=gpu.reserved, reserved_peak=gpu.reserved + 2_097_152,
        context=300_000_000,
    )  # fmt: skip
    write_measurement(place / "measurement.arrow", found)
    html = page_of(folder)[0]
    for said in (
        "8,000,001 bytes, 1.0 MB of them libraries",
        "8,388,608 bytes, 2.1 MB of it at once, ahead of the first step",
        "10,000,000 bytes",
        "300,000,000 bytes",
        "8,000,512 bytes, as predicted to the byte",
        "10,485,760 bytes, 2,097,152 bytes more than predicted",
    ):
        assert said in html
    assert "Reserved" not in page_of(results / "small")[0]


def test_the_table_tells_the_gap_of_each_plan(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "small", tmp_path / "small")
    path = tmp_path / "small" / "rockmate" / "50pct" / "plan.json"
    write_plan(path, replace(read_plan(path), gap=0.4321))
    summary.run(argparse.Namespace(results=tmp_path, configuration=None))
    told = capsys.readouterr().out.splitlines()
    assert any(" gap " in line for line in told)
    [row] = [line for line in told if "rockmate" in line and " 50% " in line]
    assert " 43.2% " in row


def test_what_plans_take_of_a_gpu_is_a_table_of_its_own(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "small", tmp_path / "small")
    plans = argparse.Namespace(results=tmp_path, configuration=None)
    summary.run(plans)
    assert "Of the GPU in all" not in capsys.readouterr().out
    place = tmp_path / "small" / "rockmate" / "50pct"
    gpu = GpuMemory(8_000_001, 8_100_000, 8_300_000, 10_000_000, 0, 9_000_000, 2_097_152)
    write_plan(place / "plan.json", replace(read_plan(place / "plan.json"), gpu=gpu))
    measured = read_measurement(place / "measurement.arrow")
    taken = {"allocated_peak": 8_200_000, "reserved_peak": 8_400_000, "context": 300_000_000}
    write_measurement(place / "measurement.arrow", replace(measured, **taken))  # type: ignore[arg-type]
    summary.run(plans)
    told = capsys.readouterr().out
    table = told[told.index("Of the GPU in all") :]
    for said in ("8.0 MB", "8.1 MB, measured 8.2 MB", "8.3 MB, measured 8.4 MB"):
        assert said in table
    for said in ("10.0 MB", "2.1 MB", "300.0 MB"):
        assert said in table


def test_what_plans_send_is_a_table_of_its_own(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(results / "small", tmp_path / "small")
    plans = argparse.Namespace(results=tmp_path, configuration=None)
    place = tmp_path / "small" / "rockmate" / "50pct"
    sent = Transfers(5_000_000, 5_000_000, 3_000_000, 0.004)
    write_plan(place / "plan.json", replace(read_plan(place / "plan.json"), transfers=sent))
    measured = read_measurement(place / "measurement.arrow")
    more = {"slow_memory": "disk", "predicted_slow": 3_000_000, "slow_peak": 3_000_000}
    waits = {"predicted_waited": 0.004, "waited": 0.006}
    write_measurement(place / "measurement.arrow", replace(measured, **more, **waits))  # type: ignore[arg-type]
    summary.run(plans)
    told = capsys.readouterr().out
    table = told[told.index("Transfers to another memory, predicted and measured") :]
    assert table.count("3.0 MB") == 2 and "4.0 ms" in table and "6.0 ms" in table
    html = page_of(tmp_path / "small")[0]
    for said in (
        "3,000,000 bytes at most, 5.0 MB leave in a step, waited for 4.0 ms",
        "3,000,000 bytes, as predicted to the byte",
        "6.0 ms a step where 4.0 ms was predicted",
    ):
        assert said in html


def test_ids_are_unique_and_links_lead_somewhere(results: Path) -> None:
    _, page = page_of(results / "small")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["data-plan"] for _, a in page.tags if a.get("data-plan")]
    assert targets and set(targets) <= set(ids)
    assert {link["href"] for link in page.all("a")} <= {f"#{name}" for name in ids}


def test_the_tightest_plan_that_fits_is_open_at_first(results: Path) -> None:
    assert model_page(load_model(results / "small")).first == "plan-rockmate-50pct"


def test_nothing_is_fetched(results: Path) -> None:
    for html, page in (page_of(results / "small"), index_of(results)):
        for tag, attributes in page.tags:
            assert tag not in ("link", "img", "iframe", "object", "embed", "base")
            assert "src" not in attributes
        assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|https?://", html)


def test_the_policy_allows_only_the_pages_own_script(results: Path) -> None:
    html, page = page_of(results / "small")
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a) or ""
    script = html.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert "default-src 'none'" in policy and f"script-src 'sha256-{digest}'" in policy


def test_hover_data_is_json(results: Path) -> None:
    html, _ = page_of(results / "small")
    data = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    assert len(data) == 3
    for text in data:
        document = json.loads(text)
        assert len(document["columns"]) == 480
        assert len(document["owners"]) == 4


def write_error(folder: Path, sentence: str, stage: str = "stage") -> None:
    (folder / "logs").mkdir(parents=True)
    (folder / "logs" / f"{stage}.txt").write_text(sentence)


def test_a_page_is_the_same_every_time(results: Path) -> None:
    assert page_of(results / "small")[0] == page_of(results / "small")[0]


def test_names_from_artifacts_are_harmless(tmp_path: Path) -> None:
    graph = small_graph(model=EVIL, module="a<script>alert(2)</script>{}")
    write_results(tmp_path / "evil", graph)
    write_error(tmp_path / "evil", EVIL)
    write_error(tmp_path / "evil" / "rotor", EVIL)
    for html, page in (page_of(tmp_path / "evil"), index_of(tmp_path)):
        scripts = page.all("script")
        assert all(a.get("type", "application/json") == "application/json" for a in scripts)
        assert sum("type" not in a for a in scripts) == 1
        assert not page.all("img")
        assert not any(key.startswith("on") for _, a in page.tags for key in a)
        assert "<script>alert" not in html and "onerror=alert(1)>" not in html
        assert EVIL in page.text


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
        ("rockmate/50pct/line.arrow", ("nothing", "")),
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
        load_model(folder)


@pytest.mark.parametrize(
    ("place", "stage", "outdated"),
    [
        ("small", "trace", {"rockmate", "unplanned"}),
        ("small", "solve", {"rockmate", "unplanned"}),
        ("small", "report", set()),
        ("small/rockmate", "frontier", {"rockmate"}),
    ],
)
def test_a_plan_that_could_not_be_made_anew_does_not_fit(
    results: Path, tmp_path: Path, place: str, stage: str, outdated: set[str]
) -> None:
    shutil.copytree(results, tmp_path / "results")
    write_error(tmp_path / "results" / place, "no operator", stage)
    plans = load_model(tmp_path / "results" / "small").plans
    assert {plan.plan.strategy for plan in plans} == {"rockmate", "unplanned"}
    for plan in plans:
        old = plan.plan.strategy in outdated
        assert plan.error == ("no operator (this plan is from an earlier run)" if old else "")
        assert (outcome(plan).word == "failed") == old


def test_index_has_a_row_for_every_plan_and_failure(results: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(results, folder)
    write_error(folder / "broken", "the model cannot be traced")
    write_error(folder / "small" / "rotor", "rotor: no options")
    (folder / "not a model").mkdir()
    index = run_index(load_run(folder))
    assert [(row.model, row.strategy, row.word) for row in index.rows] == [
        ("broken", "", "failed"),
        ("small", "rotor", "failed"),
        ("small", "rockmate", "should fit"),
        ("small", "rockmate", "fits"),
        ("small", "rockmate", "infeasible"),
        ("small", "unplanned", "baseline"),
    ]
    assert dict(index.tally) == {
        "models": 2,
        "plans": 4,
        "fits": 1,
        "should fit": 1,
        "infeasible": 1,
        "failed": 2,
    }
    fitting = index.rows[3]
    assert fitting.link == "small/report.html#plan-rockmate-50pct"
    assert fitting.dot and all(0 <= place <= 1000 for place in fitting.dot)
    assert index.rows[4].dot is None
    _, page = index_of(folder)
    assert len(page.all("svg", "spark")) == 3
    assert len([a for a in page.all("tr") if "data-text" in a]) == 6


def test_index_of_a_thousand_plans_stays_small(results: Path) -> None:
    model = load_model(results / "small", whole=False)
    html = render_index(run_index([model] * 250))
    assert html.count("<tr data-model") == 1000
    assert len(html) < 2_000_000


def test_index_of_nothing(tmp_path: Path) -> None:
    _, page = index_of(tmp_path)
    assert "Nothing was planned yet." in page.text


def run(*words: str) -> None:
    parser = argparse.ArgumentParser()
    cli.add_arguments(parser)
    cli.run(parser.parse_args(words))


def test_command_line(results: Path, tmp_path: Path) -> None:
    small = results / "small"
    run("--model-dir", str(small), "--out", str(tmp_path / "report.html"))
    run("--index", str(results), "--out", str(tmp_path / "index.html"))
    schedule = str(small / "rockmate" / "50pct" / "schedule.arrow")
    graph = str(small / "graph.arrow")
    run("--perfetto", schedule, "--graph", graph, "--out", str(tmp_path / "trace.json"))
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert "All plans" in (tmp_path / "index.html").read_text()
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


@pytest.mark.parametrize(
    ("words", "error", "sentence"),
    [
        (["--perfetto", "s"], ConfigError, "--graph"),
        (["--index", "i", "--graph", "g"], ConfigError, "--perfetto"),
        (["--model-dir", "nowhere"], ArtifactError, "nowhere"),
        (["--index", "nowhere"], ArtifactError, "nowhere"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, words: list[str], error: type[Exception], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        run(*words, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no results of a model"):
        load_model(tmp_path)


def test_no_torch_is_loaded(results: Path, tmp_path: Path) -> None:
    words = [
        "report",
        "--model-dir",
        str(results / "small"),
        "--out",
        str(tmp_path / "report.html"),
    ]
    code = (
        f"import sys; from stages.__main__ import main; done = main({words!r});"
        "sys.exit(done or bool({'torch', 'numba', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
