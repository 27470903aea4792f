"""Jobs in processes that a job server forks: all as it is where a job runs alone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tightfit.__main__ import UNFINISHED_ERROR
from tightfit.job_client import LOST_JOB, SERVERS, offer_job_servers
from tightfit.job_server import JobServer, write_model_libraries
from tightfit.schemas.machine import MACHINES
from tightfit.schemas.reference import read_reference
from tightfit.util.process_group import run_process_group

ROOT = Path(__file__).parents[2]
FACTORIES = """
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from torch import nn, randn


def tower(width=16, depth=2):
    print("a tower")
    layers = (nn.Linear(width, width) for _ in range(depth))
    return nn.Sequential(*layers).train(), ((randn(16, width),), {})


def broken():
    raise ValueError("no tower")


def ending():
    os._exit(7)


def pretending():
    os._exit(0)


def lingering():
    threading.Thread(target=time.sleep, args=(1000,)).start()
    return tower()


def leaving():
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    Path("left.part").write_text(str(subprocess.Popen(["sleep", "1000"], **quiet).pid))
    Path("left.part").rename("left.txt")
    return tower()


def escaping():
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    program = subprocess.Popen(["sleep", "1000"], start_new_session=True, **quiet)
    Path("left.txt").write_text(str(program.pid))
    return tower()


def waiting():
    family = os.getpid(), subprocess.Popen(["sleep", "1000"]).pid, os.getppid()
    Path("family.part").write_text(" ".join(map(str, family)))
    Path("family.part").rename("family.txt")
    time.sleep(1000)
"""

Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def variables() -> Iterator[dict[str, str]]:
    """The environment of a job whose run has servers."""
    with offer_job_servers() as (offered, _):
        alone = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        yield {**alone, **offered}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a configuration: all jobs of a run have the same one."""
    place = tmp_path_factory.mktemp("run")
    (place / "towers.py").write_text(FACTORIES)
    return place


def tracing(factory: str, out: str = "graph.arrow") -> list[str]:
    words = ["trace", "--factory", f"towers:{factory}", "--search-path", ".", "--name", "tower"]
    return [*words, "--out", out, "--error-file", "error.txt"]


def begin(words: list[str], folder: Path, variables: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tightfit", *words],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_job(words: list[str], folder: Path, variables: dict[str, str]) -> Run:
    with begin(words, folder, variables) as job:
        said = job.communicate(timeout=120)
    return subprocess.CompletedProcess(words, job.returncode, *said)


def without_servers(variables: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if "JOB_SERVERS" not in name}


def servers(variables: dict[str, str]) -> list[str]:
    (folder,) = {*variables.values()} - {*without_servers(variables).values()}
    return sorted(path.stem.partition("-")[0] for path in Path(folder).iterdir() if not path.suffix)


def plan_stages(out: Path) -> list[list[str]]:
    """The command lines of a plan for a described device."""
    graph, costs, blocks = [
        ["--" + name, str(out / f"{name}.arrow")] for name in ("graph", "costs", "blocks")
    ]
    options = ["--options", str(out / "options.arrow")]
    frontier, plan = str(out / "frontier.arrow"), out / "plan"
    described = ["--source", "roofline", "--machine", str(MACHINES / "h100.json")]
    made = ["--schedule", str(plan / "schedule.arrow"), "--plan", str(plan / "plan.json")]
    module, page = str(out / "module"), str(out / "trace.json")
    return [
        tracing("tower", graph[1]),
        ["profile", *graph, *described, "--out", costs[1]],
        ["partition", *graph, *costs, "--out", blocks[1]],
        ["solve", *blocks, "--store", "store", "--solver", "none", "--out", options[1]],
        ["combine", *graph, *costs, *blocks, *options, "--strategy", "rotor", "--out", frontier],
        [
            *("select", *graph, *costs, *blocks, *options, "--frontier", frontier),
            *("--budget", "1GB", "--out", str(plan)),
        ],
        ["generate", *graph, *made, "--out", module],
        ["report", *graph, *costs, "--perfetto", made[1], "--out", page],
    ]


@pytest.mark.parametrize(
    ("stages", "least"), [(3, 3), pytest.param(None, 11, marks=pytest.mark.long)]
)
def test_artifacts_are_the_same_bytes(
    folder: Path, variables: dict[str, str], stages: int | None, least: int
) -> None:
    """Of the first stages, or of all."""
    found = []
    for given in (variables, without_servers(variables)):
        out = folder / "out"
        out.mkdir()
        runs = [run_job(words, folder, given) for words in plan_stages(out)[:stages]]
        assert [run.returncode for run in runs] == [0] * len(runs), [run.stderr for run in runs]
        assert runs[0].stdout == "a tower\n"
        files = [path for path in out.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        found.append({path.relative_to(out): path.read_bytes() for path in files})
        out.rename(folder / f"out of {stages} stages, {len(found)}")
    assert stages or {*servers(variables)} == {*SERVERS, "run"} - {"measurement"}
    served, alone = found
    assert served.keys() == alone.keys() and len(served) >= least
    assert [path for path in served if served[path] != alone[path]] == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (tracing("broken"), 1),
        (tracing("ending"), 7),
        (["trace", "--nothing"], 2),
        (["partition", "--graph", "gone", "--costs", "gone", "--out", "blocks.arrow"], 1),
    ],
    ids=["factory", "exit", "arguments", "file"],
)
def test_a_job_that_fails_says_what_it_says_alone(
    folder: Path, variables: dict[str, str], words: list[str], code: int
) -> None:
    served, alone = (
        run_job(words, folder, given) for given in (variables, without_servers(variables))
    )
    assert served.returncode == alone.returncode == code
    assert (served.stdout, served.stderr) == (alone.stdout, alone.stderr)


