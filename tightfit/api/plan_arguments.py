"""What `plan` was given: its settings, and the samples of a model by their shapes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.api.multi_shape_module import call_signature
from tightfit.schemas.config import parse_config
from tightfit.util.budget import parse_budget
from tightfit.util.errors import ConfigError, ModelError
from tightfit.util.paths import default_store_path
from tightfit.util.strategies import STRATEGIES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tightfit.stages.torch_utils.model_factory import BuiltModel


Sample = tuple[Sequence[Any], Mapping[str, Any]]
FULL_CHECK = "full"
"""The check that compares in all ways."""


def group_samples(
    model: nn.Module,
    samples: Sequence[Sample],
    loss: Callable[[Any], Tensor] | None,
    device: str | None,
    ones: bool | None = False,
    apart: bool = True,
) -> tuple[list[BuiltModel], str]:
    """The model with its samples, those of one shape together in the order of the first of each,
    and the device. With `ones`, or where that is left open (None), those together have the same
    inputs of nothing but ones, unless they are not taken `apart`."""
    from tightfit.stages.torch_utils.model_factory import (
        check_factory_result,
        move_built_model,
        require_device,
    )

    for args, kwargs in samples:
        check_call(model, args, kwargs)
    if loss is not None and not callable(loss):
        raise ModelError(
            f"plan: loss is a {type(loss).__name__}, expected a function of the output"
        )
    groups: dict[Any, list[Any]] = {}
    for args, kwargs in samples:
        masks = _all_ones_leaves((args, kwargs)) if apart and ones is not False else ()
        alike = call_signature(args, kwargs), masks
        groups.setdefault(alike, []).append((tuple(args), dict(kwargs)))
    if device is None:
        devices = (weight.device for weight in model.parameters() if weight.device.type != "meta")
        device = str(next(devices, "cpu"))
    require_device(device)
    found = []
    for group in groups.values():
        result = (model, group) if loss is None else (model, group, loss)
        built = check_factory_result(result, "", type(model).__name__)
        built = replace(built, ones=ones is not False)
        found.append(move_built_model(built, device))
    return found, device


def _all_ones_leaves(sample: Sample) -> tuple[bool, ...]:
    """Which tensors of a sample hold nothing but ones."""
    import torch
    from torch.utils import _pytree as pytree

    leaves = pytree.tree_leaves(sample)
    return tuple(bool((x == 1).all()) for x in leaves if isinstance(x, torch.Tensor))


def store_path(store: Path | str | None) -> Path:
    """The folder of a store; raises ConfigError where `store` is no path."""
    if store is None:
        return default_store_path()
    if not isinstance(store, str | os.PathLike):
        raise ConfigError(f"plan: store is {store!r}, expected the path of a folder")
    return Path(store)


def check_settings(
    strategy: str,
    store: Path | str,
    engine: str,
    peaks: int,
    saves: int,
    jobs: int | None,
    otherwise: str,
    ones: bool | None,
    machine: Path | str | None = None,
) -> None:
    """Raises ConfigError, as a configuration would, where a setting is none."""
    document: dict[str, Any] = {
        "models": {"model": {"factory": "none:none"}},
        "strategies": [strategy],
        "store": str(store),
        "solver": {"engine": engine, "peaks": peaks, "saves": saves},
    }
    if machine is not None:
        document["machine"] = str(machine)
    parse_config(document, "plan")
    try:
        Path(store).mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"plan: store: {store} is a file, expected a folder") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"plan: store: {store!s} cannot be made ({reason})") from error
    if otherwise not in ("error", "original", "copy"):
        raise ConfigError(
            f'plan: otherwise is {otherwise!r}, expected "error", "original" or "copy"'
        )
    if ones is not None and not isinstance(ones, bool):
        raise ConfigError(f"plan: ones is {ones!r}, expected True, False or None")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise ConfigError(f"plan: jobs is {jobs!r}, expected a number of at least 1")


def check_check_level(check: object) -> None:
    """Raises ConfigError for what is no check."""
    if check is not True and check is not False and check != FULL_CHECK:
        raise ConfigError(f'plan: check is {check!r}, expected True, False or "full"')


def check_kernels(kernels: str) -> None:
    """Raises ConfigError for what are no kernels."""
    if kernels not in ("eager", "fused"):
        raise ConfigError(f'plan: kernels is {kernels!r}, expected "eager" or "fused"')


def check_folder(call: str, disk: object, named: str = "disk") -> None:
    """Raises ConfigError where the disk that a call is given is no folder's path."""
    if disk is not None and (not isinstance(disk, str | os.PathLike) or not str(disk)):
        raise ConfigError(f"{call}: {named} is {disk!r}, expected the path of a folder")


def check_disk(disk: object, strategy: str, optimizer: object) -> None:
    """Raises ConfigError where nothing would be in the folder of a disk, or it is none."""
    check_folder("plan", disk)
    if disk is None:
        return
    if optimizer is None and not STRATEGIES[strategy].links:
        raise ConfigError(
            f"plan: disk is for the states of an optimizer and for strategies that send what waits "
            f"(offload), and {strategy} keeps all in memory"
        )


def absolute_path(folder: Path | str | None) -> str | None:
    """The path of a folder from the root on, which leads there wherever a step runs."""
    return None if folder is None else str(Path(folder).resolve())


def check_optimizer(optimizer: object, model: nn.Module) -> None:
    """Raises ConfigError where an optimizer is none, or none of the model."""
    import torch

    if optimizer is None:
        return
    if not isinstance(optimizer, torch.optim.Optimizer):
        given = optimizer.__name__ if isinstance(optimizer, type) else type(optimizer).__name__
        raise ConfigError(
            f"plan: optimizer is given {given}, expected one of the parameters, as "
            "torch.optim.AdamW(model.parameters())"
        )
    own = {id(parameter) for parameter in model.parameters()}
    if not any(id(p) in own for group in optimizer.param_groups for p in group["params"]):
        raise ConfigError(
            "plan: optimizer has no parameter of the model: make it of the parameters of the model "
            "that is planned, not of those of a copy"
        )


