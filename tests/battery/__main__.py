"""`make battery`: every use of every model and strategy, as a table; 1 where one is wrong."""

from __future__ import annotations

import argparse
import faulthandler
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tests.battery.case import Case
from tests.battery.outcome import BAD, KINDS, Outcome
from tests.battery.planning import PLANNED, Planner, outcomes
from tests.battery.registry import Use
from tests.battery.strategies import STRATEGIES, Strategy
from tests.battery.uses import USES

Row = tuple[Case, Strategy, Use, Outcome]


def main() -> int:
    """Returns 1 where a use gives wrong numbers in silence or ends in a raw error."""
    parser = argparse.ArgumentParser(prog="python -m tests.battery", description=__doc__)
    parser.add_argument("--models", help="only models whose name holds this text")
    parser.add_argument("--uses", help="only uses whose name or theme holds this text")
    parser.add_argument("--strategies", help="only strategies of these names, with commas between")
    parser.add_argument("--no-zoo", action="store_true", help="without the models of zoo.yaml")
    parser.add_argument("--fast", action="store_true", help="only uses that are among the tests")
    parser.add_argument("--device", default="cpu", help="where models and contents lie")
    parser.add_argument(
        "--part", default="0/1", help="only every n-th model, from the i-th on: i/n"
    )
    options = parser.parse_args()
    faulthandler.enable()
    torch.set_num_threads(1)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows, told = [], set[tuple[Case, Strategy]]()
        for row in _rows(options, Path(folder)):
            rows.append(row)
            case, strategy, use, outcome = row
            if outcome.detail.startswith(PLANNED) and (case, strategy) not in told:
                told.add((case, strategy))
                print(f"{outcome.kind}: {case.name} | {strategy.name} | {outcome.detail}")
            elif outcome.kind in BAD:
                where = f"{case.name} | {strategy.name} | {use.name}"
                print(f"{outcome.kind}: {where} | {outcome.detail}", flush=True)
    print(_table(rows))
    found = Counter(outcome.kind for *_, outcome in rows)
    print(f"{len(rows)} in {time.monotonic() - started:.0f} s:", end=" ")
    print(", ".join(f"{found[kind]} {kind}" for kind in KINDS if found[kind]))
    return 1 if any(found[kind] for kind in BAD) else 0


def _rows(options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    from tests.battery.all_cases import CASES

    named = options.strategies.split(",") if options.strategies else None
    planner = Planner(folder)
    jobs: list[tuple[Sequence[Case], Sequence[str] | None, Sequence[str] | None]] = [
        (CASES, None, None)
    ]
    if not options.no_zoo:
        from tests.battery.zoo_cases import ZOO, ZOO_STRATEGIES, ZOO_USES

        jobs.append((ZOO, ZOO_USES, ZOO_STRATEGIES))
    for cases, names, ways in jobs:
        uses = [use for use in USES.values() if names is None or use.name in names]
        if options.fast:
            uses = [use for use in uses if use.fast]
        if options.uses:
            uses = [use for use in uses if options.uses in f"{use.theme} {use.name}"]
        first, _, step = options.part.partition("/")
        for case in (case.on(options.device) for case in cases[int(first) :: int(step)]):
            if options.models and options.models not in case.name:
                continue
            for strategy in STRATEGIES:
                if named is not None and strategy.name not in named:
                    continue
                if ways is not None and strategy.name not in ways:
                    continue
                for use, outcome in outcomes(planner, case, strategy, uses):
                    yield case, strategy, use, outcome


def _table(rows: Sequence[Row]) -> str:
    """A row a use: how often each outcome came of it; then the same for each model."""
    lines = []
    for title, name in (("use", 2), ("model", 0)):
        lines += ["", f"| {title} | " + " | ".join(KINDS) + " |", "|---" * (len(KINDS) + 1) + "|"]
        groups: dict[str, Counter[str]] = {}
        for row in rows:
            thing: Case | Use = row[0] if name == 0 else row[2]
            groups.setdefault(thing.name, Counter())[row[3].kind] += 1
        for key, counts in groups.items():
            cells = " | ".join(str(counts[kind] or "") for kind in KINDS)
            lines.append(f"| {key} | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
