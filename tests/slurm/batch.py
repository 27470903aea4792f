"""A batch of small models sent to a cluster, whose node crashes while it runs."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tests.slurm.cluster import Cluster, wait_until
from tests.workflow.conftest import Workplace

SLURM = ("--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "20")


@dataclass(frozen=True)
class Job:
    """A job as Slurm has it, finished or not."""

    number: str
    state: str
    name: str
    partition: str
    cpus: int
    memory: str
    time: str

    @property
    def rule(self) -> str:
        """The rule that it is of."""
        return self.name.removeprefix("rule_").partition("_wildcards_")[0]


def model(factory: str, **arguments: float) -> dict[str, Any]:
    """A model of `factories.py`, as it is configured."""
    return {"factory": f"factories:{factory}", "arguments": arguments}


def configure(workplace: Workplace, models: dict[str, Any], **rest: Any) -> None:
    """Configures models for plans of one strategy that are made in no time."""
    document = {
        "models": models,
        "strategies": ["keep_all"],
        "pairs": 2,
        "solver": {"peaks": 2, "saves": 2},
        "search_path": [str(workplace.checkout), str(Path(__file__).parent)],
    }
    workplace.configure({**document, **rest})


def send(workplace: Workplace, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs the workflow on the cluster."""
    return workplace.snakemake(*SLURM, *options, profile="slurm")


def send_and_crash(
    workplace: Workplace, cluster: Cluster, rule: str, *options: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Runs the workflow; the node crashes and comes back while a job of a rule runs.

    Gives the finished run and the numbers of the jobs that ran on the node when it crashed.
    """

    def running() -> list[str]:
        return [job.number for job in jobs(cluster) if job.state == "RUNNING"]

    def there() -> bool:
        return any(job.state == "RUNNING" and job.rule == rule for job in jobs(cluster))

    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(send, workplace, *options)
        try:
            wait_until(lambda: run.done() or there(), 600)
            assert not run.done(), run.result().stderr
            struck = running()
            cluster.kill_node()
            wait_until(lambda: cluster.node() == "down")
            cluster.start_node()
        except BaseException:
            _end_runs()
            raise
        return run.result(), struck


def jobs(cluster: Cluster) -> list[Job]:
    """All jobs, in the order in which they were sent."""
    rows = cluster.jobs("%i", "%T", "%k", "%P", "%C", "%m", "%l")
    found = [Job(row[0], row[1], row[2], row[3], int(row[4]), *row[5:]) for row in rows]
    return sorted(found, key=lambda job: int(job.number))


def restarts(cluster: Cluster, number: str) -> int:
    """How often Slurm started a job again."""
    return int(_details(cluster, number)["Restarts"])


def gpus(cluster: Cluster, number: str) -> int:
    """How many GPUs a job asked for."""
    return int(_details(cluster, number).get("TresPerJob", "0").rpartition(":")[2])


def _details(cluster: Cluster, number: str) -> dict[str, str]:
    words = " ".join(cluster.ask("scontrol", "show", "job", number)).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def _end_runs() -> None:
    """Ends what this process sends, which would wait for a node for ever."""
    for child in psutil.Process().children():
        if child.name().startswith("snakemake"):
            child.kill()
