"""Tables of a run: how many cases of each suite are equal, and why others are not."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.conformance.judge import BAD, EQUAL, KINDS, SKIPPED, UNSUPPORTED
from tests.conformance.workers import CaseResult

EXAMPLES = 3
"""Cases that are named beside each sentence."""


def suite_table(results: Iterable[CaseResult]) -> str:
    """A row a suite with the number of cases of each kind; the share leaves out skipped ones."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        counts[result.suite][result.judgment.kind] += 1
    lines = [f"| suite | {' | '.join(KINDS)} | equal |", "|---" * (len(KINDS) + 2) + "|"]
    for suite, found in counts.items():
        tried = found.total() - found[SKIPPED]
        share = f"{found[EQUAL] / tried:.1%}" if tried else "-"
        cells = " | ".join(str(found[kind]) for kind in KINDS)
        lines.append(f"| {suite} | {cells} | {share} |")
    return "\n".join(lines)


def sentence_key(text: str) -> str:
    """A sentence without what differs from case to case: the budget, names in quotes, places and
    numbers."""
    text = re.sub(r"^(min|[\d.]+%): ", "", text)
    text = re.sub(r"'[^']*'", "'...'", text)
    text = re.sub(r"\S+\.py:\d+", "FILE", text)
    return re.sub(r"\d[\d,.]*", "#", text)[:300]


def reason_lines(results: Iterable[CaseResult], kind: str) -> list[str]:
    """The sentences of a kind, the most frequent first, with counts and some cases."""
    found: dict[str, list[CaseResult]] = defaultdict(list)
    for result in results:
        if result.judgment.kind == kind:
            found[sentence_key(result.judgment.detail)].append(result)
    lines = []
    for cases in sorted(found.values(), key=len, reverse=True):
        names = ", ".join(dict.fromkeys(f"{each.group} [{each.case}]" for each in cases[:EXAMPLES]))
        lines.append(f"{len(cases):5d}  {cases[0].judgment.detail}\n       {names}")
    return lines


def describe_run(results: Sequence[CaseResult]) -> str:
    """The whole summary for people."""
    parts = []
    for kind in (SKIPPED, UNSUPPORTED, *BAD):
        if lines := reason_lines(results, kind):
            parts.append("\n".join([f"{kind}:", *lines]))
    return "\n\n".join([*parts, suite_table(results)])


def write_results(path: Path, results: Sequence[CaseResult], settings: dict[str, object]) -> None:
    """Writes all results with the settings of the run as JSON."""
    rows = [asdict(result) for result in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"settings": settings, "results": rows}, indent=1) + "\n")


def unequal_groups(path: Path) -> set[tuple[str, str]]:
    """Suites and groups of earlier results with a case that is neither equal nor skipped."""
    rows = json.loads(path.read_text())["results"]
    bad = [row for row in rows if row["judgment"]["kind"] not in (EQUAL, SKIPPED)]
    return {(row["suite"], row["group"]) for row in bad}
