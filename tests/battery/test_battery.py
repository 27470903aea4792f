"""The fast part of the battery: some uses of some models. `make battery` runs all."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from tests.battery.all_cases import CASES
from tests.battery.case import Case
from tests.battery.cases import rows
from tests.battery.models import Mlp
from tests.battery.outcome import (
    BAD,
    BOTH,
    EQUAL,
    NONE,
    RAW,
    REFUSED,
    WRONG,
    Outcome,
    judge,
    refusal,
)
from tests.battery.planning import Planner, outcomes
from tests.battery.registry import Use
from tests.battery.strategies import STRATEGIES, Strategy
from tests.battery.use_context import Run
from tests.battery.uses import USES

torch.set_num_threads(1)

FAST = ("mlp", "tied, labeled", "heads", "convolutions", "attributes", "normed", "named tuple")
LEAST = 200
"""How many of the fast combinations are equal: a module that refuses everything is of no use."""

Found = list[tuple[str, Outcome]]


class Fast:
    """What comes of the fast uses of each model, found once."""

    def __init__(self, planner: Planner) -> None:
        self.planner = planner
        self.known: dict[str, Found] = {}

    def of(self, case: Case) -> Found:
        """The outcomes by strategy and use."""
        if case.name not in self.known:
            uses = [use for use in USES.values() if use.fast]
            self.known[case.name] = [
                (f"{strategy.name}, {use.name}", outcome)
                for strategy in STRATEGIES
                if strategy.fast
                for use, outcome in outcomes(self.planner, case, strategy, uses)
            ]
        return self.known[case.name]


CHOSEN = [case for case in CASES if case.name in FAST]


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> Fast:
    return Fast(Planner(tmp_path_factory.mktemp("battery")))


@pytest.mark.sample(4)
@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_equal_or_refused(case: Case, fast: Fast) -> None:
    bad = [(where, found.detail) for where, found in fast.of(case) if found.kind in BAD]
    assert not bad, "\n".join(": ".join(said) for said in bad)
    assert any(found.kind == EQUAL for _, found in fast.of(case))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_every_strategy_trains(strategy: Strategy, fast: Fast) -> None:
    [mlp] = [case for case in CASES if case.name == "mlp"]
    [(_, found)] = outcomes(fast.planner, mlp, strategy, [USES["plain_training"]])
    assert found.kind == EQUAL, found.detail


@pytest.mark.long
def test_most_are_equal(fast: Fast) -> None:
    found = Counter(outcome.kind for case in CHOSEN for _, outcome in fast.of(case))
    assert found[EQUAL] >= LEAST, found


MLP = Case("mlp", Mlp, rows)


def judged(body: object, load: object) -> Outcome:
    return judge(MLP, Use("it", "here", body, True), load)  # type: ignore[arg-type]


class Doubled(Mlp):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * 2


def doubled(model: nn.Module) -> nn.Module:
    made = Doubled()
    made.load_state_dict(model.state_dict())
    return made


def plain(run: Run) -> None:
    run.train(steps=1)


def test_the_judge_tells_outcomes_apart() -> None:
    def raising(run: Run) -> None:
        run.say("before", 1)
        raise ValueError("eager has no such thing")

    def needing(run: Run) -> None:
        run.need(False)

    def fails(model: nn.Module) -> nn.Module:
        model.register_forward_pre_hook(lambda m, a: (a[0].view(17),))
        return model

    assert judged(plain, lambda model: model).kind == EQUAL
    assert judged(plain, doubled).kind == WRONG
    assert judged(plain, fails).kind == RAW
    assert judged(raising, lambda model: model).kind == BOTH
    assert judged(needing, doubled).kind == NONE


def test_a_wrong_number_before_a_refusal_is_wrong() -> None:
    class PlanMismatch(RuntimeError):  # noqa: N818
        """As a package has it."""

    def late(model: nn.Module) -> nn.Module:
        made = doubled(model)

        def refuse(module: nn.Module, gradient: object) -> None:
            raise PlanMismatch("this is refused")

        made.register_full_backward_pre_hook(refuse)
        return made

    def speaks(run: Run) -> None:
        run.say("output", run.backward())

    assert judged(speaks, late).kind == WRONG
    assert refusal(PlanMismatch("this is refused")).kind == REFUSED
    assert refusal(PlanMismatch("two\nlines")).kind == RAW
    assert refusal(RuntimeError("mat1 and mat2 shapes cannot be multiplied")).kind == RAW


def test_a_module_that_does_not_raise_where_eager_does_is_wrong() -> None:
    def meets(run: Run) -> None:
        run.say("x", 1)
        if not isinstance(run.module, Doubled):
            raise ValueError("eager raises")

    assert judged(meets, doubled).kind == WRONG


def test_a_case_goes_to_a_device_with_its_contents() -> None:
    case = next(case for case in CASES if case.name == "mlp")
    there = case.on("meta")
    assert there.device == "meta" and case.on("cpu") is case
    args, _ = there.sample(0)
    tensors = [*there.make().parameters(), *(leaf for leaf in args if isinstance(leaf, Tensor))]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert args[0].requires_grad == case.sample(0)[0][0].requires_grad
