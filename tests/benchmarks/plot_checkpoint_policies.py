"""Draws what greedy choices lose as `docs/greedy_loss.svg`, and prints a row for each architecture.

python -m tests.benchmarks.checkpoint_policies > policies.md
python -m tests.benchmarks.plot_checkpoint_policies policies.md
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
COLORS = {"rtx4090": "#0969da", "a100": "#1a7f37", "h100": "#bc4c00"}
BOUND_COLOR = "#24292f"
LEFT, RIGHT, TOP, ROW = 110, 640, 50, 18
SMALLEST = 0.0005
"""A loss below this share of the time is not counted."""


@dataclass(frozen=True)
class PolicyTimes:
    """The times of one architecture, card and budget, relative to that without checkpointing."""

    architecture: str
    card: str
    greedy: float
    equal_layers: float
    best: float
    bound: float

    @property
    def greedy_loss(self) -> float:
        """What greedy takes beyond the best policy, a share of its time."""
        return self.greedy / self.best - 1

    @property
    def share_of_added(self) -> float:
        """The same as a share of what checkpointing by the best policy adds."""
        return (self.greedy - self.best) / max(self.best - 1, SMALLEST)

    @property
    def equal_layers_loss(self) -> float:
        """What equal layers take beyond the best policy, a share of its time."""
        return self.equal_layers / self.best - 1

    @property
    def gap(self) -> float:
        """What more could be had, at most, than the best policy."""
        return self.best / self.bound - 1


def read_table(text: str) -> list[PolicyTimes]:
    """The rows of the tables that the benchmark printed."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [
        PolicyTimes(row[0], row[1], *(float(cell) for cell in row[4:]))
        for row in rows
        if len(row) == 8 and row[1] in COLORS
    ]


def by_architecture(times: Sequence[PolicyTimes]) -> dict[str, list[PolicyTimes]]:
    """The rows of each architecture, that of the largest loss first."""
    found: dict[str, list[PolicyTimes]] = defaultdict(list)
    for each in times:
        found[each.architecture].append(each)
    return dict(sorted(found.items(), key=lambda item: -max(x.greedy_loss for x in item[1])))


def summary_rows(found: dict[str, list[PolicyTimes]]) -> Iterator[str]:
    """A Markdown table: for each architecture and all the losses, and how often greedy is worse."""
    yield (
        "| | greedy loses: median | most | most, of what checkpointing adds | cases | "
        "equal layers lose: median | most | gap, most |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    everything = [each for rows in found.values() for each in rows]
    for name, rows in [*found.items(), ("all", everything)]:
        greedy = [each.greedy_loss for each in rows]
        equal = [each.equal_layers_loss for each in rows]
        worse = sum(loss > SMALLEST for loss in greedy)
        cells = [
            f"{statistics.median(greedy):.2%}",
            f"{max(greedy):.2%}",
            f"{max(each.share_of_added for each in rows):.0%}",
            f"{worse} of {len(rows)}",
            f"{statistics.median(equal):.2%}",
            f"{max(equal):.2%}",
            f"{max(each.gap for each in rows):.2%}",
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def draw(found: dict[str, list[PolicyTimes]]) -> str:
    """A row for each architecture: a dot for each loss of greedy, and a line for what is open."""
    widest = max(each.greedy_loss for rows in found.values() for each in rows)
    height = TOP + ROW * len(found) + 40

    def x(share: float) -> float:
        return round(LEFT + max(share, 0.0) / widest * (RIGHT - LEFT), 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {height}" width="760" '
        f'height="{height}" font-family="sans-serif" font-size="12" fill="#57606a">',
        "<title>What a greedy choice of saved operators loses, by architecture</title>",
        f'<rect width="760" height="{height}" fill="#ffffff"/>',
    ]
    ticks = [place * _tick_step(widest) for place in range(int(widest / _tick_step(widest)) + 1)]
    for tick in ticks:
        out += [
            f'<line x1="{x(tick)}" x2="{x(tick)}" y1="{TOP - 8}" y2="{height - 36}" '
            'stroke="#d8dee4"/>',
            f'<text x="{x(tick)}" y="{height - 20}" text-anchor="middle">{tick:.1%}</text>',
        ]
    for number, (name, rows) in enumerate(found.items()):
        y = TOP + ROW * number + ROW // 2
        out.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{name}</text>')
        out += [
            f'<circle cx="{x(each.greedy_loss)}" cy="{y}" r="3.5" fill="{COLORS[each.card]}" '
            'fill-opacity="0.6"/>'
            for each in rows
        ]
        most = x(max(each.gap for each in rows))
        out.append(
            f'<line x1="{LEFT}" x2="{most}" y1="{y + 6}" y2="{y + 6}" stroke="{BOUND_COLOR}" '
            'stroke-width="2"/>'
        )
    for place, (card, color) in enumerate(COLORS.items()):
        out.append(f'<text x="{LEFT + 90 * place}" y="20" fill="{color}">● {card}</text>')
    words = "line: at most this much is open between the best policy and the bound"
    out.append(f'<text x="{LEFT + 270}" y="20" fill="{BOUND_COLOR}">{words}</text>')
    out.append(f'<text x="{LEFT}" y="38">time of greedy beyond that of the best policy</text>')
    return "\n".join([*out, "</svg>", ""])


def _tick_step(widest: float) -> float:
    """The distance of marks, such that there are at most eight."""
    return next(step for step in (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 1.0) if widest / step <= 8)


if __name__ == "__main__":
    rows_by_name = by_architecture(
        read_table("\n".join(Path(name).read_text() for name in sys.argv[1:]))
    )
    (ROOT / "docs" / "greedy_loss.svg").write_text(draw(rows_by_name))
    print("\n".join(summary_rows(rows_by_name)))
