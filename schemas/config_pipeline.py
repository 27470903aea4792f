"""The key `pipeline` of a model in a configuration: the machine, and how it is planned for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tightfit.schemas.machine import read_machine, resolve_machine_file
from tightfit.schemas.pipeline_devices import check_uniform_devices
from tightfit.util.errors import ConfigError, TightfitError
from tightfit.util.strategies import ALLOCATORS

PIPELINE_FOLDER = "pipeline"
"""The folder, in that of a model, with a folder for each strategy of its pipeline."""

ConfigProblem = tuple[tuple[str, ...], str]
"""The path of a key, and what is wrong with its value."""


@dataclass(frozen=True)
class PipelineConfig:
    """A pipeline to plan: the description of its `machine`, the allocators (`strategies`), the
    `microbatches` of a step, how many times a device stores its parameters (`weight_copies`), and
    whether `buffers` at cuts count. A strategy that can has its stages recompute
    (`stage_recompute`: "rotor" or "rockmate", "" for none), or leaves out every (k+1)-th batch.
    `period` is the seconds that a batch may take at most, None for no limit. Where all devices
    are CPUs (`on_cpus`) it can run on this machine. `machine_name` is in the description."""

    machine: Path
    strategies: tuple[str, ...]
    microbatches: int
    weight_copies: int
    buffers: bool
    stage_recompute: str = ""
    period: float | None = None
    k: int | None = None
    on_cpus: bool = True
    machine_name: str = ""

    @classmethod
    def of_model(cls, model: Mapping[str, Any]) -> PipelineConfig | None:
        """The pipeline of a model in a valid configuration with its defaults, None of one without.
        Raises ArtifactError where the machine cannot be read."""
        if (given := model.get("pipeline")) is None:
            return None
        path = Path(given["machine"])
        machine = read_machine(path)
        on_cpus = all(device.kind == "cpu" for device in machine.devices)
        known = {**given, "machine": path, "strategies": tuple(given["strategies"])}
        return cls(**known, on_cpus=on_cpus, machine_name=machine.name)

    def recompute_of(self, strategy: str) -> str:
        """How the stages of a strategy recompute, "" where they do not."""
        return self.stage_recompute if ALLOCATORS[strategy].inside else ""

    def plan_options(self, strategy: str, engine: str) -> list[str]:
        """The options of the command `chain` for a strategy; `engine` solves integer programs."""
        about, options = ALLOCATORS[strategy], ["--weight-copies", str(self.weight_copies)]
        options += ["--buffers"] if self.buffers else []
        options += ["--period", repr(self.period)] if self.period is not None else []
        options += ["--microbatches", str(self.microbatches)]
        options += ["--k", str(self.k)] if about.turns and self.k is not None else []
        options += ["--solver", engine] if about.solves else []
        recompute = self.recompute_of(strategy)
        return options + (["--stage-recompute", recompute] if recompute else [])


def find_pipeline_problems(document: Any) -> Iterator[ConfigProblem]:
    """What is wrong with the pipelines of a configuration, beside what its schema says."""
    models = document.get("models") if isinstance(document, dict) else None
    for name, model in models.items() if isinstance(models, dict) else ():
        given = model.get("pipeline") if isinstance(model, dict) else None
        if not isinstance(given, dict):
            continue
        path = ("models", name, "pipeline")
        strategies = given.get("strategies", ["madpipe"])
        named = [item for item in strategies if isinstance(item, str) and item in ALLOCATORS]
        yield from _find_machine_problems((*path, "machine"), given.get("machine"), named)
        yield from _find_unused_settings(path, given, named)
        if model.get("kernels", document.get("kernels")) == "fused":
            yield (*path[:2], "kernels"), '"fused" was found, expected eager beside a pipeline'
        device = model.get("device", document.get("device", "cpu"))
        yield from _find_device_problems(path, device)


def _find_machine_problems(
    path: tuple[str, ...], machine: Any, strategies: list[str]
) -> Iterator[ConfigProblem]:
    if not isinstance(machine, str) or not machine.endswith(".json"):
        return  # the schema says so
    contiguous = all(ALLOCATORS[name].contiguous for name in strategies)
    try:
        found = read_machine(machine)
        if len(found.devices) == 1:
            raise ConfigError(
                f"{machine}: describes one device, expected several equal ones with equal links"
            )
        check_uniform_devices(found, machine, contiguous)
    except TightfitError as error:
        yield path, str(error)


def _find_unused_settings(
    path: tuple[str, ...], given: Mapping[str, Any], strategies: list[str]
) -> Iterator[ConfigProblem]:
    """Settings that none of the strategies takes."""
    taking = {
        "stage_recompute": [name for name, about in ALLOCATORS.items() if about.inside],
        "k": [name for name, about in ALLOCATORS.items() if about.turns],
    }
    for key, able in taking.items():
        if key in given and strategies and not set(able) & set(strategies):
            said = f"{json.dumps(given[key])} was found, which {', '.join(strategies)} cannot take"
            yield (*path, key), f"{said}: expected {' or '.join(able)} among the strategies"


def _find_device_problems(path: tuple[str, ...], device: Any) -> Iterator[ConfigProblem]:
    try:
        here = isinstance(device, str) and resolve_machine_file(device) is None
    except ConfigError:
        return  # told of the device itself
    if here and device != "cpu":
        said = f"is asked for on {device}, where no pipeline runs yet"
        yield path, f"{said}: expected the device cpu or a described one"
