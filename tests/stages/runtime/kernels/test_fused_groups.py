"""What compiled groups make of operands whose memory does not hold them, or that are absent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tightfit.stages.runtime.kernels.compile import (
    CACHE_DIR_VARIABLE,
    InPlaceKernel,
    TensorForm,
    kernel_with_checks,
)
from tightfit.stages.runtime.kernels.fused_groups import CompiledGroup
from tightfit.stages.runtime.output_gradients import MissingGradient

aten = torch.ops.aten
FORM = TensorForm((8,), (1,), 0, "float32")
GRADIENT = torch.linspace(-1, 1, 8)
ZEROS = torch.zeros(8)


def meeting(v0: Any, v1: Any, v2: Any) -> list[Any]:
    """Two gradients that meet, of which one is divided by what a forward has kept."""
    v3 = aten.div.Tensor(v0, v2)
    v4 = aten.mul.Tensor(v1, 2.0)
    return [aten.add.Tensor(v3, v4), v3, aten.mul.Tensor(v4, v2)]


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompiledGroup]:
    with pytest.MonkeyPatch.context() as patch:
        if CACHE_DIR_VARIABLE not in os.environ:
            patch.setenv(CACHE_DIR_VARIABLE, str(tmp_path_factory.mktemp("kernels")))
        reads = ((0, 1, 2), (0, 2), (1, 2))
        yield CompiledGroup("meeting", meeting, (FORM, FORM, FORM), (FORM, FORM, FORM), reads)


def missing() -> MissingGradient:
    return MissingGradient(torch.empty(8, device="meta"))


def test_what_is_absent_is_not_divided_by_zero(group: CompiledGroup) -> None:
    both, divided, last = group.joining((0, 1), missing(), GRADIENT, ZEROS)
    assert torch.equal(both, GRADIENT * 2)
    assert isinstance(divided, MissingGradient)
    assert torch.equal(last, ZEROS * GRADIENT)


def test_so_in_the_form_in_place_whose_output_may_be_absent(group: CompiledGroup) -> None:
    given = GRADIENT.clone()
    both, divided, last = group.over(0, 1).joining((0, 1), given, missing(), ZEROS + 4)
    assert torch.equal(both, GRADIENT / 4)
    assert torch.equal(divided, GRADIENT / 4)
    assert isinstance(last, MissingGradient)


def test_a_sum_of_absent_ones_is_absent(group: CompiledGroup) -> None:
    assert all(
        isinstance(made, MissingGradient)
        for made in group.joining((0, 1), missing(), missing(), ZEROS)
    )


def test_the_memory_of_a_negative_view_is_not_read_as_it_is(group: CompiledGroup) -> None:
    turned: Tensor = torch._neg_view(GRADIENT)
    views, copies = (group(given, given, ZEROS + 4) for given in (turned, turned.resolve_neg()))
    assert all(map(torch.equal, views, copies))
    assert torch.equal(views[1], -GRADIENT / 4)


def test_an_output_over_a_negative_view_has_its_numbers() -> None:
    kernel = kernel_with_checks(
        "negated", lambda given: [given[0].neg_()][:0], [FORM], InPlaceKernel(0, 0)
    )
    assert torch.equal(kernel([torch._neg_view(GRADIENT.clone())])[0], GRADIENT)


def test_a_negative_view_that_is_expanded_is_refused() -> None:
    kernel = kernel_with_checks("one", lambda given: [given[0] + 1], [FORM])
    with pytest.raises(RuntimeError, match="a negative or conjugate view that is expanded"):
        kernel([torch._neg_view(torch.ones(())).expand(8)])


def test_conjugate_views_are_read_as_what_they_are() -> None:
    form = TensorForm((8,), (1,), 0, "complex64")
    numbers = torch.complex(GRADIENT, GRADIENT + 1)
    kernel = kernel_with_checks("half", lambda given: [torch.complex(*_parts(given[0]))], [form])
    assert torch.equal(kernel([numbers.conj()])[0], torch.complex(GRADIENT, -GRADIENT - 1))


def _parts(number: Tensor) -> tuple[Tensor, Tensor]:
    """The parts that are in memory."""
    bare = number.conj() if number.is_conj() else number
    return bare.real, bare.imag
