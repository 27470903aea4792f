"""The whole path in one call: a model in, a module that fits the budget out.

The stages are those of the workflow: ops measured and blocks solved in a store are not done again
here.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from schemas.budget import NO_BUDGET, parse_budget
from schemas.config import BASELINES, parse_config, require_folders
from schemas.errors import ConfigError, ModelError
from schemas.fingerprint import stage_fingerprint
from schemas.lineage import keep_records
from schemas.made import Made
from schemas.plan import Plan, read_plan
from tightfit.house import default_store

if TYPE_CHECKING:
    from torch import Tensor, nn

    from stages.device.factory import Built

PLANNING = ("partition", "solve", "combine")
"""The stages whose code decides a frontier."""


def plan(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str | int = "50%",
    strategy: str = "rockmate",
    loss: Callable[[Any], Tensor] | None = None,
    store: Path | str | None = None,
    device: str | None = None,
    engine: Literal["highs", "cbc"] = "highs",
    peaks: int = 4,
    saves: int = 6,
    jobs: int | None = None,
    otherwise: Literal["error", "original"] = "error",
    check: bool = True,
) -> tuple[nn.Module, Plan]:
    """Plans the training step `model(*args, **kwargs)` under a budget.

    Returns the module that takes the place of `model`, with its parameters, and the plan. `budget`
    is a size ("8GiB"), a share ("50%") or bytes, as in the configuration; a baseline takes none.
    `loss` is a function from the model's output to a scalar, where it shall be planned too.
    `device` is that of the model's parameters unless given. What was found out is kept in `store`,
    unless given the folder `tightfit` in the user's cache folder.
    `engine`, `peaks` and `saves` are the solver's settings, `jobs` the number of blocks solved at
    a time. `otherwise` says what a call of other shapes does: raise, or run the original model.
    With `check` the planned module is compared with the original on other contents of the sample's
    shapes, which takes a few steps of both and the memory that the original takes.
    Raises ConfigError when the budget is no size or too small, ModelError when the model cannot
    be captured or the planned module does not do what the original does.
    """
    import torch

    store = default_store() if store is None else Path(store)
    _check_settings(strategy, store, engine, peaks, saves, jobs, otherwise)
    written = NO_BUDGET if strategy in BASELINES else parse_budget(budget).text
    with torch.inference_mode(False), torch.enable_grad():
        built, device = _built(model, args, kwargs or {}, loss, device)
        graph = _trace(built, store, device)
        costs = _profile(built, graph, store, device)
        solver = (engine, str(peaks), str(saves))
        frontier = _frontier(graph, costs, strategy, store, solver, jobs)
        made, module = _module(graph, costs, frontier, written)
        from stages.validate.load import load_planned

        planned = load_planned(module, model, otherwise=otherwise)
        if check:
            _check(graph, built, planned)
        return planned, made


def load(
    package: Path | str, model: nn.Module, otherwise: Literal["error", "original"] = "error"
) -> nn.Module:
    """The module that takes the place of `model`, by the generated package in a folder.

    `otherwise` says what a call that differs from the plan does: raise PlanMismatch, or run the
    original model. Raises ArtifactError where the folder holds no package, or one for another
    model.
    """
    from stages.validate.load import load_planned

    return load_planned(package, model, otherwise=otherwise)


def _module(graph: Path, costs: Path, frontier: Path, written: str) -> tuple[Plan, Path]:
    """The plan for a budget as written, and the folder of its module."""
    point = frontier.parent / (written if written == NO_BUDGET else parse_budget(written).directory)
    files = ("--graph", graph, "--costs", costs)
    _run("choose", "--frontier", frontier, *files, "--budget", written, "--out", point)
    plan, module = point / "plan.json", point / "module"
    made = read_plan(plan)
    if not made.feasible:
        raise ConfigError(made.sentence)
    schedule = point / "schedule.arrow"
    _run("generate", "--graph", graph, "--schedule", schedule, "--plan", plan, "--out", module)
    return made, module


def _check(graph: Path, built: Built, planned: nn.Module) -> None:
    from schemas.graph import read_graph
    from stages.validate.validate import check

    said = check(read_graph(graph), built, planned)
    if said:
        raise ModelError(said)


def _built(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Callable[[Any], Tensor] | None,
    device: str | None,
) -> tuple[Built, str]:
    from stages.device.factory import check_result, move, require_device

    _check_arguments(model, args, kwargs)
    sample = (tuple(args), dict(kwargs))
    result = (model, sample) if loss is None else (model, sample, loss)
    built = check_result(result, "", type(model).__name__)
    if device is None:
        device = str(next((weight.device for weight in model.parameters()), "cpu"))
    require_device(device)
    return move(built, device), device


def _check_settings(
    strategy: str,
    store: Path | str,
    engine: str,
    peaks: int,
    saves: int,
    jobs: int | None,
    otherwise: str,
) -> None:
    """Raises ConfigError, as a configuration would, where a setting is none."""
    document = {
        "models": {"model": {"factory": "none:none"}},
        "strategies": [strategy],
        "store": str(store),
        "solver": {"engine": engine, "peaks": peaks, "saves": saves},
    }
    config = parse_config(document, "plan")
    require_folders(config, "plan")
    try:
        Path(store).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"plan: store: {store} cannot be made ({error.strerror})") from error
    if otherwise not in ("error", "original"):
        raise ConfigError(f'plan: otherwise is {otherwise!r}, expected "error" or "original"')
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise ConfigError(f"plan: jobs is {jobs!r}, expected a number of at least 1")


def _check_arguments(model: Any, args: Any, kwargs: Any) -> None:
    """Raises ModelError where what is to be planned is no call of a module."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise ModelError(f"plan is given a {type(model).__name__} instead of a torch module")
    if not isinstance(args, tuple | list):
        kind = type(args).__name__
        raise ModelError(f"plan is given a {kind} as args, write a tuple: plan(model, (x,))")
    if isinstance(kwargs, str):
        raise ModelError(f"plan is given {kwargs!r} as kwargs, write budget={kwargs!r}")
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        raise ModelError('plan is given no keyword arguments as kwargs, write {"name": value}')


