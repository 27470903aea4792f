"""What a step of several microbatches costs, by the replays of two: of the last one, which updates,
and of each other one, which adds its gradients up."""

from __future__ import annotations

from dataclasses import dataclass

from tightfit.schemas.plan import Transfers
from tightfit.stages.replay.referee import Replay


@dataclass(frozen=True)
class Together:
    """The seconds of all microbatches, the most bytes of any, and what all of them transfer."""

    seconds: float
    peak: int
    transfers: Transfers | None


def together(last: Replay, adding: Replay | None, count: int) -> Together:
    """What `count` microbatches cost, of which all but the last one are `adding`, where there are
    several."""
    if adding is None:
        return Together(last.seconds, last.peak, last.transfers)
    more, own, other = count - 1, last.transfers, adding.transfers
    transfers = own or other
    if own is not None and other is not None:
        transfers = Transfers(
            own.left + more * other.left,
            own.returned + more * other.returned,
            max(own.host_peak, other.host_peak),
            own.waited + more * other.waited,
        )
    seconds = last.seconds + more * adding.seconds
    return Together(seconds, max(last.peak, adding.peak), transfers)
