"""`python -m tests.benchmarks.compile_budget`: `tightfit.compile_budget` beside PyTorch's budget.

Each figure is of a process of its own: the exact bytes of a step with its loss, parameters and
inputs included, CPU seconds of a step (the least of some, one thread), whether loss and gradients
have the bits of plain `torch.compile`, and CPU seconds of the search with the nodes it was for.
"""

from __future__ import annotations

import argparse
import copy
import gc
import hashlib
import json
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from tests.benchmarks.own_process import run_in_own_process

BACKENDS = ("aot_eager_decomp_partition", "inductor")
SHARES = (0.0, 0.1, 0.25, 0.45, 0.7, 0.9)
"""Budgets between the least that is found and the peak of plain `torch.compile`."""
THEIR_BUDGETS = (0.8, 0.6, 0.4, 0.2, 0.05, 0.0)
STEPS = 7
HEAD = (
    "| model | way | asked, MB | predicted | measured | within | seconds | predicted slowdown |"
    " same bits | search, s | nodes |\n|---|---|---|---|---|---|---|---|---|---|---|"
)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": (
        "data.models:gpt2",
        {"layers": 4, "width": 256, "heads": 4, "vocabulary": 2000, "batch": 4, "tokens": 256},
    ),
    "gpt2-dropout": (
        "data.models:gpt2",
        {"layers": 4, "width": 256, "heads": 4, "vocabulary": 2000, "batch": 4, "tokens": 256,
         "dropout": 0.1},
    ),
    "vit": ("data.zoo_vision:vit", {"layers": 6, "width": 192, "batch": 16, "size": 96}),
    "resnet50": ("data.models:resnet50", {"batch": 8, "size": 128}),
}  # fmt: skip


class Step:
    """A training step of a model on the CPU, with cross entropy of its logits."""

    def __init__(self, name: str) -> None:
        import torch

        from tightfit.stages.torch_utils.model_factory import build_from_factory

        torch.manual_seed(0)
        torch.set_num_threads(1)
        built = build_from_factory(*MODELS[name])
        self.model, (self.args, self.kwargs) = built.model, built.samples[0]
        self.labels: Any = None
        tensors = [*self.model.parameters(), *self.model.buffers(), *self.args]
        tensors += list(self.kwargs.values())
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
        self.baseline = sum(each.nbytes() for each in storages.values())

    def run(self, module: Any) -> Any:
        """Forward, loss and backward; the loss."""
        import torch

        output = module(*self.args, **self.kwargs)
        logits = output if isinstance(output, torch.Tensor) else output.logits
        flat = logits.flatten(0, -2)
        if self.labels is None:
            self.labels = torch.arange(len(flat)) % flat.shape[-1]
        loss = torch.nn.functional.cross_entropy(flat, self.labels)
        loss.backward()
        return loss.detach()


def _setting(way: str, value: float) -> AbstractContextManager[Any]:
    """What is set while the model is compiled."""
    if way == "tightfit":
        import tightfit

        return tightfit.compile_budget(int(value))
    if way == "pytorch":
        import torch._functorch.config as functorch

        return functorch.patch(activation_memory_budget=value)
    return nullcontext()


def measure(name: str, backend: str, way: str, value: float) -> dict[str, Any]:
    """Compiles and measures a step in this process."""
    import torch

    from tightfit.stages.torch_utils.memory_meter import memory_session

    step = Step(name)
    model: Any = torch.compile(copy.deepcopy(step.model), backend=backend)
    started = time.perf_counter()
    with warnings.catch_warnings(), _setting(way, value) as planner:
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        loss = step.run(model)
    compiling = time.perf_counter() - started
    digest = hashlib.sha256(loss.numpy().tobytes())
    for parameter in model.parameters():
        digest.update(parameter.grad.numpy().tobytes())
    seconds = []
    for _ in range(STEPS):
        model.zero_grad()
        started = time.process_time()
        step.run(model)
        seconds.append(time.process_time() - started)
    model.zero_grad()
    del loss
    gc.collect()
    with memory_session("cpu") as running, running.section("step"):
        step.run(model)
    graphs = list(planner.graphs.values()) if planner is not None and way == "tightfit" else []
    return {
        "measured": running.section_usage("step").peak + step.baseline,
        "predicted": max((each.peak for each in graphs), default=0),
        "slowdown": max((each.slowdown for each in graphs), default=0.0),
        "search": sum(each.search_seconds for each in graphs),
        "nodes": sum(each.nodes for each in graphs),
        "seconds": min(seconds),
        "digest": digest.hexdigest(),
        "compiling": compiling,
    }


def predict_range(name: str, backend: str) -> list[int]:
    """The least peak that is found, and that of plain `torch.compile`, as they are predicted."""
    import torch

    import tightfit

    found = []
    for budget in (1, 1 << 50):
        torch._dynamo.reset()
        step = Step(name)
        with warnings.catch_warnings(), tightfit.compile_budget(budget) as planner:
            warnings.simplefilter("ignore")
            step.run(torch.compile(step.model, backend=backend))
        found.append(max(each.peak for each in planner.graphs.values()))
    return found


def rows_of_model(name: str, backend: str) -> Iterator[str]:
    """The rows of a model: plain, our budgets, and PyTorch's with ours of the same bytes."""

    def run(way: str, value: float) -> dict[str, Any]:
        words = ("--run", name, backend, way, str(value))
        found: dict[str, Any] = run_in_own_process("compile_budget", *words)
        return found

    def row(way: str, asked: float, result: dict[str, Any]) -> str:
        within = result["measured"] / asked - 1 if asked else 0.0
        cells = [
            f"{name}, {backend}", way, f"{asked / 1e6:.1f}" if asked else "",
            f"{result['predicted'] / 1e6:.1f}" if result["predicted"] else "",
            f"{result['measured'] / 1e6:.1f}", f"{within:+.1%}" if asked else "",
            f"{result['seconds']:.3f}",
            f"{result['slowdown']:.3f}" if result["slowdown"] else "",
            "yes" if result["digest"] == plain["digest"] else "no",
            f"{result['search']:.1f}" if result["search"] else "", str(result["nodes"] or ""),
        ]  # fmt: skip
        return f"| {' | '.join(cells)} |"

    plain = run("plain", 0.0)
    yield row("plain", 0.0, plain)
    least, most = run_in_own_process("compile_budget", "--range", name, backend)
    for share in SHARES:
        asked = float(int(least + share * (most - least)))
        yield row("tightfit", asked, run("tightfit", asked))
    for value in THEIR_BUDGETS:
        theirs = run("pytorch", value)
        yield row(f"PyTorch, {value:g}", 0.0, theirs)
        yield row("tightfit", theirs["measured"], run("tightfit", theirs["measured"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--backends", nargs="*", default=list(BACKENDS))
    parser.add_argument("--run", nargs=4, metavar=("MODEL", "BACKEND", "WAY", "VALUE"))
    parser.add_argument("--range", nargs=2, metavar=("MODEL", "BACKEND"))
    options = parser.parse_args()
    if options.run:
        name, backend, way, value = options.run
        print(json.dumps(measure(name, backend, way, float(value))))
        return
    if options.range:
        print(json.dumps(predict_range(*options.range)))
        return
    print(HEAD, flush=True)
    for backend in options.backends:
        for name in options.models:
            for row in rows_of_model(name, backend):
                print(row, flush=True)


if __name__ == "__main__":
    main()
