"""The configuration of a run: read against `config.schema.json`, all errors told at once."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from tightfit.schemas.config_chains import ChainConfig, build_chain_configs, find_chain_problems
from tightfit.schemas.config_checks import (
    FUSED_KERNELS,
    PACKAGE_CONTENT_KEYS,
    find_early_problems,
    find_late_problems,
    find_link_machine,
    planned_model_names,
    sample_names,
)
from tightfit.schemas.config_dynamic import DynamicConfig, find_dynamic_problems
from tightfit.schemas.config_errors import (
    describe_schema_error,
    format_choices,
    format_config_errors,
    format_key_path,
)
from tightfit.schemas.config_factories import find_factory_problems
from tightfit.schemas.config_matrix import expand_matrices, matrix_problems
from tightfit.schemas.config_optimizer_step import (
    OptimizerStepConfig,
    optimizer_step_problems,
    parse_optimizer_step,
)
from tightfit.schemas.config_paths import resolve_config_paths, shortest_path
from tightfit.schemas.config_pipeline import PipelineConfig, find_pipeline_problems
from tightfit.schemas.config_reading import read_yaml, to_json_values, without_refused_values
from tightfit.schemas.machine import resolve_machine_file
from tightfit.schemas.optimizer_plan import OPTIMIZER_OFFLOAD
from tightfit.util.budget import (
    COARSE_FRONTIER_BUDGETS,
    FRONTIER_BUDGETS,
    NO_BUDGET,
    USUAL_LOSS_ROOM,
    parse_plan_budget,
)
from tightfit.util.errors import ConfigError, TightfitError
from tightfit.util.solver_engines import BLOCK_SOLVERS, BlockSolver, SolverEngine, step_engine
from tightfit.util.strategies import (
    ALLOCATORS,
    BUDGET_SLOTS,
    CHAIN_STRATEGIES,
    HIERARCHY_LIMITS,
    KEEP_ALL,
    STRATEGIES,
    baseline_names,
)

EAGER_FOLDER = "eager"
"""The folder, in that of a model with fused kernels, of what is planned with eager's."""
SCHEMA_PATH = Path(__file__).with_name("config.schema.json")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """The keys that hold for all models, or for a model that sets its own. Dynamic programs cut the
    memory into `slots`.

    `machine` is the description of the device, None if the device is here. `link_machine` describes
    the machine whose link to an offload target strategies take; None if none is named: then the
    link of the device is measured."""

    device: str
    engine: BlockSolver
    peaks: int
    saves: int
    pairs: int
    slots: int = BUDGET_SLOTS
    machine: Path | None = None
    link_machine: Path | None = None

    @property
    def here(self) -> str:
        """The device that steps are traced for: a described one is traced as the CPU."""
        return self.device if self.machine is None else "cpu"

    @property
    def step_engine(self) -> SolverEngine:
        """The engine of the integer programs of whole steps."""
        return step_engine(self.engine)


@dataclass(frozen=True, kw_only=True)
class ModelConfig(PlanSettings):
    """A model to plan, or one of its samples: its factory ("package.module:function"), the
    factory's keyword arguments, the strategies and budgets, as written, to plan it with, whether
    plans may rest on inputs of nothing but `ones`, and its kernels: eager's, or `fused` ones, whose
    modules may carry a plan of eager's (`with_eager`) and compiled libraries (`with_libraries`).
    `joint` are the names of the samples that share the bytes of each budget, this one among them;
    none where it is its own. One with a `pipeline` alone has no strategies for one device. With an
    `optimizer_step` its whole step is planned. `loss_room` are the bytes, as written, that plans
    leave to a loss which the factory does not give, and `dynamic` the sizes of inputs that differ
    from call to call."""

    name: str
    factory: str
    arguments: dict[str, Any]
    strategies: list[str]
    budgets: list[str]
    ones: bool = False
    fused: bool = False
    with_eager: bool = False
    with_libraries: bool = False
    joint: tuple[str, ...] = ()
    pipeline: PipelineConfig | None = None
    optimizer_step: OptimizerStepConfig | None = None
    loss_room: str = USUAL_LOSS_ROOM
    dynamic: DynamicConfig | None = None

    @property
    def arguments_json(self) -> str:
        """The arguments as JSON text, keys in order."""
        return json.dumps(self.arguments, sort_keys=True)


@dataclass(frozen=True)
class PlanRequest:
    """One plan to make. `budget` is as written, "none" for a baseline; `directory` is the folder
    that stands for it."""

    model: str
    strategy: str
    budget: str
    directory: str


