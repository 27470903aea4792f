"""tightfit as people install it: a wheel beside PyTorch, used from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tightfit.util.code_fingerprint import stage_code
from tightfit.util.paths import default_store_path

ROOT = Path(__file__).parents[2]
OWN_MODULES = ("data", "reports", "schemas", "stages")
"""Names of a user's own modules, which are those of folders of the checkout."""
BUILD = "from setuptools import build_meta; print(build_meta.build_wheel('wheels'))"
SUFFIXES = (".py", ".typed", ".json", ".html", ".css", ".js", ".smk", ".yaml")
"""How the names of files end that are installed."""
ABSENT = ("snakemake", "yaml", "_yaml")
"""What only the extra `workflow` installs."""
PLAN = """
import data, reports, schemas, stages
import torch, tightfit

torch.manual_seed(0)
layers = [torch.nn.Linear(32, 32), torch.nn.Tanh()] * 3
model = torch.nn.Sequential(*layers)
x = torch.randn(64, 32)
model(x).sum().backward()
wanted = [weight.grad.clone() for weight in model.parameters()]
model.zero_grad()
fitted, made = tightfit.plan(
    model, (x,), loss=torch.sum, strategy="checkpoint_all",
    solver=tightfit.SolverOptions(peak_levels=1, save_levels=1, jobs=1), progress=False
)
fitted(x).sum().backward()
assert all(torch.equal(w.grad, e) for w, e in zip(model.parameters(), wanted, strict=True))
try:
    fitted(x[:3])
except tightfit.PlanMismatch as error:
    print("refused:", error)
assert data.MINE and reports.MINE and schemas.MINE and stages.MINE
torch.save(fitted, "saved.pt")
again = torch.load("saved.pt", weights_only=False)
assert torch.equal(again(x), fitted(x))
print(tightfit.__file__, made.message)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the checkout, built with what is installed here."""
    folder = tmp_path_factory.mktemp("source")
    caches = shutil.ignore_patterns("__pycache__")
    for name in ("schemas", "stages", "tightfit", "reports", "workflow"):
        shutil.copytree(ROOT / name, folder / name, ignore=caches, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "Snakefile"):
        shutil.copy(ROOT / name, folder)
    run(sys.executable, "-c", BUILD, cwd=folder)
    [made] = (folder / "wheels").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new environment with the wheel in it, beside links to the packages of the running one."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    base = getattr(sys, "_base_executable", sys.executable)
    pip = (base, "-m", "pip", "--python", str(python))
    run(*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel), cwd=folder)
    [packages] = (folder / "lib").glob("python*/site-packages")
    for place in (Path(path) for path in sys.path if Path(path).name == "site-packages"):
        for path in place.iterdir():
            ours = path.name.startswith(("tightfit", "__editable__", "__pycache__", *ABSENT))
            if not ours and path.suffix != ".pth" and not (packages / path.name).exists():
                (packages / path.name).symlink_to(path)
    return folder


def run(*command: str, cwd: Path, **variables: str) -> str:
    return ended(*command, cwd=cwd, **variables).stdout


def ended(*command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=kept | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def test_the_wheel_holds_what_is_needed_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"tightfit"}
    wanted = {
        str(path.relative_to(ROOT))
        for folder in ("", "schemas", "stages", "reports", "workflow")
        for path in (ROOT / "tightfit" / folder).rglob("*")
        if path.suffix in SUFFIXES and "__pycache__" not in path.parts
    }
    assert {*wanted, "tightfit/Snakefile"} <= names


