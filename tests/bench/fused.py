"""Plans of fused kernels beside eager's, and beside the compiler with its memory budget."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.bench.cases import CASES, Case
from tests.bench.contest import contest
from tests.bench.peers import Contestant, compiled
from tests.bench.tables import result_table
from tightfit.schemas.graph import read_graph
from tightfit.stages.combine.fixed import fixed_bytes
from tightfit.stages.device.factory import Built, build
from tightfit.stages.validate.step import Stepper

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
    built = build(case.factory, case.arguments)
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
    stepper = Stepper.of(read_graph(graph), built)
    yield result_table(contest(found, stepper, built.samples[0], rounds))


def _planned(built: Built, folder: Path, kernels: str, limit: float) -> Contestant:
    import tightfit

    args, kwargs = built.samples[0]
    traced = list(folder.glob("calls/*/graph.arrow"))
    if not traced:
        tightfit.plan(
            copy.deepcopy(built.model), args, kwargs, budget="100%", store=folder, check=False
        )
        traced = list(folder.glob("calls/*/graph.arrow"))
    before = fixed_bytes(read_graph(traced[0])).there_before
    fitted, made = tightfit.plan(
        copy.deepcopy(built.model),
        args,
        kwargs,
        budget=int(limit * 1e6) + before,
        kernels=kernels,  # type: ignore[arg-type]
        store=folder,
        check=False,
    )
    taken = "" if made.kernels == kernels else f", which are {made.kernels}'s"
    name = f"{kernels} kernels in {limit:g} MB{taken}"
    return Contestant(name, fitted, None, made.peak, made.time)
