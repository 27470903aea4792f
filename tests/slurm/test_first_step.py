"""The first step of a batch on a real Slurm; whole.py has all of them."""

from __future__ import annotations

from tests.slurm.batch import configure, jobs, model, restarts, send_and_crash
from tests.slurm.cluster import Cluster
from tests.workflow.conftest import Workplace


def test_a_batch_goes_on_after_its_node_crashed(cluster: Cluster, workplace: Workplace) -> None:
    configure(workplace, {"tower": model("tower")})
    result, struck = send_and_crash(workplace, cluster, "trace", "--until", "trace")
    assert result.returncode == 0, result.stderr
    assert (workplace.folder / "results/tower/graph.arrow").exists()
    assert struck and all(restarts(cluster, job) for job in struck)
    assert {job.state for job in jobs(cluster)} == {"COMPLETED"}
