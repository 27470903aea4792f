"""Compares what a model is made of with what the plan's was: modules, parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .compare import ModelDifference, encodings_match
from .encode import encode_value, is_installed_class, original_class, original_class_name


def compare_module_structure(
    types: Mapping[str, list[str]],
    tensors: list[list[Any]],
    modules: Mapping[str, torch.nn.Module],
) -> None:
    """Raises Difference where a model has other modules, parameters or buffers than the plan's:
    `types` are those of its modules by path, `tensors` its parameters and buffers."""
    _compare_modules(types, modules)
    _compare_tensors(tensors, modules)


def _compare_tensors(tensors: list[list[Any]], modules: Mapping[str, torch.nn.Module]) -> None:
    found = {}
    for path, module in modules.items():
        for kind, field in (("parameter", "_parameters"), ("buffer", "_buffers")):
            for name, tensor in vars(module)[field].items():
                found[f"{path}.{name}" if path else name] = (kind, tensor)
    for path, kind, shape, _ in tensors:
        here = found.pop(path, None)
        if here is None or here[0] != kind:
            raise ModelDifference(f"this model has no {kind} {path}")
        tensor = here[1]
        if (tensor is None) != (shape is None):
            one, other = ("is", "was not") if tensor is None else ("is not", "was")
            raise ModelDifference(
                f"this model's {path} {one} None, when the plan was made it {other}"
            )
        if tensor is None:
            continue
        if list(tensor.shape) != shape:
            raise ModelDifference(
                f"this model's {path} has shape {tuple(tensor.shape)}, "
                f"the plan was made for {tuple(shape)}"
            )
    for path, (kind, _) in found.items():
        raise ModelDifference(f"this model has the {kind} {path}, the plan was made without it")


def _compare_modules(
    types: Mapping[str, list[str]], modules: Mapping[str, torch.nn.Module]
) -> None:
    for path, kind in types.items():
        if path not in modules:
            raise ModelDifference(f"this model has no module {path}")
        compare_type(path, modules[path], kind)
    for path in modules:
        if path not in types:
            raise ModelDifference(f"this model has the module {path}, the plan was made without it")


def compare_type(path: str, module: torch.nn.Module, kind: list[str]) -> None:
    """Raises Difference where the module at a path is of another class than the one written."""
    found = original_class_name(module)
    if not encodings_match(["class", *kind], ["class", *found]):
        name = ".".join(found) if found[1] == kind[1] else found[1]
        expected = ".".join(kind) if found[1] == kind[1] else kind[1]
        raise ModelDifference(
            f"{path or 'the model'} is a {name}, the plan was made with a {expected}"
        )


def compare_classes(
    types: Mapping[str, list[str]],
    twins: list[list[str]],
    modules: Mapping[str, torch.nn.Module],
) -> None:
    """Raises Difference where modules that were of one class are of two that differ under one name.
    `twins` are the paths of those whose class was another one of the same name already."""
    group = {path: number for number, paths in enumerate(twins) for path in paths}
    first: dict[tuple[Any, ...], tuple[str, type]] = {}
    for path, module in modules.items():
        kind = original_class(module)
        known, one = first.setdefault((group.get(path), *types[path]), (path, kind))
        if one is not kind and _class_body(one) != _class_body(kind):
            raise ModelDifference(
                f"{path} is of another class {types[path][1]} than {known or 'the model'}, when "
                f"the plan was made they were of one"
            )


def _class_body(kind: type) -> list[Any]:
    """What the classes that a class is made of say, but for those of installed packages."""
    own = [base for base in kind.__mro__ if not is_installed_class(base)]
    return [
        [name, encode_value(value)]
        for base in own
        for name, value in vars(base).items()
        if not (name.startswith("__") and isinstance(value, str | type(None) | dict))
    ]


def state_paths_by_id(modules: Mapping[str, torch.nn.Module]) -> dict[int, str]:
    """The paths of all parameters and buffers by id, of all modules by that of their fields."""
    paths: dict[int, str] = {}
    for path, module in modules.items():
        paths.setdefault(id(vars(module)), path)
    for path, module in modules.items():
        for field in ("_parameters", "_buffers"):
            for name, tensor in vars(module)[field].items():
                if tensor is not None:
                    paths.setdefault(id(tensor), f"{path}.{name}" if path else name)
    return paths
