"""Compares what a model is made of with what the plan's was: modules, parameters and buffers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from .difference import Difference
from .readings import type_of
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
        made = ".".join(kind) if found[1] == kind[1] else kind[1]
        raise Difference(f"{path or 'the model'} is a {name}, the plan was made with a {made}")


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