def _trace(built: Built, store: Path, device: str) -> Path:
    """The path of the traced graph in the store."""
    from schemas.graph import write_graph
    from stages.trace.trace import trace

    graph = trace(built, type(built.model).__name__, device)
    path = _filed(store / "calls", "graph.arrow", lambda path: write_graph(path, graph))
    keep_records("trace", Made([path], [], {"name": graph.model, "device": device}))
    return path


def _profile(built: Built, graph: Path, store: Path, device: str) -> Path:
    """The path of the costs in the store, below the graph's folder."""
    from schemas.costs import write_costs
    from schemas.graph import read_graph
    from stages.profile.device import describe_device
    from stages.profile.library import open_library
    from stages.profile.profile import profile

    with open_library(store, describe_device(device)) as library:
        costs = profile(read_graph(graph), built.loss, library)
    path = _filed(graph.parent, "costs.arrow", lambda path: write_costs(path, costs))
    keep_records("profile", Made([path], [graph], {"source": "measured", "device": device}))
    return path


def _filed(folder: Path, name: str, write: Callable[[Path], str]) -> Path:
    """Writes an artifact into a folder below `folder` that its digest names; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as temporary:
        made = Path(temporary) / name
        path = folder / write(made)[:32] / name
        path.parent.mkdir(exist_ok=True)
        try:
            made.replace(path)
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}): remove it") from error
    return path


def _frontier(
    graph: Path,
    costs: Path,
    strategy: str,
    store: Path,
    solver: tuple[str, str, str],
    jobs: int | None,
) -> Path:
    """The path of the frontier below the folder of the costs, made unless it is there."""
    engine, peaks, saves = solver
    code = [stage_fingerprint(stage) for stage in PLANNING]
    key = hashlib.sha256(" ".join([*solver, *code]).encode()).hexdigest()[:16]
    place = costs.parent / key
    blocks, options = place / "blocks.arrow", place / "options.arrow"
    path = place / strategy / "frontier.arrow"
    if path.exists():
        return path
    files = ("--graph", graph, "--costs", costs)
    _run("partition", *files, "--out", blocks)
    grid = ("--engine", engine, "--peaks", peaks, "--saves", saves)
    workers = jobs or os.cpu_count() or 1
    _run("solve", "--blocks", blocks, "--store", store, *grid, "--jobs", workers, "--out", options)
    made = ("--blocks", blocks, "--options", options, "--strategy", strategy)
    _run("combine", *files, *made, "--workers", workers, "--out", path)
    return path


def _run(stage: str, *words: object) -> None:
    """Runs a stage in this process as its command line would; its errors are raised."""
    from stages.__main__ import STAGES, record

    module = import_module(STAGES[stage][0])
    parser = argparse.ArgumentParser(prog=stage)
    module.add_arguments(parser)
    options = parser.parse_args([str(word) for word in words])
    module.run(options)
    record(stage, module.made(options))
