"""`tightfit fuse`: a graph with groups of pointwise and normalising ops as single ops."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tightfit.schemas.derived import Derived
from tightfit.schemas.digits import count
from tightfit.schemas.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the stage."""
    parser.add_argument("--graph", type=Path, required=True, help="the graph of the step")
    parser.add_argument("--device", default="cpu", help="the device that will train it")
    parser.add_argument(
        "--jobs", type=count, default=os.cpu_count() or 1, help="groups compiled at a time"
    )
    parser.add_argument("--out", type=Path, required=True, help="the fused graph to write")


def run(options: argparse.Namespace) -> None:
    """Compiles each distinct group and writes the fused graph. A group that does not compile stays
    ATen, and standard error says so. Raises ModelError where there is no compiler, ConfigError for
    a device that the graph was not traced for."""
    import torch

    from tightfit.schemas.graph import read_graph, write_graph
    from tightfit.schemas.groups import is_group
    from tightfit.stages.device.check import check_program
    from tightfit.stages.device.devices import device_named, entered, require_device
    from tightfit.stages.device.plain import plain_state
    from tightfit.stages.fuse.compiling import fuse_compiled

    require_device(options.device)
    graph = read_graph(options.graph)
    if torch.device(options.device).type != graph.device:
        raise ConfigError(f"--device {options.device}: the graph was traced for {graph.device}")
    check_program(graph, str(options.graph))
    place = device_named(options.device)

    def tell(sentence: str) -> None:
        print(sentence, file=sys.stderr)

    def report(done: int, total: int) -> None:
        print(f"{graph.model}: compiled {done} of {total} groups", flush=True)

    with entered(place), plain_state():
        fused = fuse_compiled(graph, torch.device(place.type), tell, report, options.jobs)
    check_program(fused, str(options.out))
    write_graph(options.out, fused, fused=True)
    groups = [op.target for op in fused.ops if is_group(op.target)]
    print(
        f"{graph.model}: {len(graph.ops)} ops, {len(fused.ops)} of them left, of which "
        f"{len(groups)} are groups, {len(set(groups))} distinct"
    )


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    return [Derived([options.out], [options.graph], {"device": options.device})]
