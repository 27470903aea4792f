"""What may move in a model after it was planned, with the sentence that names it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations

from tests.stages.runtime.guards.guarded_models import Settings, scaling


def anneal(m: Any) -> None:
    m.inner.alpha = 0.25


def write_table(m: Any) -> None:
    m.inner.table.add_(1)


def replace_table(m: Any) -> None:
    m.inner.table = torch.zeros(3)


def append(m: Any) -> None:
    m.inner.sizes.append(3)


def exchange_item(m: Any) -> None:
    m.inner.sizes[0] = 5


def drop_rate(m: Any) -> None:
    m.inner.drop.p = 0.2


def epsilon(m: Any) -> None:
    m.inner.norm.eps = 1e-3


def activation(m: Any) -> None:
    m.inner.act = nn.ReLU()


def layer_longer(m: Any) -> None:
    m.layers.append(nn.Linear(3, 3))


def in_a_list(m: Any) -> None:
    m.plain[0] = nn.ReLU()


def in_a_list_inside(m: Any) -> None:
    m.plain[0].beta = 2.0


def setting(m: Any) -> None:
    m.settings.scale = 4.0


def setting_list(m: Any) -> None:
    m.settings.shifts[0] = 4.0


def settings_replaced(m: Any) -> None:
    m.settings = Settings(scale=5.0)


def namespace(m: Any) -> None:
    m.space.shift = 2.0


def closure(m: Any) -> None:
    m.scaled = scaling(2.5)


def appeared(m: Any) -> None:
    m.inner.late = 1.0


def came(m: Any) -> None:
    m.inner.extra = nn.ReLU()


def shadowed(m: Any) -> None:
    m.inner.kind = "shifted"


def replaced_forward(m: Any) -> None:
    m.inner.forward = torch.neg


def hooked(m: Any) -> None:
    def double(module: Any, args: Any, output: Any) -> Any:
        return 2 * output

    m.inner.linear.register_forward_hook(double)


def hooked_before(m: Any) -> None:
    m.inner.linear.register_forward_pre_hook(lambda module, args: None)


def hooked_backward(m: Any) -> None:
    m.inner.linear.register_full_backward_hook(lambda module, one, other: None)


def parametrized(m: Any) -> None:
    parametrizations.weight_norm(m.inner.linear)


CHANGES = [
    (anneal, "inner has alpha 0.25, the plan was made with 0.5"),
    (write_table, "inner has table other values, the plan was made with a torch.float32 tensor"),
    (replace_table, "inner has table other values, the plan was made with"),
    (append, "inner has sizes a list of 1, 2, 3, the plan was made with a list of 1, 2"),
    (exchange_item, "inner has sizes a list of 5, 2, the plan was made with a list of 1, 2"),
    (drop_rate, "inner.drop has p 0.2, the plan was made with 0.1"),
    (epsilon, "inner.norm has eps 0.001, the plan was made with 1e-05"),
    (activation, "inner.act is a ReLU, the plan was made with a GELU"),
    (layer_longer, "layers now has the modules 0, 1, 2, the plan was made with 0, 1"),
    (in_a_list, "the model has plain "),
    (in_a_list_inside, "plain[0] has beta 2.0, the plan was made with 1.0"),
    (setting, "settings has scale 4.0, the plan was made with 3.0"),
    (setting_list, "settings has shifts a list of 4.0, 2.0, the plan was made with a list of 1.0"),
    (settings_replaced, "settings has scale 5.0, the plan was made with 3.0"),
    (namespace, "space has shift 2.0, the plan was made with 1.0"),
    (closure, "factor, which scaled reads from around it, is 2.5, the plan was made with 1.5"),
    (appeared, "inner has late 1.0, the plan was made with nothing"),
    (came, "inner has extra "),
    (shadowed, "inner has kind 'shifted', the plan was made with nothing"),
    (replaced_forward, "inner has forward "),
    (hooked, "inner.linear has the hook hooked.<locals>.double, which the plan would not run"),
    (hooked_before, "inner.linear has the hook hooked_before.<locals>.<lambda>"),
    (hooked_backward, "inner.linear has the hook hooked_backward.<locals>.<lambda>"),
    (parametrized, ""),
]
