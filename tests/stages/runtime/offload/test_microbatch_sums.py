"""Gradients of microbatches that add up in the memory that parameters live in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.stages.runtime.offload.test_host_update import gradients_of, lodged, plain_step, run
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE
from tightfit.stages.runtime.offload.step_context import StepContext


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))


def test_gradients_that_lie_otherwise_than_their_parameters_add_up() -> None:
    plain, own = (nn.ParameterList([torch.arange(12.0).view(3, 4).t()]) for _ in range(2))
    expected = torch.optim.AdamW(plain.parameters())
    store, found = lodged(own, torch.optim.AdamW(own.parameters()), sums=True)
    gradients = [gradients_of(plain, number) for number in range(3)]
    assert gradients[0][0].stride() != plain[0].stride()
    for number, each in enumerate(gradients):
        run(store, found, list(each), number == 2)
    found.step()
    plain_step(plain, expected, [list(each) for each in gradients])
    found.close()
    assert torch.equal(own[0], plain[0])


def test_what_adds_up_is_not_dropped_in_part() -> None:
    """Neither by `model.zero_grad()` nor by a `zero_grad()` while an interrupted run is there."""
    plain, own = nn.Linear(9, 33), nn.Linear(9, 33)
    own.load_state_dict(plain.state_dict())
    expected = torch.optim.AdamW(plain.parameters())
    store, found = lodged(own, torch.optim.AdamW(own.parameters()), sums=True)
    gradients = [gradients_of(plain, number) for number in range(3)]
    run(store, found, list(gradients[0]), False)
    for use in (
        own.zero_grad,
        lambda: torch.nn.utils.clip_grad_norm_(own.parameters(), 1.0),
        lambda: setattr(own.weight, "grad", None),
    ):
        with pytest.raises(
            RuntimeError, match="gradient of weight adds up in an offload target: run"
        ):
            use()
    with found.accumulating():
        visit = StepContext(store, True)
        store.parameters[0].grad = gradients[1][0].clone()
        found._arrived(0)
    found.zero_grad()
    del visit
    assert own.weight.grad is None
    run(store, found, list(gradients[2]), True)
    found.step()
    plain_step(plain, expected, [gradients[2]])
    found.close()
    assert all(map(torch.equal, plain.parameters(), own.parameters()))
