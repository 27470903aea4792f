"""The strategies by name: each makes candidate sequences of executions from a model's blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from schemas.blocks import Blocks
from schemas.errors import ConfigError
from schemas.options import Option
from schemas.problem import Problem
from stages.combine.strategies import checkpoint, rockmate, rotor
from stages.combine.strategies.candidate import Candidate

__all__ = ["Candidate", "Strategy", "strategies", "strategy"]


@dataclass(frozen=True)
class Strategy:
    """`candidates` takes the condensed graph, its blocks and their options by digest. Baselines are
    not `polished`; those that take `solved` options depend on how the solves ended. `optimal_in`
    names the class that the sequences are optimal in, "" for none."""

    name: str
    candidates: Callable[[Problem, Blocks, Mapping[str, list[Option]]], list[Candidate]]
    polished: bool
    optimal_in: str = ""
    solved: bool = False

    def __call__(
        self, problem: Problem, blocks: Blocks, options: Mapping[str, list[Option]]
    ) -> list[Candidate]:
        """The strategy's candidates, from most to least memory."""
        return self.candidates(problem, blocks, options)


def strategies() -> dict[str, Strategy]:
    """All strategies by name."""
    return {
        strategy.name: strategy
        for strategy in (
            Strategy("unplanned", checkpoint.unplanned, polished=False),
            Strategy("checkpoint", checkpoint.checkpoint, polished=False),
            Strategy("rotor", rotor.candidates, polished=True, optimal_in=rotor.OPTIMAL_IN),
            Strategy(
                "rockmate",
                rockmate.candidates,
                polished=True,
                optimal_in=rockmate.OPTIMAL_IN,
                solved=True,
            ),
        )
    }


def strategy(name: str) -> Strategy:
    """The strategy of that name; raises ConfigError when there is none."""
    known = strategies()
    if name not in known:
        raise ConfigError(f"strategy {name!r} is not known, expected one of {', '.join(known)}")
    return known[name]