def check_gradients(
    accumulating: bool, keep_gradients: bool, optimizer: object, microbatches: object
) -> None:
    """Raises ConfigError where no budget can count the gradients of microbatches, or those that the
    loop keeps."""
    for name, value in (("accumulating", accumulating), ("keep_gradients", keep_gradients)):
        if not isinstance(value, bool):
            raise ConfigError(f"plan: {name} is {value!r}, expected True or False")
        if value and optimizer is None:
            raise ConfigError(
                f"plan: {name} is for plans with an optimizer: without one a budget counts the "
                "gradients already"
            )
        if value and microbatches != 1:
            raise ConfigError(
                f"plan: {name} is for gradients that are on the device, and those of microbatches "
                "that are planned are in the other memory: leave one of the two out"
            )


def check_package_contents(
    kernels: str, with_eager: bool, with_libraries: bool, optimizer: object, device: str
) -> None:
    """Raises ConfigError where nothing can travel beside fused kernels as it is asked for."""
    for name, value in (("with_eager", with_eager), ("with_libraries", with_libraries)):
        if not isinstance(value, bool):
            raise ConfigError(f"plan: {name} is {value!r}, expected True or False")
        if value and kernels != "fused":
            raise ConfigError(f'plan: {name} is for kernels="fused"')
    if with_eager and optimizer is not None:
        raise ConfigError("plan: with_eager is not for plans with an optimizer")
    if with_libraries and not device.startswith("cpu"):
        raise ConfigError(f"plan: with_libraries is for the CPU, and the model is on {device}")


def check_cuda_graphs(cuda_graphs: bool, device: str, shapes: int) -> None:
    """Raises ConfigError where a step cannot be CUDA graphs, on a device and for samples of so many
    shapes."""
    if not isinstance(cuda_graphs, bool):
        raise ConfigError(f"plan: cuda_graphs is {cuda_graphs!r}, expected True or False")
    if cuda_graphs and not device.startswith("cuda"):
        raise ConfigError(f"plan: cuda_graphs needs a GPU, and the model is on {device}")
    if cuda_graphs and shapes > 1:
        raise ConfigError(
            f"plan: cuda_graphs is given samples of {shapes} shapes, and the graphs of each keep "
            "memory of their own: plan for one shape"
        )


def check_call(model: Any, args: Any, kwargs: Any) -> None:
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


def collect_samples(args: Any, kwargs: Any, samples: Sequence[Sample] | None) -> list[Sample]:
    """All samples that `plan` was given; raises ModelError where they are none."""
    kwargs = {} if kwargs is None else kwargs
    if samples is None:
        return [(args, kwargs)]
    asked = any(not isinstance(each, Sized) or len(each) for each in (args, kwargs))
    given: list[Sample] = [(args, kwargs)] if asked else []
    if not isinstance(samples, Sequence):
        raise ModelError("plan is given samples that are not a list of (args, kwargs)")
    for sample in samples:
        if not isinstance(sample, tuple | list) or len(sample) != 2:
            raise ModelError("plan is given samples that are not a list of (args, kwargs)")
        given.append((sample[0], sample[1]))
    if not given:
        raise ModelError("plan is given no samples")
    return given


OptionalPath = Path | str | None


@dataclass(frozen=True)
class OffloadLocations:
    """Where the other memories are: the folder of the `disk`, on the CPU, of which a plan may take
    `room` bytes, as of the host's memory on a GPU, and that of a disk behind it, `far`; None where
    it is not said."""

    disk: OptionalPath = None
    far: OptionalPath = None
    room: int | None = None

    @property
    def folders(self) -> tuple[str | None, str | None]:
        """Both folders."""
        own, far = (None if each is None else str(each) for each in (self.disk, self.far))
        return own, far


def parse_offload_locations(
    disk: OptionalPath,
    far_disk: object,
    room: object,
    parameters: str,
    accumulating: bool,
    device: str,
) -> OffloadLocations:
    """The other memories of a plan for a kind of device; raises ConfigError where they are none, or
    nothing would be there."""
    if far_disk is None and room is None:
        return OffloadLocations(disk)
    for name, value in (("far_disk", far_disk), ("room", room)):
        if value is not None and parameters != "away":
            raise ConfigError(
                f'plan: {name} is for plans whose parameters live in another memory: parameters="'
                'away"'
            )
    if far_disk is not None:
        check_folder("plan", far_disk, "far_disk")
        if accumulating:
            raise ConfigError(
                "plan: far_disk: parameters with states there are updated where they live, and "
                "with accumulating or keep_gradients all are updated on the device: leave one of "
                "the two out"
            )
        if device != "cpu" and room is None:
            raise ConfigError(
                "plan: far_disk needs room, the bytes of the host's memory that may be taken"
            )
    return OffloadLocations(disk, None if far_disk is None else str(far_disk), _parse_room(room))


def _parse_room(room: object) -> int | None:
    if room is None:
        return None
    size = parse_budget(room, "plan: room").size  # type: ignore[arg-type]
    if size is None:
        raise ConfigError(f"plan: room is {room!r}, expected bytes or a size such as '20GB'")
    return size


def free_disk_bytes(folder: Path | str, key: str) -> int:
    """The free bytes of the disk of a folder; raises ConfigError, with where it was named."""
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"plan: {key}: {folder} is no folder of a disk ({why})") from error
