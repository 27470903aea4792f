"""Pages from results on disk: structure, escaping, and the command that writes them."""

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
from pathlib import Path

import pytest

from tests.stages.report.cases import small_graph, write_results
from tests.stages.report.pages import index_of, page_of, write_error
from tightfit.schemas.measurement import read_measurement, write_measurement
from tightfit.schemas.plan import GpuMemory, read_plan, write_plan
from tightfit.stages.report import command
from tightfit.stages.report.index_page import build_run_index
from tightfit.stages.report.load import load_model_results, model_result_files
from tightfit.stages.report.model_page import build_model_page
from tightfit.stages.report.render import render_index
from tightfit.util.errors import ArtifactError, ConfigError

EVIL = '<script>alert("x")</script>&\'"><img src=x onerror=alert(1)>'


def test_structure_of_a_models_page(results: Path) -> None:
    _, page = page_of(results / "small")
    assert len(page.all("section", "card")) == 3
    assert len(page.all("section", "panel")) == 4
    assert len(page.all("button", "mark")) == 2
    assert len(page.all("table", "plans")) == 1
    assert len(page.all("table", "matrix")) == 1
    assert len(page.all("path", "band")) == 3 * 4
    assert len(page.all("path", "measured")) == 2
    assert "Fits 50% (6.3 MB for the step): 6.3 MB measured, 1.20x the eager step." in page.text
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
        cuda_context=300_000_000,
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


def test_ids_are_unique_and_links_lead_somewhere(results: Path) -> None:
    _, page = page_of(results / "small")
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["data-plan"] for _, a in page.tags if a.get("data-plan")]
    assert targets and set(targets) <= set(ids)
    assert {link["href"] for link in page.all("a")} <= {f"#{name}" for name in ids}


def test_the_tightest_plan_that_fits_is_open_at_first(results: Path) -> None:
    assert build_model_page(load_model_results(results / "small")).first == "plan-rockmate-50pct"


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


def test_plans_lie_on_the_small_curve_of_the_index(results: Path, tmp_path: Path) -> None:
    """Where they were predicted, whatever time was measured."""
    shutil.copytree(results / "small", tmp_path / "small")
    path = tmp_path / "small/rockmate/50pct/measurement.arrow"
    write_measurement(path, replace(read_measurement(path), time_ratio=3.0))
    index = build_run_index([load_model_results(tmp_path / "small")])
    [spark] = index.sparks
    numbers = [float(number) for number in re.findall(r"[\d.]+", spark.path)]
    corners = list(zip(numbers[::2], numbers[1::2], strict=True))
    dots = {row.dot for row in index.rows if row.dot is not None}
    assert len(dots) == 2 and all(pytest.approx(dot, abs=0.1) in corners for dot in dots)


def test_index_of_a_thousand_plans_stays_small(results: Path) -> None:
    model = load_model_results(results / "small", whole=False)
    html = render_index(build_run_index([model] * 250))
    assert html.count("<tr data-model") == 1000
    assert len(html) < 2_000_000


def test_index_of_nothing(tmp_path: Path) -> None:
    _, page = index_of(tmp_path)
    assert "Nothing was planned yet." in page.text


def run(*words: str) -> None:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args(words))


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


def test_plans_are_shown_without_frontiers_where_that_is_asked(
    results: Path, tmp_path: Path
) -> None:
    """One that is left of an earlier run, too; a baseline's has no other budget than its own."""
    page, index = tmp_path / "report.html", tmp_path / "index.html"
    for more, shown in (((), True), (("--plans-only",), False)):
        run("--model-dir", str(results / "small"), *more, "--out", str(page))
        run("--index", str(results), *more, "--out", str(index))
        said = page.read_text()
        assert ("rockmate, predicted" in said) is shown
        assert "keep_all, predicted" in said and "rockmate at 50%, measured" in said
        read = model_result_files(results / "small", not more)
        assert (results / "small/rockmate/frontier.arrow" in read) is shown
        assert results / "small/keep_all/frontier.arrow" in read
    assert "rockmate" in index.read_text()


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--perfetto", "s"], ConfigError, "--graph"),
        (["--index", "i", "--graph", "g"], ConfigError, "--perfetto"),
        (["--model-dir", "nowhere"], ArtifactError, "nowhere"),
        (["--index", "nowhere"], ArtifactError, "nowhere"),
    ],
)
def test_wrong_arguments(
    tmp_path: Path, words: list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(*words, "--out", str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_no_torch_is_loaded(results: Path, tmp_path: Path) -> None:
    words = [
        "report",
        "--model-dir",
        str(results / "small"),
        "--out",
        str(tmp_path / "report.html"),
    ]
    code = (
        f"import sys; from tightfit.__main__ import main; done = main({words!r});"
        "sys.exit(done or bool({'torch', 'numba', 'scipy'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
