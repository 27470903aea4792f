"""What was constant when a model was planned, and is not any more."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.battery import models
from tests.battery.registry import beyond, fast, use
from tests.battery.use_context import Run


def then_train(run: Run) -> None:
    for number in range(2):
        run.say("output", run.backward(number))
        run.gradients(str(number))


@fast
def another_rate_of_dropout(run: Run) -> None:
    layer = run.first(nn.Dropout)
    run.train(steps=1)
    layer.p = 0.6
    then_train(run)


@use
def dropout_switched_off(run: Run) -> None:
    run.first(nn.Dropout).p = 0.0
    then_train(run)


@use
def dropout_annealed(run: Run) -> None:
    layer = run.first(nn.Dropout)
    for number in range(3):
        layer.p = 0.1 * number
        run.backward(number)


@fast
def another_eps(run: Run) -> None:
    run.first((nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d, nn.InstanceNorm1d)).eps = 0.1
    then_train(run)


@use
def another_momentum(run: Run) -> None:
    run.first((nn.BatchNorm1d, nn.BatchNorm2d)).momentum = 0.5
    then_train(run)


@use
def statistics_no_longer_tracked(run: Run) -> None:
    run.first((nn.BatchNorm1d, nn.BatchNorm2d)).track_running_stats = False
    then_train(run)


@use
def another_slope(run: Run) -> None:
    run.first(nn.LeakyReLU).negative_slope = 0.5
    then_train(run)


@use
def another_stride(run: Run) -> None:
    layer = run.first((nn.Conv1d, nn.Conv2d))
    layer.padding = tuple(p + 1 for p in layer.padding)
    then_train(run)


@use
def another_padding_index(run: Run) -> None:
    run.first(nn.Embedding).padding_idx = 1
    then_train(run)


@use
def another_number_of_groups(run: Run) -> None:
    run.first(nn.GroupNorm).num_groups = 4
    then_train(run)


@fast
def another_number(run: Run) -> None:
    run.need(hasattr(run.module, "scale"))
    run.train(steps=1)
    run.module.scale = 0.25
    then_train(run)


@use
def another_flag(run: Run) -> None:
    run.need(hasattr(run.module, "flag"))
    run.module.flag = False
    then_train(run)


@fast
def a_tensor_attribute_written(run: Run) -> None:
    run.need(isinstance(getattr(run.module, "shift", None), Tensor))
    run.train(steps=1)
    run.module.shift.mul_(2)
    then_train(run)


@use
def a_tensor_attribute_replaced(run: Run) -> None:
    run.need(isinstance(getattr(run.module, "shift", None), Tensor))
    run.module.shift = torch.full((8,), -0.5)
    then_train(run)


@beyond
def a_tensor_attribute_written_through_data(run: Run) -> None:
    run.need(isinstance(getattr(run.module, "shift", None), Tensor))
    run.module.shift.data.mul_(2)
    then_train(run)


@use
def a_dictionary_changed(run: Run) -> None:
    run.need(hasattr(run.module, "options"))
    run.module.options["gain"] = 0.25
    then_train(run)


@fast
def a_closure_changed(run: Run) -> None:
    run.need(hasattr(run.module, "held"))
    run.module.held[0] = 1.0
    then_train(run)


@fast
def a_global_changed(run: Run) -> None:
    run.need(isinstance(run.module, models.Attributes))
    run.change(models, "LEVEL", 0.5)
    then_train(run)


@use
def a_plain_layer_trained(run: Run) -> None:
    """A layer in a plain list is no submodule, and learns all the same."""
    run.need(hasattr(run.module, "plain"))
    for number in range(2):
        run.backward(number)
        for parameter in run.module.plain[0].parameters():
            run.say("gradient", parameter.grad)
            if parameter.grad is not None:
                parameter.data.sub_(parameter.grad, alpha=0.1)


@use
def a_plain_layer_replaced(run: Run) -> None:
    run.need(hasattr(run.module, "plain"))
    run.module.plain[0] = nn.Linear(8, 8)
    then_train(run)


@fast
def an_activation_exchanged(run: Run) -> None:
    run.need(hasattr(run.module, "activation"))
    run.module.activation = torch.relu
    then_train(run)


@use
def an_activation_layer_exchanged(run: Run) -> None:
    places = [
        (module, name)
        for module in run.module.modules()
        for name, child in module.named_children()
        if isinstance(child, (nn.SiLU, nn.LeakyReLU, nn.Tanh))
    ]
    run.need(places)
    owner, name = places[0]
    owner._modules[name] = nn.ReLU()
    then_train(run)


def doubled(self: Any, *args: Any, **kwargs: Any) -> Any:
    return type(self).forward(self, *args, **kwargs) * 2


@fast
def an_inner_forward_replaced(run: Run) -> None:
    layer = run.first(nn.Linear)
    layer.forward = types.MethodType(doubled, layer)
    then_train(run)


@use
def the_forward_replaced(run: Run) -> None:
    before = run.module.forward
    run.module.forward = lambda *a, **k: before(*a, **k)
    then_train(run)


@use
def the_forward_replaced_by_another(run: Run) -> None:
    linear = nn.Linear(8, 8)
    run.module.forward = lambda *a, **k: linear(a[0].float())
    run.need(run.inputs()[0].shape[-1:] == (8,))
    then_train(run)


@use
def the_forward_of_a_class_replaced(run: Run) -> None:
    run.first(nn.Linear)
    before = nn.Linear.forward
    run.change(nn.Linear, "forward", lambda self, x: before(self, x) * 2)
    then_train(run)


@use
def a_function_of_pytorch_replaced(run: Run) -> None:
    run.first(nn.LayerNorm)
    before = functional.layer_norm
    run.change(functional, "layer_norm", lambda *a, **k: before(*a, **k) * 2)
    then_train(run)


@use
def a_method_replaced(run: Run) -> None:
    run.need(hasattr(run.module, "closure"))
    run.module.closure = lambda x: x * 7.0
    then_train(run)


@use
def a_layer_appended(run: Run) -> None:
    run.first(nn.Sequential).append(nn.Tanh())
    then_train(run)


@use
def a_layer_removed(run: Run) -> None:
    del run.first(nn.Sequential)[-1]
    then_train(run)


@use
def a_layer_skipped(run: Run) -> None:
    places = [
        (module, name)
        for module in run.module.modules()
        for name, child in module.named_children()
        if isinstance(child, nn.Linear) and child.in_features == child.out_features
    ]
    run.need(places)
    owner, name = places[0]
    owner._modules[name] = nn.Identity()
    then_train(run)


@use
def layers_exchanged(run: Run) -> None:
    linear = [
        (module, name, child)
        for module in run.module.modules()
        for name, child in module.named_children()
        if type(child) is nn.Linear and child.in_features == child.out_features == 8
    ]
    run.need(len(linear) > 1)
    (one, name, left), (two, other, right) = linear[:2]
    one._modules[name], two._modules[other] = right, left
    then_train(run)


@use
def an_attribute_changed_between_forward_and_backward(run: Run) -> None:
    run.need(hasattr(run.module, "scale"))
    output = run.forward()
    run.module.scale = 0.25
    run.loss(output).backward()


@use
def attributes_set_to_what_they_were(run: Run) -> None:
    for module in run.module.modules():
        for name in ("scale", "flag", "p", "eps", "momentum"):
            if name in vars(module):
                setattr(module, name, getattr(module, name))
    run.train(steps=2)
