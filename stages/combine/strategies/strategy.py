"""What a strategy is: one file that makes plans of a training step, and a line in the registry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from schemas.blocks import Blocks
from schemas.options import Option
from schemas.problem import Problem
from schemas.sequence import Operation


@dataclass(frozen=True)
class TrainingStep:
    """A training step as strategies see it: the condensed graph, its blocks, and the options of
    each distinct block by digest."""

    problem: Problem
    blocks: Blocks
    options: Mapping[str, list[Option]]


@dataclass(frozen=True)
class Candidate:
    """A plan of a strategy: the ops it runs (ids in the graph, views left out) in order, what it
    does with the positions of its chain (`sequence`), and how it was found (`origin`)."""

    executions: list[int]
    sequence: list[Operation]
    origin: str


@dataclass(frozen=True)
class About:
    """What is known of a strategy before it runs.

    `summary` is a line for people. A `baseline` takes no budget and is not polished. One that is
    `solved` takes the options that integer programs found, and hangs on how these ended. One that
    plans `chains` takes chains that come as files. `optimal_in` names the class that its sequences
    are optimal in, "" for none.
    """

    name: str
    summary: str
    baseline: bool = False
    solved: bool = False
    chains: bool = False
    optimal_in: str = ""


class Strategy(Protocol):
    """A way to plan a training step."""

    @property
    def about(self) -> About:
        """What is known of it."""

    def supports(self, step: TrainingStep) -> str:
        """ "" where it can plan a step, else why it cannot, as a clause for the user."""

    def candidates(self, step: TrainingStep) -> list[Candidate]:
        """Its plans of a step, from most to least memory; at least one."""
