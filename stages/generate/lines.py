"""Lines of the generated program: statements over several lines where they are long, and the live
memory in the margin."""

from __future__ import annotations

from tightfit.stages.generate.calls import Statement
from tightfit.stages.generate.naming import megabytes

WIDTH = 84
INDENT = "    "


def line(text: str, live: int | None = None, depth: int = 1) -> str:
    """A line, with the live bytes behind it on the right."""
    indented = INDENT * depth + text
    return indented if live is None else f"{indented:<{WIDTH}}  # {megabytes(live):>12}"


def statement_lines(call: Statement, depth: int, live: int | None) -> list[str]:
    """A statement, over several lines where it is long."""
    left = f"{call.target} = " if call.target else ""
    opening, closing = ("(", ")") if call.function else ("[", "]")
    start = f"{left}{call.function}{opening}"
    whole = f"{start}{', '.join(call.arguments)}{closing}{call.suffix}"
    if len(whole) + depth * len(INDENT) <= WIDTH:
        return [line(whole, live, depth)]
    rows: list[list[str]] = [[]]
    for argument in call.arguments:
        longest = WIDTH - (depth + 1) * len(INDENT) - 1
        if rows[-1] and len(", ".join([*rows[-1], argument])) > longest:
            rows.append([])
        rows[-1].append(argument)
    inner = [line(f"{', '.join(row)},", None, depth + 1) for row in rows]
    return [line(start, None, depth), *inner, line(f"{closing}{call.suffix}", live, depth)]
