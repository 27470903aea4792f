"""`tightfit.frontier/7`: the plans of one strategy for one model and profile, from most to least
memory. What a budget takes comes from the points around it, so that it never matters which other
budgets were asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from tightfit.schemas import store
from tightfit.schemas.actions import (
    ACTION_FIELDS,
    Action,
    Offload,
    OpAction,
    action_from_row,
    action_to_row,
)
from tightfit.schemas.arrow_fields import (
    boolean_field,
    integer_field,
    number_field,
    record_list_field,
    text_field,
)
from tightfit.schemas.link import HostLink, parse_host_link
from tightfit.schemas.sequence import OPERATION_FIELDS, ChainOperation, operation_from_row
from tightfit.util.errors import ArtifactError


@dataclass(frozen=True)
class ParetoPoint:
    """One plan: its actions in order, as its strategy or the search gives them: those that run ops
    (views left out), and with a link `Offload`, `Free` of what was sent, and `Prefetch`.

    `peak` (bytes) and `seconds` are what the simulator says of it; `strategy_peak` and
    `strategy_seconds` are those of the strategy's own sequence, as it was given. A point is
    `local_search` where a search made another sequence of that. `in_place` and `in_place_threshold`
    (bytes) say which ops overwrite inputs that end with them (`stages.simulate.liveness`).
    `sequence` is what the strategy does with the positions of its chain and `origin` how the point
    was found."""

    peak: int
    seconds: float
    strategy_peak: int
    strategy_seconds: float
    local_search: bool
    in_place: bool
    in_place_threshold: int
    actions: list[Action]
    sequence: list[ChainOperation]
    origin: str

    @property
    def executions(self) -> list[int]:
        """The ops that it runs, in order, as ids of the graph."""
        return [action.op for action in self.actions if isinstance(action, OpAction)]

    @property
    def transfers(self) -> bool:
        """Whether anything leaves for an offload target."""
        return any(isinstance(action, Offload) for action in self.actions)

    @property
    def is_strategy_plan(self) -> bool:
        """Whether this is the strategy's plan as it was given."""
        return not (self.local_search or self.in_place)


@dataclass(frozen=True)
class Frontier:
    """Points with falling peaks and rising seconds.

    `lower_bound_peak` is what any plan of the step needs at least (bytes) and
    `lower_bound_seconds` what it takes at least; `keep_all` is the step that recomputes nothing.
    `optimal_in` names the class in which the strategy's sequences are optimal, "" for none.
    `timed_out_solves` counts the solves of blocks that the clock ended: where there are any,
    another run may find other points. `link` is the link that plans may take. Plans without
    transfers that plans with some beat are in `dominated`: a search for one budget starts from
    them, too."""

    strategy: str
    model: str
    graph: str
    keep_all_peak: int
    keep_all_seconds: float
    lower_bound_peak: int
    lower_bound_seconds: float
    optimal_in: str
    points: list[ParetoPoint]
    timed_out_solves: int = 0
    link: HostLink | None = None
    dominated: list[ParetoPoint] = field(default_factory=list)

    @property
    def without_transfers(self) -> list[ParetoPoint]:
        """The frontier of the plans without transfers."""
        return pareto_points(
            point for point in (*self.points, *self.dominated) if not point.transfers
        )

    def within(self, budget: int) -> ParetoPoint | None:
        """The fastest point whose peak is within the budget, None when there is none."""
        fitting = [point for point in self.points if point.peak <= budget]
        return min(fitting, key=lambda point: (point.seconds, point.peak), default=None)


FRONTIER = store.ArtifactType(
    "tightfit.frontier",
    7,
    pa.schema(
        [
            integer_field("peak"),
            number_field("seconds"),
            integer_field("strategy_peak"),
            number_field("strategy_seconds"),
            boolean_field("local_search"),
            boolean_field("in_place"),
            integer_field("in_place_threshold"),
            record_list_field("actions", *ACTION_FIELDS),
            record_list_field("sequence", *OPERATION_FIELDS),
            text_field("origin"),
            boolean_field("dominated"),
        ]
    ),
)


class _HasPeakAndSeconds(Protocol):
    @property
    def peak(self) -> int: ...

    @property
    def seconds(self) -> float: ...


_P = TypeVar("_P", bound=_HasPeakAndSeconds)
TIME_TOLERANCE = 1e-9
"""Relative difference of two sums of the same times in another order."""


