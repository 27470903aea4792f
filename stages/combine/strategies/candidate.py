"""What a strategy gives: plans of a model, as ops to run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A plan of a strategy: the ops it runs (ids in the graph, views left out) in order, its
    `sequence` in words, one text an action, and how it was found (`origin`)."""

    executions: list[int]
    sequence: list[str]
    origin: str
