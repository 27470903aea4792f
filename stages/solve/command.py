"""The command `solve`: blocks to options."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.schemas.machine import machine_path
from tightfit.util.command_line import LineageEntry, parse_count
from tightfit.util.solver_engines import BLOCK_SOLVERS

if TYPE_CHECKING:
    from tightfit.schemas.link import HostLink


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("--blocks", type=Path, required=True, help="the blocks of the chain")
    parser.add_argument("--store", type=Path, required=True, help="where solved blocks are kept")
    parser.add_argument(
        "--solver",
        choices=BLOCK_SOLVERS,
        default="highs",
        help="the ILP solver; none: only options that need no ILP",
    )
    parser.add_argument("--peaks", type=parse_count, default=4, help="number of limits on the peak")
    parser.add_argument("--saves", type=parse_count, default=6, help="number of limits on the save")
    parser.add_argument(
        "--machine",
        type=machine_path,
        help="description with a link, over which some of what options keep may leave",
    )
    parser.add_argument(
        "--jobs", type=parse_count, default=os.cpu_count() or 1, help="blocks solved at a time"
    )
    parser.add_argument("--out", type=Path, required=True, help="the options to write")


def run(options: argparse.Namespace) -> None:
    """Solves the distinct blocks that the store lacks and writes the options of all."""
    from tightfit.schemas.block_options import BlockOption, write_block_options
    from tightfit.schemas.blocks import read_blocks
    from tightfit.stages.solve.option_store import count_clock_limited, solve_blocks
    from tightfit.stages.solve.search import OptionGrid

    blocks, link = read_blocks(options.blocks), _link(options)
    labels, problems = blocks.labels, blocks.problems
    grid = OptionGrid(peaks=options.peaks, saves=options.saves)

    solved: list[str] = []

    def tell(digest: str, found: list[BlockOption], here: bool) -> None:
        if here:
            solved.append(digest)
            proven = sum(option.status == "optimal" for option in found)
            print(f"{labels[digest]}: {len(found)} options, {proven} optimal", flush=True)

    found = solve_blocks(problems, options.store, options.solver, grid, options.jobs, tell, link)
    taken = len(problems) - len(solved)
    print(f"{blocks.model}: solved {len(solved)}, {taken} from the store", flush=True)
    clock = count_clock_limited(_stored_paths(options))
    metadata = {
        "engine": options.solver,
        "grid": f"{grid.peaks}x{grid.saves}",
        "clock": str(clock),
        **({"link": link.speed} if link else {}),
    }
    write_block_options(options.out, found, metadata)


def _link(options: argparse.Namespace) -> HostLink | None:
    """The link that options are made for."""
    from tightfit.schemas.link import read_host_link
    from tightfit.schemas.machine import read_machine

    if options.machine is None:
        return None
    return read_host_link(read_machine(options.machine), options.machine)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what: the blocks, and the options of each distinct one in the store."""
    settings = {name: getattr(options, name) for name in ("solver", "peaks", "saves")}
    machine = [] if options.machine is None else [options.machine]
    read = [options.blocks, *_stored_paths(options), *machine]
    return [LineageEntry([options.out], read, settings)]


def _stored_paths(options: argparse.Namespace) -> list[Path]:
    from tightfit.schemas.blocks import read_blocks
    from tightfit.stages.solve.option_store import option_store_path
    from tightfit.stages.solve.search import OptionGrid

    grid = OptionGrid(peaks=options.peaks, saves=options.saves)
    digests, link = sorted(read_blocks(options.blocks).problems), _link(options)
    return [
        option_store_path(options.store, digest, options.solver, grid, link) for digest in digests
    ]