def test_a_factory_that_ends_its_process_well_has_failed(
    folder: Path, variables: dict[str, str]
) -> None:
    run = run_job(tracing("pretending"), folder, variables)
    assert (run.returncode, run.stderr) == (1, f"tightfit trace: {UNFINISHED_ERROR}\n")


def test_a_thread_that_a_factory_leaves_holds_no_job(
    folder: Path, variables: dict[str, str]
) -> None:
    for given in (variables, without_servers(variables)):
        run = run_job(tracing("lingering", "lingering.arrow"), folder, given)
        assert (run.returncode, run.stdout, run.stderr) == (0, "a tower\n", "")
        (folder / "lingering.arrow").unlink()


def test_a_module_that_a_user_changes_is_seen(folder: Path, variables: dict[str, str]) -> None:
    for said in ("one", "another"):
        (folder / "towers.py").write_text(FACTORIES.replace("a tower", said))
        assert run_job(tracing("tower"), folder, variables).stdout == f"{said}\n"


@pytest.fixture
def waiting(
    folder: Path, variables: dict[str, str]
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A job that does not end, and its process, the process that this has begun, and its server."""
    (folder / "family.txt").unlink(missing_ok=True)
    with begin(tracing("waiting"), folder, variables) as job:
        await_true((folder / "family.txt").exists)
        yield job, [int(word) for word in (folder / "family.txt").read_text().split()]


def await_true(says: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not says():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), (signal.SIGTERM, -15), (signal.SIGHUP, -1), (signal.SIGKILL, -9)],
)
def test_a_signal_ends_a_job_and_what_it_has_begun(
    waiting: tuple[subprocess.Popen[str], list[int]], number: int, code: int
) -> None:
    job, (*family, server) = waiting
    assert job.pid not in (*family, server)
    job.send_signal(number)
    _, said = job.communicate(timeout=60)
    assert job.returncode == code
    assert said == ("tightfit trace: interrupted\n" if number == signal.SIGINT else "")
    await_true(lambda: not any(map(is_running, family)))
    assert is_running(server)


def test_a_job_that_is_killed_ends_its_client_so(
    waiting: tuple[subprocess.Popen[str], list[int]],
) -> None:
    job, (process, begun, _) = waiting
    os.kill(process, signal.SIGKILL)
    os.kill(begun, signal.SIGKILL)
    job.communicate(timeout=60)
    assert job.returncode == -9


def test_a_server_that_ends_takes_its_jobs_along_and_later_ones_run_alone(
    waiting: tuple[subprocess.Popen[str], list[int]], folder: Path, variables: dict[str, str]
) -> None:
    job, (process, begun, server) = waiting
    os.kill(server, signal.SIGKILL)
    await_true(lambda: not is_running(process))
    os.kill(begun, signal.SIGKILL)
    _, said = job.communicate(timeout=60)
    assert (job.returncode, said) == (1, f"tightfit trace: {LOST_JOB}\n")
    assert run_job(tracing("tower"), folder, variables).returncode == 0


def test_servers_end_with_their_run(folder: Path, variables: dict[str, str]) -> None:
    (folder / "family.txt").unlink(missing_ok=True)
    with offer_job_servers() as (offered, _):
        job = begin(tracing("waiting"), folder, {**variables, **offered})
        await_true((folder / "family.txt").exists)
        family = [int(word) for word in (folder / "family.txt").read_text().split()]
    job.communicate(timeout=60)
    await_true(lambda: not any(map(is_running, family)))


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (tracing("tower"), {"OMP_NUM_THREADS": "2"}),
        (["profile", "--source", "roofline", "--help"], {}),
        (["validate", "--device", "cuda", "--help"], {}),
        (["generate", "--libraries", "--help"], {}),
        ([*tracing("tower"), "--device", "cuda"], {}),
    ],
    ids=["threads", "roofline", "validation", "libraries", "cuda"],
)
def test_jobs_that_no_server_takes(
    folder: Path, variables: dict[str, str], words: list[str], changed: dict[str, str]
) -> None:
    with offer_job_servers() as (offered, _):
        run_job(words, folder, {**variables, **changed, **offered})
        assert servers({**variables, **changed, **offered}) == ["run"]


def test_a_step_of_several_threads_is_measured_as_alone(
    folder: Path, variables: dict[str, str]
) -> None:
    several = {**variables, "OMP_NUM_THREADS": "2"}
    assert run_job(tracing("tower", "steps.arrow"), folder, several).returncode == 0
    words = ["reference", "--factory", "towers:tower", "--search-path", ".", "--threads", "2"]
    words += ["--graph", "steps.arrow", "--pairs", "1", "--error-file", "error.txt", "--out"]
    found = []
    for out, given in (("served.arrow", several), ("alone.arrow", without_servers(several))):
        run = run_job([*words, out], folder, given)
        assert (run.returncode, run.stderr) == (0, "")
        found.append(read_reference(folder / out))
    served, alone = found
    assert "measurement" in servers(several)
    assert served.device == alone.device and served.device.threads == 2
    assert (served.rounds, served.peak) == (alone.rounds, alone.peak)


def test_a_server_loads_what_jobs_have_loaded_of_libraries_of_models(tmp_path: Path) -> None:
    listed = tmp_path / "measurement.modules"
    with socket.socket() as calls:
        server = JobServer(calls, -1, listed)
        server.load_libraries()
        write_model_libraries({"os", "towers", "transformersother"}, listed)
        assert not listed.exists()
        write_model_libraries({"os", "transformers.utils.versions", "timm.none"}, listed)
        server.load_libraries()
    assert "transformers.utils.versions" in sys.modules and not listed.exists()


@pytest.mark.parametrize("factory", ["leaving", "escaping"])
def test_what_a_factory_leaves_ends_with_the_run(folder: Path, factory: str) -> None:
    run_process_group(["true"])  # as Snakemake is run: what lost its parent is this process's
    with offer_job_servers() as (offered, _):
        alone = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        done = run_job(tracing(factory), folder, {**alone, **offered})
        assert done.returncode == 0, done.stderr
        left = int((folder / "left.txt").read_text())
        assert Path(f"/proc/{left}").exists()
    await_true(lambda: not is_running(left))


def test_a_killed_run_leaves_no_folder(folder: Path) -> None:
    with offer_job_servers() as (offered, pipe):
        alone = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        assert run_job(tracing("tower"), folder, {**alone, **offered}).returncode == 0
        (place,) = map(Path, offered.values())
        read = os.dup(pipe)
        os.close(pipe)  # as the end of the run's process does
        os.close(read)
        deadline = time.monotonic() + 20
        while place.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not place.exists()
        os.dup2(os.open(os.devnull, os.O_RDONLY), pipe)
