"""`tightfit run`: from any folder, one run at a time in each, and errors in plain words."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.workflow.conftest import Workplace
from tightfit.schemas.machine import MACHINES
from tightfit.schemas.results_claim import CLAIM_FILE, claim_results

ROOT = Path(__file__).parents[2]

FACTORIES = """
import torch
from layers import build


def tower(width=32, depth=1):
    return build(width, depth).train(), ((torch.randn(8, width),), {})


def broken(width=32):
    return build(width, -1), ()
"""

LAYERS = """
from torch import nn


def build(width, depth):
    if depth < 0:
        raise ValueError(f"a depth of {depth}")
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(2 * depth)))
"""

CONFIGURATION: dict[str, Any] = {
    "device": "my gpu.json",
    "strategies": ["keep_all"],
    "frontier": False,
    "search_path": ["my code"],
    "store": "../my store",
    "models": {
        "tower": {"factory": "towers:tower", "matrix": {"depth": [1, 2]}},
        "broken": {"factory": "towers:broken"},
    },
}

Run = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def anywhere(quick: Workplace, tmp_path_factory: pytest.TempPathFactory) -> tuple[Workplace, Run]:
    """A run for a described device from the folder above that of the configuration, whose paths are
    relative and have spaces; one of the factories raises."""
    place = replace(quick, folder=tmp_path_factory.mktemp("some where"))
    project = place.folder / "my project"
    (project / "my code").mkdir(parents=True)
    (project / "my code/towers.py").write_text(FACTORIES)
    (project / "my code/layers.py").write_text(LAYERS)
    shutil.copy(MACHINES / "h100.json", project / "my gpu.json")
    (project / "my towers.yaml").write_text(yaml.safe_dump(CONFIGURATION, sort_keys=False))
    return place, run_project(place)


def run_project(place: Workplace, *options: str) -> Run:
    return place.stage("run", "my project/my towers.yaml", "--cores", "2", *options)


def test_a_run_from_another_folder_leaves_all_beside_its_configuration(
    anywhere: tuple[Workplace, Run],
) -> None:
    place, run = anywhere
    assert run.returncode == 1, run.stderr
    assert {path.name for path in place.folder.iterdir()} == {"my project", "my store"}
    results = place.folder / "my project/results"
    for name in ("tower-depth1", "tower-depth2"):
        assert (results / name / "report.html").exists()
        assert (results / name / "keep_all/none/module/step.py").exists()
    assert run.stdout.startswith("To do: ") and "  tower-depth2, 9 steps: it is new\n" in run.stdout
    assert "my project/results/index.html" in run.stdout


def test_a_factory_that_raises_names_its_lines(anywhere: tuple[Workplace, Run]) -> None:
    place, run = anywhere
    assert "Failed: broken: tracing the training step (my project/results/broken/logs/" in (
        run.stderr
    )
    location = "my code/layers.py, line 7, in build"
    sentence = f"the factory 'towers:broken' raises ValueError: a depth of -1 ({location})"
    calls = [("towers.py", 11, "broken"), ("layers.py", 7, "build")]
    log = (place.folder / "my project/results/broken/logs/trace.txt").read_text()
    assert log.startswith(f"trace: {sentence}\n\n")
    for text in (log, run.stderr):
        found = re.findall(r'  File ".*/my code/(.*)", line (\d+), in (\w+)\n', text)
        assert found == [(file, str(line), name) for file, line, name in calls]
        assert '    raise ValueError(f"a depth of {depth}")\n' in text
    assert f"tightfit trace: {sentence}\n" in run.stderr
    page = (place.folder / "my project/results/index.html").read_text().replace("&#39;", "'")
    assert f"{location})" in page and "raise ValueError" not in page
    assert "raise ValueError" not in run.stdout and f"{sentence} (see my project" in run.stdout


def test_a_second_run_does_what_failed_and_no_more(anywhere: tuple[Workplace, Run]) -> None:
    place, _ = anywhere
    told = run_project(place, "--dry-run")
    assert told.returncode == 0, told.stderr
    assert "broken, 9 steps: it failed before" in told.stdout and "tower-" not in told.stdout
    page = run_project(place, "--", "results/tower-depth1/report.html")
    assert page.returncode == 0, page.stderr
    assert "To do" not in page.stdout and "tower-depth1" in page.stdout


def test_a_lost_module_of_a_described_device_is_made_again(anywhere: tuple[Workplace, Run]) -> None:
    place, _ = anywhere
    module = place.folder / "my project/results/tower-depth1/keep_all/none/module"
    module.rename(module.with_name("kept"))
    told = run_project(place, "--dry-run")
    module.with_name("kept").rename(module)
    lost = "lost: results/tower-depth1/keep_all/none/module\n"
    assert f"  tower-depth1, up to 2 steps: {lost}" in told.stdout, told.stderr


def test_results_in_another_spelling_are_the_same(anywhere: tuple[Workplace, Run]) -> None:
    place, _ = anywhere
    path = place.folder / "my project/my towers.yaml"
    for spelling in ("./results", str(path.parent / "results")):
        spelled = {**CONFIGURATION, "results": spelling, "solver": {"peaks": 1}}
        path.write_text(yaml.safe_dump(spelled))
        told = run_project(place, "--dry-run")
        path.write_text(yaml.safe_dump(CONFIGURATION, sort_keys=False))
        assert "tower-depth1, 6 steps: peaks changed from 4 to 1\n" in told.stdout, told.stderr


def test_results_of_a_run_elsewhere_are_made_again_or_refused(
    anywhere: tuple[Workplace, Run],
) -> None:
    place, _ = anywhere
    project = place.folder / "my project"
    notes, other = project / ".snakemake", place.folder / "other"
    shutil.copytree(project, other, ignore=lambda *_: ["results", ".snakemake"])
    shared = {**CONFIGURATION, "results": str(project / "results")}
    (other / "my towers.yaml").write_text(yaml.safe_dump(shared))
    refused = place.stage("run", "other/my towers.yaml")
    shutil.rmtree(other)
    assert refused.returncode == 1 and refused.stderr == (
        f"tightfit run: results: my project/results holds the results of configurations in "
        f"{project}: name another folder, or remove my project/results/.configuration_folder if "
        "these are not needed any more\n"
    )
    notes.rename(place.folder / "notes")
    told = run_project(place, "--dry-run")
    shutil.rmtree(notes)
    (place.folder / "notes").rename(notes)
    assert "tower-depth1, up to 9 steps: no run of this folder is known to have" in told.stdout


def test_results_that_another_folder_took_over_are_made_again(
    anywhere: tuple[Workplace, Run],
) -> None:
    place, _ = anywhere
    project = place.folder / "my project"
    claim = project / "results" / CLAIM_FILE
    kept = claim.read_text()
    claim.unlink()
    other = place.folder / "taken"
    (other / ".snakemake").mkdir(parents=True)
    claim_results(project / "results", other, dry_run=False)
    told = run_project(place, "--dry-run")
    assert told.returncode == 1 and "holds the results of configurations in" in told.stderr
    claim.unlink()
    told = run_project(place, "--dry-run")
    claim.write_text(kept)
    assert "tower-depth1, up to 9 steps: no run of this folder is known to have" in told.stdout
    assert "tower-" not in run_project(place, "--dry-run").stdout


def test_a_profile_that_is_not_there_is_told(anywhere: tuple[Workplace, Run]) -> None:
    run = run_project(anywhere[0], "--profile", "slrum")
    assert run.returncode == 1 and run.stderr == (
        "tightfit run: --profile: there is no profile 'slrum', expected default, kubernetes, slurm"
        " or the folder of a Snakemake profile\n"
    )


def test_make_runs_plans_so() -> None:
    words = ["make", "--dry-run", "--always-make", "plan", "zoo"]
    said = subprocess.run(
        [*words, "CONFIG=my own.yaml", "CORES=3", "REMEASURE=1", "PROFILE=default"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    runs = [" ".join(line.split()) for line in said.splitlines() if "tightfit run" in line]
    command = "exec .venv/bin/python -m tightfit run"
    options = '--profile "default" --cores 3 --remeasure'
    assert runs == [f'{command} {options} "my own.yaml"', f"{command} {options} zoo.yaml"]


def command(config: str) -> list[str]:
    return [sys.executable, "-m", "tightfit", "run", config, "--cores", "1"]


def environment(workplace: Workplace) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(workplace.checkout)}


@pytest.fixture
def invalid(workplace: Workplace) -> str:
    """A configuration that ends a run at once."""
    path = workplace.checkout / "invalid.yaml"
    path.write_text("models: {a: {factory: nowhere}}\n")
    return path.name


def test_a_run_with_a_wrong_configuration_says_so_and_fails(
    workplace: Workplace, invalid: str
) -> None:
    result = subprocess.run(
        command(invalid),
        cwd=workplace.checkout,
        env=environment(workplace),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert 'models.a.factory: "nowhere" was found, expected text of the form' in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "mine.yaml: cannot be read (No such file or directory)"),
        ("models: {a: [", "mine.yaml: is not YAML (while parsing a flow"),
        ("", "mine.yaml: the configuration: nothing was found, expected a mapping"),
        (
            "models: {a: {factory: 'tower:build'}}",
            "mine.yaml: models.a.factory: there is no module 'tower' for 'tower:build', expected",
        ),
    ],
)
def test_a_file_that_is_no_configuration_is_told_in_a_sentence(
    workplace: Workplace, text: str | None, words: str
) -> None:
    path = workplace.checkout / "mine.yaml"
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
    result = subprocess.run(
        command(path.name),
        cwd=workplace.checkout,
        env=environment(workplace),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith(f"tightfit run: {words}") and result.stderr.count("\n") == 1


@pytest.fixture
def ending(workplace: Workplace) -> str:
    """A configuration without a fault of its own, whose run ends at once: its factory cannot be
    imported."""
    path = workplace.checkout / "right.yaml"
    text = "raise RuntimeError('out of order')\n\n\ndef a():\n    pass\n"
    (workplace.checkout / "unusable.py").write_text(text)
    path.write_text("models: {a: {factory: 'unusable:a'}}\nsearch_path: [gone]\n")
    return path.name


@contextlib.contextmanager
def held_folder(workplace: Workplace) -> Iterator[None]:
    """Within it another run holds the folder."""
    folder = workplace.checkout / ".snakemake"
    folder.mkdir(exist_ok=True)
    with (folder / "plan.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_wrong_configuration_is_told_ahead_of_a_wait(workplace: Workplace, invalid: str) -> None:
    with held_folder(workplace):
        result = subprocess.run(
            command(invalid),
            cwd=workplace.checkout,
            env=environment(workplace),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
    assert result.returncode == 1 and "models.a.factory" in result.stderr
    assert not result.stdout


@pytest.fixture
def _interrupted() -> Iterator[None]:
    """Interrupts reach what is started, also where the tests themselves run in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def begin_run(workplace: Workplace, config: str) -> subprocess.Popen[str]:
    """A run in a session of its own, whose lines can be read."""
    return subprocess.Popen(
        command(config),
        cwd=workplace.checkout,
        env=environment(workplace),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@contextlib.contextmanager
def waiting_run(workplace: Workplace, config: str) -> Iterator[subprocess.Popen[str]]:
    """A run that waits for another one, which goes on within this block."""
    with held_folder(workplace):
        waiting = begin_run(workplace, config)
        assert waiting.stdout is not None
        assert waiting.stdout.readline() == "Waiting for another run in this folder to end ...\n"
        assert waiting.poll() is None
        yield waiting


def test_a_second_run_waits_for_the_first(workplace: Workplace, ending: str) -> None:
    with waiting_run(workplace, ending) as waiting:
        pass
    rest, _ = waiting.communicate(timeout=120)
    assert waiting.returncode == 1
    assert "out of order" in rest


def test_a_dry_run_does_not_wait(workplace: Workplace, ending: str) -> None:
    with held_folder(workplace):
        asked = subprocess.run(
            [*command(ending), "--dry-run"],
            cwd=workplace.checkout,
            env=environment(workplace),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert asked.returncode == 1
    said = "another run is at work there; ask for --dry-run when it has ended\n"
    assert asked.stderr.endswith(said)


@pytest.mark.usefixtures("_interrupted")
def test_a_run_that_waits_is_interrupted_in_a_word(workplace: Workplace, ending: str) -> None:
    with waiting_run(workplace, ending) as waiting:
        os.killpg(waiting.pid, signal.SIGINT)
        rest, _ = waiting.communicate(timeout=120)
    assert (rest, waiting.returncode) == ("tightfit run: interrupted\n", 130)


SLEEPER = """
import os
import subprocess
import time
from pathlib import Path


def sleeper():
    family = os.getpid(), os.getppid(), subprocess.Popen(["sleep", "1000"]).pid
    Path("family.part").write_text(" ".join(map(str, family)))
    Path("family.part").rename("family.txt")
    time.sleep(1000)
"""


@pytest.mark.usefixtures("_interrupted")
def test_an_interrupted_run_leaves_no_job_and_no_server(workplace: Workplace) -> None:
    (workplace.checkout / "sleepers.py").write_text(SLEEPER)
    model = {"factory": "sleepers:sleeper"}
    document = {**CONFIGURATION, "device": "h100", "search_path": ["."], "models": {"a": model}}
    (workplace.checkout / "sleeping.yaml").write_text(yaml.safe_dump(document))
    told = workplace.checkout / "family.txt"
    with begin_run(workplace, "sleeping.yaml") as run:
        while not told.exists():
            assert run.poll() is None
            time.sleep(0.05)
        family = [Path("/proc", process) for process in told.read_text().split()]
        assert b"tightfit.job_server" in (family[1] / "cmdline").read_bytes()
        os.killpg(run.pid, signal.SIGINT)
        run.communicate(timeout=120)
    assert run.returncode == 128 + signal.SIGINT
    end = time.monotonic() + 20  # those that lost their parent are waited for by the first process
    while left := [process for process in family if process.exists()]:
        assert time.monotonic() < end, left
        time.sleep(0.05)


def test_an_environment_needs_a_python_that_fits(workplace: Workplace, tmp_path: Path) -> None:
    result = subprocess.run(
        [str(workplace.checkout / "workflow/environment.sh"), str(tmp_path / "venv"), "models"],
        env={**os.environ, "PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("tightfit needs Python 3.11 or 3.12 with pip")
    assert not (tmp_path / "venv").exists()
