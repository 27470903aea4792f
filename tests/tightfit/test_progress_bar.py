"""What is told on the way to a plan: stages, no warnings of PyTorch, and an interruption."""

from __future__ import annotations

import copy
import io
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import tightfit
from tests.tightfit.conftest import SETTINGS, gradients, tower
from tightfit.api import progress_bar
from tightfit.api.progress_bar import ProgressReporter
from tightfit.stages.combine.frontier_inputs import FrontierInputs
from tightfit.stages.solve import option_store
from tightfit.util.code_cache import COMPILING_NOTE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_a_log_has_a_line_a_stage_and_one_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 1000, 3))
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    told = ProgressReporter(stream=stream)
    with told.show_stages("check"):
        told.stage("trace")
        told.stage("profile")
        for count in range(5):
            told.report(count, 5)
    assert lines(stream) == [
        "tightfit: 1/7 capturing the step",
        "tightfit: 2/7 measuring ops",
        "tightfit: 2/7 measuring ops, 1 of 5 done",
        "tightfit: 2/7 measuring ops, 3 of 5 done, about 6 s left",
    ]


def test_first_parts_that_take_long_are_not_taken_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter([0.0, 60.0, 70.0])
    monkeypatch.setattr(progress_bar.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    told = ProgressReporter(stream=stream)
    told.stage("combine")
    told.report(2, 76)
    told.report(22, 76)
    assert lines(stream)[1:] == [
        "tightfit: 5/8 making plans, 2 of 76 done",
        "tightfit: 5/8 making plans, 22 of 76 done, about 27 s left",
    ]


def test_a_terminal_has_a_bar_with_a_fraction_and_the_time_left() -> None:
    stream = Terminal()
    told = ProgressReporter(stream=stream)
    with told.show_stages():
        told.stage("solve")
        told.report(1, 2)
        told.bar.refresh()
        assert told.bar.tasks[0].percentage == pytest.approx(10 + 20 + 2 + 12.5)
        told.note("a line")
    assert "solving blocks 1/2" in stream.getvalue() and "a line" in stream.getvalue()
    assert "44%" in stream.getvalue() and ":" in stream.getvalue()


def test_a_note_is_a_line_of_its_own() -> None:
    stream = io.StringIO()
    ProgressReporter(stream=stream).note(COMPILING_NOTE)
    assert lines(stream) == [f"tightfit: {COMPILING_NOTE}"]


def test_a_call_tells_its_stages(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tightfit.api.progress_bar.LINE_INTERVAL", 0.0)
    x = torch.randn(64, 16)
    tightfit.plan(tower(), (x,), budget="90%", store=store, check="full", **SETTINGS)
    told = capsys.readouterr()
    stages = [line.split(" ", 2)[1] for line in told.err.splitlines()]
    assert told.out == ""
    last = told.err.splitlines()[-1]
    assert re.search(r"8/8 comparing .*, (\d+) of \d+ done \(the planned step .*\), about", last)
    numbers = [f"{number}/8" for number in range(1, 9)]
    assert list(dict.fromkeys(stages)) == [numbers[0], "comparing", *numbers[1:]]
    tightfit.plan(tower(), (x,), budget="90%", store=store, progress=False, **SETTINGS)
    assert capsys.readouterr().err == ""


class Warning_(torch.nn.Module):  # noqa: N801
    """PyTorch warns of its masks, and the model of itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = torch.nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("the model's own", stacklevel=1)
        length = x.shape[1]
        pad = torch.zeros(x.shape[0], length, dtype=torch.bool)
        mask = torch.zeros(length, length)
        return self.attention(x, x, x, key_padding_mask=pad, attn_mask=mask)[0]


def test_pytorch_does_not_warn_while_planning(store: Path) -> None:
    model, x = Warning_().train(), torch.randn(2, 5, 8)
    with pytest.warns(UserWarning, match="mismatched key_padding_mask"):
        model(x)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        tightfit.plan(model, (x,), strategy="keep_all", store=store, progress=False, **SETTINGS)
    assert {str(one.message) for one in seen} == {"the model's own"}


def interrupt(*args: Any, **kwargs: Any) -> Any:
    raise KeyboardInterrupt


def interrupted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first frontier that is made is not."""
    whole, left = FrontierInputs.frontier, [interrupt]

    def made(*args: Any, **kwargs: Any) -> Any:
        return (left.pop() if left else whole)(*args, **kwargs)

    monkeypatch.setattr(FrontierInputs, "frontier", made)


@pytest.mark.long
def test_an_interrupted_frontier_gives_the_best_plan_so_far(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, model = torch.randn(64, 16), tower(depth=6)
    wanted = gradients(copy.deepcopy(model), x)
    with monkeypatch.context() as patched:
        interrupted_once(patched)
        fitted, made = tightfit.plan(model, (x,), budget="70%", store=tmp_path, **SETTINGS)
        for impossible in (1000, "min"):
            interrupted_once(patched)
            with pytest.raises(KeyboardInterrupt):
                tightfit.plan(model, (x,), budget=impossible, store=tmp_path, **SETTINGS)
    assert "interrupted, taking the best plan so far" in capsys.readouterr().err
    assert made.feasible and made.message.endswith("the best plan when its making was interrupted")
    assert made.peak is not None and made.budget_bytes is not None
    assert made.peak <= made.budget_bytes < made.keep_all.peak
    assert all(map(torch.equal, gradients(fitted, x), wanted))
    assert made.frontier.chosen is not None
    _, whole = tightfit.plan(model, (x,), budget="70%", store=tmp_path, **SETTINGS)
    assert "interrupted" not in whole.message
    assert whole.time is not None and made.time is not None and whole.time <= made.time


def test_an_interrupted_search_for_a_budget_gives_the_plan_of_the_frontier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, model = torch.randn(64, 16), tower(depth=6)
    wanted = gradients(copy.deepcopy(model), x)
    given: dict[str, Any] = {"budget": "55%", "store": tmp_path, **SETTINGS}
    with monkeypatch.context() as patched:
        patched.setattr("tightfit.stages.combine.select_plan.prove_time_lower_bound", interrupt)
        fitted, made = tightfit.plan(model, (x,), **given)
    assert made.feasible and made.message.count("the best plan when its making was") == 1
    assert all(map(torch.equal, gradients(fitted, x), wanted))
    assert made.peak is not None and made.budget_bytes is not None
    assert made.peak <= made.budget_bytes
    whole = tightfit.plan(model, (x,), **given)[1]
    assert "interrupted" not in whole.message and whole.gap is not None and made.gap is not None
    assert whole.gap <= made.gap


def test_an_interrupted_solve_leaves_what_the_search_finds_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(option_store, "as_completed", interrupt)
    x = torch.randn(64, 16)
    made = tightfit.plan(tower(), (x,), budget="70%", store=tmp_path, **SETTINGS)[1]
    assert made.feasible and made.message.endswith("the best plan when its making was interrupted")
    with pytest.raises(KeyboardInterrupt):
        tightfit.plan(tower(), (x,), budget="1%", store=tmp_path, **SETTINGS)
