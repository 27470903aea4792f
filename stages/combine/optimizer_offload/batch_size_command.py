"""`batch-size`: the batch with which a step with its optimizer trains the most samples a second."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.stages.combine.optimizer_offload.command import (
    add_step_arguments,
    read_offload_problem,
)
from tightfit.util.command_line import parse_count
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the traced step")
    parser.add_argument("--costs", type=Path, required=True, help="costs.arrow of the graph")
    parser.add_argument(
        "--batch",
        type=parse_count,
        help="the samples of the traced step (default: the first dimension of its first input)",
    )
    add_step_arguments(parser)


def run(options: argparse.Namespace) -> None:
    """Prints each batch that was planned with its samples a second, and the best whole one.

    Raises ConfigError where nothing fits the budget, or an option is not what it should be.
    """
    from tightfit.stages.combine.optimizer_offload.batch_size import choose_batch_size

    task, beyond = read_offload_problem(options, options.graph, options.costs, 1)
    batch = options.batch or _traced_batch(task.graph, options.graph)
    print("  batch  samples a second")

    def tell(scale: float, rate: float) -> None:
        print(f"{scale * batch:7.2f}  {f'{rate:.4g}' if rate else '-'}", flush=True)

    found = choose_batch_size(task, beyond, options.budget, batch, tell)
    gain = f", {found.batch_rate / found.traced_rate:.2f} times" if found.traced_rate else ", and"
    said = "those" if found.traced_rate else "nothing fits with"
    print(
        f"a batch of {found.batch} trains {found.batch_rate:.4g} samples a second as predicted"
        f"{gain} {said} of the traced batch of {batch}; the best batch, not rounded, is "
        f"{found.scale * batch:.2f}"
    )


def _traced_batch(graph: Graph, path: Path) -> int:
    """The first dimension of the first input that has one."""
    shapes = [value.shape for value in graph.values if value.kind == "input" and value.shape]
    if not shapes or shapes[0][0] < 1:
        raise ConfigError(f"{path}: no input says how many samples there are: give --batch")
    return shapes[0][0]
