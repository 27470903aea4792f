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
from tightfit.schemas.frontier import COARSE_FRONTIER_BUDGETS, FRONTIER_BUDGETS
from tightfit.schemas.link import read_host_link
from tightfit.schemas.machine import read_machine, resolve_machine_file
from tightfit.schemas.measurement import FAILED_STATUS
from tightfit.util.budget import MIN_BUDGET, NO_BUDGET, parse_plan_budget
from tightfit.util.errors import ConfigError, TightfitError
from tightfit.util.solver_engines import BLOCK_SOLVERS, BlockSolver, SolverEngine, step_engine
from tightfit.util.strategies import KEEP_ALL, STRATEGIES, baseline_names

FUSED_KERNELS = "fused"
EAGER_FOLDER = "eager"
"""The folder, in that of a model with fused kernels, of what is planned with eager's."""
PACKAGE_CONTENT_KEYS = ("with_eager", "with_libraries")
"""Keys that say what modules of fused kernels carry."""
SCHEMA_PATH = Path(__file__).with_name("config.schema.json")


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """The keys that hold for all models, or for a model that sets its own.

    `machine` is the description of the device, None if the device is here. `link_machine` describes
    the machine whose link to an offload target strategies take; None if none is named: then the
    link of the device is measured."""

    device: str
    engine: BlockSolver
    peaks: int
    saves: int
    pairs: int
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
    none where it is its own."""

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
    `disk` is the folder of the offload target on the CPU, "" for that of the environment."""

    models: dict[str, ModelConfig]
    search_path: list[str]
    operators: dict[str, str]
    results: str
    store: str
    fail_on: tuple[str, ...] = (FAILED_STATUS,)
    budgets_shown: int = COARSE_FRONTIER_BUDGETS
    disk: str = ""

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
    if not problems:
        filled = _with_defaults(plain, schema)
        filled["solver"] = schema["properties"]["solver"]["default"] | filled["solver"]
        problems = _link_problems(filled) + _kernel_problems(filled)
    if problems:
        raise ConfigError(format_config_errors(source, sorted(set(problems))))
    return Config(
        **_plan_settings(filled, {}),
        models={
            model.name: model
            for name in filled["models"]
            for model in _expand_samples(name, filled)
        },
        search_path=filled["search_path"],
        operators=filled["operators"],
        results=filled["results"],
        store=filled["store"],
        fail_on=tuple(filled["fail_on"]),
        budgets_shown={"auto": COARSE_FRONTIER_BUDGETS, True: FRONTIER_BUDGETS, False: 0}[
            filled["frontier"]
        ],
        disk=filled["disk"],
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
        "link_machine": _link_machine(document, model),
    }


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
    return [(budget, parse_plan_budget(budget).directory) for budget in budgets]


def _expand_samples(name: str, document: dict[str, Any]) -> Iterator[ModelConfig]:
    """The model of a name, or one for each of its samples."""
    model = document["models"][name]
    settings = _plan_settings(document, model)
    named: dict[str, dict[str, Any]] = {name: {}}
    if "samples" in model:
        named = dict(zip(_sample_names(name, model["samples"]), model["samples"], strict=True))
    fused = model.get("kernels", document["kernels"]) == FUSED_KERNELS
    for each, further in named.items():
        yield ModelConfig(
            **settings,
            name=each,
            factory=model["factory"],
            arguments={**model["arguments"], **further},
            strategies=model.get("strategies", document["strategies"]),
            budgets=[
                parse_plan_budget(text).text for text in model.get("budgets", document["budgets"])
            ],
            ones=model["ones"],
            fused=fused,
            joint=tuple(named) if model["joint"] else (),
            **{key: fused and model.get(key, document[key]) for key in PACKAGE_CONTENT_KEYS},
        )


def _sample_names(name: str, samples: Sequence[Any]) -> list[str]:
    return [f"{name}.{number}" for number in range(1, len(samples) + 1)]


