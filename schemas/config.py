"""The configuration of a run: read against `config.schema.json`, all errors told at once."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from tightfit.schemas.config_errors import (
    describe_schema_error,
    format_config_errors,
    format_key_path,
)
from tightfit.schemas.config_optimizer_step import (
    OptimizerStepConfig,
    optimizer_step_problems,
    parse_optimizer_step,
)
from tightfit.schemas.frontier import COARSE_FRONTIER_BUDGETS, FRONTIER_BUDGETS
from tightfit.schemas.link import read_host_link
from tightfit.schemas.machine import read_machine, resolve_machine_file
from tightfit.schemas.measurement import FAILED_VERDICT
from tightfit.schemas.optimizer_plan import OPTIMIZER_OFFLOAD
from tightfit.util.budget import MIN_BUDGET, NO_BUDGET, budget_names, parse_user_budget
from tightfit.util.errors import ConfigError, TightfitError
from tightfit.util.solver_engines import BLOCK_SOLVERS, BlockSolver, SolverEngine, step_engine
from tightfit.util.strategies import KEEP_ALL, STRATEGIES, baseline_names

FUSED_KERNELS = "fused"
EAGER_FOLDER = "eager"
"""The folder, in that of a model with fused kernels, of what is planned with eager's."""
PACKAGE_CONTENT_KEYS = ("with_eager", "with_libraries")
"""Keys that say what modules of fused kernels carry."""
SCHEMA_PATH = Path(__file__).with_name("config.schema.json")


@dataclass(frozen=True)
class ModelConfig:
    """A model to plan: its factory ("package.module:function"), the factory's keyword arguments,
    the strategies and budgets, as written, to plan it with, whether plans may rest on inputs of
    nothing but `ones`, and its kernels: eager's, or `fused` ones, whose modules may carry a plan of
    eager's (`with_eager`) and compiled libraries (`with_libraries`). With an `optimizer_step` its
    whole step is planned."""

    name: str
    factory: str
    arguments: dict[str, Any]
    strategies: list[str]
    budgets: list[str]
    ones: bool = False
    fused: bool = False
    with_eager: bool = False
    with_libraries: bool = False
    optimizer_step: OptimizerStepConfig | None = None

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


@dataclass(frozen=True)
class Config:
    """A valid configuration with its defaults filled in; the fields are those of the schema.

    `operators` maps the namespaces of operators that graphs may call beside PyTorch's own to the
    modules that register them. `fail_on` are the verdicts of plans for which a run ends with exit
    code 1. Reports show plans for `budgets_shown` beside those that are asked for, none where 0.
    `machine` is the description of the device, None where the device is here. `linked` is that of
    the machine whose link to an offload target strategies take, None where none is named: that of
    the device is measured then. `disk` is the folder that it leads to on the CPU, "" for that of
    the environment."""

    models: dict[str, ModelConfig]
    device: str
    engine: BlockSolver
    peaks: int
    saves: int
    pairs: int
    search_path: list[str]
    operators: dict[str, str]
    results: str
    store: str
    fail_on: tuple[str, ...] = (FAILED_VERDICT,)
    budgets_shown: int = COARSE_FRONTIER_BUDGETS
    machine: Path | None = None
    linked: Path | None = None
    disk: str = ""

    @property
    def here(self) -> str:
        """The device that steps are traced for: a described one is traced as the CPU."""
        return self.device if self.machine is None else "cpu"

    @property
    def step_engine(self) -> SolverEngine:
        """The engine of the integer programs of whole steps."""
        return step_engine(self.engine)

    def requests(self, model: str) -> list[PlanRequest]:
        """The plans to make of one model, in the order of the configuration. Where its kernels are
        fused, the step that runs them unplanned is one of them: others are compared with it."""
        chosen = self.models[model]
        apart = chosen.fused and KEEP_ALL not in chosen.strategies
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


