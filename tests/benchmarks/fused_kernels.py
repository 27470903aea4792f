"""Plans of fused kernels beside eager's, and beside the compiler with its memory budget."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.benchmarks.alternating_runs import contest
from tests.benchmarks.baselines import Contestant, compiled
from tests.benchmarks.cases import CASES, Case
from tests.benchmarks.tables import result_table
from tightfit.schemas.graph.training_graph import read_graph
from tightfit.stages.combine.memory_budget import baseline_bytes
from tightfit.stages.torch_utils.model_factory import BuiltModel, build_from_factory
from tightfit.stages.validate.training_step import StepRunner

LIMITS = {
    "gpt2": [204.0, 155.0, 143.0, 107.0],
    "gpt2-dropout": [195.0, 150.0],
    "resnet50": [300.0, 231.0],
}
"""Peaks in MB, without parameters."""


def tables_of_fused(root: Path, rounds: int, models: list[str]) -> Iterator[str]:
    """A table of each model, in Markdown, and the seconds that planning took."""
    for case in CASES:
        if case.name in models:
            yield f"## {case.title}\n"
            yield from _table(case, root / case.name, rounds)


def _table(case: Case, folder: Path, rounds: int) -> Iterator[str]:
    torch.manual_seed(0)
    built = build_from_factory(case.factory, case.arguments)
    found = [Contestant("eager", built.model)]
    for budget in (1.0, 0.5):
        found.append(compiled(copy.deepcopy(built.model), budget, "inductor"))
    for kernels in ("eager", "fused"):
        start = time.perf_counter()
        for limit in LIMITS[case.name]:
            found.append(_planned(built, folder, kernels, limit))
        taken = time.perf_counter() - start
        yield f"Planning with {kernels} kernels: {taken:.0f} s\n"
    graph = next(folder.glob("calls/*/graph.arrow"))
    stepper = StepRunner.of(read_graph(graph), built)
    yield result_table(contest(found, stepper, built.samples[0], rounds))


def _planned(built: BuiltModel, folder: Path, kernels: str, limit: float) -> Contestant:
    import tightfit

    args, kwargs = built.samples[0]
    traced = list(folder.glob("calls/*/graph.arrow"))
    if not traced:
        tightfit.plan(
            copy.deepcopy(built.model), args, kwargs, budget="100%", store=folder, check=False
        )
        traced = list(folder.glob("calls/*/graph.arrow"))
    before = baseline_bytes(read_graph(traced[0])).bytes_before_step
    fitted, made = tightfit.plan(
        copy.deepcopy(built.model),
        args,
        kwargs,
        budget=int(limit * 1e6) + before,
        fused_kernels=tightfit.FusedKernelOptions() if kernels == "fused" else None,
        store=folder,
        check=False,
    )
    taken = "" if made.kernels == kernels else f", which are {made.kernels}'s"
    name = f"{kernels} kernels in {limit:g} MB{taken}"
    return Contestant(name, fitted, None, made.peak, made.time)
