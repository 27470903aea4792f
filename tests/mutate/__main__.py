"""`make mutate`: plants small faults, one at a time in a copy, and runs the tests of their room.

A fault that the tests do not notice survives: a test is missing, or the fault changes nothing that
anybody could see. Those of the second kind are listed in tests/mutate/equivalent.txt.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.mutate.mutants import Mutant, sample
from tests.mutate.rooms import ROOMS
from tests.mutate.trial import OUTCOMES, SURVIVED, Copy, TestsFailedError
from tests.workflow.conftest import ROOT

NEEDED = 0.9
"""The part of the mutants that the tests have to notice."""


def main() -> int:
    """Returns 1 where fewer than nine in ten mutants were noticed."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutate", description=__doc__)
    parser.add_argument("--mutants", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=0, help="decides which")
    parser.add_argument("--quick", action="store_true", help="only the quick tests of each room")
    parser.add_argument(
        "--rooms", nargs="+", default=[room.name for room in ROOMS], help="of which rooms"
    )
    options = parser.parse_args()
    rooms = [room for room in ROOMS if room.name in options.rooms]
    found = {room.name: Counter[str]() for room in rooms}
    survivors: list[Mutant] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Copy.make(Path(folder) / "checkout")
        for index, room in enumerate(rooms):
            number = len(range(index, options.mutants, len(rooms)))
            seed = f"{options.seed} {room.name}"
            for mutant in sample(ROOT, room.files(ROOT), number, seed):
                started = time.monotonic()
                try:
                    outcome = copy.outcome(room, mutant, options.quick)
                except TestsFailedError as error:
                    print(error, file=sys.stderr)
                    return 1
                print(f"{outcome} ({time.monotonic() - started:.0f} s)  {mutant}", flush=True)
                found[room.name][outcome] += 1
                survivors += [mutant] if outcome == SURVIVED else []
    return exit_code(found, survivors)


def exit_code(found: dict[str, Counter[str]], survivors: list[Mutant]) -> int:
    """Prints a table by room and a line for each survivor; 1 where these are too many."""
    print("\n" + "".join(f"{word:>11}" for word in ("", *OUTCOMES)))
    for name, counts in found.items():
        print(f"{name:>11}" + "".join(f"{counts[outcome]:>11}" for outcome in OUTCOMES))
    total = sum(counts.total() for counts in found.values())
    print(f"\n{total - len(survivors)} of {total} mutants were noticed; these were not:\n")
    for mutant in survivors:
        print(mutant)
    return 1 if total - len(survivors) < NEEDED * total else 0


if __name__ == "__main__":
    sys.exit(main())
