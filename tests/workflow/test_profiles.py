"""What the profiles ask of Snakemake. Those for clusters as far as a dry run goes; tests/slurm has
a real one."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.slurm import empty_stages
from tests.workflow.conftest import ROOT, Workplace, copy_checkout


def configure(workplace: Workplace, tiny: dict[str, Any]) -> None:
    workplace.configure({"models": {"tiny": tiny}, "strategies": ["keep_all"], "device": "cuda"})


@pytest.mark.parametrize("profile", ["slurm", "kubernetes"])
def test_a_cluster_is_sent_one_job_a_step(
    workplace: Workplace, tiny: dict[str, Any], profile: str
) -> None:
    need(profile)
    configure(workplace, tiny)
    result = workplace.snakemake("--dry-run", profile=profile)
    assert result.returncode == 0, result.stderr
    steps = [line.partition("] ")[2] for line in result.stderr.splitlines() if line[:1] == "["]
    assert len(steps) == 12
    assert steps.count("tiny: finding the options of each distinct block") == 1
    assert not (workplace.folder / "results").exists()


def test_pods_are_given_all_that_the_index_is_made_of(
    workplace: Workplace, tiny: dict[str, Any]
) -> None:
    need("kubernetes")
    configure(workplace, tiny)
    result = workplace.snakemake("--filegraph", profile="kubernetes")
    assert result.returncode == 0, result.stderr
    index = next(part for part in result.stdout.split("shape=none") if ">index<" in part)
    read = re.findall(r"/tightfit/run/results/tiny/([a-z_/.]+)", index)
    assert set(read) == {
        "costs.arrow",
        "report.done",
        "report.html",
        "keep_all/frontier.arrow",
        "keep_all/none/measurement.arrow",
        "keep_all/none/plan.json",
    }


def test_pods_are_given_the_folders_of_pipelines(
    workplace: Workplace, tiny: dict[str, Any]
) -> None:
    need("kubernetes")
    devices = [{"name": name, "memory": 10**9} for name in ("cpu:0", "cpu:1")]
    links = [{"between": ["cpu:0", "cpu:1"], "bandwidth": 1e9}]
    document = {"artifact": "tightfit.machine/1", "name": "two"}
    described = workplace.folder / "two.json"
    described.write_text(json.dumps({**document, "devices": devices, "links": links}))
    pipeline = {"machine": "two.json", "strategies": ["one_f_one_b"]}
    workplace.configure({"models": {"tiny": {**tiny, "pipeline": pipeline}}})
    result = workplace.snakemake("--dag", profile="kubernetes")
    assert result.returncode == 0, result.stderr
    rules = dict(re.findall(r'(\d+)\[label = "(\w+)', result.stdout))
    edges = re.findall(r"(\d+) -> (\d+)", result.stdout)
    read = {rules[one] for one, other in edges if rules[other] == "index"}
    assert read >= {"report_pipeline", "validate_pipeline", "split", "allocate"}


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ((), "None"),
        (("--max-jobs-per-timespan", "7/1s"), "7"),
        (("--max-jobs-per-timespan", "100/2s"), "100"),
    ],
)
def test_jobs_are_limited_in_a_second_where_that_is_asked_for_alone(
    tmp_path: Path, tiny: dict[str, Any], options: tuple[str, ...], limit: str
) -> None:
    workplace = Workplace(copy_checkout(tmp_path), tmp_path)
    workplace.configure({"models": {"tiny": tiny}})
    shutil.copy(empty_stages.__file__, tmp_path / "tightfit/__main__.py")
    watched = tmp_path / "Watched"
    watched.write_text(
        'include: "Snakefile"\n'
        "onsuccess:\n"
        "    limiter = workflow.scheduler.job_rate_limiter\n"
        '    print("limit:", limiter and limiter.max_jobs)\n'
    )
    graph = "results/tiny/graph.arrow"
    result = workplace.snakemake("--snakefile", str(watched), *options, graph)
    assert result.returncode == 0, result.stderr
    assert f"limit: {limit}" in result.stdout


RULES = sorted(
    name
    for path in sorted((ROOT / "workflow/rules").glob("*.smk"))
    for name in re.findall(r"^(?:use rule \w+ as|rule) (\w+)", path.read_text(), re.MULTILINE)
    if name != "traced_again"
)
"""The rules that run jobs."""


@pytest.mark.parametrize("profile", ["slurm", "kubernetes"])
def test_each_rule_has_its_resources(profile: str) -> None:
    document = profile_settings(profile)
    named = document["set-resources"]
    assert sorted(named) == RULES
    keys = {"mem_mb", "runtime"} if profile == "slurm" else {"mem_mb"}
    assert not {rule for rule, resources in named.items() if not keys <= set(resources)}
    assert set(document["set-threads"]) <= set(RULES)


def test_models_are_measured_one_at_a_time_here_and_one_on_each_node_of_slurm(
    workplace: Workplace, tiny: dict[str, Any]
) -> None:
    workplace.configure({"models": {"one": tiny, "other": tiny}, "strategies": ["keep_all"]})
    watched = workplace.checkout / "Watched"
    watched.write_text(
        'include: "Snakefile"\n'
        "from types import SimpleNamespace\n"
        'asked = {name: of(SimpleNamespace(model="one")) for name, of in MEASURING.items()}\n'
        'print("alone:", asked, file=sys.stderr)\n'
    )
    result = workplace.snakemake("--snakefile", str(watched), "--dry-run")
    assert result.returncode == 0, result.stderr
    alone = "alone: {'gpu': None, 'slurm_extra': '--exclusive', 'measuring': 1}\n"
    assert alone in result.stderr
    limits = {name: profile_settings(name).get("resources", {}) for name in ("default", "slurm")}
    assert limits == {"default": {"measuring": 1}, "slurm": {}}


def profile_settings(profile: str) -> Any:
    return yaml.safe_load((ROOT / f"workflow/profiles/{profile}/config.yaml").read_text())


def need(profile: str) -> None:
    """Skips the test where the profile's plugins are not installed."""
    plugins = {
        "slurm": ["snakemake_executor_plugin_slurm"],
        "kubernetes": ["snakemake_executor_plugin_kubernetes", "snakemake_storage_plugin_fs"],
    }
    missing = [name for name in plugins[profile] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed: make slurm installs it")


def test_what_is_asked_for_comes_first_and_the_frontier_follows(
    tmp_path: Path, tiny: dict[str, Any]
) -> None:
    workplace = Workplace(copy_checkout(tmp_path), tmp_path)
    workplace.configure({"models": {"tiny": tiny}, "strategies": ["auto"], "budgets": ["50%"]})
    shutil.copy(empty_stages.__file__, tmp_path / "tightfit/__main__.py")
    result = workplace.snakemake("--cores", "1", "results/tiny/report.html")
    assert result.returncode == 0, result.stderr
    steps = [line.partition("] ")[2] for line in result.stderr.splitlines() if line[:1] == "["]
    asked = [step for step in steps if step != "tiny: running the model"]
    assert asked[0].startswith("compiling the search")
    assert asked[5:9] == [
        "tiny: planning with auto",
        "tiny: choosing auto for 50%",
        "tiny: writing the module of auto 50pct",
        "tiny: running auto 50pct against the model",
    ]
    assert "tiny: planning with auto for all budgets" in asked[9:]
