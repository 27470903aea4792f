"""Plans for tests whose graphs say what the trace read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from schemas.graph import Graph
from stages.device.factory import Built
from stages.trace.trace import trace
from stages.trace.watching import watching
from tests.stages.generate.plans import built_of


def traced_watched(made: Sequence[Any], label: str = "model") -> tuple[Graph, Built]:
    """The graph of what a factory returned, with what was watched in its guards.

    Raises ModelError where the forward does what a plan would not do.
    """
    built = built_of(made, label)
    with watching(built.model, label) as watcher:
        graph = trace(built, label)
    watcher.refuse(label)
    guards = json.loads(graph.guards)
    if "watch" not in guards:
        guards["watch"] = watcher.description()
    return replace(graph, guards=json.dumps(guards)), built
