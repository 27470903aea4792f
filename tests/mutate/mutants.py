"""The mutants of a file: where a fault can be planted, and what the file then says."""

from __future__ import annotations

import ast
import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

from tests.mutate.operators import Position, operators

EQUIVALENT = Path(__file__).parent / "equivalent.txt"


@dataclass(frozen=True)
class Mutant:
    """A file with one fault in it: the `line` it is in, how that was `before` and is `after`."""

    file: str
    line: int
    before: str
    after: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.before}  ->  {self.after}"

    @property
    def key(self) -> tuple[str, str, str]:
        """What names it as long as its line stays."""
        return self.file, self.before, self.after


Site = tuple[str, Position]
Choice = tuple[Operator, int]


def sample(root: Path, files: Sequence[str], number: int, seed: str) -> list[Mutant]:
    """Mutants of files in a checkout, each at a place of its own and all places as likely as each
    other; those known to be equivalent are passed over."""
    chance, known = random.Random(seed), equivalent()
    texts = {file: (root / file).read_text() for file in files}
    sites = [(file, *site) for file, text in texts.items() for site in sites_of(text).items()]
    chance.shuffle(sites)
    found: list[Mutant] = []
    for file, _, choices in sites:
        if len(found) == number:
            break
        chance.shuffle(choices)
        made = (mutant(file, texts[file], choice) for choice in choices)
        found += itertools.islice((one for one in made if one and one.key not in known), 1)
    return found


def equivalent() -> set[tuple[str, str, str]]:
    """The keys of mutants that change nothing anybody could see."""
    lines = EQUIVALENT.read_text().splitlines()
    rows = [line.split(" || ") for line in lines if line and not line.startswith("#")]
    return {(file, before, after) for file, before, after, _ in rows}


def sites_of(text: str) -> dict[Position, list[Choice]]:
    """The places of a text at which an operator fits, with all that fit there, each with how many
    places of its own come before."""
    apart = list(_apart(text))
    counts: dict[Operator, int] = {}
    sites: dict[Position, list[Choice]] = {}
    for node in ast_nodes(get_ast(text)):
        for operator in operators():
            for position in operator.mutation_positions(node):
                count = counts.get(operator, 0)
                counts[operator] = count + 1
                if not any(first <= position[0] < last for first, last in apart):
                    sites.setdefault(position, []).append((operator, count))
    return sites


def _apart(text: str) -> Iterator[Position]:
    """Where nothing is planted: annotations, which nobody evaluates, and decorators."""
    for node in ast.walk(ast.parse(text)):
        parts: list[ast.expr | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [*node.decorator_list, node.returns]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        for part in parts:
            if part is not None and part.end_lineno is not None:
                end = part.end_lineno, part.end_col_offset or 0
                yield (part.lineno, part.col_offset), end


def mutant(file: str, text: str, choice: Choice) -> Mutant | None:
    """A file's text with one fault; None where that is no Python or the same program."""
    changed = mutate_code(text, *choice)
    try:
        if changed is None or ast.dump(ast.parse(changed)) == ast.dump(ast.parse(text)):
            return None
    except SyntaxError:
        return None
    before, after = text.splitlines(), changed.splitlines()
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    old, new = (lines[head : len(lines) - tail] for lines in (before, after))
    return Mutant(file, head + 1, _flat(old), _flat(new), changed)


def _common(one: Sequence[str], two: Sequence[str]) -> int:
    """How many lines two texts begin with alike."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((at for at, (mine, theirs) in pairs if mine != theirs), min(len(one), len(two)))


def _flat(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())
