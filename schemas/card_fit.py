"""`tightfit.fit/1`: how the training step of a model fits on described cards, as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

FIT_ARTIFACT = "tightfit.fit/1"

WayName = Literal["eager", "checkpoint", "plan", "offload"]
WAYS: dict[WayName, str] = {
    "eager": "as it is",
    "checkpoint": "checkpointing",
    "plan": "plan",
    "offload": "offload",
}
"""The ways to run a step, and what tables call them."""


@dataclass(frozen=True)
class WayFit:
    """One way to run a step on a card.

    `bytes` are those of the card for everything: where it `fits`, of the plan that was chosen, else
    the least that is known for this way. `slowdown` is its predicted time relative to the step as
    it is with everything on the card, and `most_slowdown` the same if no transfer overlaps
    computation. `host_bytes` wait in host memory. The `largest_batch` fits, by sizes that grow in
    straight lines with the batch; 0 if a batch of one does not, None if they grow otherwise.
    """

    way: WayName
    fits: bool
    bytes: int
    slowdown: float
    most_slowdown: float | None = None
    host_bytes: int = 0
    largest_batch: int | None = None


@dataclass(frozen=True)
class FrontierPoint:
    """A plan: the bytes of the card that it requests in all, and its slowdown."""

    bytes: int
    slowdown: float


@dataclass(frozen=True)
class FlagAdvice:
    """Settings of a trainer that come closest, which take so many `bytes` as predicted."""

    tool: str
    flags: str


@dataclass(frozen=True)
class CardFit:
    """A card and all ways. No plan with everything on the card takes less than `least_bytes`, and
    none with offload less than `least_offload_bytes`. `recomputed_layers` of the model have to be
    checkpointed to fit, None if that is not enough or not known."""

    card: str
    memory: int
    ways: list[WayFit]
    least_bytes: int
    least_offload_bytes: int
    frontier: list[FrontierPoint]
    recomputed_layers: int | None
    flags: list[FlagAdvice]

    def way(self, name: WayName) -> WayFit:
        """One of the ways."""
        return next(way for way in self.ways if way.way == name)


@dataclass(frozen=True)
class ModelFit:
    """A model and its step on several cards; bytes of all parameters, of their gradients and of the
    states of the optimizer. Where it has equal `layers`, 0 for none, its graph was found from
    traces with `traced_layers` of them. `assumptions` have, by "file:line", what was assumed where
    the forward asks for the data of a tensor, which a graph does not hold."""

    model: str
    batch: int
    tokens: int | None
    optimizer: str
    parameters: int
    parameter_bytes: int
    gradient_bytes: int
    state_bytes: int
    layers: int
    traced_layers: list[int]
    assumptions: dict[str, str]
    seconds: float
    cards: list[CardFit]

    def document(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {"artifact": FIT_ARTIFACT, **asdict(self)}
