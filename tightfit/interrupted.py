"""What a plan can be when the making of its frontier was interrupted."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from tightfit.route import Route
from tightfit.schemas.derived import Derived
from tightfit.schemas.errors import TightfitError
from tightfit.schemas.frontier import Frontier, Point, pareto, read_frontier, write_frontier
from tightfit.schemas.lineage import keep_records


def frontier_so_far(route: Route, graph: Path, costs: Path) -> Path | None:
    """The path of a frontier of what is known without the rest of the work: the strategy's
    plans before polish, the baselines, and what other strategies found for this step.

    None where there is none. An interruption of this leaves out what it had not come to.
    """
    place = route.place(costs)
    found: list[Frontier] = []
    with contextlib.suppress(KeyboardInterrupt):
        found += _known(place)
        for name in ("unplanned", "checkpoint", route.strategy):
            found += _unpolished(name, graph, costs, place, route)
    if not found:
        return None
    points: list[Point] = [point for frontier in found for point in frontier.points]
    merged = replace(
        found[0],
        strategy=route.strategy,
        points=pareto(points),
        optimal_in="",
        clock=0,
        link=next((frontier.link for frontier in found if frontier.link is not None), None),
        beaten=[],
    )
    path = place / f"{route.strategy}-interrupted" / "frontier.arrow"
    write_frontier(path, merged)
    settings = {"strategy": route.strategy, "interrupted": True}
    keep_records("combine", Derived([path], [graph, costs, place / "blocks.arrow"], settings))
    return path


def _known(place: Path) -> list[Frontier]:
    """The frontiers of other strategies that are there."""
    found = []
    for path in sorted(place.glob("*/frontier.arrow")):
        with contextlib.suppress(TightfitError):
            found.append(read_frontier(path))
    return found


def _unpolished(name: str, graph: Path, costs: Path, place: Path, route: Route) -> list[Frontier]:
    """The frontier of a strategy's own plans, none where what it plans from is not there yet."""
    from tightfit.stages.combine.inputs import Inputs
    from tightfit.stages.combine.strategies.registry import strategy as strategy_of

    blocks, options = place / "blocks.arrow", route.options(place)
    solved = options.exists()
    if not blocks.exists() or not (solved or name == "unplanned"):
        return []
    strategy = strategy_of(name)
    clusters = place / "hierarchy.arrow"
    given = Inputs.read(
        *(graph, costs, blocks, options if solved else None),
        clusters if clusters.exists() else None,
        route.machine if strategy.about.links else None,
        route.engine,
    )
    if strategy.supports(given.step):
        return []
    return [given.frontier(strategy, replace(strategy.about, baseline=True))]