def parse_config(document: Mapping[str, Any], source: str = "config.yaml") -> Config:
    """Checks a configuration and fills in its defaults.

    Raises ConfigError with one line for each error, naming its path and what was expected.
    """
    from jsonschema import Draft202012Validator

    schema = _load_schema()
    plain, problems = _to_json_values(document)
    problems += [
        describe_schema_error(error) for error in Draft202012Validator(schema).iter_errors(plain)
    ]
    problems += _budget_problems(plain) + _device_problems(plain) + _sample_problems(plain)
    problems += optimizer_step_problems(plain)
    if not problems:
        filled = _with_defaults(plain, schema)
        problems = _link_problems(filled) + _kernel_problems(filled)
    if problems:
        raise ConfigError(format_config_errors(source, sorted(set(problems))))
    solver = filled["solver"]
    return Config(
        models={
            model.name: model
            for name in filled["models"]
            for model in _expand_samples(name, filled)
        },
        device=filled["device"],
        engine=solver["engine"],
        peaks=solver["peaks"],
        saves=solver["saves"],
        pairs=filled["pairs"],
        search_path=filled["search_path"],
        operators=filled["operators"],
        results=filled["results"],
        store=filled["store"],
        fail_on=tuple(filled["fail_on"]),
        budgets_shown={"auto": COARSE_FRONTIER_BUDGETS, True: FRONTIER_BUDGETS, False: 0}[
            filled["frontier"]
        ],
        machine=resolve_machine_file(filled["device"]),
        linked=_link_machine(filled),
        disk=filled["disk"],
    )


def read_config(path: Path | str) -> Config:
    """Reads a configuration file; raises ConfigError when it is absent, no YAML or not valid."""
    import yaml

    try:
        document = yaml.safe_load(Path(path).read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror or error})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not YAML ({' '.join(str(error).split())})") from error
    return parse_config(document, str(path))


def require_folders(config: Config, source: str = "config.yaml") -> None:
    """Checks that results and store can be folders, and that results can be written.

    A store may be one that is only read. Raises ConfigError with a line for each error.
    """
    problems = []
    for key, path in (("results", config.results), ("store", config.store)):
        try:
            there = next(place for place in (Path(path), *Path(path).parents) if place.exists())
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            problems.append(f"{key}: {path} cannot be a folder ({reason})")
            continue
        if not there.is_dir():
            problems.append(f"{key}: {there} is a file, expected a folder")
        elif key == "results" and not os.access(there, os.W_OK):
            problems.append(f"{key}: {there} is read-only, expected a folder to write to")
    if problems:
        raise ConfigError(format_config_errors(source, problems))


def _strategy_budgets(strategy: str, budgets: Iterable[str]) -> list[tuple[str, str]]:
    if strategy in baseline_names():
        return [(NO_BUDGET, NO_BUDGET)]
    return [budget_names(budget) for budget in budgets]


def _expand_samples(name: str, document: dict[str, Any]) -> Iterator[ModelConfig]:
    """The model of a name, or one for each of its samples, which a whole step has together."""
    model = document["models"][name]
    step = parse_optimizer_step(model)
    named: dict[str, dict[str, Any]] = {name: {}}
    if step is not None:
        named = {name: step.samples[""]}
    elif "samples" in model:
        named = dict(zip(_sample_names(name, model["samples"]), model["samples"], strict=True))
    fused = model.get("kernels", document["kernels"]) == FUSED_KERNELS
    for each, further in named.items():
        yield ModelConfig(
            each,
            model["factory"],
            {**model["arguments"], **further},
            [OPTIMIZER_OFFLOAD] if step else model.get("strategies", document["strategies"]),
            [budget_names(budget)[0] for budget in model.get("budgets", document["budgets"])],
            model["ones"],
            fused,
            optimizer_step=step,
            **{key: fused and model.get(key, document[key]) for key in PACKAGE_CONTENT_KEYS},
        )


def _sample_names(name: str, samples: Sequence[Any]) -> list[str]:
    return [f"{name}.{number}" for number in range(1, len(samples) + 1)]


def _load_schema() -> dict[str, Any]:
    schema = cast(dict[str, Any], json.loads(SCHEMA_PATH.read_text()))
    schema["$defs"]["strategies"]["items"] = _enum_schema(STRATEGIES)
    schema["properties"]["solver"]["properties"]["engine"] |= _enum_schema(BLOCK_SOLVERS)
    return schema


def _enum_schema(names: Iterable[str]) -> dict[str, Any]:
    """What the schema says of a key that has one of some names."""
    *most, last = names
    return {"enum": [*most, last], "expected": f"{', '.join(most)} or {last}"}


