"""`make fuzz`: random modules, plans and uses; 1 where one is wrong in silence or ends in a raw
error. Seeds that failed once are tried first."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

from tests.battery.outcome import KINDS
from tests.fuzz.trial import keep, kept, trial


def main() -> int:
    """Returns 1 where a use gives wrong numbers in silence or ends in a raw error."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="how many modules (default: 1000)")
    parser.add_argument("--seed", type=int, default=0, help="the first module's seed")
    parser.add_argument("--kept", action="store_true", help="only seeds that failed once")
    options = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    started, found, failed = time.monotonic(), Counter[str](), 0
    fresh = [] if options.kept else range(options.seed, options.seed + options.cases)
    seeds = list(dict.fromkeys([*kept(), *fresh]))
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            made = trial(seed, Path(folder))
        found.update(outcome.kind for _, outcome in made.outcomes)
        if made.failed:
            failed += 1
            keep(made)
            print(f"seed {seed}: {'; '.join(made.failed)}", flush=True)
    print(f"{len(seeds)} modules in {time.monotonic() - started:.0f} s, {failed} failed:", end=" ")
    print(", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind]))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
