"""The small models with the contents of their calls. A new model is one entry."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.battery.case import Case
from tests.battery.models import (
    Adversarial,
    Attributes,
    Checkpointed,
    Convolutions,
    Counter,
    Counting,
    Depends,
    Embedded,
    Heads,
    Hooking,
    InPlace,
    Instance,
    Mlp,
    Normed,
    Prune,
    PythonRandom,
    Random,
    Recurrent,
    Several,
    Shown,
    Spectral,
    Square,
    Structured,
    Tied,
    Transformer,
)
from tests.battery.random_inputs import normal, whole
from tightfit.stages.torch_utils.model_factory import Sample


def rows(number: int) -> Sample:
    return (normal(number, 6, 8),), {}


def rows_with_grad(number: int) -> Sample:
    return (normal(number, 6, 8, grad=True),), {}


def tokens(number: int) -> Sample:
    return (whole(number, 12, 3, 5),), {}


def labeled(number: int) -> Sample:
    return (whole(number, 12, 3, 5),), {"labels": whole(number, 12, 3, 5, place=1)}


def same_object(number: int) -> Sample:
    if number:
        return labeled(number)
    given = whole(0, 12, 3, 5)
    return (given,), {"labels": given}


def images(number: int) -> Sample:
    return (normal(number, 2, 2, 8, 8),), {}


def several(number: int) -> Sample:
    pair = {"a": normal(number, 6, 8, place=1), "b": normal(number, 6, 8, place=2, grad=True)}
    mask = whole(number, 2, 6, 8, place=3).bool()
    return (normal(number, 6, 8), pair), {"mask": mask, "scale": 0.5}


def cross_entropy(output: Any) -> Tensor:
    return functional.cross_entropy(output, torch.arange(6) % 8)


def first_only(output: Any) -> Tensor:
    return output[0].square().mean()


def positive(output: Tensor) -> Tensor:
    """Draws and has a domain."""
    target = torch.full_like(output, 0.5).bernoulli()
    return functional.binary_cross_entropy(output.sigmoid(), target)


def in_bfloat16() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def with_hooks() -> nn.Module:
    model = Mlp()
    model.register_forward_pre_hook(lambda module, args: (args[0] * 0.5,))
    model.register_forward_hook(lambda module, args, output: output * 3.0)
    return model


def with_inner_hooks() -> nn.Module:
    model = Mlp()
    model.second.register_forward_hook(lambda module, args, output: output + args[0])
    return model


def doubled(module: nn.Module, coming: Any, going: Any) -> Any:
    """A backward hook that changes a gradient."""
    return tuple(gradient if gradient is None else gradient * 2.0 for gradient in coming)


def with_backward_hooks() -> nn.Module:
    model = Mlp()
    model.second.register_full_backward_hook(doubled)
    return model


def partly_frozen() -> nn.Module:
    model = Mlp()
    model.first.requires_grad_(False)
    return model


def with_eval_part() -> nn.Module:
    model = Convolutions()
    model.norm1.eval()
    return model


def compiled_part() -> nn.Module:
    model = Mlp()
    model.second.compile(backend="eager")
    return model


def checkpointed() -> nn.Module:
    return Checkpointed()


CASES = (
    Case("mlp", Mlp, rows),
    Case("mlp, input with gradient", Mlp, rows_with_grad),
    Case("mlp, planned loss", Mlp, rows, cross_entropy),
    Case("mlp, loss that draws", Mlp, rows, positive),
    Case("tied", Tied, tokens),
    Case("tied, labeled", Tied, labeled),
    Case("tied, one object twice", Tied, same_object),
    Case("tied, own loss", Tied, labeled, lambda output: output["loss"]),
    Case("convolutions", Convolutions, images),
    Case("convolutions, a norm in eval", with_eval_part, images),
    Case("transformer", Transformer, tokens),
    Case("heads", Heads, rows),
    Case("heads, loss of one", Heads, rows, first_only),
    Case("spectral norm", Spectral, rows),
    Case("several inputs", Several, several),
    Case("structured", Structured, rows),
    Case("counter", Counter, rows),
    Case("buffer shown", Shown, rows),
    Case("lstm", lambda: Recurrent(nn.LSTM), lambda n: ((normal(n, 3, 5, 8),), {})),
    Case("gru", lambda: Recurrent(nn.GRU), lambda n: ((normal(n, 3, 5, 8),), {})),
    Case("gradient reversal", Adversarial, rows),
    Case("hook in forward", Hooking, rows),
    Case("attributes", Attributes, rows),
    Case("normed", Normed, rows),
    Case("square root", Square, rows),
    Case("in place", InPlace, rows),
    Case("random", Random, rows),
    Case("python's random", PythonRandom, rows),
    Case("counting calls", Counting, rows),
    Case("values decide", Depends, rows),
    Case("embedding bag", Embedded, lambda n: ((whole(n, 20, 4, 5),), {})),
    Case("instance norm", Instance, lambda n: ((normal(n, 2, 3, 9),), {})),
    Case("parametrized", Prune, rows),
    Case("autocast", Mlp, rows, around=in_bfloat16),
    Case("autocast, transformer", Transformer, tokens, around=in_bfloat16),
    Case("root hooks", with_hooks, rows),
    Case("inner hooks", with_inner_hooks, rows),
    Case("inner backward hooks", with_backward_hooks, rows),
    Case("partly frozen", partly_frozen, rows),
    Case("compiled part", compiled_part, rows),
    Case("checkpoint inside", checkpointed, rows),
    Case("double", lambda: Mlp().double(), lambda n: ((normal(n, 6, 8).double(),), {})),
)
