"""Layers replaced, wrapped, parametrized and pruned."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from tests.battery.registry import use
from tests.battery.use_context import Run


@use
def a_layer_replaced_by_its_like(run: Run) -> None:
    name, layer = _a_linear(run)
    new = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
    _set(run.module, name, new)
    run.train(steps=2)


@use
def a_layer_replaced_by_one_without_bias(run: Run) -> None:
    name, layer = _a_linear(run)
    _set(run.module, name, nn.Linear(layer.in_features, layer.out_features, bias=False))
    run.train(steps=2)


@use
def a_layer_replaced_by_two(run: Run) -> None:
    name, layer = _a_linear(run)
    _set(run.module, name, nn.Sequential(layer, nn.Tanh()))
    run.train(steps=2)


@use
def a_layer_replaced_by_another_kind(run: Run) -> None:
    class Doubled(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 2

    name, layer = _a_linear(run)
    new = Doubled(layer.in_features, layer.out_features, bias=layer.bias is not None)
    _set(run.module, name, new)
    run.train(steps=2)


@use
def a_parametrization_added(run: Run) -> None:
    parametrizations.weight_norm(_a_linear(run)[1])
    run.train(steps=2)


@use
def a_parametrization_removed(run: Run) -> None:
    made = [m for m in run.module.modules() if parametrize.is_parametrized(m)]
    run.need(made)
    parametrize.remove_parametrizations(made[0], "weight")
    run.train(steps=2)


@use
def a_weight_pruned(run: Run) -> None:
    prune.l1_unstructured(_a_linear(run)[1], "weight", 0.5)
    run.train(steps=2)


@use
def an_adapter_added(run: Run) -> None:
    """A low-rank update beside a layer."""

    class Adapter(nn.Module):
        def __init__(self, layer: nn.Linear) -> None:
            super().__init__()
            self.layer = layer.requires_grad_(False)
            self.down = nn.Linear(layer.in_features, 2, bias=False)
            self.up = nn.Linear(2, layer.out_features, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + self.up(self.down(x))

    name, layer = _a_linear(run)
    _set(run.module, name, Adapter(layer))
    run.train(steps=2)


def _a_linear(run: Run) -> tuple[str, nn.Linear]:
    found = [
        (name, module)
        for name, module in run.module.named_modules()
        if type(module) is nn.Linear and "weight" in module._parameters
    ]
    run.need(found)
    return found[0]


def _set(root: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, last = name.rpartition(".")
    owner = root.get_submodule(parent)
    if isinstance(owner, (nn.Sequential, nn.ModuleList)):
        owner[int(last)] = module
    else:
        setattr(owner, last, module)