@dataclass(frozen=True, kw_only=True)
class Config(PlanSettings):
    """A valid configuration with its defaults filled in; the fields are those of the schema.

    `operators` maps the namespaces of operators that graphs may call beside PyTorch's own to the
    modules that register them. `fail_on` are the statuses of plans for which a run ends with exit
    code 1. Reports show plans for `budgets_shown` beside those that are asked for, none where 0.
    `disk` is the folder of the offload target on the CPU, "" for that of the environment, and
    `hierarchy` are the limits of clusters."""

    models: dict[str, ModelConfig]
    chains: dict[str, ChainConfig]
    search_path: list[str]
    operators: dict[str, str]
    results: str
    store: str
    fail_on: tuple[str, ...] = ("failed",)
    budgets_shown: int = COARSE_FRONTIER_BUDGETS
    disk: str = ""
    hierarchy: dict[str, int] = field(default_factory=lambda: dict(HIERARCHY_LIMITS))

    def requests(self, model: str) -> list[PlanRequest]:
        """The plans to make of one model, in the order of the configuration. The step that keeps
        everything is one of them if kernels are fused, whose plans are compared with it, or if
        samples share a budget, whose bytes it says."""
        chosen = self.models[model]
        apart = (chosen.fused or chosen.joint) and KEEP_ALL not in chosen.strategies
        return [
            PlanRequest(model, strategy, budget, directory)
            for strategy in ([KEEP_ALL] if apart else []) + chosen.strategies
            for budget, directory in _strategy_budgets(strategy, chosen.budgets)
        ]

    def budget(self, model: str, directory: str) -> str:
        """The budget, as written, that a folder's name stands for."""
        return next(
            request.budget for request in self.requests(model) if request.directory == directory
        )


def parse_config(
    document: Mapping[str, Any],
    source: str = "config.yaml",
    folder: Path = Path(),
    found_before: Sequence[str] = (),
    factories: bool = False,
) -> Config:
    """Checks a configuration and fills in its defaults. Its relative paths start at a folder. What
    was `found_before` is wrong with its text is told with the rest. With `factories` these have to
    be found on this machine, in whose jobs they are called.

    Raises ConfigError with one line for each error, naming its path and what was expected.
    """
    from jsonschema import Draft202012Validator

    schema = _load_schema()
    plain, problems = to_json_values(document)
    problems += found_before
    errors = list(Draft202012Validator(schema).iter_errors(plain))
    problems += map(describe_schema_error, errors)
    found = resolve_config_paths(plain, schema, folder)
    problems += find_early_problems(plain, found) + optimizer_step_problems(found)
    faults = [
        *find_chain_problems(found, planned_model_names(plain)),
        *find_pipeline_problems(found),
        *find_dynamic_problems(plain),
    ]
    faults += find_factory_problems(found, folder) if factories else ()
    # What is wrong beyond the schema is told of the values that the schema takes.
    sound = without_refused_values(plain, errors) if errors else plain
    if Draft202012Validator(schema).is_valid(sound):
        filled = resolve_config_paths(_with_defaults(sound, schema), schema, folder)
        filled["solver"] = schema["properties"]["solver"]["default"] | filled["solver"]
        with contextlib.suppress(TightfitError):  # told of a device that is none
            problems += find_late_problems(filled)
        faults += matrix_problems(filled["models"])
    problems += [f"{format_key_path(path)}: {fault}" for path, fault in faults]
    if problems:
        raise ConfigError(format_config_errors(source, sorted(set(problems))))
    filled["models"] = expand_matrices(filled["models"])
    return Config(
        **_plan_settings(filled, {}),
        models={
            model.name: model
            for name in filled["models"]
            for model in _expand_samples(name, filled)
        },
        chains=build_chain_configs(filled, step_engine(filled["solver"]["engine"])),
        search_path=filled["search_path"],
        operators=filled["operators"],
        results=shortest_path(filled["results"]),
        store=shortest_path(filled["store"]),
        fail_on=tuple(filled["fail_on"]),
        budgets_shown={"auto": COARSE_FRONTIER_BUDGETS, True: FRONTIER_BUDGETS, False: 0}[
            filled["frontier"]
        ],
        disk=filled["disk"],
        hierarchy=filled["hierarchy"],
    )


def _plan_settings(document: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """The fields of `PlanSettings` of a model, of a document with defaults."""
    device = model.get("device", document["device"])
    return {
        "device": device,
        **document["solver"],
        **model.get("solver", {}),
        "pairs": model.get("pairs", document["pairs"]),
        "machine": resolve_machine_file(device),
        "link_machine": find_link_machine(document, model),
    }


def read_config(path: Path | str, factories: bool = False) -> Config:
    """Reads a configuration file, in whose folder its relative paths start; raises ConfigError when
    it is absent, no YAML or not valid, with `factories` also if one is not found, or is
    not called as its source says."""
    document, twice = read_yaml(path)
    return parse_config(document, str(path), Path(path).parent, twice, factories)


def require_folders(
    config: Config, source: str = "config.yaml", writable_results: bool = True
) -> None:
    """Checks that results and store can be folders, and that results can be written where these
    have to be: a dry run writes none.

    A store may be one that is only read. Raises ConfigError with a line for each error.
    """
    problems = []
    for key, path in (("results", config.results), ("store", config.store)):
        try:
            places = (Path(path), *Path(path).parents)
            there = next(place for place in places if place.exists() or place.is_symlink())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.append(f"{key}: {path} cannot be a folder ({reason})")
            continue
        if not there.exists():
            problems.append(f"{key}: {there} is a link that leads nowhere, expected a folder")
        elif not there.is_dir():
            problems.append(f"{key}: {there} is a file, expected a folder")
        elif key == "results" and writable_results and not os.access(there, os.W_OK):
            problems.append(f"{key}: {there} is read-only, expected a folder to write to")
    if problems:
        raise ConfigError(format_config_errors(source, problems))


def require_disks(config: Config, source: str = "config.yaml") -> None:
    """Checks that the folders take files in which activations, parameters and states wait, on the
    machine whose disks they are on.

    Raises ConfigError with a line for each that does not.
    """
    folders = {"disk": config.disk}
    for name, model in config.models.items():
        for key in ("disk", "second_disk"):
            where = format_key_path(["models", name, "offload", key])
            folders[where] = getattr(model.optimizer_step, key, "")
    problems = [
        f"{where}: {path} {problem}"
        for where, path in folders.items()
        if path and (problem := _disk_problem(path))
    ]
    if problems:
        raise ConfigError(format_config_errors(source, problems))


def _disk_problem(path: str) -> str:
    """Why nothing can wait in a folder, "" if it can."""
    if not Path(path).is_dir():
        return "is no folder, expected one on the disk: make it first"
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        return f"takes no files ({error.strerror or error}), expected a folder to write to"
    return ""


def _strategy_budgets(strategy: str, budgets: Iterable[str]) -> list[tuple[str, str]]:
    if strategy in baseline_names():
        return [(NO_BUDGET, NO_BUDGET)]
    return [(budget, parse_plan_budget(budget).directory) for budget in budgets]


def _expand_samples(name: str, document: dict[str, Any]) -> Iterator[ModelConfig]:
    """The model of a name, or one for each of its samples, which a whole step has together."""
    model = document["models"][name]
    settings = _plan_settings(document, model)
    step = parse_optimizer_step(model)
    named: dict[str, dict[str, Any]] = {name: {}}
    if step is not None:
        named = {name: step.samples[""]}
    elif "samples" in model:
        named = dict(zip(sample_names(name, model["samples"]), model["samples"], strict=True))
    fused = model.get("kernels", document["kernels"]) == FUSED_KERNELS
    pipeline = PipelineConfig.of_model(model)
    apart = pipeline is not None and not {"budgets", "strategies"} & model.keys()
    shared = [] if apart else document["strategies"]
    for each, further in named.items():
        yield ModelConfig(
            **settings,
            name=each,
            factory=model["factory"],
            arguments={**model["arguments"], **further},
            strategies=[OPTIMIZER_OFFLOAD] if step else model.get("strategies", shared),
            budgets=[
                parse_plan_budget(text).text for text in model.get("budgets", document["budgets"])
            ],
            ones=model["ones"],
            fused=fused,
            joint=tuple(named) if model["joint"] else (),
            pipeline=pipeline,
            optimizer_step=step,
            loss_room=str(model["loss_room"]),
            dynamic=DynamicConfig.of_model(model),
            **{key: fused and model.get(key, document[key]) for key in PACKAGE_CONTENT_KEYS},
        )


def _load_schema() -> dict[str, Any]:
    schema = cast(dict[str, Any], json.loads(SCHEMA_PATH.read_text()))
    schema["$defs"]["strategies"]["items"] = _enum_schema(STRATEGIES)
    schema["$defs"]["chain_strategies"]["items"] = _enum_schema(CHAIN_STRATEGIES)
    schema["$defs"]["allocators"]["items"] = _enum_schema(ALLOCATORS)
    schema["$defs"]["solver"]["properties"]["engine"] |= _enum_schema(BLOCK_SOLVERS)
    return schema


def _enum_schema(names: Iterable[str]) -> dict[str, Any]:
    """What the schema says of a key that has one of some names."""
    known = [*names]
    return {"enum": known, "expected": format_choices(known)}


def _with_defaults(value: Any, schema: Mapping[str, Any]) -> Any:
    """A valid value with the schema's defaults put where keys are absent."""
    if not isinstance(value, dict):
        return value
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties")
    filled = {
        key: _with_defaults(item, properties.get(key, others if isinstance(others, dict) else {}))
        for key, item in value.items()
    }
    for key, inner in properties.items():
        if key not in filled and "default" in inner:
            filled[key] = _with_defaults(json.loads(json.dumps(inner["default"])), inner)
    return filled
