"""Graphs of many shapes, planned at shares of their activations and compared with eager."""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.torch_utils.model_factory import BuiltModel

BUDGETS = ("70%", "50%", "30%")
HEAD = (
    "| graph | ops | seconds of CPU | "
    + " | ".join(f"{budget}: time, gap, bytes off" for budget in BUDGETS)
    + " |\n|"
    + "---|" * (3 + len(BUDGETS))
)


@dataclass(frozen=True)
class Shape:
    """A model and where it is made."""

    name: str
    factory: str
    arguments: dict[str, Any] = field(default_factory=dict)


SHAPES = (
    Shape("LSTM, 200 steps, an op a layer", "data.zoo_graphs:lstm"),
    Shape("LSTM, 200 cells in a loop", "data.zoo_graphs:cells"),
    Shape("nn.Transformer 6+6", "data.zoo_graphs:transformer"),
    Shape("nn.Transformer 24+24", "data.zoo_graphs:transformer", {"layers": 24}),
    Shape("T5", "data.zoo_text:t5"),
    Shape("BART", "data.zoo_text:bart"),
    Shape("U-Net", "data.zoo_graphs:unet"),
    Shape("U-Net, 3-D", "data.zoo_graphs:unet", {"dimensions": 3, "size": 32}),
    Shape(
        "DenseNet-121",
        "data.zoo_vision:convnet",
        {"family": "densenet", "name": "densenet121", "batch": 2},
    ),
    Shape(
        "Inception-v3",
        "data.zoo_vision:convnet",
        {"family": "inceptionv3", "name": "inceptionv3", "batch": 2, "size": 107},
    ),
    Shape("UNO", "data.zoo_operators:uno"),
    Shape("Swin", "data.zoo_vision:swin"),
    Shape("Mamba", "data.zoo_text:mamba"),
    Shape("CLIP", "data.zoo_multimodal:clip"),
    Shape("siamese ResNet-18", "data.zoo_graphs:siamese"),
    Shape("BEiT with drop path", "data.zoo_vision:beit"),
    Shape("ConvNeXt with drop path", "data.zoo_vision:convnext", {"drop_path": 0.1}),
)


def rows_of_graphs(folder: Path) -> Iterator[str]:
    """A row of the table a graph, each planned in a process of its own with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    for number, shape in enumerate(SHAPES):
        place = folder / f"graph{number}"
        words = [sys.executable, "-m", "tests.benchmarks.graph_zoo", str(number), str(place)]
        ended = subprocess.run(words, capture_output=True, text=True, env=environment)
        told = ended.stdout.strip().splitlines()
        if ended.returncode or not told:
            said = (ended.stderr.strip().splitlines() or ["nothing"])[-1]
            yield f"| {shape.name} | ended with {ended.returncode}: {said} |"
            continue
        yield _row(shape, json.loads(told[-1]))


def _row(shape: Shape, found: dict[str, Any]) -> str:
    if "refused" in found:
        return f"| {shape.name} | {found['refused']} |"
    cells = [found["plans"][budget] for budget in BUDGETS]
    seconds = f"{found['seconds']:.0f}"
    told = [shape.name, found["ops"], seconds, *cells]
    return "| " + " | ".join(map(str, told)) + " |"


def figures(shape: Shape, store: Path) -> dict[str, Any]:
    """Plans a model at all budgets, each compared with the original: its ops, the CPU seconds that
    took, and by budget the figures of its plan; or why it is refused."""
    import torch

    from tightfit import TightfitError
    from tightfit.stages.torch_utils.model_factory import build_from_factory
    from tightfit.stages.trace.trace import trace

    torch.manual_seed(0)
    built = build_from_factory(shape.factory, shape.arguments)
    before = _cpu_seconds()
    try:
        graph = trace(built, "graph")
        plans = {budget: _plan(graph, built, budget, store) for budget in BUDGETS}
    except TightfitError as error:
        return {"refused": str(error)}
    ops = sum(not graph.is_view(op) for op in graph.ops)
    return {"ops": ops, "seconds": _cpu_seconds() - before, "plans": plans}


def _plan(graph: Graph, built: BuiltModel, budget: str, store: Path) -> str:
    """Predicted time beside that of keeping everything, the gap to the bound, and the bytes between
    the predicted and the measured peak; the least budget where this one is below it, and the op
    that no plan can do with less for."""
    import tightfit
    from tightfit.stages.validate.measure import measure_memory
    from tightfit.stages.validate.training_step import StepRunner, detach_sample

    args, kwargs = built.samples[0]
    try:
        fitted, made = tightfit.plan(
            copy.deepcopy(built.model),
            args,
            kwargs,
            budget=budget,
            loss=built.loss,
            store=store,
            progress=False,
        )
    except tightfit.TightfitError as error:
        least = re.search(r"smallest budget known to work .*?([0-9.]+%)", str(error))
        floor = re.search(r"no plan takes less(?: than ([0-9.]+%))?, which (.*)", str(error))
        if least is None or floor is None:
            raise
        return f"least {least[1]}, none below {floor[1] or least[1]}: {_named(floor[2])}"
    sample = detach_sample(built.samples[0])
    measured, _ = measure_memory(fitted, StepRunner.of(graph, built), sample, "cpu")
    time, gap = made.time or 0.0, made.gap or 0.0
    off = measured.peak - (made.peak or 0)
    return f"{time / made.keep_all.time:.4f}, {gap:.2%}, {off}"


def _named(asking: str) -> str:
    """What asks for the least, without the line of the code that calls it."""
    return re.sub(r" \(at [^)]*\)", "", asking).replace(" takes with what it reads", "")


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def main() -> None:
    """Prints the figures of one model as JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.graph_zoo", description=__doc__
    )
    parser.add_argument("number", type=int, help="which of SHAPES")
    parser.add_argument("store", type=Path, help="where what is measured is kept")
    options = parser.parse_args()
    print(json.dumps(figures(SHAPES[options.number], options.store)))


if __name__ == "__main__":
    main()
