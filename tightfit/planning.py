"""The whole path in one call: a model in, a module that fits the budget out.

The stages are those of the workflow: ops measured and blocks solved in a store are not done again
here.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from schemas.budget import NO_BUDGET, parse_budget
from schemas.config import BASELINES, parse_config, require_folders
from schemas.errors import ConfigError, ModelError
from schemas.frontier import Frontier, read_frontier
from tightfit.choices import Choice, Made
from tightfit.house import default_store
from tightfit.interrupted import frontier_so_far
from tightfit.progress import Progress
from tightfit.route import Route

if TYPE_CHECKING:
    from torch import Tensor, nn

    from stages.device.factory import Built

Otherwise = Literal["error", "original"]

LEAST = "min"
"""What stands for the smallest budget that is known to work."""


def plan(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    budget: str | int | Choice = "50%",
    strategy: str = "rockmate",
    loss: Callable[[Any], Tensor] | None = None,
    store: Path | str | None = None,
    device: str | None = None,
    engine: Literal["highs", "cbc"] = "highs",
    peaks: int = 4,
    saves: int = 6,
    jobs: int | None = None,
    otherwise: Otherwise = "error",
    check: bool = True,
    progress: bool = True,
) -> tuple[nn.Module, Made]:
    """Plans the training step `model(*args, **kwargs)` under a budget.

    Returns the module that takes the place of `model`, with its parameters, and the plan. `budget`
    is a size ("8GiB"), a share ("50%") or bytes, as in the configuration, "min" for the smallest
    known to work, or a choice of the frontier of such a plan; a baseline takes none.
    `loss` is a function from the model's output to a scalar, where it shall be planned too.
    `device` is that of the model's parameters unless given. What was found out is kept in `store`,
    unless given the folder `tightfit` in the user's cache folder.
    `engine`, `peaks` and `saves` are the solver's settings, `jobs` the number of blocks solved at
    a time. `otherwise` says what a call of other shapes does: raise, or run the original model.
    With `check` the planned module is compared with the original on other contents of the sample's
    shapes, which takes a few steps of both and the memory that the original takes. With `progress`
    standard error tells what is being done. An interruption while the frontier is made gives the
    best plan so far, where one fits.
    Raises ConfigError when the budget is no size or too small, ModelError when the model cannot
    be captured or the planned module does not do what the original does.
    """
    import torch

    store = default_store() if store is None else Path(store)
    _check_settings(strategy, store, engine, peaks, saves, jobs, otherwise)
    written = NO_BUDGET if strategy in BASELINES else _written(budget)
    telling = Progress(progress)
    with (
        telling.telling(*(() if check else ("check",))),
        _quiet(),
        torch.inference_mode(False),
        torch.enable_grad(),
    ):
        built, device = _built(model, args, kwargs or {}, loss, device)
        solver = (engine, str(peaks), str(saves))
        route = Route(store, device, strategy, solver, jobs, telling)
        return _planned(route, built, written, otherwise, check)


def _planned(
    route: Route, built: Built, written: str, otherwise: Otherwise, check: bool
) -> tuple[nn.Module, Made]:
    from tightfit.carried import load_carrying

    graph = route.trace(built)
    costs = route.profile(built, graph)
    path, more = _frontier(route, graph, costs, written)
    frontier = read_frontier(path)
    if written == LEAST:
        written = str(_smallest(graph, frontier))
    made, module = route.module(graph, costs, path, written)
    planned = load_carrying(module, built.model, otherwise)
    if check:
        route.check(graph, built, planned)
    return planned, Made.of(replace(made, sentence=made.sentence + more), frontier, module)


def _written(budget: str | int | Choice) -> str:
    """A budget as text; raises ConfigError where it is none."""
    if isinstance(budget, Choice):
        return str(budget.budget)
    return LEAST if budget == LEAST else parse_budget(budget).text


def _smallest(graph: Path, frontier: Frontier) -> int:
    """The smallest budget, in bytes, that a plan of a frontier is within."""
    from schemas.graph import read_graph
    from stages.combine.choose import fixed_bytes

    fixed = fixed_bytes(read_graph(graph))
    return fixed.parameters + fixed.buffers + fixed.inputs + frontier.points[-1].peak


def _frontier(route: Route, graph: Path, costs: Path, written: str) -> tuple[Path, str]:
    """The frontier, and what is to be said of it. Where making it is interrupted, it is that of
    what is known so far, if a plan of it fits; else the interruption is raised."""
    from schemas.costs import read_costs
    from schemas.graph import read_graph
    from stages.combine.choose import choose
    from stages.replay.condense import condense

    try:
        return route.frontier(graph, costs), ""
    except KeyboardInterrupt:
        route.progress.say("interrupted, taking the best plan so far (again: end at once)")
        known = frontier_so_far(route, graph, costs)
        if known is None or written == LEAST:
            raise
        traced, paid = read_graph(graph), read_costs(costs)
        best = read_frontier(known)
        if choose(traced, paid, condense(traced, paid), best, written)[1] is None:
            raise
    return known, "; the best plan when its making was interrupted"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Within it PyTorch does not warn of what planning does to it."""
    with warnings.catch_warnings():
        for name in ("torch", "stages", "schemas", "tightfit", "tightfit_module_[0-9a-f_]+"):
            warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
        yield


def load(package: Path | str, model: nn.Module, otherwise: Otherwise = "error") -> nn.Module:
    """The module that takes the place of `model`, by the generated package in a folder.

    `otherwise` says what a call that differs from the plan does: raise PlanMismatch, or run the
    original model. Raises ArtifactError where the folder holds no package, or one for another
    model.
    """
    from tightfit.carried import load_carrying

    return load_carrying(package, model, otherwise)


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
