"""What is mutated, and the tests that have to notice."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Capacity:
    """Files by pattern and the tests of their own room.

    The `quick` ones and the one named like the file are run for every mutant, and all of `folders`
    where those notice nothing. `compiled` files are run as plain Python in the first, and compiled
    anew in the others.
    """

    name: str
    patterns: tuple[str, ...]
    quick: tuple[str, ...]
    folders: tuple[str, ...] = ()
    compiled: bool = False

    def files(self, root: Path) -> list[str]:
        """The files that are mutated, in a fixed order."""
        paths = {path for pattern in self.patterns for path in root.glob(pattern)}
        return sorted(str(path.relative_to(root)) for path in paths)

    def first(self, root: Path, file: str) -> list[tuple[str, ...]]:
        """The tests that are run for every mutant of a file, one group after the other."""
        named = [f"{folder}/test_{Path(file).stem}.py" for folder in self.folders]
        own = tuple(test for test in named if (root / test).exists() and test not in self.quick)
        return [own, self.quick] if own else [self.quick]


def _in(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{folder}/test_{name}.py" for name in names)


ROOMS = (
    Capacity(
        "simulate",
        ("stages/simulate/*.py", "stages/simulate/checks/*.py"),
        ("tests/stages/simulate",),
    ),
    Capacity(
        "search",
        ("stages/combine/local_search/*.py", "stages/combine/lowering/*.py"),
        (
            "tests/stages/combine/lowering",
            *_in("tests/stages/combine/local_search", "optimum", "state", "local_search"),
            *_in("tests/stages/combine/activation_offload", "timed_search"),
        ),
        ("tests/stages/combine/local_search", "tests/stages/combine/strategies"),
        compiled=True,
    ),
    Capacity(
        "pipeline",
        ("stages/combine/pipeline/*.py", "stages/combine/pipeline/allocators/*.py"),
        ("tests/stages/combine/pipeline",),
    ),
    Capacity(
        "chain_offload",
        ("stages/combine/chain_offload/*.py", "stages/combine/chain_offload/planners/*.py"),
        ("tests/stages/combine/chain_offload",),
        compiled=True,
    ),
    Capacity(
        "activation_offload",
        ("stages/combine/activation_offload/*.py",),
        ("tests/stages/combine/activation_offload",),
    ),
    Capacity(
        "offmate",
        ("stages/combine/offmate/*.py",),
        ("tests/stages/combine/offmate",),
    ),
    Capacity(
        "hierarchy",
        ("stages/combine/hierarchy/*.py", "stages/combine/checkmate/*.py"),
        ("tests/stages/combine/hierarchy", "tests/stages/combine/checkmate"),
    ),
    Capacity("store", ("schemas/store.py",), _in("tests/schemas", "store"), ("tests/schemas",)),
    Capacity(
        "runtime",
        ("stages/runtime/*.py", "stages/runtime/guards/*.py"),
        (
            *_in("tests/stages/runtime/guards", "check", "compare"),
            *_in(
                "tests/stages/runtime",
                *("missing_gradients", "strides", "intermediate_outputs", "autocast_regions"),
            ),
        ),
        ("tests/stages/runtime",),
    ),
    Capacity(
        "trace",
        ("stages/trace/*.py", "stages/trace/*/*.py"),
        (
            *_in("tests/stages/trace", "capture_errors", "view_writes", "constant_folding"),
            *_in("tests/stages/trace", "capture_patches", "trace"),
            *_in(
                "tests/stages/trace/guards",
                *("namespaces", "guard_source", "lazy_init", "guard_recorder_backward"),
            ),
        ),
        ("tests/stages/trace",),
    ),
)
