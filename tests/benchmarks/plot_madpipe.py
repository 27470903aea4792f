"""Draws the table of periods by memory as `docs/madpipe.svg`.

python -m tests.benchmarks --pipelines --models > periods.md
python -m tests.benchmarks.plot_madpipe periods.md
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAD = "| GB | ResNet-50 | ResNet-101 | Inception-v3 | DenseNet-121 | all |"
COLOURS = ("#0969da", "#1a7f37", "#9a6700", "#8250df", "#24292f")
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 300, 56, 20, 640, 250


def periods(text: str) -> tuple[list[str], dict[int, list[float | None]]]:
    """The names of the columns, and by GB the mean of each, None where there is none; of the first
    table with that head."""
    lines = text[text.index(HEAD) :].splitlines()
    names = [cell.strip() for cell in HEAD.strip("|").split("|")][1:]
    found: dict[int, list[float | None]] = {}
    for line in lines[2:]:
        first, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        if not first.isdigit():
            break
        numbers = [re.match(r"[\d.]+", cell) for cell in cells]
        found[int(first)] = [None if number is None else float(number[0]) for number in numbers]
    return names, found


def drawn(names: list[str], found: dict[int, list[float | None]]) -> str:
    """A line for each column: periods from 0 to 1 over GB."""
    sizes = sorted(found)

    def x(size: int) -> int:
        return round(LEFT + (size - sizes[0]) / (sizes[-1] - sizes[0]) * (RIGHT - LEFT))

    def y(period: float) -> int:
        return round(BOTTOM - period * (BOTTOM - TOP))

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="sans-serif" font-size="12" fill="#57606a">',
        "<title>Period of madpipe over that of pipedream with 1F1B*, by memory of a device</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
    ]
    for step in range(0, 11, 2):
        level = y(step / 10)
        out.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{level}" y2="{level}" stroke="#d8dee4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{level + 4}" text-anchor="end">{step / 10}</text>')
    for size in sizes:
        out.append(f'<text x="{x(size)}" y="{BOTTOM + 18}" text-anchor="middle">{size}</text>')
    middle = (LEFT + RIGHT) // 2
    out.append(f'<text x="{middle}" y="{BOTTOM + 38}" text-anchor="middle">GB of a device</text>')
    for number, (name, color) in enumerate(zip(names, COLOURS, strict=True)):
        seen = [(size, found[size][number]) for size in sizes]
        points = " ".join(f"{x(size)},{y(mean)}" for size, mean in seen if mean is not None)
        wide = 3 if name == "all" else 1.5
        out.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{wide}"/>'
        )
        place = TOP + 20 * number + 12
        out.append(f'<text x="{RIGHT + 14}" y="{place}" fill="{color}">{name}</text>')
    return "\n".join([*out, "</svg>", ""])


if __name__ == "__main__":
    table = periods(Path(sys.argv[1]).read_text())
    (ROOT / "docs" / "madpipe.svg").write_text(drawn(*table))
