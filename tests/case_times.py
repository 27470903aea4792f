"""Which cases of a parametrized test `make test` runs, by the seconds that they took.

`python -m tests.case_times RESULTS.xml` writes the seconds of a run of all tests, which pytest
gives with `--junitxml=RESULTS.xml`. The file is read with each run: a test that it does not name
runs in all of its cases.
"""

from __future__ import annotations

import statistics
import sys
import xml.etree.ElementTree
from collections import defaultdict
from pathlib import Path

FILE = Path(__file__).with_name("case_times.txt")
MAX_SECONDS = 5.0
"""What the cases of a test may take together in `make test`; one always runs."""


def function_name(test: str) -> str:
    """The name of the function of a test: that of its id without the parameters."""
    path, _, name = test.partition("[")[0].partition("::")
    return f"{path.removesuffix('.py').replace('/', '.')}::{name}"


def read_case_times() -> dict[str, float]:
    """The seconds of a case of each test that takes long, by the name of its function."""
    lines = [line.rsplit(" ", 1) for line in FILE.read_text().splitlines()]
    return {name: float(seconds) for name, seconds in lines}


def sample_cases(tests: list[str], times: dict[str, float]) -> set[str]:
    """Of each function the cases that `make test` runs: all where these take no more than
    `MAX_SECONDS`, else as many as do, in even steps from the first on."""
    groups: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        groups[function_name(test)].append(test)
    chosen = set()
    for name, cases in groups.items():
        most = max(int(MAX_SECONDS / max(times.get(name, 0.0), 1e-9)), 1)
        step = -(-len(cases) // most)
        chosen |= set(cases[::step])
    return chosen


def measured_case_times(results: Path | str) -> dict[str, float]:
    """The median seconds of the cases of each test of which more than one was run and that took
    more than `MAX_SECONDS` in all, by the name of its function."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for case in xml.etree.ElementTree.parse(results).iter("testcase"):
        if case.find("skipped") is None:
            function = (case.get("name") or "").partition("[")[0]
            name = f"{case.get('classname')}::{function}"
            seconds[name].append(float(case.get("time", 0)))
    # The first case has the seconds of what all of them share.
    medians = {name: statistics.median(each) for name, each in seconds.items() if len(each) > 1}
    return {
        name: median
        for name, median in medians.items()
        if median * len(seconds[name]) > MAX_SECONDS
    }


def main() -> None:
    found = {**read_case_times(), **measured_case_times(sys.argv[1])}
    lines = [f"{name} {seconds:.2f}\n" for name, seconds in sorted(found.items())]
    FILE.write_text("".join(lines))


if __name__ == "__main__":
    main()
