"""What is wrong with a configuration beyond its schema: budgets, devices, links, kernels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tightfit.schemas.config_errors import format_key_path
from tightfit.schemas.config_matrix import expand_matrices
from tightfit.schemas.link import read_host_link
from tightfit.schemas.machine import read_machine, resolve_machine_file
from tightfit.util.budget import MIN_BUDGET, parse_plan_budget
from tightfit.util.errors import ConfigError, TightfitError
from tightfit.util.strategies import STRATEGIES

FUSED_KERNELS = "fused"
PACKAGE_CONTENT_KEYS = ("with_eager", "with_libraries")
"""Keys that say what modules of fused kernels carry."""
MAX_NAME_CHARACTERS = 120
MAX_REPETITIONS = 19
REPEATED_END = re.compile(rf"(.+?)\1{{{MAX_REPETITIONS},}}$")
"""The end of a name that Snakemake refuses."""
RESERVED_NAMES = {
    "models": re.compile(r"chains|lineage|logs|index\..+|search\.done|machine_.+\.json"),
    "chains": re.compile(r"lineage|logs"),
}
"""What lies beside the folders of models, and of chains, in the results."""


def find_early_problems(document: Any, resolved: Any) -> list[str]:
    """What is wrong with the budgets, devices and samples of a document, valid or not; `resolved`
    is the same with its relative paths resolved."""
    return [
        *_budget_problems(document),
        *_device_problems(resolved),
        *_joint_problems(document),
        *_shared_name_problems(document),
        *_name_problems(document),
    ]


def find_late_problems(document: dict[str, Any]) -> list[str]:
    """What is wrong with the links, kernels and limits of a valid document with its defaults."""
    return [
        *_link_problems(document),
        *_kernel_problems(document),
        *_limit_problems(document),
    ]


def sample_names(name: str, samples: Sequence[Any]) -> list[str]:
    """The names that the samples of a model are planned as."""
    return [f"{name}.{number}" for number in range(1, len(samples) + 1)]


def planned_model_names(document: Any) -> list[str]:
    """The names that the models of a document, sound or not, are planned as."""
    return [name for names in _planned_names_by_model(document).values() for name in names]


def _planned_names_by_model(document: Any) -> dict[str, list[str]]:
    """The same by the names that the models have in the document."""
    models = document.get("models") if isinstance(document, dict) else None
    found: dict[str, list[str]] = {}
    for name, model in models.items() if isinstance(models, dict) else ():
        given = model if isinstance(model, dict) else {}
        matrix, samples = given.get("matrix"), given.get("samples")
        known = isinstance(matrix, dict) and all(isinstance(each, list) for each in matrix.values())
        expanded = [*expand_matrices({name: {"matrix": matrix}})] if known else [name]
        if isinstance(samples, list) and "optimizer" not in given:
            expanded = [taken for each in expanded for taken in sample_names(each, samples)]
        found[name] = expanded
    return found


def _shared_name_problems(document: Any) -> list[str]:
    """A sentence for each name that several models are planned as."""
    owners: dict[str, list[str]] = {}
    for name, planned in _planned_names_by_model(document).items():
        for each in dict.fromkeys(planned):
            owners.setdefault(each, []).append(name)
    return [
        f"{format_key_path(['models', other])}: is planned as {each}, as "
        f"{format_key_path(['models', first])} is, expected distinct names"
        for each, (first, *others) in owners.items()
        for other in others
    ]


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


def _name_problems(document: Any) -> list[str]:
    """A sentence for each model whose name is that of another file of the results, and for each
    model and chain whose name is too long or repeats itself."""
    problems = []
    models = planned_model_names(document)
    chains = document.get("chains") if isinstance(document, dict) else None
    paths = [["models", name] for name in models]
    paths += [["chains", name] for name in (chains if isinstance(chains, dict) else ())]
    for path in paths:
        where, name = format_key_path(path), path[1]
        if RESERVED_NAMES[path[0]].fullmatch(name):
            problems.append(f"{where}: is a name of the results themselves, expected another one")
        if len(name) > MAX_NAME_CHARACTERS:
            problems.append(
                f"{where}: has {len(name)} characters, expected at most {MAX_NAME_CHARACTERS}"
            )
        elif repeated := REPEATED_END.search(name):
            problems.append(
                f"{where}: ends in {MAX_REPETITIONS + 1} times {repeated[1]!r} or more, expected "
                f"at most {MAX_REPETITIONS}: Snakemake takes such a name for an endless rule"
            )
    return problems


def _joint_problems(document: Any) -> list[str]:
    """A sentence for each joint budget without samples."""
    models = document.get("models") if isinstance(document, dict) else None
    problems = []
    for name, model in models.items() if isinstance(models, dict) else ():
        own = isinstance(model, dict) and "optimizer" not in model
        samples = model.get("samples") if own else None
        if isinstance(model, dict) and model.get("joint") is True:
            where = format_key_path(["models", name, "joint"])
            budgets = model.get("budgets", document.get("budgets", ()))
            if "optimizer" in model:
                problems.append(
                    f"{where}: true was found, expected none beside an optimizer, whose step is "
                    "one of the samples"
                )
            elif samples is None:
                problems.append(f"{where}: true was found, expected samples beside it")
            elif "pipeline" in model and not {"budgets", "strategies"} & model.keys():
                problems.append(
                    f"{where}: true was found, expected budgets or strategies beside it: a "
                    "pipeline has no joint budget"
                )
            elif isinstance(budgets, list) and MIN_BUDGET in budgets:
                budgets_key = f"{where.removesuffix('joint')}budgets"
                problems.append(
                    f"{budgets_key}: {MIN_BUDGET} was found, expected others beside joint: true"
                )
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


def _document_sections(
    document: Any, kinds: Sequence[str] = ("models",)
) -> Iterator[tuple[list[str | int], dict[str, Any]]]:
    """The parts of a document that may set the keys of all, each with its path: its top, and its
    models, or what else is of some kinds."""
    if not isinstance(document, dict):
        return
    yield [], document
    for kind in kinds:
        planned = document.get(kind)
        for name, section in planned.items() if isinstance(planned, dict) else ():
            if isinstance(section, dict):
                yield [kind, name], section


def find_link_machine(document: dict[str, Any], model: dict[str, Any]) -> Path | None:
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
        file = find_link_machine(document, model)
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


def _limit_problems(document: dict[str, Any]) -> list[str]:
    """What is amiss with the limits of a hierarchy, whose top has room for a cluster at least."""
    top, clusters = (document["hierarchy"][name] for name in ("top", "clusters"))
    wanted = f"expected at least hierarchy.clusters, which is {clusters}"
    return [f"hierarchy.top: {top} was found, {wanted}"] if top < clusters else []


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
    for path, section in _document_sections(document, ("models", "chains")):
        if isinstance(section.get("budgets"), list):
            yield [*path, "budgets"], section["budgets"]
