"""Where attention leaves its seeds: by PyTorch's schemas, and by an operator that runs here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tightfit.stages.profile.operands import _FORWARDS
from tightfit.stages.torch_utils import fake_kernel_fixes
from tightfit.stages.torch_utils.fake_kernel_fixes import (
    SEED_OUTPUTS,
    attention_seeds,
    run_small_attention,
    shrink_operand,
)

HERE = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.mark.parametrize("name", SEED_OUTPUTS)
def test_the_numbers_are_those_of_the_seed_and_the_offset(name: str) -> None:
    """Flash attention keeps both in one tensor, and leaves another one unused."""
    returns = getattr(torch.ops.aten, name.partition("::")[2]).default._schema.returns
    called = [returns[number].name for number in SEED_OUTPUTS[name]]
    assert called in (["philox_seed", "philox_offset"], ["rng_state", "unused"])


@pytest.mark.parametrize("backward", [name for name in _FORWARDS if "dot_product" in name])
def test_a_backward_is_given_what_its_forward_leaves(backward: str) -> None:
    forward, saved = _FORWARDS[backward]
    taken = [one.name for one in getattr(torch.ops.aten, backward).default._schema.arguments]
    left = getattr(torch.ops.aten, forward).default._schema.returns
    for argument, number in saved.items():
        assert argument in taken and number < len(left)
    seeds = tuple(saved[name] for name in ("philox_seed", "philox_offset") if name in saved)
    assert seeds == SEED_OUTPUTS.get(f"aten::{forward}", ())


def operands() -> list[torch.Tensor]:
    """Queries, keys and values of three sequences and two heads, the heads beside each other."""
    return [torch.randn(3, 5, 2, 8).transpose(1, 2) for _ in range(3)]


def test_an_operator_is_run_on_one_sequence_and_one_head() -> None:
    given = operands()
    drawn = torch.get_rng_state()
    output = run_small_attention(HERE, given, {})[0]
    assert output.shape == (1, 1, 5, 8)
    assert torch.equal(torch.get_rng_state(), drawn)
    one = shrink_operand(operands()[0])
    assert one.stride() == operands()[0].stride() and one.shape == (1, 1, 5, 8)
    assert shrink_operand(0.5) == 0.5


class OnGpu:
    """Stands for an operand on a GPU."""

    device = torch.device("cuda", 0)


def test_seeds_are_those_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    call: Any = torch.ops.aten._scaled_dot_product_efficient_attention.default
    results = [torch.tensor(number) for number in range(4)]
    monkeypatch.setattr(fake_kernel_fixes, "run_small_attention", lambda *_: results)
    assert attention_seeds(call, [OnGpu()], {}) == {2: results[2], 3: results[3]}
    assert attention_seeds(call, operands(), {}) == {}
    assert attention_seeds(HERE, [OnGpu()], {}) == {}

    def refused(*_: Any) -> Any:
        raise RuntimeError("no kernel for these operands")

    monkeypatch.setattr(fake_kernel_fixes, "run_small_attention", refused)
    assert attention_seeds(call, [OnGpu()], {}) == {}
