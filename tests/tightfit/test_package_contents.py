"""What travels with fused kernels: a plan of eager's kernels, and compiled libraries."""

from __future__ import annotations

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tightfit
from tests.stages.fuse.compilers import without_compiler
from tests.tightfit.fused_model import Wave
from tightfit import FusedKernelOptions
from tightfit.api import pickling
from tightfit.api.kernel_choice import KernelChoice
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.schemas.package_manifest import MANIFEST_NAME
from tightfit.stages.audit.audit import audit
from tightfit.stages.fuse import compile_groups
from tightfit.stages.torch_utils.model_factory import BuiltModel, Sample
from tightfit.stages.validate.load import load_package
from tightfit.stages.validate.measure import measure_memory
from tightfit.stages.validate.training_step import StepRunner

ROWS = torch.linspace(-1, 1, 8 * 16).reshape(8, 16)


def wave() -> Wave:
    torch.manual_seed(0)
    return Wave().train()


def step(module: nn.Module) -> list[Tensor]:
    module.zero_grad()
    output = module(ROWS)
    output.square().sum().backward()
    return [output, *(p.grad for p in module.parameters() if p.grad is not None)]


def same(one: nn.Module, other: nn.Module) -> bool:
    return all(map(torch.equal, step(one), step(other)))


Planned = tuple[nn.Module, tightfit.ChosenPlan]


@pytest.fixture(scope="module", autouse=True)
def fused_alone() -> Iterator[None]:
    """Groups are groups, and the plan is one of fused kernels, whatever was measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compile_groups, "is_slower_than_aten", lambda body, device: False)
        patch.setattr(KernelChoice, "can_compare", False)
        yield


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Planned:
    return tightfit.plan(
        wave(),
        (ROWS,),
        budget="100%",
        fused_kernels=FusedKernelOptions(eager_fallback=True, libraries=True),
        strategy="rotor",
        store=tmp_path_factory.mktemp("store"),
        progress=False,
    )


@pytest.fixture
def folder(planned: Planned, tmp_path: Path) -> Path:
    """A copy of the package, of which nothing has run."""
    return Path(shutil.copytree(planned[1].package, tmp_path / "module"))


@pytest.fixture
def no_compiler() -> Iterator[None]:
    with without_compiler():
        yield


def test_libraries_have_the_bits_of_kernels(
    planned: Planned, folder: Path, no_compiler: None
) -> None:
    assert same(tightfit.load(folder, wave(), libraries=True), planned[0])


def test_without_a_compiler_nothing_runs_that_was_not_asked_for(
    folder: Path, no_compiler: None
) -> None:
    with pytest.raises(tightfit.ArtifactError) as raised:
        tightfit.load(folder, wave())
    for said in ("there is none", "libraries=True", 'without_compiler="eager"'):
        assert said in str(raised.value)


def test_a_folder_of_kernels_that_cannot_be_written_is_one_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{__file__}/cache")
    with pytest.raises(
        tightfit.ArtifactError, match=r"which cannot be written \(Not a directory\)"
    ):
        tightfit.load(folder, wave())


def test_a_package_may_be_loaded_under_autocast(planned: Planned, folder: Path) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fitted = tightfit.load(folder, wave())
    assert same(fitted, planned[0])


def test_eagers_kernels_run_where_they_are_asked_for(folder: Path, no_compiler: None) -> None:
    with pytest.warns(UserWarning, match=r"there is none .*; the plan of eager's kernels runs"):
        fitted = tightfit.load(folder, wave(), without_compiler="eager")
    assert same(fitted, wave())
    for other in (copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
        assert same(other, wave())


def test_where_there_is_a_compiler_kernels_run(planned: Planned, folder: Path) -> None:
    assert same(tightfit.load(folder, wave(), without_compiler="eager"), planned[0])


def test_copies_and_pickles_ask_for_what_was_asked_for(
    planned: Planned, folder: Path, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickling, "default_store_path", lambda: folder.parent / "store")
    fitted = tightfit.load(folder, wave(), libraries=True)
    written = pickle.dumps(fitted)
    others = [copy.deepcopy(fitted)]
    shutil.rmtree(folder)
    for other in (*others, pickle.loads(written)):
        assert same(other, planned[0])


ALONE = """
import sys, warnings, torch, tightfit
from tests.tightfit.test_package_contents import step, wave
torch.set_num_threads(int(sys.argv[2]))
try:
    tightfit.load(sys.argv[1], wave())
except tightfit.ArtifactError as error:
    print(error)
