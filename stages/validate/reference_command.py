"""`reference`: measures a model's own step for the validations of its plans."""

from __future__ import annotations

import argparse
from pathlib import Path

from tightfit.stages.validate.command import (
    add_model_arguments,
    lineage_settings,
    memory_line_path,
    prepare_model,
    wait_passively,
)
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    add_model_arguments(parser, 15, "timed steps")
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--out", required=True, help="reference.arrow to write")
    parser.add_argument(
        "--timeline", help="memory line to write (default: memory_timeline.arrow beside --out)"
    )


def run(options: argparse.Namespace) -> None:
    """Runs the stage."""
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.schemas.measurement import write_memory_timeline
    from tightfit.schemas.reference import write_reference
    from tightfit.schemas.store import read_header
    from tightfit.stages.validate.measure import measure_original
    from tightfit.util.progress import ProgressPrinter

    wait_passively()
    if options.pairs < 1:
        raise ConfigError(f"--pairs {options.pairs}: must be 1 or more")
    graph, digest = read_graph(options.graph), read_header(options.graph).digest
    printer = ProgressPrinter(f"{graph.model}: running the model", "steps at most")
    with prepare_model(options, graph) as built:
        found = measure_original(
            graph, digest, built, options.pairs, options.device, printer.report
        )
    write_memory_timeline(memory_line_path(options), found.line)
    write_reference(options.out, found.reference)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    outputs, settings = [options.out, memory_line_path(options)], lineage_settings(options)
    return [LineageEntry(outputs, [options.graph], settings, options.factory, options.search_path)]
