"""Batches on a real Slurm, from models to the index page. Run by `make slurm`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.slurm import empty_stages
from tests.slurm.batch import Job, configure, gpus, jobs, model, restarts, send, send_and_crash
from tests.slurm.cluster import Cluster
from tests.workflow.conftest import Workplace
from tests.workflow.test_chains import write_machine
from tightfit.schemas.measurement import read_measurement
from tightfit.schemas.pipeline_measurement import read_pipeline_measurement

ON_GPU = {"trace", "profile", "reference", "validate"}
RULES = {
    *ON_GPU,
    *("partition", "solve", "frontier", "select", "generate", "perfetto", "report", "index"),
}
"""The rules of a model of one strategy, a job each."""


@pytest.fixture
def sent(cluster: Cluster) -> Any:
    """Gives the jobs that a test sent, in the order in which it did."""
    before = {job.number for job in jobs(cluster)}
    return lambda: [job for job in jobs(cluster) if job.number not in before]


def test_a_batch_ends_complete_though_its_node_crashed(
    cluster: Cluster, workplace: Workplace, tiny: dict[str, Any], sent: Any
) -> None:
    models = {"gpt2": tiny, "tower": model("tower"), "wide": model("tower", width=64)}
    configure(workplace, models, strategies=["rockmate", "keep_all"])
    result, struck = send_and_crash(workplace, cluster, "solve")
    assert result.returncode == 0, result.stderr
    assert struck and all(restarts(cluster, job) for job in struck)
    page = (workplace.folder / "results/index.html").read_text()
    for name in models:
        assert f"{name}/report.html" in page
        assert len(list((workplace.folder / f"results/{name}").rglob("measurement.arrow"))) == 2
    audit = workplace.stage("audit", str(workplace.folder / "results"))
    assert audit.returncode == 0, audit.stdout + audit.stderr

    done: list[Job] = sent()
    assert {job.state for job in done} == {"COMPLETED"}
    assert {job.partition for job in done} == {"cpu"}
    # All blocks of a model are solved by one job, with a process for each of its two cores.
    assert [job.cpus for job in done if job.rule == "solve"] == [2] * len(models)


def test_a_pipeline_a_whole_step_and_a_chain_are_planned_and_run_in_one_batch(
    cluster: Cluster, workplace: Workplace, sent: Any
) -> None:
    folder = workplace.folder
    (folder / "scratch").mkdir()
    write_machine(folder / "two.json", 10**9, 1e9, 2)
    document = json.loads((folder / "two.json").read_text())
    (folder / "two.json").write_text(json.dumps(document).replace("cuda:", "cpu:"))
    pipeline = {"machine": "two.json", "strategies": ["one_f_one_b"], "microbatches": 2}
    step = {"optimizer": {"name": "adamw"}, "offload": {"disk": "scratch"}, "budgets": ["min"]}
    models = {
        "pipe": {**model("trained_tower"), "pipeline": pipeline},
        "step": {**model("tower", width=768), **step},
    }
    own = {"model": "pipe", "machine": "two.json", "strategies": ["gpipe"]}
    configure(workplace, models, results="several", chains={"own": own})
    result = send(workplace)
    assert result.returncode == 0, result.stderr
    results = folder / "several"
    ranks = read_pipeline_measurement(results / "pipe/pipeline/one_f_one_b/measurement.json")
    assert ranks.status != "failed" and len(ranks.ranks) == 2, ranks.message
    found = read_measurement(results / "step/optimizer_offload/min/measurement.arrow")
    assert found.status != "failed" and found.bits_equal, found.message
    assert (results / "chains/own/gpipe/none/plan.json").exists()
    audit = workplace.stage("audit", str(results), "--configuration", "config.yaml")
    assert audit.returncode == 0, audit.stdout + audit.stderr
    done: list[Job] = sent()
    assert {job.state for job in done} == {"COMPLETED"}
    rules = {job.rule for job in done}
    assert {
        "allocate",
        "split",
        "validate_pipeline",
        "optimizer_offload",
        "chain_pipeline",
    } <= rules


def test_what_runs_a_model_is_sent_to_gpus(
    cluster: Cluster, workplace: Workplace, tmp_path: Path, sent: Any
) -> None:
    checkout = shutil.copytree(workplace.checkout, tmp_path / "checkout")
    shutil.copy(empty_stages.__file__, checkout / "tightfit/__main__.py")
    elsewhere = Workplace(checkout, tmp_path)
    configure(elsewhere, {"tower": model("tower")}, device="cuda")
    result = send(elsewhere)
    assert result.returncode == 0, result.stderr
    done: list[Job] = sent()
    assert len(done) == 12 and {job.rule for job in done} == RULES
    for job in done:
        wanted = ("gpu", 1) if job.rule in ON_GPU else ("cpu", 0)
        assert (job.partition, gpus(cluster, job.number)) == wanted, job


def test_what_ran_out_of_memory_or_time_is_sent_again_with_more(
    workplace: Workplace, sent: Any
) -> None:
    models = {"hungry": model("hungry", megabytes=2000), "slow": model("slow", seconds=60)}
    configure(workplace, models)
    runtime = "attempt if wildcards.model == 'slow' else 60"
    limits = ["trace:mem_mb=attempt*1500", f"trace:runtime={runtime}"]
    result = send(workplace, "--until", "trace", "--set-resources", *limits)
    assert result.returncode == 0, result.stderr
    done: list[Job] = sent()
    hungry = [(job.state, job.memory) for job in done if job.name.endswith("hungry")]
    assert hungry == [("FAILED", "1500M"), ("COMPLETED", "3000M")]
    slow = [(job.state, job.time) for job in done if job.name.endswith("slow")]
    assert slow[0] == ("TIMEOUT", "1:00")
    assert slow[-1] == ("COMPLETED", f"{len(slow)}:00")