fitted = tightfit.load(sys.argv[1], wave(), libraries=True)
torch.save([tensor.detach() for tensor in step(fitted)], sys.argv[3])
"""


@pytest.mark.long
def test_libraries_run_in_a_process_on_a_machine_without_a_compiler(
    planned: Planned, folder: Path, tmp_path: Path
) -> None:
    bare = {"PATH": str(tmp_path), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    words = [str(folder), str(torch.get_num_threads()), str(tmp_path / "made.pt")]
    done = subprocess.run(
        [sys.executable, "-c", ALONE, *words],
        env={**{key: at for key, at in os.environ.items() if key != "CXX"}, **bare},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "groups need a compiler for cpu and there is none" in done.stdout
    assert all(map(torch.equal, torch.load(tmp_path / "made.pt"), step(planned[0])))


def test_libraries_of_another_build_are_not_used(
    planned: Planned, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = load_package(folder)
    monkeypatch.setattr(
        sys.modules[f"{package.__name__}.runtime.kernels.aot_libraries"],
        "build_key",
        lambda device: "another",
    )
    with pytest.warns(UserWarning, match="are for PyTorch .* here is PyTorch .*compiled here"):
        fitted = tightfit.load(folder, wave(), libraries=True)
    assert same(fitted, planned[0])
    with without_compiler(), pytest.raises(tightfit.ArtifactError, match="there is none"):
        again = Path(shutil.copytree(folder, folder.with_name("again")))
        package = load_package(again)
        monkeypatch.setattr(
            sys.modules[f"{package.__name__}.runtime.kernels.aot_libraries"],
            "build_key",
            lambda device: "another",
        )
        with pytest.warns(UserWarning, match="compiled here"):
            tightfit.load(again, wave(), libraries=True)


def doctored(folder: Path) -> None:
    path = folder / "libraries.pt2"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def test_a_doctored_library_is_refused(folder: Path) -> None:
    doctored(folder)
    with pytest.raises(tightfit.ArtifactError, match=r"libraries\.pt2 was changed since"):
        tightfit.load(folder, wave(), libraries=True)


@pytest.mark.parametrize("instead", ["error", "eager"])
def test_a_doctored_library_never_runs(
    folder: Path, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file of digests has been doctored to fit."""
    doctored(folder)
    (folder / MANIFEST_NAME).unlink()
    package = load_package(folder)
    monkeypatch.setattr(
        sys.modules[f"{package.__name__}.runtime.kernels.aot_libraries"], "load_aot_library", None
    )
    with pytest.raises(tightfit.ArtifactError, match="not the file of libraries that was"):
        tightfit.load(folder, wave(), libraries=True, without_compiler=instead)


def test_an_audit_names_a_doctored_library(planned: Planned, tmp_path: Path) -> None:
    place = planned[1].package
    above = Path(shutil.copytree(place.parents[5], tmp_path / "calls"))
    module = above / place.relative_to(place.parents[5])
    assert not [said for said in audit(above).complaints if "libraries.pt2" in said]
    doctored(module)
    said = f"{module / 'libraries.pt2'}: was changed after it was generated"
    assert said in audit(above).complaints


def test_a_group_that_was_changed_never_runs(folder: Path) -> None:
    path = folder / "groups.py"
    path.write_text(path.read_text().replace("aten.tanh", "aten.sin"))
    with pytest.raises(tightfit.ArtifactError, match=r"groups\.py was changed since"):
        tightfit.load(folder, wave())


@pytest.mark.parametrize("fused", [True, False])
def test_peaks_are_as_predicted(planned: Planned, folder: Path, fused: bool) -> None:
    made = planned[1]
    if fused:
        fitted = tightfit.load(folder, wave(), libraries=True)
    else:
        fitted = load_package(folder).eager.load(wave())
        assert made.eager_fallback is not None
        made = made.eager_fallback
    graph = next(
        path / "graph.arrow" for path in made.package.parents if (path / "graph.arrow").exists()
    )
    stepper = StepRunner.of(read_graph(graph), BuiltModel(wave(), [((ROWS,), {})]))
    sample: Sample = ((ROWS.clone(),), {})
    assert measure_memory(fitted, stepper, sample, "cpu")[0].peak == made.peak


def test_standard_error_tells_how_far_compiling_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    package = load_package(folder)
    monkeypatch.setattr(
        sys.modules[f"{package.__name__}.runtime.kernels.fused_groups"], "PROGRESS_SECONDS", 0.0
    )
    tightfit.load(folder, wave())
    count = len(package.GROUPS)
    assert f"compiling group {count} of {count}\n" in capsys.readouterr().err


def test_the_plan_beside_has_the_same_budget(planned: Planned) -> None:
    made = planned[1]
    assert made.eager_fallback is not None
    assert made.eager_fallback.budget_total == made.budget_total
    assert made.eager_fallback.peak == load_package(made.package).eager.PREDICTED_PEAK


def test_what_a_package_does_not_have_is_refused(planned: Planned, folder: Path) -> None:
    package = load_package(folder)
    bare = sys.modules[f"{package.__name__}.runtime.kernels.fused_groups"]
    with pytest.raises(RuntimeError, match="plan with with_eager=True"):
        bare.prepare_kernels((), "cpu", None, None, False, "eager")
    with pytest.raises(RuntimeError, match="plan with with_libraries=True"):
        bare.prepare_kernels((), "cpu", None, None, True, "error")
    with pytest.raises(tightfit.ArtifactError, match="without_compiler is 'original'"):
        tightfit.load(folder, wave(), without_compiler="original")  # type: ignore[arg-type]


def test_settings_that_are_none() -> None:
    with pytest.raises(tightfit.ConfigError, match="libraries is 1, expected True or False"):
        FusedKernelOptions(libraries=1)  # type: ignore[arg-type]


def test_the_manifest_names_all_that_travels(folder: Path) -> None:
    files = json.loads((folder / MANIFEST_NAME).read_text())["files"]
    assert {"libraries.pt2", "eager.py", "eager_step.py", "eager_guards.json"} <= set(files)
