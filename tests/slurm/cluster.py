"""A Slurm of one node on this machine: its daemons run in a folder, without systemd, without
accounting, and end with the context."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")

# The node claims more than this machine has, so that jobs of a real cluster's size are taken. What
# Slurm does by the minute is done by the second: it finds a node lost after 6 s instead of 300,
# starts jobs given back after 5 s instead of 120 (cred_expire), and looks for work every 2 s
# instead of 60. Memory is watched as the kernel counts it, since there are no control groups.
SETTINGS = """
ClusterName=tightfit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
SlurmdTimeout=6
MessageTimeout=5
BatchStartTimeout=5
SchedulerParameters=sched_interval=2,bf_interval=2
KillWait=2
MinJobAge=86400
NodeName=node NodeHostname={host} NodeAddr=127.0.0.1 Port={node_port} CPUs=64 RealMemory=256000 \
Gres=gpu:1
PartitionName=cpu Nodes=node Default=YES
PartitionName=gpu Nodes=node
"""


@dataclass(frozen=True)
class Cluster:
    """A running Slurm. Its commands find it by what `environment` gives."""

    folder: Path

    @property
    def settings(self) -> Path:
        """The file `SLURM_CONF` names."""
        return self.folder / "slurm.conf"

    def ask(self, *words: str) -> list[str]:
        """The lines that a command of Slurm prints."""
        result = subprocess.run(
            words,
            env={**os.environ, **self.environment()},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return result.stdout.splitlines()

    def jobs(self, *columns: str) -> list[list[str]]:
        """What `squeue` tells of all jobs, finished ones too: a row a job, `%` codes as columns."""
        lines = self.ask("squeue", "--states=all", "--noheader", "--format", "|".join(columns))
        return [line.split("|") for line in lines]

    def start_node(self) -> None:
        """Starts the daemon of the node, and waits until the node takes jobs."""
        self.run("slurmd", "-N", "node")
        wait_until(lambda: self.node() in ("idle", "mix", "alloc"))

    def kill_node(self) -> None:
        """Kills the daemon of the node and all that runs on it, at once, as a crash would."""
        for process in self.on_the_node():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def node(self) -> str:
        """What Slurm takes the node for: idle, mix, alloc, down, ..."""
        return self.ask("sinfo", "--noheader", "-o", "%t")[0].rstrip("*")

    def on_the_node(self) -> list[psutil.Process]:
        """The node's daemon, what watches over the jobs, and the jobs, in this order."""
        found = [process for process in psutil.process_iter() if self._is_on_the_node(process)]
        return sorted(found, key=lambda process: not process.name().startswith("slurm"))

    def environment(self) -> dict[str, str]:
        """What Slurm's commands and what sends jobs need in their environment."""
        path = f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        return {"SLURM_CONF": str(self.settings), "PATH": path}

    def run(self, program: str, *words: str) -> None:
        """Starts a daemon, which goes on by itself."""
        subprocess.run(
            [shutil.which(program) or program, *words],
            env={**os.environ, **self.environment()},
            check=True,
        )

    def _is_on_the_node(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            if process.name() == "slurmstepd":  # It writes over its environment.
                return Path(process.cwd()) == self.folder
            environment = process.environ()
            here = environment.get("SLURM_CONF") == str(self.settings)
            return here and (process.name() == "slurmd" or "SLURM_JOB_ID" in environment)
        return False


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """A cluster in an empty folder; its log files stay there."""
    cluster = Cluster(folder)
    _write_settings(cluster)
    munged = _munged(folder)
    try:
        cluster.run("slurmctld")
        cluster.start_node()
        yield cluster
    finally:
        cluster.kill_node()
        _end(folder / "slurmctld.pid")
        munged.terminate()
        munged.wait()


def wait_until(there: Callable[[], object], seconds: float = 60) -> None:
    """Waits until the answer is true; AssertionError after so many seconds."""
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, f"waited {seconds} s in vain"
        time.sleep(0.2)


def _write_settings(cluster: Cluster) -> None:
    for name in ("state", "spool", "bin"):
        (cluster.folder / name).mkdir()
    # Steps of jobs are started without SLURM_CONF, as where a cluster's settings are in /etc.
    srun = cluster.folder / "bin/srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={cluster.settings} exec {shutil.which("srun")} "$@"\n')
    srun.chmod(0o755)
    (cluster.folder / "gres.conf").write_text("NodeName=node Name=gpu File=/dev/null\n")
    controller, node = _free_ports(2)
    cluster.settings.write_text(
        SETTINGS.format(
            host=socket.gethostname().partition(".")[0],
            user=psutil.Process().username(),
            folder=cluster.folder,
            controller_port=controller,
            node_port=node,
        )
    )


def _munged(folder: Path) -> subprocess.Popen[bytes]:
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    files = {"socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
    options = [f"--{option}={folder}/munge.{file}" for option, file in files.items()]
    munged = shutil.which("munged") or "munged"
    process = subprocess.Popen([munged, "--foreground", "--force", f"--key-file={key}", *options])
    wait_until((folder / "munge.socket").exists)
    return process


def _free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _end(pid_file: Path) -> None:
    if pid_file.exists():
        process = psutil.Process(int(pid_file.read_text()))
        process.kill()
