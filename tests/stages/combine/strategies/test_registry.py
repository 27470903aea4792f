"""What holds for every strategy of the registry, and one that comes from outside."""

from __future__ import annotations

import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings

from tests.stages.audit.towers import solve_tower
from tests.stages.combine.hierarchy.trees import rows_of
from tests.stages.combine.strategies.test_strategies import blocks_of, check_candidate, options_of
from tests.stages.partition.steps import random_steps
from tightfit.__main__ import main
from tightfit.schemas.config import parse_config
from tightfit.schemas.frontier import read_frontier
from tightfit.schemas.link import HostLink
from tightfit.schemas.plan import read_plan
from tightfit.schemas.sequence import ChainOperation, OperationKind
from tightfit.stages.combine.strategies.strategy import Candidate, PlanningProblem
from tightfit.stages.combine.strategies.strategy import load_strategy as strategy_of
from tightfit.stages.partition.gradient_flow import GradientFlow
from tightfit.util.strategies import STRATEGIES, StrategyInfo

PAGE = Path(__file__).parents[4] / "docs/strategies.md"


@pytest.mark.parametrize("name", STRATEGIES)
@settings(deadline=None, max_examples=25)
@given(facts=random_steps())
def test_every_strategy_gives_plans_that_can_run(name: str, facts: GradientFlow) -> None:
    strategy = strategy_of(name)
    assert strategy.about is STRATEGIES[name]
    blocks = blocks_of(facts)
    step = PlanningProblem(facts.problem, blocks, options_of(blocks))
    if strategy.about.clusters:
        assert "came without a hierarchy" in strategy.supports(step)
        step = replace(step, hierarchy=rows_of(facts.problem, [3, 2]))
    if strategy.about.links:
        assert "came without a link" in strategy.supports(step)
        step = replace(step, link=HostLink(2.0))
    if said := strategy.supports(step):
        assert said[0].islower() and not said.endswith(".")
        return
    candidates = strategy.candidates(step)
    assert candidates
    for candidate in candidates:
        check_candidate(facts.problem, candidate)
        kinds = {operation.action for operation in candidate.sequence}
        assert kinds <= set(get_args(OperationKind)) and candidate.origin


def test_the_page_of_strategies_has_them_all() -> None:
    text = PAGE.read_text()
    for name, about in STRATEGIES.items():
        assert about.name == name
        assert f"`{name}`" in text


class Halves:
    """Recomputes the first half of the blocks."""

    about = StrategyInfo("halves", "the first half of the blocks is computed again")

    def supports(self, step: PlanningProblem) -> str:
        return "" if len(step.blocks.blocks) > 1 else "it has a single block"

    def candidates(self, step: PlanningProblem) -> list[Candidate]:
        from tightfit.stages.combine.lowering.blocks import (
            captured_options,
            lower_to_executions,
            run_actions,
        )

        last = len(step.blocks.blocks) + 1
        half = last // 2
        sequence = [ChainOperation("F_ck" if p <= half else "F_all", p) for p in range(1, last)]
        sequence.append(ChainOperation("loss", last))
        for position in range(last - 1, 0, -1):
            again = [ChainOperation("F_all", position)] if position <= half else []
            sequence += [*again, ChainOperation("B", position)]
        options = captured_options(step.blocks, step.options)
        executions = lower_to_executions(step.problem, step.blocks, options, sequence)
        actions = run_actions(step.problem, executions)
        return [Candidate(actions, sequence, "the first half recomputed")]


def test_a_strategy_from_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(STRATEGIES, "halves", Halves.about)
    place = types.ModuleType("tightfit.stages.combine.strategies.halves")
    monkeypatch.setitem(sys.modules, place.__name__, place)
    monkeypatch.setattr(place, "STRATEGY", Halves(), raising=False)
    tower = {"factory": "towers:tower", "strategies": ["keep_all", "halves"]}
    [_, asked] = parse_config({"models": {"tower": tower}}).requests("tower")
    assert (asked.strategy, asked.budget) == ("halves", "50%")
    monkeypatch.chdir(tmp_path)
    files = ["--graph", "graph.arrow", "--costs", "costs.arrow"]
    solve_tower(Path(), Path("store"))
    blocks = ["--blocks", "blocks.arrow", "--options", "options.arrow"]
    assert main(["combine", *files, *blocks, "--strategy", "halves", "--out", "f.arrow"]) == 0
    assert read_frontier("f.arrow").strategy == "halves"
    budget = ["--budget", asked.budget]
    assert main(["select", *files, "--frontier", "f.arrow", *budget, "--out", "p"]) == 0
    assert read_plan("p/plan.json").strategy == "halves"
    monkeypatch.setattr(Halves, "supports", lambda self, step: "it has no halves")
    assert main(["combine", *files, *blocks, "--strategy", "halves", "--out", "g.arrow"]) == 1
    assert "halves cannot plan tower: it has no halves" in capsys.readouterr().err
