"""`tightfit.frontier/5`: the plans of one strategy for one model and profile, from most to least
memory. What a budget takes comes from the points around it, so that it never matters which other
budgets were asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from schemas import store
from schemas.arrow import flag, integer, integers, number, records, text
from schemas.errors import ArtifactError
from schemas.sequence import OPERATION_FIELDS, Operation, operation


@dataclass(frozen=True)
class Point:
    """One plan: the ops it runs, in order, as ids of the graph (views left out).

    `peak` (bytes) and `seconds` are what replay says of it; `before_peak` and `before_seconds` are
    those of the strategy's own sequence, as it was given. A point is `polished` where a search made
    another sequence of that. `in_place` and `ceiling` (bytes) say which ops overwrite inputs that
    end with them (`stages.replay.line`). `sequence` is what the strategy does with the positions
    of its chain and `origin` how the point was found.
    """

    peak: int
    seconds: float
    before_peak: int
    before_seconds: float
    polished: bool
    in_place: bool
    ceiling: int
    executions: list[int]
    sequence: list[Operation]
    origin: str

    @property
    def given(self) -> bool:
        """Whether this is the strategy's plan as it was given."""
        return not (self.polished or self.in_place)


@dataclass(frozen=True)
class Frontier:
    """Points with falling peaks and rising seconds.

    `lower_bound_peak` is what any plan of the step needs at least (bytes) and
    `lower_bound_seconds` what it takes at least; `keep_all` is the step that recomputes nothing.
    `optimal_in` names the class in which the strategy's sequences are optimal, "" for none.
    `clock` counts the solves of blocks that the clock ended: where there are any, another run may
    find other points.
    """

    strategy: str
    model: str
    graph: str
    keep_all_peak: int
    keep_all_seconds: float
    lower_bound_peak: int
    lower_bound_seconds: float
    optimal_in: str
    points: list[Point]
    clock: int = 0

    def within(self, budget: int) -> Point | None:
        """The fastest point whose peak is within the budget, None when there is none."""
        fitting = [point for point in self.points if point.peak <= budget]
        return min(fitting, key=lambda point: (point.seconds, point.peak), default=None)


FRONTIER = store.ArtifactType(
    "tightfit.frontier",
    5,
    pa.schema(
        [
            integer("peak"),
            number("seconds"),
            integer("before_peak"),
            number("before_seconds"),
            flag("polished"),
            flag("in_place"),
            integer("ceiling"),
            integers("executions"),
            records("sequence", *OPERATION_FIELDS),
            text("origin"),
        ]
    ),
)


class _Costed(Protocol):
    @property
    def peak(self) -> int: ...

    @property
    def seconds(self) -> float: ...


_P = TypeVar("_P", bound=_Costed)


def pareto(points: Iterable[_P]) -> list[_P]:
    """The points that no other beats in both peak and seconds, by falling peak."""
    chosen: list[_P] = []
    for point in sorted(points, key=lambda p: (p.peak, p.seconds)):
        if not chosen or point.seconds < chosen[-1].seconds:
            chosen.append(point)
    return chosen[::-1]


def _point(row: Mapping[str, Any], what: str) -> Point:
    return Point(**{**row, "sequence": [operation(part, what) for part in row["sequence"]]})


def write_frontier(path: Path | str, frontier: Frontier) -> str:
    """Writes a frontier and returns its digest."""
    metadata = {
        key: value if isinstance(value, str) else repr(value)
        for key, value in asdict(frontier).items()
        if key != "points"
    }
    return store.write(path, FRONTIER, [asdict(point) for point in frontier.points], metadata)


def read_frontier(path: Path | str) -> Frontier:
    """Reads a frontier; raises ArtifactError when its metadata or its order is wrong."""
    artifact = store.read(path, FRONTIER)
    meta = artifact.metadata
    points = [_point(row, f"{path}: point {index}") for index, row in enumerate(artifact.rows)]
    try:
        frontier = Frontier(
            strategy=meta["strategy"],
            model=meta["model"],
            graph=meta["graph"],
            keep_all_peak=int(meta["keep_all_peak"]),
            keep_all_seconds=float(meta["keep_all_seconds"]),
            lower_bound_peak=int(meta["lower_bound_peak"]),
            lower_bound_seconds=float(meta["lower_bound_seconds"]),
            optimal_in=meta["optimal_in"],
            points=points,
            clock=int(meta.get("clock", "0")),
        )
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{path}: the metadata of the frontier is incomplete") from error
    if not points or pareto(points) != points:
        raise ArtifactError(f"{path}: the points are not a frontier by falling peak")
    return frontier
