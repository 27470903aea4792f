"""A whole training step with its optimizer, as a configuration declares it for a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tightfit.schemas.config_errors import format_key_path
from tightfit.schemas.link import read_host_link
from tightfit.schemas.machine import read_machine, resolve_machine_file
from tightfit.schemas.optimizer_plan import SAMPLE_FOLDER
from tightfit.util.budget import parse_budget
from tightfit.util.errors import ConfigError, TightfitError

if TYPE_CHECKING:
    from tightfit.schemas.config import ModelConfig

STEP_KEYS = ("parameters", "microbatches", "offload")
"""Keys of a model that say something of its whole step."""
_SHARED_SETTINGS = ("lr", "weight_decay", "maximize", "foreach", "fused")
_ADAM_SETTINGS = (*_SHARED_SETTINGS, "betas", "eps", "amsgrad")
OPTIMIZER_SETTINGS = {
    "sgd": (*_SHARED_SETTINGS, "momentum", "dampening", "nesterov"),
    "adam": _ADAM_SETTINGS,
    "adamw": _ADAM_SETTINGS,
}
"""The optimizers of `torch.optim`, in small letters, with the settings that each takes."""


@dataclass(frozen=True)
class OptimizerStepConfig:
    """A step with its optimizer: the name of the `optimizer` and its `settings`, as `torch.optim`
    takes them; `microbatches` of each sample make a step, whose factory's arguments are in
    `samples` by folder, "" for that of the model; of one sample there can be several numbers, of
    which the one with the least time per sample is taken. Parameters and states wait in the folder
    `disk` ("" for that of the configuration), of which they take `limit` bytes ("" for all there
    are), and states in `second_disk` ("" for none);
    `parameters` that wait on the "device" leave the offload target to the states."""

    optimizer: str
    settings: dict[str, Any]
    samples: dict[str, dict[str, Any]]
    microbatches: tuple[int, ...]
    disk: str = ""
    second_disk: str = ""
    limit: str = ""
    parameters: str = "offload"

    @property
    def settings_json(self) -> str:
        """The settings as JSON text, keys in order."""
        return json.dumps(self.settings, sort_keys=True)


def parse_optimizer_step(model: Mapping[str, Any]) -> OptimizerStepConfig | None:
    """The step of a valid model of a configuration, None where it has no optimizer."""
    if "optimizer" not in model:
        return None
    settings = dict(model["optimizer"])
    samples, counts = model.get("samples", [{}]), model.get("microbatches", 1)
    folders = ["", *(f"{SAMPLE_FOLDER}{number}" for number in range(2, len(samples) + 1))]
    offload = model.get("offload", {})
    return OptimizerStepConfig(
        settings.pop("name"),
        settings,
        {
            folder: {**model["arguments"], **further}
            for folder, further in zip(folders, samples, strict=True)
        },
        tuple([counts] if isinstance(counts, int) else counts),
        offload.get("disk", ""),
        offload.get("second_disk", ""),
        str(offload.get("limit", "")),
        model.get("parameters", "offload"),
    )


def select_sample(model: ModelConfig, folder: str) -> ModelConfig:
    """A model with the arguments of the sample whose graph is in a `folder` of its own; the model
    itself where it has no such sample."""
    step = model.optimizer_step
    if step is None or folder not in step.samples:
        return model
    return replace(model, arguments=step.samples[folder])


def optimizer_step_problems(document: Any) -> list[str]:
    """A sentence for each key of a model that is amiss with its whole step. What the schema says of
    values is left to it."""
    models = document.get("models") if isinstance(document, dict) else None
    found: list[str] = []
    for name, model in models.items() if isinstance(models, dict) else ():
        if not isinstance(model, dict):
            continue
        path: list[str | int] = ["models", name]
        if "optimizer" not in model:
            found += [
                f"{format_key_path([*path, key])}: is said of a step with its optimizer, expected "
                "optimizer beside it, such as {name: adamw}"
                for key in STEP_KEYS
                if key in model
            ]
            continue
        found += _setting_problems(path, model["optimizer"])
        found += _excluded_key_problems(path, model, document)
        found += _microbatch_problems(path, model)
        found += _offload_problems(path, model, document)
    return found


def _setting_problems(path: list[str | int], optimizer: Any) -> Iterator[str]:
    """Settings that an optimizer has not, or that do not go together."""
    named = optimizer.get("name") if isinstance(optimizer, dict) else None
    if not isinstance(named, str) or named not in OPTIMIZER_SETTINGS:
        return  # the schema says so
    known = OPTIMIZER_SETTINGS[named]
    every = {name for names in OPTIMIZER_SETTINGS.values() for name in names}
    for key in optimizer:
        if key in every and key not in known:
            yield (
                f"{format_key_path([*path, 'optimizer', key])}: is no setting of "
                f"{optimizer['name']}, expected one of {', '.join(known)}"
            )
    if optimizer.get("nesterov") and not (
        optimizer.get("momentum") and not optimizer.get("dampening")
    ):
        yield (
            f"{format_key_path([*path, 'optimizer', 'nesterov'])}: true was found, expected "
            "momentum above 0 and no dampening beside it"
        )


def _excluded_key_problems(
    path: list[str | int], model: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[str]:
    """What a model with an optimizer cannot have."""
    if "strategies" in model:
        yield (
            f"{format_key_path([*path, 'strategies'])}: are those of models without an optimizer, "
            "expected none: one search plans the whole step"
        )
    if model.get("kernels", document.get("kernels")) == "fused":
        yield (
            f'{format_key_path([*path, "kernels"])}: "fused" was found, expected eager beside an '
            "optimizer"
        )


def _microbatch_problems(path: list[str | int], model: Mapping[str, Any]) -> Iterator[str]:
    """Numbers of microbatches that are not as many as samples, where there are several samples."""
    counts, samples = model.get("microbatches", 1), model.get("samples")
    numbers = len(counts) if isinstance(counts, list) else None
    shapes = len(samples) if isinstance(samples, list) else 1
    if shapes == 1:  # each number is one of how many times the sample makes a step
        if isinstance(counts, list) and any(counts.count(each) > 1 for each in counts):
            yield (
                f"{format_key_path([*path, 'microbatches'])}: {json.dumps(counts)} was found, "
                "expected each number once, from which the fastest is taken"
            )
    elif numbers is None:
        yield (
            f"{format_key_path([*path, 'microbatches'])}: expected a list with a number for each "
            f"of the {shapes} samples beside an optimizer: so many of each make a step"
        )
    elif numbers != shapes:
        yield (
            f"{format_key_path([*path, 'microbatches'])}: {json.dumps(counts)} was found, expected "
            f"a number for each of the {shapes} samples"
        )


def _offload_problems(
    path: list[str | int], model: Mapping[str, Any], document: Mapping[str, Any]
) -> Iterator[str]:
    """What is amiss with where parameters and states wait."""
    offload = model.get("offload")
    offload = offload if isinstance(offload, dict) else {}
    key = format_key_path([*path, "offload"])
    device = model.get("device", document.get("device", "cpu"))
    try:
        described = resolve_machine_file(device) if isinstance(device, str) else None
    except TightfitError:
        return  # told of the device
    if "limit" in offload:
        yield from _limit_problems(f"{key}.limit", offload["limit"])
    yield from _machine_problems(path, model, document, described is not None)
    if described is not None:
        for name in ("disk", "second_disk"):
            if name in offload:
                yield (
                    f"{key}.{name}: is measured, expected none where the device is described: its "
                    "machine has the memories and links"
                )
    elif device != "cpu":
        if "disk" in offload:
            yield (
                f"{key}.disk: expected none on a GPU, whose parameters and states wait in the "
                "host's memory; second_disk is the folder of a disk behind it"
            )
        if "second_disk" in offload and "limit" not in offload:
            yield (
                f"{key}.limit: is missing, expected a size such as 20GB of the host's memory "
                "beside second_disk"
            )


def _limit_problems(key: str, written: Any) -> Iterator[str]:
    if isinstance(written, bool) or not isinstance(written, str | int):
        return  # the schema says so
    expected = "a size such as 20GB"
    try:
        if parse_budget(written, key, expected).size is None:
            yield f"{key}: {written!r} is a share, expected {expected}"
    except ConfigError as error:
        yield str(error)


def _machine_problems(
    path: list[str | int], model: Mapping[str, Any], document: Mapping[str, Any], described: bool
) -> Iterator[str]:
    """What is amiss with the description of the link, where that is not measured: a described
    device has to have one, and its speeds."""
    found = (
        (format_key_path([*place, key]), section[key])
        for key in (("machine", "device") if described else ("machine",))
        for place, section in ((path, model), ([], document))
        if key in section
    )
    key, named = next(found, ("", None))
    if not isinstance(named, str):
        return
    try:
        file = resolve_machine_file(named)
        if file is None:
            return  # the schema says so
        machine = read_machine(file)
        read_host_link(machine, file)
        if described:
            machine.single_device(file)
    except TightfitError as error:
        yield f"{key}: {error}"
