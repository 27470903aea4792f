"""What a plan is worth beside a model that checkpoints itself, which a plan replaces."""

from __future__ import annotations

import json

from tightfit.schemas.graph import Graph


def checkpoints_itself(graph: Graph) -> bool:
    """Whether the forward of a traced model checkpoints parts of itself."""
    return json.loads(graph.guards).get("checkpointed") is True


def beside_itself(planned: int, own: int) -> tuple[str, str]:
    """What is wrong with a plan, "" for nothing, and what else is to be said of it, both as
    clauses: `planned` are the bytes of its step, `own` those of the model's as it is."""
    if planned > own:
        return (
            f"the model, which checkpoints itself, takes less as it is, {own:,} bytes where the "
            f"plan takes {planned:,}: plan with a smaller budget",
            "",
        )
    return "", f"the plan replaces the model's own checkpointing, with which it takes {own:,} bytes"
