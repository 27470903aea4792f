"""Loads a user's model factory and builds the model with its samples, with or without memory.

A factory is a function that returns `(model, samples)` or `(model, samples, loss)`: `samples` is
one `(args tuple, kwargs dict)` or a list of them, `loss` a function from the model's output to a
scalar.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tightfit.schemas.errors import ModelError
from tightfit.stages.device.devices import device_named
from tightfit.stages.device.devices import require_device as require_device
from tightfit.stages.device.fake import without_memory
from tightfit.stages.device.leaves import leaves_of, map_leaves
from tightfit.stages.device.trees import flatten

Sample = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Built:
    """A model with its sample inputs, all of the same shapes, and its loss where it has one.

    `fake_mode` is the mode under which model and samples were made without memory, None for real
    ones. `label` names the factory in messages. With `ones` a plan may rest on it that inputs hold
    only ones, which do so in all samples. `mixed` are leaves of (args, kwargs), masks of which it
    takes no call where they hold only ones.
    """

    model: nn.Module
    samples: list[Sample]
    loss: Callable[[Any], torch.Tensor] | None = None
    fake_mode: FakeTensorMode | None = None
    label: str = "the model"
    ones: bool = False
    mixed: tuple[int, ...] = ()


def load_factory(spec: str, search_path: Sequence[Path | str] = ()) -> Callable[..., Any]:
    """The function that "package.module:function" names.

    `search_path` and the current directory are searched before the installed packages. Raises
    ModelError when the module or the function does not exist, or importing it fails.
    """
    module_name, colon, function_name = spec.partition(":")
    if not (module_name and colon and function_name):
        raise ModelError(f"the factory {spec!r} is not of the form 'package.module:function'")
    search(search_path)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ModelError(f"the factory {spec!r}: there is no module {error.name!r}") from error
        raise ModelError(f"the factory {spec!r} cannot be imported: {_describe(error)}") from error
    except Exception as error:
        raise ModelError(f"the factory {spec!r} cannot be imported: {_describe(error)}") from error
    function = getattr(module, function_name, None)
    if function is None:
        raise ModelError(f"the factory {spec!r}: {module_name} has no {function_name!r}")
    if not callable(function):
        raise ModelError(f"the factory {spec!r} is no function")
    return function


def search(search_path: Iterable[Path | str]) -> None:
    """Lets imports look into these folders and the current one before the installed packages."""
    for entry in (*search_path, Path.cwd()):
        if str(Path(entry).resolve()) not in sys.path:
            sys.path.insert(0, str(Path(entry).resolve()))


def build(
    spec: str,
    arguments: Mapping[str, Any],
    fake: bool = False,
    search_path: Sequence[Path | str] = (),
    device: str = "cpu",
) -> Built:
    """Calls the factory with keyword arguments and checks what it returns.

    With `fake` the weights are never allocated; a factory that fails so is called for real. Model
    and samples are moved to `device`. Raises ModelError with one sentence that names the factory.
    """
    factory = load_factory(spec, search_path)
    require_device(device)
    if fake:
        try:
            with without_memory() as mode:
                built = check_result(factory(**arguments), spec)
                return replace(move(built, device), fake_mode=mode)
        except Exception:  # what went wrong is told by the real call
            return build(spec, arguments, False, search_path, device)
    try:
        result = factory(**arguments)
    except Exception as error:
        raise ModelError(f"the factory {spec!r} raises {_describe(error)}") from error
    return move(check_result(result, spec), device)


def check_result(result: Any, spec: str, label: str = "") -> Built:
    """What a factory returned, as a Built; raises ModelError when it is something else.

    `label` is what messages begin with, unless given the factory's name.
    """
    label = label or f"the factory {spec!r}"
    if not isinstance(result, tuple) or len(result) not in (2, 3):
        raise ModelError(
            f"{label} returns {_kind(result)} instead of (model, samples) or (model, samples, loss)"
        )
    model, samples, loss = (*result, None)[:3]
    if not isinstance(model, nn.Module):
        raise ModelError(f"{label} returns {_kind(model)} as its model instead of a torch module")
    if loss is not None and not callable(loss):
        raise ModelError(f"{label} returns {_kind(loss)} as its loss instead of a function")
    built = Built(model, _samples(samples, label), loss, None, label)
    _check_same_shapes(built)
    if any(tensor.device.type == "meta" for tensor in all_tensors(built)):
        raise ModelError(
            f"{label}: tensors on the device 'meta' have no values: make model and inputs on the"
            ' CPU, or give them memory with to_empty(device="cpu") and load the weights'
        )
    trains = any(parameter.requires_grad for parameter in model.parameters())
    if not trains and not any(leaf.requires_grad for leaf in _tensors(built.samples[0])):
        raise ModelError(f"{label}: no parameter of the model and no input requires a gradient")
    return built


def move(built: Built, device: str) -> Built:
    """The same with model and samples on `device`."""
    target = device_named(device)
    if all(device_named(tensor.device) == target for tensor in all_tensors(built)):
        return built

    def to_device(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().to(target).requires_grad_(leaf.requires_grad)

    samples = [map_leaves(to_device, sample) for sample in built.samples]
    return replace(built, model=built.model.to(target), samples=samples)


def _samples(samples: Any, label: str) -> list[Sample]:
    several = samples if isinstance(samples, list) else [samples]
    if not several:
        raise ModelError(f"{label} returns no samples")
    for sample in several:
        if not (
            isinstance(sample, tuple)
            and len(sample) == 2
            and isinstance(sample[0], tuple | list)
            and isinstance(sample[1], dict)
            and all(isinstance(key, str) for key in sample[1])
        ):
            raise ModelError(
                f"{label} returns samples that are not (args tuple, kwargs dict) or a list of such"
            )
    return [(tuple(args), dict(kwargs)) for args, kwargs in several]


def _check_same_shapes(built: Built) -> None:
    first, first_tree = flatten(built.samples[0])
    for index, sample in enumerate(built.samples[1:], start=1):
        leaves, tree = flatten(sample)
        if tree != first_tree:
            raise ModelError(f"{built.label}: sample {index} has another structure than sample 0")
        for mine, other in zip(first, leaves, strict=True):
            if _signature(mine) != _signature(other):
                raise ModelError(
                    f"{built.label}: sample {index} has {_leaf(other)} where sample 0 has "
                    f"{_leaf(mine)}"
                )


def _signature(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.shape, leaf.stride(), leaf.dtype, leaf.device.type, leaf.requires_grad
    return type(leaf), leaf


def _leaf(leaf: Any) -> str:
    if isinstance(leaf, torch.Tensor):
        gradient = ", requires grad" if leaf.requires_grad else ""
        dtype = str(leaf.dtype).removeprefix("torch.")
        return f"a {dtype} tensor {list(leaf.shape)} (strides {list(leaf.stride())}{gradient})"
    return repr(leaf)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in leaves_of(tree) if isinstance(leaf, torch.Tensor))


def all_tensors(built: Built) -> Iterator[torch.Tensor]:
    """The parameters and buffers of a model, then the tensors among its samples."""
    yield from built.model.parameters()
    yield from built.model.buffers()
    yield from _tensors(built.samples)


def _kind(thing: Any) -> str:
    name = type(thing).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _describe(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (f": {lines[0]}" if lines else "")
