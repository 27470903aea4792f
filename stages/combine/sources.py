"""What a verdict says of where its times are from."""

from __future__ import annotations

from tightfit.schemas.costs import BUSY, Costs
from tightfit.schemas.graph import Graph
from tightfit.schemas.link import HostLink


def of_costs(graph: Graph, costs: Costs) -> str:
    """Where no op was measured, for which device it is; where much of the step was measured beside
    other work, that it was."""
    if costs.device.described:
        return f"; planned for {costs.device.name}, which is not here"
    lost = costs.lost(graph)
    if lost < BUSY:
        return ""
    return (
        f"; {lost:.0%} of the predicted time is of ops that were measured while other work had the "
        "processors, so that it may be off: tightfit profile --remeasure measures them "
        "again"
    )


def of_link(link: HostLink) -> str:
    """Where the speed of a link is from."""
    return f"; the link was {link.source}" if link.source.startswith("measured here") else ""