def _to_json_values(document: Any) -> tuple[Any, list[str]]:
    """The document as JSON would hold it, with a sentence for each value that JSON has not."""
    problems: list[str] = []

    def convert(value: Any, path: list[str | int]) -> Any:
        if isinstance(value, Mapping):
            for key in value:
                if not isinstance(key, str):
                    where = format_key_path([*path, str(key)])
                    problems.append(f"{where}: the key {key!r} is no text, expected a name")
            return {str(key): convert(item, [*path, str(key)]) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [convert(item, [*path, index]) for index, item in enumerate(value)]
        finite = not isinstance(value, float) or math.isfinite(value)
        if value is None or (isinstance(value, str | int | float) and finite):
            return value
        problems.append(
            f"{format_key_path(path)}: {value!r} is a {type(value).__name__}, "
            "expected a number, a text, a list or a mapping"
        )
        return str(value)

    return convert(document, []), problems


def _budget_problems(document: Any) -> list[str]:
    problems: list[str] = []
    for path, budgets in _budget_lists(document):
        seen: dict[str, Any] = {}
        for index, written in enumerate(budgets):
            if isinstance(written, bool) or not isinstance(written, str | int):
                continue  # the schema says so, or it is the least
            key = format_key_path([*path, index])
            try:
                directory = parse_user_budget(written, key).directory
            except ConfigError as error:
                problems.append(str(error))
                continue
            if directory in seen and seen[directory] != written:
                problems.append(
                    f"{key}: {written!r} repeats {seen[directory]!r}, expected each budget once"
                )
            seen.setdefault(directory, written)
    return problems


def _sample_problems(document: Any) -> list[str]:
    """A sentence for each sample whose name is that of a model, too."""
    models = document.get("models") if isinstance(document, dict) else None
    problems = []
    for name, model in models.items() if isinstance(models, dict) else ():
        alone = isinstance(model, dict) and "optimizer" not in model
        samples = model.get("samples") if alone else None
        for index, taken in enumerate(_sample_names(name, samples or ())):
            if taken in models:  # type: ignore[operator]
                where = format_key_path(["models", name, "samples", index])
                problems.append(f"{where}: is planned as {taken}, which is a model of its own")
    return problems


def _device_problems(document: Any) -> list[str]:
    """What is amiss with a device that is none of PyTorch's, or with its description."""
    device = document.get("device") if isinstance(document, dict) else None
    if not isinstance(device, str):
        return []  # the schema says so
    try:
        if path := resolve_machine_file(device):
            read_machine(path).single_device(path)
    except TightfitError as error:
        return [f"device: {error}"]
    return []


def _link_machine(document: dict[str, Any]) -> Path | None:
    """The description of the machine whose link strategies take, of a document with defaults."""
    named = document.get("machine")
    return resolve_machine_file(document["device"]) if named is None else Path(named)


def _link_problems(document: dict[str, Any]) -> list[str]:
    """What is amiss with the link to an offload target, where a strategy takes it or it is named.
    One that is not described is measured."""
    asked = [document["strategies"]]
    asked += [model["strategies"] for model in document["models"].values() if "strategies" in model]
    needing = [name for names in asked for name in names if STRATEGIES[name].links]
    path = _link_machine(document)
    if path is not None and (needing or "machine" in document):
        try:
            read_host_link(read_machine(path), path)
        except TightfitError as error:
            return [f"machine: {error}"]
    return []


def _kernel_problems(document: dict[str, Any]) -> list[str]:
    """A sentence for each model with fused kernels, which are not compiled for a device that is
    not here, and for each key that says what modules of such kernels carry where there are none, or
    libraries for a GPU."""
    described = resolve_machine_file(document["device"]) is not None
    fused, problems = False, []
    for name, model in document["models"].items():
        path, own = ["models", name], model.get("kernels", document["kernels"]) == FUSED_KERNELS
        fused = fused or own
        if own and described:
            said = 'kernels: "fused" was found, expected eager where the device is described'
            problems.append(f"{format_key_path(path)}.{said}")
        keys = [key for key in PACKAGE_CONTENT_KEYS if model.get(key)]
        problems += _package_content_problems(path, keys, own, document["device"])
    keys = [key for key in PACKAGE_CONTENT_KEYS if document[key]]
    return problems + _package_content_problems([], keys, fused, document["device"])


def _package_content_problems(
    path: list[str], keys: list[str], fused: bool, device: str
) -> list[str]:
    wrong = [] if fused else [(key, "kernels: fused beside it") for key in keys]
    if fused and "with_libraries" in keys and device != "cpu":
        wrong.append(("with_libraries", "false where the device is not the CPU"))
    return [
        f"{format_key_path([*path, key])}: true was found, expected {said}" for key, said in wrong
    ]


def _budget_lists(document: Any) -> Iterator[tuple[list[str | int], list[Any]]]:
    if not isinstance(document, dict):
        return
    if isinstance(document.get("budgets"), list):
        yield ["budgets"], document["budgets"]
    models = document.get("models")
    for name, model in models.items() if isinstance(models, dict) else ():
        if isinstance(model, dict) and isinstance(model.get("budgets"), list):
            known = MIN_BUDGET if "optimizer" in model else None
            yield ["models", name, "budgets"], [b if b != known else None for b in model["budgets"]]


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
