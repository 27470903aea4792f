"""Whole steps with AdamW, its states on disk, beside plain ones: bytes, and time as predicted."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tightfit
from tests.benchmarks.cases import CASES
from tightfit.stages.torch_utils.memory_meter import memory_session
from tightfit.stages.torch_utils.model_factory import build_from_factory

CASE = CASES[0]
SHARE = 3
"""The whole step is planned for this part of the bytes of the plain one."""
AWAY = 4
"""And for this one with parameters on disk, too."""
HEAD = f"""### Whole steps: {CASE.title}, AdamW

| step | device MB | disk MB | predicted s | of it waited | measured s | of it waited | / plain \
| predicted / measured | at one pace |
|---|---|---|---|---|---|---|---|---|---|"""
PACE = 4
"""Plain steps ahead of planning and after it: they tell the pace of the machine meanwhile."""


def rows_of_whole_steps(store: Path, rounds: int) -> Iterator[str]:
    """The rows of the table: the plain step, and plans with the optimizer in their backward.

    The machine's pace changes. *At one pace* is predicted / measured where the prediction is taken
    to the pace of the measurement, by plain steps around the profile and among the steps.
    """
    torch.manual_seed(0)
    # The meter knows the bytes of what was made while it ran.
    with memory_session("cpu"):
        built = build_from_factory(CASE.factory, CASE.arguments)
    args, kwargs = built.samples[0]
    plain = build_from_factory(CASE.factory, CASE.arguments).model
    plain.load_state_dict(built.model.state_dict())
    eager = _Steps(plain, torch.optim.AdamW(plain.parameters(), lr=1e-4), args, kwargs)
    states = 2 * sum(p.numel() * p.element_size() for p in plain.parameters())
    fixed = sum(p.numel() * p.element_size() for p in plain.parameters())
    fixed += sum(b.numel() * b.element_size() for b in plain.buffers())
    fixed += sum(t.numel() * t.element_size() for t in (*args, *kwargs.values()))
    eager.run()
    whole = fixed + states + eager.peak()
    wanted: list[tuple[str, int, dict[str, Any]]] = [
        ("all activations kept", 10 * whole, {"strategy": "rockmate"}),
        (f"in 1 / {SHARE} of it", whole // SHARE, {"strategy": "rockmate"}),
        (
            f"in 1 / {AWAY}, parameters on disk",
            whole // AWAY,
            {"offload": tightfit.ParameterOffloadOptions()},
        ),
    ]
    for number, (name, budget, how) in enumerate(wanted):
        place = store / str(number)
        made: Any
        around = [_seconds(eager.run) for _ in range(PACE)]
        fitted, made = tightfit.plan(
            built.model, tuple(args), kwargs, budget=budget, loss=_loss, store=place,
            optimizer=torch.optim.AdamW(built.model.parameters(), lr=1e-4), check=False, **how
        )  # fmt: skip
        around += [_seconds(eager.run) for _ in range(PACE)]
        planned = _Steps(fitted, made.optimizer, args, kwargs)
        first = planned.peak()
        steady = planned.peak()
        foretold = (made.optimizer_step.first_peak, made.optimizer_step.peak)
        if (first, steady) != foretold:
            raise SystemExit(f"{(first, steady)} bytes were taken, {foretold} were predicted")
        ours, theirs, waited = [], [], []
        for _ in range(rounds):
            theirs.append(_seconds(eager.run))
            before = made.optimizer.waited_seconds
            ours.append(_seconds(planned.run))
            waited.append(made.optimizer.waited_seconds - before)
        ratio = statistics.median(mine / its for mine, its in zip(ours, theirs, strict=True))
        if not number:
            figures = f"- | - | - | {_median(theirs)} | - | 1.00 | - | -"
            yield f"| plain AdamW | {whole / 1e6:.1f} | {figures} |"
        own = made.optimizer_step
        foretold_part = own.seconds / statistics.median(ours)
        pace = statistics.median(theirs) / statistics.median(around)
        yield (
            f"| {name} | {own.total / 1e6:.1f} | {own.slow / 1e6:.1f} | {own.seconds:.3f} | "
            f"{own.waited:.3f} | {_median(ours)} | {statistics.median(waited):.3f} | {ratio:.2f} | "
            f"{foretold_part:.2f} | {foretold_part * pace:.2f} |"
        )
        made.optimizer.close()


class _Steps:
    """Whole training steps of a module with an optimizer."""

    def __init__(
        self, module: nn.Module, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> None:
        self.module, self.optimizer = module, optimizer
        self.args, self.kwargs = args, kwargs

    def run(self) -> Any:
        output = self.module(*self.args, **self.kwargs)
        value = _loss(output)
        value.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return output, value

    def peak(self) -> int:
        """The most bytes of a step above those from before it."""
        gc.collect()
        with memory_session("cpu") as running, running.section("step"):
            held = self.run()
        del held
        return running.section_usage("step").peak


def _loss(output: Any) -> torch.Tensor:
    return output.logits.float().log_softmax(-1)[..., 0].mean().neg()


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _median(times: list[float]) -> str:
    first, median, third = statistics.quantiles(times, n=4)
    return f"{median:.3f} ({first:.3f} to {third:.3f})"
