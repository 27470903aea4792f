"""Plans a random module at random and uses it at random."""

from __future__ import annotations

import random
import warnings
from dataclasses import dataclass
from pathlib import Path

from tests.battery.outcome import (
    BAD,
    BEYOND,
    GOES_ON,
    WRONG,
    Load,
    Outcome,
    judge,
    observe,
    refusal,
)
from tests.battery.registry import Use
from tests.battery.strategies import planned_at_random
from tests.battery.uses import USES
from tests.fuzz.operations import NOT_PROMISED
from tests.fuzz.program import case_of, text_of, used_case_of

PLAIN = "plain_training"
OTHERS = 4

SEEDS = Path(__file__).with_name("seeds.txt")
"""Seeds that once failed, each with the use it failed in, one a line, tried first; what follows a #
says why."""


@dataclass(frozen=True)
class Trial:
    """What came of a seed: of planning, or of each use."""

    seed: int
    outcomes: tuple[tuple[str, Outcome], ...]

    @property
    def failed(self) -> list[str]:
        """What went wrong, in words."""
        return [
            f"{name}: {outcome.kind}, {outcome.detail}"
            for name, outcome in self.outcomes
            if outcome.kind in BAD
        ]


def trial(seed: int, folder: Path) -> Trial:
    """Plans the module of a seed, and uses it as everybody does and in some further ways."""
    chance = random.Random(-seed)
    case = case_of(seed)
    share, in_place = chance.choice((0.0, 0.4, 0.8, 1.0)), chance.random() < 0.7
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            load = planned_at_random(case, folder, seed, share, in_place)
        except Exception as error:
            return Trial(seed, (("planning", refusal(error)),))
    uses: list[Use] = [USES[PLAIN], *chance.sample(list(USES.values()), OTHERS)]
    uses += [USES[name] for name in kept().get(seed, []) if name in USES]
    operations = {line.operation for line in text_of(seed).lines}
    left_out = {name for operation, name in NOT_PROMISED if operation in operations}
    promised = [use for use in uses if use.name not in left_out]
    return Trial(seed, tuple((use.name, _judged(seed, use, load)) for use in promised))


def _judged(seed: int, use: Use, load: Load) -> Outcome:
    """What came of a use. Errors of lines that nothing uses are not promised: a plan leaves them
    out."""
    found = judge(case_of(seed), use, load)
    if found.kind == WRONG and found.detail.startswith(GOES_ON):
        _, error = observe(used_case_of(seed), use, lambda model: model)
        return found if error is not None else Outcome(BEYOND, found.detail)
    return found


def kept() -> dict[int, list[str]]:
    """The seeds that once failed, with the names of the uses that they failed in."""
    found: dict[int, list[str]] = {}
    if SEEDS.exists():
        for line in SEEDS.read_text().splitlines():
            seed, *names = line.partition("#")[0].split()
            found.setdefault(int(seed), []).extend(names)
    return found


def keep(trial: Trial) -> None:
    """Adds a seed to those that are tried first."""
    known = kept()
    for name, outcome in trial.outcomes:
        if outcome.kind in BAD and name not in known.get(trial.seed, []):
            reason = " ".join(outcome.detail.split())[:80]
            with SEEDS.open("a") as file:
                file.write(f"{trial.seed} {name}  # {outcome.kind}, {reason}\n")
