"""Random states and kernels of attention that a forward sets and puts back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import dropout, scaled_dot_product_attention

from tests.stages.generate.plans import built_of, compare, generated, recompute, traced
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError


class Model(nn.Module):
    def __init__(self, compute: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.compute = nn.Linear(8, 8), compute

    def forward(self, x: Tensor) -> Any:
        return self.compute(self.layer(x), x)


def draws_from_a_seed(y: Tensor, x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        noise = torch.randn(8) * torch.empty(8).uniform_() + torch.rand_like(x)
        inner = torch.get_rng_state()
        first = torch.rand(8)
        torch.set_rng_state(inner)
        again = torch.rand(8)
    return dropout(y + noise, 0.3) * (first - again + 1)


def draws_again(y: Tensor, x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    one = torch.randn(8).mul_(2) * dropout(y, 0.25)
    torch.set_rng_state(state)
    return one + torch.randn(8) * dropout(y + 1, 0.25) + torch.rand(8)


def attends_by_mathematics(y: Tensor, x: Tensor) -> Tensor:
    plain = scaled_dot_product_attention(y, y, y)
    with sdpa_kernel(SDPBackend.MATH):
        return plain + scaled_dot_product_attention(y, x, y, dropout_p=0.2)


def attends_by_either(y: Tensor, x: Tensor) -> Tensor:
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        return scaled_dot_product_attention(y, x, y)


def casts_inside(y: Tensor, x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = y @ x.transpose(-1, -2)
    with torch.autocast("cpu", enabled=False):
        return z.float() @ x


@pytest.mark.parametrize(
    "compute",
    [
        draws_from_a_seed,
        draws_again,
        attends_by_mathematics,
        attends_by_either,
        casts_inside,
    ],
)
def test_what_is_put_back(compute: Callable[[Any, Tensor], Any], tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced((Model(compute), ((torch.randn(2, 6, 8),), {})))
    state = torch.get_rng_state()
    trace(built, "again")
    assert torch.equal(state, torch.get_rng_state())
    compare(generated(graph, tmp_path / "plan", recompute(graph, 1, 0.7), True), built)


def forgets(y: Tensor, x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        noise = torch.randn(8)
    return y + noise


def draws_something_else_again(y: Tensor, x: Tensor) -> Tensor:
    state = torch.get_rng_state()
    noise = torch.randn(8)
    torch.set_rng_state(state)
    return y + noise + torch.rand(4, 8)[0]


def drops_by_a_seed(y: Tensor, x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return dropout(y, 0.3)


def seeds_for_good(y: Tensor, x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return y + torch.randn(8)


STATE = torch.get_rng_state()


def sets_another_state(y: Tensor, x: Tensor) -> Tensor:
    torch.set_rng_state(STATE)
    return y


@pytest.mark.parametrize(
    ("compute", "sentence"),
    [
        (forgets, r"forgets what was drawn at \S*test_random_states\.py:\d+.*: seed there first"),
        (draws_something_else_again, r"rand\(\) at \S+ draws .* from a state that was put back"),
        (drops_by_a_seed, r"native_dropout\(\) at \S+ draws .*: draw before the model"),
        (seeds_for_good, r"calls torch\.manual_seed at \S*test_random_states\.py:\d+"),
        (sets_another_state, r"calls torch\.set_rng_state at \S*test_random_states\.py:\d+"),
    ],
)
def test_states_that_a_plan_does_not_follow(
    compute: Callable[[Any, Tensor], Any], sentence: str
) -> None:
    with pytest.raises(ModelError, match=sentence):
        trace(built_of((Model(compute), ((torch.randn(2, 6, 8),), {}))), "m")


def chooses_by_data(y: Tensor, x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, lambda z: z.sin(), lambda z: z.cos(), (y,))


def test_operators_that_run_functions_are_named() -> None:
    with pytest.raises(ModelError, match=r"torch's cond\(\) runs a function .*torch\.where"):
        trace(built_of((Model(chooses_by_data), ((torch.randn(2, 6, 8),), {}))), "m")


@torch.jit.script
def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    y = x + bias
    return y * 0.5 * (1.0 + torch.tanh(0.79788456 * y * (1 + 0.044715 * y * y)))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.bias = nn.Linear(8, 8, bias=False), nn.Parameter(torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        return bias_gelu(self.layer(x), self.bias)


def test_functions_of_torchscript_that_have_not_run(tmp_path: Path) -> None:
    torch.manual_seed(0)
    graph, built = traced((Scripted(), ((torch.randn(3, 8),), {})))
    compare(generated(graph, tmp_path / "plan", recompute(graph, 1, 0.7), True), built)
