"""`tightfit fuse`: a graph with groups of pointwise and normalizing ops as single ops."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tightfit.util.command_line import LineageEntry, parse_count
from tightfit.util.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the stage."""
    parser.add_argument("--graph", type=Path, required=True, help="the graph of the step")
    parser.add_argument("--device", default="cpu", help="the device that will train it")
    parser.add_argument(
        "--jobs", type=parse_count, default=os.cpu_count() or 1, help="groups compiled at a time"
    )
    parser.add_argument("--out", type=Path, required=True, help="the fused graph to write")


def run(options: argparse.Namespace) -> None:
    """Compiles each distinct group and writes the fused graph. A group that does not compile stays
    ATen, and standard error says so. Raises ModelError where there is no compiler, ConfigError for
    a device that the graph was not traced for."""
    import torch

    from tightfit.schemas.graph.fused_groups import is_fused_group
    from tightfit.schemas.graph.training_graph import read_graph, write_graph
    from tightfit.stages.fuse.compile_groups import fuse_and_compile
    from tightfit.stages.runtime.call_context import default_torch_state
    from tightfit.stages.torch_utils.devices import enter_device, parse_device, require_device
    from tightfit.stages.torch_utils.graph_check import check_graph_program

    require_device(options.device)
    graph = read_graph(options.graph)
    if torch.device(options.device).type != graph.device:
        raise ConfigError(f"--device {options.device}: the graph was traced for {graph.device}")
    check_graph_program(graph, str(options.graph))
    place = parse_device(options.device)

    def tell(sentence: str) -> None:
        print(sentence, file=sys.stderr)

    def report(done: int, total: int) -> None:
        print(f"{graph.model}: compiled {done} of {total} groups", flush=True)

    with enter_device(place), default_torch_state():
        fused = fuse_and_compile(graph, torch.device(place.type), tell, report, options.jobs)
    check_graph_program(fused, str(options.out))
    write_graph(options.out, fused, fused=True)
    groups = [op.target for op in fused.ops if is_fused_group(op.target)]
    print(
        f"{graph.model}: {len(graph.ops)} ops, {len(fused.ops)} of them left, of which "
        f"{len(groups)} are groups, {len(set(groups))} distinct"
    )


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    return [LineageEntry([options.out], [options.graph], {"device": options.device})]
