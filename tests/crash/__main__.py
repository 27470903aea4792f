"""`make crash`: kills a run at random moments, and looks at what the next one makes of it.

Each time the next plain run ends well, its plans are those of a run that nobody disturbed, byte
for byte, and an audit finds nothing wrong. Runs begin with the profile that is there, every tenth
one without, so that measuring is killed too; what nobody disturbed is then run afterwards.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.checkout_copy import Place

ANEW = 10
"""Of how many runs one begins without a profile."""


def main() -> int:
    """Returns 1 where a run after a kill did not end well or made something else."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="how many times to kill a run")
    parser.add_argument("--seed", type=int, default=0, help="decides the moments")
    options = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        place = Place.make(Path(folder) / "checkout", Path(folder) / "store")
        place.run()
        trial = Trial(place, random.Random(options.seed))
        trial.undisturbed()
        lost = [number for number in range(1, options.kills + 1) if not trial.survived(number)]
    taken = time.monotonic() - started
    print(f"{options.kills - len(lost)} of {options.kills} kills were survived, in {taken:.0f} s")
    return 1 if lost else 0


@dataclass
class Trial:
    """Where runs are killed, and the plans and the seconds of one that was not."""

    place: Place
    chance: random.Random
    seconds: float = 0.0
    plans: dict[str, bytes] = field(default_factory=dict)

    def undisturbed(self) -> None:
        """Runs undisturbed, with the profile that is there."""
        self.place.forget()
        self.seconds = self.place.run()
        self.plans = self.place.plans()
        print(f"undisturbed: {self.seconds:.1f} s, {len(self.plans)} files of plans", flush=True)

    def survived(self, number: int) -> bool:
        """Kills a new run and says whether the next one is as if nobody had."""
        anew = number % ANEW == 0
        what = f"kill {number}{', measuring anew,' if anew else ''} {self.killed(anew)}"
        try:
            seconds = self.place.run()
        except AssertionError as error:
            print(f"{what}: the next run failed\n{error}", flush=True)
            return False
        found, audited = self.place.plans(), self.place.audit()
        if anew:
            self.undisturbed()
        names = sorted({*self.plans, *found})
        wrong = [f"{name} differs" for name in names if self.plans.get(name) != found.get(name)]
        wrong += audited.stdout.splitlines() if audited.returncode else []
        outcome = "; ".join(wrong) or "the same plans"
        print(f"{what}: the next run took {seconds:.1f} s, {outcome}", flush=True)
        return not wrong

    def killed(self, anew: bool) -> str:
        """Starts a run, kills it at some moment and says when, and in which step that was."""
        while True:
            self.place.forget(profile=anew)
            moment = self.chance.uniform(0, self.seconds)
            told = len(self.place.told())
            running = self.place.start()
            time.sleep(moment)
            if self.place.kill(running):
                last = self.place.told()[told:][-1:]
                return f"after {moment:.1f} s, {last[0] if last else 'before the first step'}"
            self.seconds = moment  # it had ended: the machine is less busy than before


if __name__ == "__main__":
    sys.exit(main())
