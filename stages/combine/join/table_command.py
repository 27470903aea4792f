"""`join-table`: the least times of a join of unit sizes by its memory, as papers tabulate them."""

from __future__ import annotations

import argparse
import math

from tightfit.util.command_line import parse_count
from tightfit.util.errors import ConfigError

MAX_STEPS = 1000
"""Steps of all branches together: the table grows with their square at least."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--lengths", type=parse_count, nargs="+", required=True, help="the steps of each branch"
    )
    parser.add_argument(
        "--input-gradients",
        type=int,
        nargs="+",
        choices=(0, 1),
        help="1 for each branch whose input's gradient stays to the end (b), as all do by default",
    )
    for name, what in (("forward", "forward"), ("backward", "backward"), ("turn", "loss")):
        parser.add_argument(
            f"--{name}", type=float, default=1.0, help=f"what a {what} takes, 1 by default"
        )
    parser.add_argument(
        "--slots", type=parse_count, help="the most slots of memory; by default those that all need"
    )


def run(options: argparse.Namespace) -> None:
    """Prints a line for each number of slots: the least time, or a dash where nothing fits.

    Raises ConfigError where an option is not what it should be, ArtifactError where the branches
    are too long.
    """
    from tightfit.stages.combine.join.unit_costs import build_unit_join, unit_join_makespans

    lengths, kept = options.lengths, options.input_gradients or [1] * len(options.lengths)
    if len(kept) != len(lengths):
        raise ConfigError(f"--input-gradients: expected {len(lengths)} numbers, one for a branch")
    if sum(lengths) > MAX_STEPS:
        raise ConfigError(f"--lengths: expected at most {MAX_STEPS} steps together")
    times = (options.forward, options.backward, options.turn)
    if not all(math.isfinite(time) and time >= 0 for time in times):
        raise ConfigError("--forward, --backward and --turn: expected numbers from 0 on")
    enough = sum(lengths) + len(lengths) + 1
    slots = min(options.slots or enough, enough)
    join = build_unit_join(lengths, list(map(bool, kept)), *times)
    print("slots  time")
    for count, seconds in enumerate(unit_join_makespans(join, slots)):
        print(f"{count:>5}  {'-' if math.isinf(seconds) else f'{seconds:g}'}")
