"""`make crash`: kills a run at random moments, and looks at what the next one makes of it.

Each time the next plain run ends well, its plans are those of a run that nobody disturbed, byte
for byte, and an audit finds nothing wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.place import Place


def main() -> int:
    """Returns 1 where a run after a kill did not end well or made something else."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="how many times to kill a run")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        place = Place.make(Path(folder) / "checkout", Path(folder) / "store")
        place.run()
        place.forget()
        seconds = place.run()
        plans = place.plans()
        print(f"undisturbed: {seconds:.1f} s, {len(plans)} files of plans", flush=True)
        wrong = [
            number
            for number in range(1, options.kills + 1)
            if not survived(place, chance.uniform(0, seconds), plans, number)
        ]
    print(f"{options.kills - len(wrong)} of {options.kills} kills were survived")
    return 1 if wrong else 0


def survived(place: Place, moment: float, plans: dict[str, bytes], number: int) -> bool:
    """Kills a new run after `moment` seconds and says whether the next one is as undisturbed."""
    place.forget()
    running = place.start()
    time.sleep(moment)
    killed = place.kill(running)
    what = f"kill {number} after {moment:.1f} s" if killed else f"run {number}, ended before"
    try:
        seconds = place.run()
    except AssertionError as error:
        print(f"{what}: the next run failed\n{error}", flush=True)
        return False
    found, audited = place.plans(), place.audit()
    changed = sorted(name for name in {*plans, *found} if plans.get(name) != found.get(name))
    good = not changed and audited.returncode == 0
    verdict = "the same plans" if good else f"{', '.join(changed)} differ\n{audited.stdout}"
    print(f"{what}: the next run took {seconds:.1f} s, {verdict}", flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
