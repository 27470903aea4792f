"""Compares what a model is made of with what the plan's was: modules, parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .difference import Difference
from .readings import class_of, encode, installed_class, type_of
from .written import agree


def compare_structure(
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
            raise Difference(f"this model has no {kind} {path}")
        tensor = here[1]
        if (tensor is None) != (shape is None):
            one, other = ("is", "was not") if tensor is None else ("is not", "was")
            raise Difference(f"this model's {path} {one} None, when the plan was made it {other}")
        if tensor is None:
            continue
        if list(tensor.shape) != shape:
            raise Difference(
                f"this model's {path} has shape {tuple(tensor.shape)}, "
                f"the plan was made for {tuple(shape)}"
            )
    for path, (kind, _) in found.items():
        raise Difference(f"this model has the {kind} {path}, the plan was made without it")


def _compare_modules(
    types: Mapping[str, list[str]], modules: Mapping[str, torch.nn.Module]
) -> None:
    for path, kind in types.items():
        if path not in modules:
            raise Difference(f"this model has no module {path}")
        compare_type(path, modules[path], kind)
    for path in modules:
        if path not in types:
            raise Difference(f"this model has the module {path}, the plan was made without it")


def compare_type(path: str, module: torch.nn.Module, kind: list[str]) -> None:
    """Raises Difference where the module at a path is of another class than the one written."""
    found = type_of(module)
    if not agree(["class", *kind], ["class", *found]):
        name = ".".join(found) if found[1] == kind[1] else found[1]
        expected = ".".join(kind) if found[1] == kind[1] else kind[1]
        raise Difference(f"{path or 'the model'} is a {name}, the plan was made with a {expected}")


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
        kind = class_of(module)
        known, one = first.setdefault((group.get(path), *types[path]), (path, kind))
        if one is not kind and _body(one) != _body(kind):
            raise Difference(
                f"{path} is of another class {types[path][1]} than {known or 'the model'}, when "
                f"the plan was made they were of one"
            )


def _body(kind: type) -> list[Any]:
    """What the classes that a class is made of say, but for those of installed packages."""
    own = [base for base in kind.__mro__ if not installed_class(base)]
    return [
        [name, encode(value)]
        for base in own
        for name, value in vars(base).items()
        if not (name.startswith("__") and isinstance(value, str | type(None) | dict))
    ]


def own_paths(modules: Mapping[str, torch.nn.Module]) -> dict[int, str]:
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
