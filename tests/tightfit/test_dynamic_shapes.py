"""`tightfit.plan` with `dynamic_shapes`: one plan for calls of all sizes within limits."""

from __future__ import annotations

import copy
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import Dim

import tightfit
from data import models
from tests.tightfit.conftest import SETTINGS
from tightfit.api.dynamic_shapes import with_dynamic_shapes
from tightfit.schemas.graph.dynamic_inputs import DynamicDimension, DynamicInputs
from tightfit.stages.torch_utils.model_factory import BuiltModel

pytestmark = pytest.mark.usefixtures("brief_search", "loose_bounds")


class Scorer(torch.nn.Module):
    """Scores tokens, with a mask and with what else stands in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(50, 16)
        self.first = torch.nn.Linear(16, 32)
        self.last = torch.nn.Linear(32, 50)

    def forward(
        self,
        ids: torch.Tensor,
        more: dict[str, torch.Tensor] | None = None,
        mask: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        x = torch.nn.functional.gelu(self.first(self.table(ids)) * scale)
        if more is not None:
            x = x * more["weights"].unsqueeze(-1)
        if mask is not None:
            x = x * mask.unsqueeze(-1)
        scores: torch.Tensor = self.last(x.tanh())
        return scores.square().mean()


def scorer() -> Scorer:
    torch.manual_seed(0)
    return Scorer().train()


def tokens(batch: int, count: int) -> torch.Tensor:
    return torch.randint(50, (batch, count))


def read(args: Any, kwargs: Any, dynamic_shapes: Any) -> BuiltModel:
    [made] = with_dynamic_shapes([BuiltModel(scorer(), [(args, kwargs)])], dynamic_shapes)
    return made


BATCH, TOKENS = Dim("batch", max=6), Dim("tokens", min=3, max=30)
DIMENSIONS = (DynamicDimension("batch", 2, 6), DynamicDimension("tokens", 3, 30))


@pytest.mark.parametrize(
    "given",
    [
        {"ids": {0: BATCH, 1: TOKENS}, "more": {"weights": {0: BATCH, 1: TOKENS}}},
        {"ids": [BATCH, TOKENS], "more": {"weights": (BATCH, TOKENS)}, "mask": None},
        ({0: BATCH, 1: TOKENS}, {"weights": {0: BATCH, 1: TOKENS}}),
    ],
)
def test_arguments_go_by_name_or_position(given: Any) -> None:
    made = read((tokens(3, 9),), {"more": {"weights": torch.rand(3, 9)}}, given)
    both = {0: "batch", 1: "tokens"}
    assert made.dynamic == DynamicInputs(DIMENSIONS, {0: both, 1: both})
    (ids,), kwargs = made.samples[0]
    assert ids.shape == kwargs["more"]["weights"].shape == (6, 30)


def test_names_and_hints_take_the_size_of_the_sample_as_the_largest() -> None:
    weights = {"weights": torch.rand(3, 9)}
    made = read((tokens(3, 9), weights), {}, {"ids": {0: "rows", 1: Dim.AUTO}})
    assert made.dynamic is not None
    assert [(one.smallest, one.largest) for one in made.dynamic.dimensions] == [(2, 3), (2, 9)]
    made = read((tokens(3, 9), weights), {}, {"ids": {1: Dim.AUTO}, "more": {"weights": {1: ...}}})
    assert made.dynamic is not None and len(made.dynamic.dimensions) == 1
    made = read((tokens(3, 9),), {}, {"ids": {0: Dim.STATIC, 1: Dim.AUTO(min=4, max=12)}})
    assert made.dynamic is not None and made.dynamic.dimensions[0].smallest == 4
    assert made.dynamic.largest == {made.dynamic.dimensions[0].name: 12}


def test_sizes_are_in_steps_where_a_dimension_is_multiplied() -> None:
    third = Dim("third", max=5)
    made = read((tokens(3, 9),), {}, {"ids": {1: 3 * third}})
    assert made.dynamic is not None
    assert made.dynamic.dimensions == (DynamicDimension("third", 1, 5),)
    assert made.samples[0][0][0].shape == (3, 15)
    made = read((tokens(3, 9),), {}, {"ids": {0: "rows", 1: "2*half + 1"}})
    assert made.dynamic is not None and made.dynamic.axes == {0: {0: "rows", 1: "2*half + 1"}}
    assert made.dynamic.dimension("half") == DynamicDimension("half", 1, 4)


def test_one_dimension_may_have_an_offset_in_one_place() -> None:
    weights = {"weights": torch.rand(3, 8)}
    length = Dim("length", max=12)
    given = {"ids": {1: length + 1}, "more": {"weights": {1: length}}}
    made = read((tokens(3, 9), weights), {}, given)
    assert made.dynamic is not None
    assert made.dynamic.dimensions == (DynamicDimension("length", 2, 12),)
    given["more"] = {"weights": {1: Dim("length", max=11)}}
    with pytest.raises(tightfit.ConfigError, match=r"'length' is 8 on .* or has two ranges"):
        read((tokens(3, 9), weights), {}, given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "has no dynamic dimension"),
        ({"ids": None}, "has no dynamic dimension"),
        (7, "dynamic_shapes is 7, expected"),
        ({"tokens": {1: TOKENS}}, "names 'tokens', and the sample has the arguments ids, more"),
        ({"ids": {2: TOKENS}}, "ids has no axis 2: its sample has shape"),
        ({"ids": 3}, "says 3 of ids, expected axes"),
        ({"ids": {1: 2.5}}, "says 2.5 of axis 1 of ids, expected a torch.export.Dim"),
        ({"ids": {1: 8}}, "axis 1 of ids is 9 in the sample, not 8"),
        ({"ids": {1: 2 * Dim("half")}}, "9 in the sample, which is no 2.half: give .* 8 or 10"),
        ({"ids": {1: 3 * Dim("third", max=2)}}, "is 3 in the sample, and third is from 1 to 2"),
        (
            {"ids": {1: Dim("tokens", max=8)}},
            "axis 1 of ids is 9 in the sample, and tokens is from",
        ),
        ({"ids": {1: Dim("tokens", min=10)}}, "is 9 in the sample, and tokens is from 10"),
        ({"ids": {0: "max"}}, "'max' on axis 0 of ids cannot be a name"),
        ({"ids": {0: "a b"}}, "'a b' on axis 0 of ids cannot be a name"),
        ({"ids": {0: TOKENS, 1: TOKENS}}, "'tokens' is 3 on axis 0 of ids and 9 on axis 1 of ids"),
        ({"more": {"ones": {0: BATCH}}}, "more has no 'ones'"),
        ({"more": [{0: BATCH}]}, "which is of another structure"),
        ({"scale": {0: BATCH}}, "scale is no tensor in the sample"),
        ({"mask": {0: BATCH}}, r"mask \(batch\) has the size 1 in the sample|axis 0 of mask"),
    ],
)
def test_what_is_no_range_is_refused(given: Any, said: str) -> None:
    kwargs = {"more": {"weights": torch.rand(3, 9)}, "mask": torch.rand(1, 9), "scale": 2.0}
    with pytest.raises(tightfit.ConfigError, match=said):
        read((tokens(3, 9),), kwargs, given)


def test_a_sample_that_the_forward_does_not_take_is_told() -> None:
    with pytest.raises(tightfit.ModelError, match=r"does not take the sample: .*'rows'"):
        read((tokens(3, 9),), {"rows": 3}, {"ids": {1: TOKENS}})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fused_kernels": tightfit.FusedKernelOptions()}, "dynamic_shapes and fused_kernels"),
        ({"cuda_graphs": True}, "dynamic_shapes and cuda_graphs exclude each other"),
        ({"plans": 3}, "plans is 3, expected 1 or 2"),
        ({"plans": True}, "plans is True, expected 1 or 2"),
        ({"strategy": "offload"}, "is not for the strategy offload"),
        ({"samples": [((tokens(3, 4),), {})]}, "takes samples of one shape"),
    ],
)
def test_other_options_are_refused(options: Any, said: str, store: Path) -> None:
    with pytest.raises(tightfit.ConfigError, match=said):
        tightfit.plan(
            scorer(), (tokens(3, 9),), dynamic_shapes={"ids": {1: TOKENS}}, store=store, **options
        )


def test_an_optimizer_is_refused(store: Path) -> None:
    model = scorer()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(tightfit.ConfigError, match="dynamic_shapes and optimizer"):
        tightfit.plan(
            model,
            (tokens(3, 9),),
            dynamic_shapes={"ids": {1: TOKENS}},
            optimizer=optimizer,
            store=store,
        )


def check_step(planned: torch.nn.Module, model: torch.nn.Module, **given: Any) -> None:
    """Asserts that one step of both has the same bits."""
    results = []
    for module in (planned, model):
        module.zero_grad()
        torch.manual_seed(1)
        loss = module(**given)
        loss = loss if isinstance(loss, torch.Tensor) else loss.loss
        loss.backward()
        results.append([loss, *(p.grad.clone() for p in module.parameters() if p.grad is not None)])
    assert all(map(torch.equal, *results))


def test_one_plan_takes_all_sizes(store: Path) -> None:
    torch.manual_seed(0)
    model, ((), sample), _ = models.gpt2_loss(
        layers=1, width=32, heads=2, vocabulary=50, batch=3, tokens=12, dropout=0.1
    )
    axes = {0: Dim("batch", max=4), 1: Dim("tokens", max=12)}
    planned, plan = tightfit.plan(
        model,
        (),
        sample,
        budget="60%",
        dynamic_shapes={"input_ids": axes, "labels": axes},
        store=store,
        progress=False,
        **SETTINGS,
    )
    assert "it takes calls with batch from 2 to 4, tokens from 2 to 12" in plan.summary()
    sizes = "(batch = 2, tokens = 2) and (batch = 3, tokens = 7)"
    assert f"compared with the model at the largest sizes and {sizes}" in plan.summary()
    assert plan.dynamic is not None and len(plan.dynamic.peaks) == 4
    twin, chance = copy.deepcopy(model), random.Random(0)
    restored = pickle.loads(pickle.dumps(planned))
    for _ in range(8):
        ids = tokens(chance.randint(2, 4), chance.randint(2, 12))
        check_step(planned, twin, input_ids=ids, labels=ids)
        check_step(restored, twin, input_ids=ids, labels=ids)
    said = r"has the size 13 on axis 1.*range in dynamic_shapes that has it"
    with pytest.raises(tightfit.PlanMismatch, match=said):
        planned(input_ids=tokens(3, 13), labels=tokens(3, 13))
    loose = tightfit.load(plan.package, model, on_mismatch="original")
    with pytest.raises(IndexError):
        loose(input_ids=tokens(3, 13), labels=tokens(3, 13))
    check_step(loose, twin, input_ids=tokens(1, 9), labels=tokens(1, 9))


def test_masks_of_ones_and_others_have_a_plan_each(store: Path) -> None:
    torch.manual_seed(0)
    model, ((), sample) = models.bert(layers=1, batch=3, tokens=12, dropout=0.0)
    axes = {0: Dim("batch", max=4), 1: Dim("tokens", max=12)}
    planned, plan = tightfit.plan(
        model,
        (),
        sample,
        loss=lambda output: output.logits.square().mean(),
        budget="60%",
        dynamic_shapes=dict.fromkeys(sample, axes),
        store=store,
        progress=False,
        **SETTINGS,
    )
    assert len(plan.plans) == 2
    for count in (2, 7, 11):
        for ones in (True, False):
            mask = torch.ones(3, count, dtype=torch.int64)
            mask[1, count - 1 :] = int(ones)
            results = []
            for module in (planned, model):
                module.zero_grad()
                torch.manual_seed(1)
                ids = torch.arange(3 * count).view(3, count)
                module(input_ids=ids, attention_mask=mask).logits.square().mean().backward()
                results.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
            assert all(map(torch.equal, *results))


def test_a_loss_of_one_size_is_told(store: Path) -> None:
    model, ((ids,), _) = models.gpt2(1, 32, 2, 50, 2, 12)
    labels = ids.clone()

    def loss(output: Any) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten())

    with pytest.raises(tightfit.ModelError, match=r"the loss .*with dynamic_shapes, at batch = "):
        tightfit.plan(
            model,
            (ids,),
            loss=loss,
            dynamic_shapes={"input_ids": {0: Dim("batch", max=4)}},
            store=store,
            progress=False,
        )


def test_calls_of_other_sizes_and_modes_are_planned_anew(store: Path) -> None:
    model = scorer()
    planned, plan = tightfit.plan(
        model,
        (tokens(3, 9),),
        budget="80%",
        dynamic_shapes={"ids": {0: BATCH, 1: Dim("tokens", min=3, max=9)}},
        on_mismatch="replan",
        store=store,
        progress=False,
        **SETTINGS,
    )
    twin = copy.deepcopy(model)
    for count in (3, 9):
        check_step(planned, twin, ids=tokens(2, count))
    assert plan.replans == []
    check_step(planned, twin, ids=tokens(3, 14))
    assert [one.dynamic for one in plan.replans] == [None], "beyond the range: of its sizes alone"
    for module in (planned, twin):
        module.first.requires_grad_(False)
    for count in (4, 8):
        check_step(planned, twin, ids=tokens(3, count))
    _, frozen = plan.replans
    assert frozen.dynamic is not None and frozen.dynamic.describe() == plan.dynamic.describe()  # type: ignore[union-attr]
    assert {one.budget_total for one in plan.plans} == {plan.budget_total}
