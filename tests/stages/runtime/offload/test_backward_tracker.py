"""Backwards and steps that end early: what comes behind one which has updated a part is refused."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.stages.runtime.offload.test_backward_optimizer import assert_trained_alike, model, train
from tightfit.stages.runtime.offload.backward_optimizer import in_backward
from tightfit.stages.runtime.offload.disk_target import DISK_VARIABLE


class StopError(Exception):
    """What a hook raises."""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DISK_VARIABLE, str(tmp_path))


def stop(*_: Any) -> None:
    """Ends a backward."""
    raise StopError


def run(module: nn.Module) -> None:
    """A forward and its backward."""
    module(torch.ones(2, 9)).square().sum().backward()


def trained() -> tuple[nn.Sequential, Any]:
    """A model and its optimizer after two steps."""
    own = model()
    found = in_backward(torch.optim.AdamW(own.parameters()), piece_bytes=256)
    train(own, found, steps=2)
    return own, found


def hook(parameter: Tensor) -> Any:
    return parameter.register_hook(stop)


def later_hook(parameter: Tensor) -> Any:
    return parameter.register_post_accumulate_grad_hook(stop)


@pytest.mark.parametrize("register", [hook, later_hook])
def test_a_backward_that_a_hook_ended_is_not_stepped_from(register: Callable[..., Any]) -> None:
    own, found = trained()
    saved = found.state_dict()
    handle = register(own[2].weight)
    with pytest.raises(StopError):
        run(own)
    handle.remove()
    words = r"^an error ended a backward which had updated some of the parameters: go on from a"
    for use in (found.step, found.zero_grad, lambda: run(own), found.step):
        with pytest.raises(RuntimeError, match=words):
            use()
    with pytest.raises(RuntimeError, match=words):
        found.load_state_dict(saved)
    found.close()
    again: Any = in_backward(torch.optim.AdamW(own.parameters()))
    again.load_state_dict(saved)
    train(own, again, steps=1)


def test_a_backward_that_ended_ahead_of_all_updates_changes_nothing() -> None:
    own, found = trained()
    other, expected = trained()
    handles = [hook(parameter) for parameter in own[3].parameters()]
    with pytest.raises(StopError):
        run(own)
    for handle in handles:
        handle.remove()
    found.zero_grad()
    train(own, found)
    train(other, expected)
    assert_trained_alike(own, other)


def test_a_disk_that_ends_a_backward_or_a_step_ends_all_that_follows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for waits, place in ((False, "backward"), (True, "step")):
        own, found = trained()
        if waits:
            with found.accumulating():
                run(own)
        with monkeypatch.context() as broken:
            broken.setattr(os, "preadv", _fails_after(3))
            with pytest.raises(RuntimeError, match=r"\(Input/output error\)"):
                found.step() if waits else run(own)
        words = rf"files of {tmp_path} .*; this ended a {place} which had updated some"
        for use in (found.step, found.zero_grad, lambda own=own: run(own), found.step):
            with pytest.raises(RuntimeError, match=words):
                use()
        found.close()


def _fails_after(reads: int) -> Callable[..., int]:
    """A `preadv` that fails after some."""
    real, left = os.preadv, [reads]

    def preadv(*args: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(errno.EIO, "Input/output error")
        return real(*args)

    return preadv


def test_what_runs_within_a_backward_ends_by_itself() -> None:
    own, found = trained()
    other, expected = trained()
    inputs = torch.ones(2, 9, requires_grad=True)
    for _ in range(2):
        for module, optimizer in ((own, found), (other, expected)):
            front, back = module[:2], module[2:]
            for each in (front, back):
                # Two backwards of a step, of other parameters each.
                out: Any = checkpoint(
                    each,
                    inputs if each is front else torch.ones(2, 33, requires_grad=True),
                    use_reentrant=True,
                )
                out.square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert_trained_alike(own, other)
