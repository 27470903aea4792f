"""The list of equal layers that a model runs one after the other, and the model with fewer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

MIN_LAYERS = 5
"""Lists of fewer layers are traced whole."""
_PLAIN_TYPES = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class LayerList:
    """Where the `layers` of a model are, of which there are so many."""

    path: str
    layers: int


def find_layer_list(model: nn.Module) -> LayerList | None:
    """The one list of equal layers of a model; None if it has none, or several."""
    found: list[LayerList] = []
    for path, module in model.named_modules():
        inside = any(path.startswith(f"{known.path}.") for known in found)
        if isinstance(module, nn.ModuleList) and len(module) >= MIN_LAYERS and not inside:
            if not _are_alike(module):
                return None
            found.append(LayerList(path, len(module)))
    return found[0] if len(found) == 1 else None


def keep_layers(model: nn.Module, path: str, layers: int) -> None:
    """Leaves a model the first `layers` of the list at a path."""
    parent, _, name = path.rpartition(".")
    owner = model.get_submodule(parent)
    known = model.get_submodule(path)
    assert isinstance(known, nn.ModuleList)
    setattr(owner, name, known[:layers])


def _are_alike(layers: nn.ModuleList) -> bool:
    """Whether layers differ in nothing but their numbers, among what can be compared."""
    forms = [list(_describe(layer)) for layer in layers]
    numbers = list(range(len(forms)))
    if len({len(form) for form in forms}) > 1:
        return False
    return all(
        all(value == values[0] for value in values) or [value[-1] for value in values] == numbers
        for values in zip(*forms, strict=True)
    )


def _describe(layer: nn.Module) -> Iterator[tuple[Any, ...]]:
    for path, module in layer.named_modules():
        yield path, type(module)
        for name, value in sorted(vars(module).items()):
            if isinstance(value, _PLAIN_TYPES):
                yield name, value
        tensors = (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        for name, tensor in tensors:
            yield name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad
