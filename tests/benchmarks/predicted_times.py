"""`python -m tests.benchmarks.predicted_times`: times of plans as predicted, and as they come true.

Each step runs in a process of its own with one thread; a round runs the model's own step and all
its plans one after the other. Times are CPU seconds of forward and backward without a loss, each
the median of a process, and the ratio is the median of those of the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.own_process import run_in_own_process

Case = tuple[Any, tuple[Any, ...]]
"""A model and its arguments."""
BUDGETS = ("50%", "20%")
WARM_STEPS = 2
EAGER = "eager"
HEAD = (
    "| model | budget | predicted time / eager | measured | predicted / measured |\n"
    "|---|---|---|---|---|"
)


_run = partial(run_in_own_process, "predicted_times")


def _gpt2(batch: int, tokens: int) -> Case:
    from data.models import gpt2

    model, (args, _) = gpt2(batch=batch, tokens=tokens)
    return model, args


def _resnet50(batch: int) -> Case:
    from data.models import resnet50

    model, (args, _) = resnet50(batch)
    return model, args


def _vit(batch: int) -> Case:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    settings: dict[str, Any] = {"hidden_dropout_prob": 0.0, "num_labels": 1000}
    config = ViTConfig(attention_probs_dropout_prob=0.0, **settings)
    return ViTForImageClassification(config).train(), (torch.randn(batch, 3, 224, 224),)


def _lstm(batch: int, tokens: int) -> Case:
    """A classifier of sequences, whose cell runs once a token."""
    import torch
    from torch import nn

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 256)
            self.cell = nn.LSTMCell(256, 256)
            self.head = nn.Linear(256, 10)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            state = None
            for word in self.embedding(words).unbind(1):
                state = self.cell(word, state)
            assert state is not None
            return self.head(state[0])

    return Classifier().train(), (torch.randint(1000, (batch, tokens)),)


CASES: dict[str, Callable[[], Case]] = {
    "GPT-2, 4 x 256": lambda: _gpt2(4, 256),
    "GPT-2, 8 x 512": lambda: _gpt2(8, 512),
    "ViT-Base, 8 images": lambda: _vit(8),
    "ResNet-50, 4 images": lambda: _resnet50(4),
    "ResNet-50, 16 images": lambda: _resnet50(16),
    "LSTM, 128 x 48": lambda: _lstm(128, 48),
}


def build_case(name: str) -> Case:
    """A case with random weights, in a process of one thread."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return CASES[name]()


def plan_case(name: str, budget: str, store: Path) -> dict[str, Any]:
    """The package of a plan and the predicted ratio of its time to that of the model's own step;
    the plan for the least budget, which is named, if no plan fits the given one."""
    import tightfit
    from tightfit.util.errors import ConfigError

    model, args = build_case(name)
    options: dict[str, Any] = {"store": store, "check": False, "progress": False, "loss_room": 0}
    try:
        _, plan = tightfit.plan(model, args, budget=budget, **options)
    except ConfigError:
        _, plan = tightfit.plan(model, args, budget="min", **options)
    assert plan.time is not None and plan.keep_all.time is not None
    ratio = plan.time / plan.keep_all.time
    return {"package": str(plan.package), "ratio": ratio, "budget": plan.budget}


def time_case(name: str, package: str, steps: int) -> float:
    """CPU seconds of a step of the model, or of its plan in a package."""
    import torch

    import tightfit

    model, args = build_case(name)
    module = model if package == EAGER else tightfit.load(package, model)
    seconds = []
    for _ in range(WARM_STEPS + steps):
        started = time.process_time()
        output = module(*args)
        output = output if isinstance(output, torch.Tensor) else output.logits
        output.backward(torch.ones_like(output))
        del output
        seconds.append(time.process_time() - started)
        model.zero_grad()
    return statistics.median(seconds[WARM_STEPS:])


def table_rows(name: str, store: Path, rounds: int, steps: int) -> None:
    """Prints the rows of a case."""
    plans = {budget: _run("--plan", name, budget, "--store", str(store)) for budget in BUDGETS}
    ratios: dict[str, list[float]] = {budget: [] for budget in BUDGETS}
    for _ in range(rounds):
        eager = _run("--time", name, EAGER, "--steps", str(steps))
        for budget, plan in plans.items():
            taken = _run("--time", name, plan["package"], "--steps", str(steps))
            ratios[budget].append(taken / eager)
    for budget, plan in plans.items():
        measured = statistics.median(ratios[budget])
        figures = (plan["ratio"], measured, plan["ratio"] / measured)
        print(f"| {name} | {plan['budget']} |", *(f"{each:.3f} |" for each in figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--store", type=Path)
    parser.add_argument("--plan", nargs=2, metavar=("CASE", "BUDGET"), help=argparse.SUPPRESS)
    parser.add_argument("--time", nargs=2, metavar=("CASE", "PACKAGE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plan:
        name, budget = options.plan
        print(json.dumps(plan_case(name, budget, options.store)))
        return
    if options.time:
        name, package = options.time
        print(json.dumps(time_case(name, package, options.steps)))
        return
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.cases:
            table_rows(name, options.store or Path(folder), options.rounds, options.steps)


if __name__ == "__main__":
    main()
