"""`reference`: measures a model's own step for the validations of its plans."""

from __future__ import annotations

import argparse
from pathlib import Path

from tightfit.schemas.derived import Derived
from tightfit.schemas.errors import ConfigError
from tightfit.stages.validate.model_options import (
    add_model_arguments,
    building,
    line_of,
    settings_of,
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    add_model_arguments(parser, 15, "timed steps")
    parser.add_argument("--graph", type=Path, required=True, help="graph.arrow of the model")
    parser.add_argument("--out", required=True, help="reference.arrow to write")
    parser.add_argument("--line", help="memory line to write (default: line.arrow beside --out)")


def run(options: argparse.Namespace) -> None:
    """Runs the stage."""
    from tightfit.schemas.graph import read_graph
    from tightfit.schemas.measurement import write_line
    from tightfit.schemas.reference import write_reference
    from tightfit.schemas.store import header
    from tightfit.schemas.telling import Printing
    from tightfit.stages.validate.reference import measure_original

    if options.pairs < 1:
        raise ConfigError(f"--pairs {options.pairs}: must be 1 or more")
    graph, digest = read_graph(options.graph), header(options.graph).digest
    report = Printing(f"{graph.model}: running the model", "steps at most")
    with building(options, graph) as built:
        found = measure_original(graph, digest, built, options.pairs, options.device, report)
    write_line(line_of(options), found.line)
    write_reference(options.out, found.reference)


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    outputs, settings = [options.out, line_of(options)], settings_of(options)
    return [Derived(outputs, [options.graph], settings, options.factory, options.search_path)]
