"""What `plan` was given: its settings, and the samples of a model by their shapes."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from tightfit.api.multi_shape_module import call_signature
from tightfit.api.plan_options import (
    REPLAN,
    FusedKernelOptions,
    GradientOptions,
    OffloadOptions,
    OnMismatch,
    ParameterOffloadOptions,
    ReplanOptions,
    SolverOptions,
)
from tightfit.schemas.config import parse_config
from tightfit.util.budget import parse_loss_room
from tightfit.util.errors import ConfigError, ModelError
from tightfit.util.paths import default_store_path
from tightfit.util.strategies import STRATEGIES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tightfit.api.plan_result import ChosenPlan
    from tightfit.api.replanner import Replanner
    from tightfit.api.stage_runner import StageRunner
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
        check_dense_tensors,
        check_factory_result,
        move_built_model,
        require_device,
    )
    from tightfit.stages.torch_utils.number_inputs import tensors_of_numbers

    for args, kwargs in samples:
        check_call(model, args, kwargs)
    check_dense_tensors(type(model).__name__, model, samples)
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
    for given in groups.values():
        group, numbers = tensors_of_numbers(given)
        result = (model, group) if loss is None else (model, group, loss)
        built = check_factory_result(result, "", type(model).__name__)
        built = replace(built, ones=ones is not False, numbers=numbers)
        found.append(move_built_model(built, device))
    return found, device


def _all_ones_leaves(sample: Sample) -> tuple[bool, ...]:
    """Which tensors of a sample hold nothing but ones."""
    import torch

    from tightfit.stages.torch_utils.model_factory import structure_leaves

    leaves = structure_leaves(sample)
    return tuple(bool((x == 1).all()) for x in leaves if isinstance(x, torch.Tensor))


def store_path(store: Path | str | None) -> Path:
    """The folder of a store; raises ConfigError where `store` is no path."""
    if store is None:
        return default_store_path()
    if not isinstance(store, str | os.PathLike):
        raise ConfigError(f"plan: store is {store!r}, expected the path of a folder")
    return Path(store)


@dataclass(frozen=True)
class PlanningRequest:
    """What a plan is made for: the samples by their shapes and the budget as written, with what the
    module does with other calls, whether it is checked, and whether it runs as CUDA graphs. With
    `replan` other calls are planned: it makes the replanner of the first plan."""

    runner: StageRunner
    samples: Sequence[BuiltModel]
    budget: str
    on_mismatch: OnMismatch
    check: bool
    cuda_graphs: bool
    replan: Callable[[ChosenPlan], Replanner] | None = None


def check_settings(
    strategy: str,
    store: Path,
    solver: SolverOptions,
    offload: OffloadOptions | ParameterOffloadOptions,
    on_mismatch: object,
    assume_all_ones_masks: object,
) -> None:
    """Raises ConfigError, as a configuration would, where a setting is none."""
    document: dict[str, Any] = {
        "models": {"model": {"factory": "none:none"}},
        "strategies": [strategy],
        "store": str(store),
        "solver": {
            "engine": solver.engine,
            "peaks": solver.peak_levels,
            "saves": solver.save_levels,
        },
    }
    if isinstance(offload, OffloadOptions) and offload.machine is not None:
        document["machine"] = str(offload.machine)
    try:
        parse_config(document, "plan")
    except ConfigError as error:
        raise ConfigError(_name_options(str(error))) from None
    try:
        store.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise ConfigError(f"plan: store: {store} is a file, expected a folder") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"plan: store: {store!s} cannot be made ({reason})") from error
    if not isinstance(on_mismatch, ReplanOptions) and on_mismatch not in get_args(OnMismatch):
        raise ConfigError(
            f'plan: on_mismatch is {on_mismatch!r}, expected "error", "original", "copy", "replan" '
            "or ReplanOptions"
        )
    if assume_all_ones_masks is not None and not isinstance(assume_all_ones_masks, bool):
        raise ConfigError(
            f"plan: assume_all_ones_masks is {assume_all_ones_masks!r}, expected True, False or "
            "None"
        )


def mismatch_action(
    on_mismatch: OnMismatch | ReplanOptions, optimizer: object, cuda_graphs: bool
) -> tuple[OnMismatch, ReplanOptions | None]:
    """What a call that no plan takes does, and how it is planned, None where it is not; raises
    ConfigError where it cannot be."""
    if not isinstance(on_mismatch, ReplanOptions) and on_mismatch != REPLAN:
        return on_mismatch, None
    if optimizer is not None:
        raise ConfigError(
            'plan: on_mismatch="replan" is not for a plan with an optimizer, whose updates belong '
            'to one planned step: use "error"'
        )
    if cuda_graphs:
        raise ConfigError(
            'plan: on_mismatch="replan" is not for cuda_graphs, since the graphs of each plan keep '
            "memory of their own: leave one of the two out"
        )
    return REPLAN, on_mismatch if isinstance(on_mismatch, ReplanOptions) else ReplanOptions()


def check_loss_room(loss_room: int | str | None, loss: object) -> int | None:
    """The bytes that a plan leaves to a loss which is not planned, None for what the usual ones
    take; raises ConfigError where they are none, or the loss is planned."""
    if loss is not None and loss_room is not None:
        raise ConfigError(
            "plan: loss_room is for a loss that is not planned, and loss is given: leave one out"
        )
    return parse_loss_room(loss_room, "plan: loss_room")


_OPTION_NAMES = {
    "strategies[0]": "strategy",
    "solver.peaks": "solver: peak_levels",
    "solver.saves": "solver: save_levels",
    "solver.engine": "solver: engine",
    "plan: machine": "plan: offload: machine",
}


def _name_options(message: str) -> str:
    """A message on a configuration with the names that the options have in Python."""
    for written, named in _OPTION_NAMES.items():
        message = message.replace(f"{written}:", f"{named}:", 1)
    return message


def check_check_level(check: object) -> None:
    """Raises ConfigError for what is no check."""
    if check is not True and check is not False and check != FULL_CHECK:
        raise ConfigError(f'plan: check is {check!r}, expected True, False or "full"')


def check_offload(
    offload: OffloadOptions | ParameterOffloadOptions,
    strategy: str,
    optimizer: object,
    on_mismatch: OnMismatch,
    cuda_graphs: bool,
    fused_kernels: FusedKernelOptions | None,
) -> None:
    """Raises ConfigError where nothing would be in an offload target, or where parameters cannot
    be."""
    if isinstance(offload, ParameterOffloadOptions):
        for wrong, said in (
            (optimizer is None, "needs the optimizer, which updates them in the backward"),
            (strategy != "auto", "has a strategy of its own: leave strategy out"),
            (fused_kernels is not None, "is not made with fused kernels yet"),
            (cuda_graphs, "is not made of CUDA graphs"),
            (on_mismatch == "original", "has no original to run, which needs all of them"),
        ):
            if wrong:
                raise ConfigError(f"plan: ParameterOffloadOptions: {said}")
    elif offload.path is not None and optimizer is None and not STRATEGIES[strategy].links:
        raise ConfigError(
            "plan: OffloadOptions: path is for the states of an optimizer and for strategies that "
            f"send what waits (offload), and {strategy} keeps all in memory"
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
    gradients: GradientOptions,
    offload: OffloadOptions | ParameterOffloadOptions,
    optimizer: object,
) -> None:
    """Raises ConfigError where no gradients can stay on the device."""
    if not gradients.stay:
        return
    if optimizer is None:
        raise ConfigError(
            "plan: GradientOptions is for plans with an optimizer: without one a budget counts the "
            "gradients already"
        )
    if not isinstance(offload, ParameterOffloadOptions):
        return
    if offload.microbatches != 1:
        raise ConfigError(
            "plan: GradientOptions is for gradients that are on the device, and those of "
            "microbatches that are planned are in the offload target: leave one of the two out"
        )
    if offload.second_path is not None:
        raise ConfigError(
            "plan: second_path: parameters with states there are updated where they live, and with "
            "GradientOptions all are updated on the device: leave one of the two out"
        )


def check_fused_kernels(
    fused_kernels: FusedKernelOptions | None, optimizer: object, device: str
) -> None:
    """Raises ConfigError where nothing can travel beside fused kernels as it is asked for."""
    if fused_kernels is None:
        return
    if not isinstance(fused_kernels, FusedKernelOptions):
        raise ConfigError(
            f"plan: fused_kernels is {fused_kernels!r}, expected FusedKernelOptions or None"
        )
    if fused_kernels.eager_fallback and optimizer is not None:
        raise ConfigError("plan: eager_fallback is not for plans with an optimizer")
    if fused_kernels.libraries and not device.startswith("cpu"):
        raise ConfigError(f"plan: libraries are for the CPU, and the model is on {device}")


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


def free_disk_bytes(folder: Path | str, key: str) -> int:
    """The free bytes of the disk of a folder; raises ConfigError, with where it was named."""
    try:
        return shutil.disk_usage(folder).free
    except OSError as error:
        why = error.strerror or error
        raise ConfigError(f"plan: {key}: {folder} is no folder of a disk ({why})") from error
