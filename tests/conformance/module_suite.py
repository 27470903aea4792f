"""PyTorch's database of layers, ModuleInfo, in training and in evaluation."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from tests.battery.case import Case
from tests.conformance.suite import Group, Suite, copy_inputs, seed_everything

MODES = (("training", True), ("eval", False))


def module_cases(info: Any, training: bool, seed: int) -> list[Case]:
    """A case for each way to make and call a layer that the database has."""
    seed_everything(seed)
    inputs = info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
    )
    return [
        _case(f"{number} {each.desc}".strip(), info.module_cls, each, training)
        for number, each in enumerate(inputs)
        if each.forward_input is not None
    ]


def _case(name: str, kind: type[nn.Module], given: Any, training: bool) -> Case:
    made, called = given.constructor_input, given.forward_input

    def sample(_: int) -> Any:
        return copy_inputs((tuple(called.args), dict(called.kwargs)))

    def model() -> nn.Module:
        args, kwargs = copy_inputs((made.args, made.kwargs))
        module = kind(*args, **kwargs).to(torch.float32).train(training)
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            args, kwargs = sample(0)
            with torch.no_grad():
                module(*args, **kwargs)
        return module

    return Case(name, model, sample)


def _groups() -> list[Group]:
    from torch.testing._internal.common_modules import module_db

    return [
        Group(f"{info.name} {mode}", partial(module_cases, info, training))
        for mode, training in MODES
        for info in module_db
    ]


MODULE_SUITES = (Suite("moduleinfo", _groups),)