@pytest.mark.long
def test_a_plan_from_another_folder(environment: Path, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    work = tmp_path / "work"
    work.mkdir()
    for name in OWN_MODULES:
        (work / f"{name}.py").write_text("MINE = True\n")
    (work / "script.py").write_text(PLAN)
    done = ended(str(environment / "bin" / "python"), "script.py", cwd=work, **cache)
    said = done.stdout
    assert not done.stderr, "neither of us nor of PyTorch"
    assert f"{environment}/lib" in said and "refused: input has shape (3, 32)" in said
    made = {path.name for path in work.iterdir()} - {"__pycache__"}
    assert made == {*(f"{name}.py" for name in OWN_MODULES), "script.py", "saved.pt"}
    assert (tmp_path / "cache" / "tightfit" / "calls").is_dir()


def test_what_is_installed_beside_is_not_read_as_code_of_ours(
    environment: Path, tmp_path: Path
) -> None:
    """The code of a stage is the same installed as in the checkout, and nothing is kept among the
    packages."""
    stages = ("trace", "profile", "combine", "validate")
    code = f"""
import tightfit.util.code_fingerprint as found
for stage in {stages}:
    fingerprint, versions = found.stage_code(stage)
    print(fingerprint, sorted(versions))
"""
    said = run(str(environment / "bin" / "python"), "-c", code, cwd=tmp_path)
    here = [stage_code(stage) for stage in stages]
    assert said.splitlines() == [f"{found} {sorted(versions)}" for found, versions in here]
    [packages] = (environment / "lib").glob("python*/site-packages")
    assert not list((packages / "tightfit").rglob("__pycache__/*.json"))


def test_the_command_line_is_there(environment: Path, tmp_path: Path) -> None:
    said = run(str(environment / "bin" / "tightfit"), "--help", cwd=tmp_path)
    assert "choose the plan of a strategy" in said


def test_a_stage_that_needs_the_workflow_names_the_extra(environment: Path, tmp_path: Path) -> None:
    command = [str(environment / "bin" / "tightfit"), "prune", "--configuration", "config.yaml"]
    (tmp_path / "config.yaml").touch()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = "tightfit prune: needs the package yaml: pip install 'tightfit[workflow]'\n"
    assert (done.returncode, done.stderr) == (1, said)


TOWERS = """
import torch


def tower(width=8):
    return torch.nn.Linear(width, width).train(), ((torch.randn(4, width),), {})
"""


@pytest.mark.long
def test_a_workflow_runs_in_any_folder(environment: Path, tmp_path: Path) -> None:
    """With the packages of the extra `workflow`, which the environment is without."""
    folder = tmp_path / "my project"
    folder.mkdir()
    (folder / "towers.py").write_text(TOWERS)
    (folder / "run.yaml").write_text(
        "device: h100\nstrategies: [keep_all]\nmodels: {tower: {factory: 'towers:tower'}}\n"
    )
    extra = tmp_path / "extra"
    extra.mkdir()
    for place in (Path(path) for path in sys.path if Path(path).name == "site-packages"):
        for path in place.iterdir():
            if path.name.startswith(ABSENT):
                (extra / path.name).symlink_to(path)
    words = ("run", "my project/run.yaml", "--cores", "2")
    done = ended(str(environment / "bin" / "tightfit"), *words, cwd=tmp_path, PYTHONPATH=str(extra))
    assert "my project/results/tower/report.html" in done.stdout
    assert (folder / "results/tower/keep_all/none/module/step.py").exists()


def test_the_described_devices_are_there(environment: Path, tmp_path: Path) -> None:
    code = "from tightfit.schemas.machine import read_machine, resolve_machine_file\n"
    code += "print(read_machine(resolve_machine_file('h100')).devices[0].name)"
    assert run(str(environment / "bin" / "python"), "-c", code, cwd=tmp_path) == "cuda:0\n"


def test_the_pytorch_that_people_have_stays() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [torch] = [
        required
        for required in map(Requirement, project["dependencies"])
        if required.name == "torch"
    ]
    kept = ["2.11.0+cu126", "2.12.1", "2.13.0+cpu", "2.13.0+cu130"]
    assert list(torch.specifier.filter([*kept, "2.10.0", "2.14.0"])) == kept
    pythons = SpecifierSet(project["requires-python"])
    assert list(pythons.filter(["3.10", "3.11.0", "3.12.9", "3.13.0"])) == ["3.11.0", "3.12.9"]


def test_the_store_is_in_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert default_store_path() == tmp_path / "mine" / "tightfit"
    for unset in ("", "not/absolute"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        assert default_store_path() == tmp_path / ".cache" / "tightfit"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_store_path() == tmp_path / "Library" / "Caches" / "tightfit"
