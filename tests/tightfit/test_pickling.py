"""Planned modules go through files, processes and copies, and run no other code on the way."""

from __future__ import annotations

import copy
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import multiprocessing

import tightfit
from tests.tightfit.conftest import SETTINGS, Tower, gradients, tower
from tightfit import ArtifactError
from tightfit.api import pickling
from tightfit.api.pickling import load_pickled
from tightfit.api.plan_arguments import check_cuda_graphs

ROOT = Path(__file__).parents[2]
ROWS = torch.randn(64, 16, generator=torch.Generator().manual_seed(1))
ELSEWHERE = """
import sys, torch, tightfit
model, rows = torch.load(sys.argv[1], weights_only=False)
print(type(model).__mro__[1].__name__, type(model)._tightfit_original.__name__)
model(rows).backward()
torch.save([weight.grad for weight in model.parameters()], sys.argv[2])
try:
    model(rows[:5])
except tightfit.PlanMismatch as error:
    print("refused:", error)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tightfit" / "packages"


def planned(store: Path, seed: int = 0, **options: Any) -> tuple[Tower, tightfit.ChosenPlan]:
    settings = {"store": store, "progress": False, "check": False, **SETTINGS, **options}
    made = tightfit.plan(tower(seed), (ROWS,), strategy="checkpoint_all", **settings)
    assert isinstance(made[0], Tower)
    return made[0], made[1]


def is_planned(model: torch.nn.Module) -> bool:
    return hasattr(type(model), "_tightfit_original")


def moved(store: Path, tmp_path: Path, **options: Any) -> tuple[Tower, Path]:
    """A planned module by a package in a folder of its own."""
    _, made = planned(store, **options)
    folder = tmp_path / "package"
    shutil.copytree(made.package, folder)
    model = tightfit.load(folder, tower(), options.get("otherwise", "error"))
    assert isinstance(model, Tower)
    return model, folder


def test_a_whole_module_in_a_file_is_trained_elsewhere(store: Path, tmp_path: Path) -> None:
    model, folder = moved(store, tmp_path)
    file, found = tmp_path / "model.pt", tmp_path / "found.pt"
    torch.save((model, ROWS), file)
    shutil.rmtree(folder)
    said = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, str(file), str(found)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("Tower Tower\nrefused: x has shape (5, 16)")
    wanted = gradients(tower(), ROWS)
    assert all(map(torch.equal, torch.load(found), wanted))


COPIES: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "old pickle": lambda model: pickle.loads(pickle.dumps(model, protocol=2)),
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("way", COPIES)
def test_a_copy_is_planned_and_has_a_state_of_its_own(way: str, store: Path) -> None:
    model, _ = planned(store)
    again = COPIES[way](model)
    assert is_planned(again) and type(again).__name__ == "Tower"
    with torch.no_grad():
        again.layers[0].weight.zero_()
    assert all(map(torch.equal, gradients(model, ROWS), gradients(tower(), ROWS)))
    twin = tower()
    with torch.no_grad():
        twin.layers[0].weight.zero_()  # type: ignore[operator]
    assert all(map(torch.equal, gradients(again, ROWS), gradients(twin, ROWS)))


def test_a_shallow_copy_shares_the_state(store: Path) -> None:
    model, _ = planned(store)
    again = copy.copy(model)
    assert is_planned(again) and again.layers is model.layers


def test_what_happens_otherwise_goes_along(store: Path) -> None:
    model, _ = planned(store, on_mismatch="original")
    again = pickle.loads(pickle.dumps(model))
    assert torch.equal(again(ROWS[:5]), tower()(ROWS[:5]))


def test_a_pickle_of_a_pickle(store: Path, tmp_path: Path) -> None:
    model, folder = moved(store, tmp_path)
    first = pickle.dumps(model)
    shutil.rmtree(folder)
    again = pickle.loads(pickle.dumps(pickle.loads(first)))
    assert all(map(torch.equal, gradients(again, ROWS), gradients(tower(), ROWS)))


def train(model: torch.nn.Module, rows: torch.Tensor, results: Any) -> None:
    """What a spawned process does."""
    model(rows).backward()
    left = [weight.grad for weight in model.parameters() if weight.grad is not None]
    results.put((is_planned(model), [gradient.numpy() for gradient in left]))


@pytest.mark.long
def test_a_spawned_process_runs_the_plan(store: Path) -> None:
    model, _ = planned(store)
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=train, args=(model, ROWS, results))
    process.start()
    was_planned, found = results.get(timeout=240)
    process.join()
    assert was_planned
    wanted = [gradient.numpy() for gradient in gradients(tower(), ROWS)]
    assert all((one == other).all() for one, other in zip(found, wanted, strict=True))


def test_code_that_was_changed_where_it_was_is_not_run(
    store: Path, tmp_path: Path, cache: Path
) -> None:
    model, folder = moved(store, tmp_path)
    data = pickle.dumps(model)
    with (folder / "step.py").open("a") as file:
        file.write('raise SystemExit("changed code")\n')
    again = pickle.loads(data)
    assert all(map(torch.equal, gradients(again, ROWS), gradients(tower(), ROWS)))
    [copied] = cache.iterdir()
    with (copied / "runtime/planned_module.py").open("a") as file:
        file.write('raise SystemExit("changed code")\n')
    assert is_planned(pickle.loads(data))
    assert "changed code" not in (copied / "runtime/planned_module.py").read_text()


def reduced(model: torch.nn.Module) -> tuple[Any, Any]:
    """What unpickles a planned module, and what it is given."""
    found: Any = model.__reduce_ex__(2)
    return found[0], found[1]


@pytest.mark.parametrize("name", ["step.py", "more.py", "../outside.py"])
def test_a_package_that_was_changed_in_the_pickle_is_refused(
    name: str, store: Path, tmp_path: Path, cache: Path
) -> None:
    model, _ = moved(store, tmp_path)
    again, (place, digest, files, *rest) = reduced(model)
    assert again is load_pickled
    with pytest.raises(tightfit.ArtifactError, match="not the one that was put into it"):
        load_pickled(place, digest, {**files, name: b"raise SystemExit"}, *rest)
    assert not cache.exists() and not (cache.parent / "outside.py").exists()


def test_a_package_that_is_no_package_is_refused(store: Path, tmp_path: Path, cache: Path) -> None:
    model, _ = moved(store, tmp_path)
    _, (place, digest, files, *rest) = reduced(model)
    nowhere: Any = None
    for here, those in ((place, {**files, "step.py": "text"}), (nowhere, files)):
        with pytest.raises(tightfit.ArtifactError, match="not the one that was put into it"):
            load_pickled(here, digest, those, *rest)
    load_pickled("x" * 5000, digest, files, *rest)


def test_a_package_has_no_files_elsewhere(store: Path, tmp_path: Path, cache: Path) -> None:
    from tightfit.stages.validate.load import package_digest

    model, _ = moved(store, tmp_path)
    _, (_, _, files, *rest) = reduced(model)
    outside = {**files, "../outside.py": b""}
    with pytest.raises(tightfit.ArtifactError, match="not the one that was put into it"):
        load_pickled("nowhere", package_digest(outside), outside, *rest)
    assert not cache.parent.exists()


def test_a_package_that_is_gone_is_named_when_pickled(store: Path, tmp_path: Path) -> None:
    model, folder = moved(store, tmp_path)
    with (folder / "step.py").open("a") as file:
        file.write("# another\n")
    with pytest.raises(tightfit.ArtifactError, match="was changed since the planned module was"):
        pickle.dumps(model)
    shutil.rmtree(folder)
    with pytest.raises(tightfit.ArtifactError, match="there is no generated package"):
        pickle.dumps(model)


def test_cuda_graphs_go_along_and_are_refused_on_the_cpu(store: Path) -> None:
    model, made = planned(store)
    said = (
        "CUDA graphs need a GPU, and the plan was made for cpu: load the plan without cuda_graphs"
    )
    with pytest.raises(ArtifactError, match=said):
        tightfit.load(made.package, tower(), cuda_graphs=True)
    reduced = model.__reduce_ex__(2)
    assert isinstance(reduced, tuple)
    load, parts = reduced[:2]
    assert len(parts) == 5
    place, digest, files, *_ = parts
    again, more = pickling._reduce_module(place, digest, tower(), "original", True)
    assert again is load and more[:3] == (place, digest, files) and more[4:] == ("original", True)
    with pytest.raises(ArtifactError, match=said):
        load(*more)


def test_the_graphs_of_several_shapes_are_refused() -> None:
    check_cuda_graphs(True, "cuda:1", 1)
    with pytest.raises(tightfit.ConfigError, match="samples of 2 shapes, and the graphs of each"):
        check_cuda_graphs(True, "cuda:1", 2)