def pareto_points(points: Iterable[_P]) -> list[_P]:
    """The points that no other beats in both peak and seconds, by falling peak."""
    chosen: list[_P] = []
    for point in sorted(points, key=lambda p: (p.peak, p.seconds)):
        if not chosen or point.seconds < chosen[-1].seconds:
            chosen.append(point)
    return chosen[::-1]


def write_frontier(path: Path | str, frontier: Frontier) -> str:
    """Writes a frontier and returns its digest."""
    metadata = {
        name: value if isinstance(value, str) else repr(value)
        for name, value in vars(frontier).items()
        if name not in ("points", "dominated", "link")
    }
    if frontier.link is not None:
        metadata["link"] = frontier.link.text()
    rows = [_row(point, False) for point in frontier.points]
    rows += [_row(point, True) for point in frontier.dominated]
    return store.write(path, FRONTIER, rows, metadata)


def _row(point: ParetoPoint, dominated: bool) -> dict[str, Any]:
    known: dict[Action, dict[str, Any]] = {}
    for action in point.actions:
        if action not in known:
            known[action] = action_to_row(action)
    return {
        **vars(point),
        "actions": [known[action] for action in point.actions],
        "sequence": [asdict(part) for part in point.sequence],
        "dominated": dominated,
    }


class _FrontierReader:
    """Makes points of rows; actions that are the same are one."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.known: dict[tuple[Any, ...], Action] = {}

    def point(self, index: int, row: Mapping[str, Any]) -> ParetoPoint:
        what = f"{self.path}: point {index}"
        figures = {name: cell for name, cell in row.items() if name != "dominated"}
        return ParetoPoint(
            **{
                **figures,
                "actions": [self.action(part, what) for part in row["actions"]],
                "sequence": [operation_from_row(part, what) for part in row["sequence"]],
            }
        )

    def action(self, row: Mapping[str, Any], what: str) -> Action:
        key = tuple(row.values())
        if key not in self.known:
            self.known[key] = action_from_row(row, what)
        return self.known[key]


def _point_times(point: ParetoPoint) -> tuple[float, float]:
    return point.seconds, point.strategy_seconds


def read_frontier(path: Path | str) -> Frontier:
    """Reads a frontier; raises ArtifactError when its metadata or its order is wrong."""
    artifact = store.read(path, FRONTIER)
    meta, reader = artifact.metadata, _FrontierReader(path)
    points: dict[bool, list[ParetoPoint]] = {False: [], True: []}
    for index, row in enumerate(artifact.rows):
        points[row["dominated"]].append(reader.point(index, row))
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
            points=points[False],
            timed_out_solves=int(meta.get("timed_out_solves", "0")),
            link=parse_host_link(meta["link"], str(path)) if "link" in meta else None,
            dominated=points[True],
        )
    except (KeyError, ValueError) as error:
        raise ArtifactError(f"{path}: the metadata of the frontier is incomplete") from error
    _check(frontier, f"{path}: ")
    return frontier


def _check(frontier: Frontier, where: str) -> None:
    """Raises ArtifactError where the points are no frontier, or contradict what is said of all."""

    def require(condition: bool, sentence: str) -> None:
        if not condition:
            raise ArtifactError(f"{where}{sentence}")

    best, every = frontier.points, [*frontier.points, *frontier.dominated]
    require(
        bool(best) and pareto_points(best) == best,
        "the points are not a frontier by falling peak",
    )
    least = frontier.lower_bound_seconds
    times = [least, *(each for point in every for each in _point_times(point))]
    require(all(map(math.isfinite, times)), "a plan takes a time that is no number")
    require(
        not any(point.transfers for point in frontier.dominated),
        "a plan with transfers is said to be beaten by such plans",
    )
    for point in every:
        own = (point.peak, point.seconds)
        before = (point.strategy_peak, point.strategy_seconds)
        require(
            not point.is_strategy_plan or own == before,
            "a plan as it was given costs something else",
        )
        require(min(before) >= 0, "a plan costs less than nothing")
        require(
            frontier.lower_bound_peak <= point.peak
            and least <= point.seconds * (1 + TIME_TOLERANCE),
            "a plan is below what is said to be the least",
        )
    require(
        frontier.timed_out_solves >= 0, "less than no solve is said to have been ended by the clock"
    )