def _load_schema() -> dict[str, Any]:
    schema = cast(dict[str, Any], json.loads(SCHEMA_PATH.read_text()))
    schema["$defs"]["strategies"]["items"] = _enum_schema(STRATEGIES)
    schema["$defs"]["solver"]["properties"]["engine"] |= _enum_schema(BLOCK_SOLVERS)
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
                continue  # the schema says so
            key = format_key_path([*path, index])
            try:
                directory = parse_plan_budget(written, key).directory
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
    """A sentence for each sample whose name is that of a model, too, and for each joint budget
    without samples."""
    models = document.get("models") if isinstance(document, dict) else None
    problems = []
    for name, model in models.items() if isinstance(models, dict) else ():
        samples = model.get("samples") if isinstance(model, dict) else None
        if isinstance(model, dict) and model.get("joint") is True:
            where = format_key_path(["models", name, "joint"])
            budgets = model.get("budgets", document.get("budgets", ()))
            if samples is None:
                problems.append(f"{where}: true was found, expected samples beside it")
            elif isinstance(budgets, list) and MIN_BUDGET in budgets:
                problems.append(f"{where}: true was found, expected budgets without {MIN_BUDGET}")
        for index, taken in enumerate(_sample_names(name, samples or ())):
            if taken in models:  # type: ignore[operator]
                where = format_key_path(["models", name, "samples", index])
                problems.append(f"{where}: is planned as {taken}, which is a model of its own")
    return problems


def _device_problems(document: Any) -> list[str]:
    """What is wrong with devices that are none of PyTorch's, or with their descriptions."""
    problems = []
    for path, section in _document_sections(document):
        device = section.get("device")
        if not isinstance(device, str):
            continue  # the schema says so
        try:
            if file := resolve_machine_file(device):
                read_machine(file).single_device(file)
        except TightfitError as error:
            problems.append(f"{format_key_path([*path, 'device'])}: {error}")
    return problems


def _document_sections(document: Any) -> Iterator[tuple[list[str | int], dict[str, Any]]]:
    """The parts of a document that may set the keys of all models, each with its path: its top, and
    its models."""
    if not isinstance(document, dict):
        return
    yield [], document
    models = document.get("models")
    for name, model in models.items() if isinstance(models, dict) else ():
        if isinstance(model, dict):
            yield ["models", name], model


def _link_machine(document: dict[str, Any], model: dict[str, Any]) -> Path | None:
    """The description of the machine whose link the strategies of a model take, of a document with
    defaults; a model's own device comes before the machine of all models."""
    own = model.keys() & {"machine", "device"}
    if named := (model if own else document).get("machine"):
        return Path(named)
    return resolve_machine_file(model.get("device", document["device"]))


def _link_problems(document: dict[str, Any]) -> list[str]:
    """What is wrong with the link to an offload target, if a strategy takes it or it is named. One
    that is not described is measured."""
    problems = []
    for path, section in _document_sections(document):
        model = section if path else {}
        strategies = section.get("strategies", document["strategies"])
        file = _link_machine(document, model)
        needed = any(STRATEGIES[name].links for name in strategies) or "machine" in section
        if file is None or not needed:
            continue
        try:
            read_host_link(read_machine(file), file)
        except TightfitError as error:
            own = path if {"machine", "device"} & model.keys() else []
            problems.append(f"{format_key_path([*own, 'machine'])}: {error}")
    return problems


def _kernel_problems(document: dict[str, Any]) -> list[str]:
    """A sentence for each model with fused kernels, which are not compiled for a device that is
    not here, and for each key that says what modules of such kernels carry where there are none, or
    libraries for a GPU."""
    fused, problems = False, []
    for name, model in document["models"].items():
        path, own = ["models", name], model.get("kernels", document["kernels"]) == FUSED_KERNELS
        device = model.get("device", document["device"])
        fused = fused or own
        if own and resolve_machine_file(device) is not None:
            said = 'kernels: "fused" was found, expected eager where the device is described'
            problems.append(f"{format_key_path(path)}.{said}")
        keys = [key for key in PACKAGE_CONTENT_KEYS if model.get(key)]
        problems += _package_content_problems(path, keys, own, device)
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
    for path, section in _document_sections(document):
        if isinstance(section.get("budgets"), list):
            yield [*path, "budgets"], section["budgets"]


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
