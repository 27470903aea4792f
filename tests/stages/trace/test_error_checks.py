"""Operators of linear algebra whose errors eager raises in an operator of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from tests.stages.generate.plans import compare, generated, recompute, traced

CHECKING: dict[str, Callable[[Tensor], Tensor]] = {
    "cholesky": torch.linalg.cholesky,
    "inv": torch.linalg.inv,
    "solve": lambda x: torch.linalg.solve(x, x[:, :2]),
    "solve_left": lambda x: torch.linalg.solve(x, x[:2], left=False),
    "lu_factor": lambda x: torch.linalg.lu_factor(x)[0],
    "tensorinv": lambda x: torch.linalg.tensorinv(x.reshape(2, 2, 4)),
    "tensorsolve": lambda x: torch.linalg.tensorsolve(x.reshape(2, 2, 4), x[:2, :2]),
}


class Between(nn.Module):
    """A function of matrices between pointwise operators."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x * self.scale).sin()


@pytest.mark.parametrize("name", CHECKING)
def test_a_plan_has_the_bits_and_the_errors_of_eager(name: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    root = torch.randn(4, 4)
    definite = (root @ root.T + torch.eye(4)).requires_grad_()
    graph, built = traced((Between(CHECKING[name]), ((definite,), {})))
    package = generated(graph, tmp_path / "module", recompute(graph, 1, 1.0))
    planned = compare(package, built)
    singular = torch.zeros(4, 4, requires_grad=True)
    kinds = []
    for module in (built.model, planned):
        with pytest.raises(RuntimeError, match=r"singular|positive-definite|is zero") as raised:
            module(singular)
        kinds.append(raised.type)
    assert kinds[0] is kinds[1]


def test_operators_that_do_not_check_stay_so() -> None:
    def inverse(x: Tensor) -> Tensor:
        return torch.linalg.inv_ex(x)[0]

    graph, _ = traced((Between(inverse), ((torch.eye(4),), {})))
    (call,) = [op for op in graph.ops if op.target == "aten.linalg_inv_ex.default"]
    assert "check_errors" not in call.arguments
