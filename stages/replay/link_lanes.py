"""The lanes of a link, as clocks see them: a transfer begins when the one before it in its lane has
ended; where the link is shared, when those of both lanes have."""

from __future__ import annotations

from dataclasses import dataclass, field

from tightfit.schemas.link import HostLink


@dataclass
class LinkLanes:
    """When each lane of a `link` is free, by name, and those that others count with them."""

    link: HostLink
    free_at: dict[str, float] = field(default_factory=dict)

    def begin(self, leaves: bool, ready: float, seconds: float) -> tuple[float, float]:
        """The begin and end of a transfer that goes into its lane, `ready` at a moment."""
        lanes = [self.link.lane(leaves), *([self.link.lane(not leaves)] * self.link.shared)]
        start = max(ready, *(self.free(lane) for lane in lanes))
        self.free_at[lanes[0]] = start + seconds
        return start, start + seconds

    def free(self, lane: str) -> float:
        """When a lane is free."""
        return self.free_at.get(lane, 0.0)

    def through(self, clock: float) -> float:
        """When all lanes are through, and the compute lane at its `clock`."""
        return max([clock, *self.free_at.values()])
