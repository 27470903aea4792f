"""A call that differs from what the plan was made for gets one sentence, or the original model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.stages.conftest import Planned
from tests.stages.generate.plans import PLAN, generated, load_package, traced
from tests.stages.generate.small_model import Small
from tests.stages.runtime.guards.guarded_plans import traced_watched
from tests.stages.runtime.test_planned_module import assert_same_gradients, is_planned
from tests.stages.trace import modules
from tightfit.util.errors import ModelError

X = torch.zeros(4, 6)


def differing_weight(model: Small) -> None:
    model.first.weight = nn.Parameter(torch.zeros(8, 5))


def frozen_weight(model: Small) -> None:
    model.last.bias.requires_grad_(False)


def evaluated_norm(model: Small) -> None:
    model.norm.eval()


def half(model: Small) -> None:
    model.to(torch.bfloat16)


def moved(model: Small) -> None:
    model.middle.to("meta")


def without_norm(model: Small) -> None:
    del model.norm


def without_bias(model: Small) -> None:
    model.middle = nn.Linear(8, 8, bias=False)


def strided(model: Small) -> None:
    model.middle.weight = nn.Parameter(torch.zeros(8, 8).t())


ORIGINAL = 'or load the plan with on_mismatch="original"'
REMEDY = f"undo it, plan again with it, {ORIGINAL}"
REMEDIES = {
    "strides": (
        f'give it x.contiguous(), plan with such strides, {ORIGINAL}, or "copy" to have such '
        "inputs copied"
    ),
    "x has shape": (
        f"plan with a sample of each shape, or with a range in dynamic_shapes, {ORIGINAL}; "
        'tightfit.plan also takes on_mismatch="replan"'
    ),
    "scale is 3.0": f"pass a number that changes as a tensor, {ORIGINAL}",
}
CALLS: list[tuple[Any, Any, str]] = [
    ((torch.zeros(2, 6),), {}, "x has shape (2, 6), the plan was made for (4, 6)"),
    ((X.double(),), {}, "x has dtype torch.float64, the plan was made for torch.float32"),
    ((X.to("meta"),), {}, "x is on meta, the plan was made for cpu"),
    ((torch.zeros(6, 4).t(),), {}, "x has strides (1, 4), the plan was made for (6, 1)"),
    ((X.clone().requires_grad_(),), {}, "x requires a gradient, the plan was made without one"),
    ((None,), {}, "x is None, the plan was made for a tensor"),
    (([X],), {}, "x is of type list, the plan was made for a tensor"),
    ((X, 3.0), {}, "scale is 3.0, the plan was made for 2.0"),
    ((X, X), {}, "scale is a tensor, the plan was made for 2.0"),
    ((X, 2), {}, "scale is 2, the plan was made for 2.0"),
    ((X,), {"mask": X}, "mask is given, the plan was made without it"),
]
MODELS: list[tuple[Any, str]] = [
    (differing_weight, "first.weight has shape (8, 5), the plan was made for (8, 6)"),
    (frozen_weight, "last.bias requires no gradient, the plan was made with one"),
    (evaluated_norm, "norm is in evaluation mode, the plan was made in training mode"),
    (half, "first.weight has dtype torch.bfloat16, the plan was made for torch.float32"),
    (moved, "middle.weight is on meta, the plan was made for cpu"),
    (without_norm, "the model no longer has the module norm the plan was made for"),
    (strided, "middle.weight has strides (1, 8), the plan was made for (8, 1)"),
    (without_bias, "middle.bias is None, the plan was made for a tensor"),
]


@pytest.mark.parametrize(("args", "kwargs", "sentence"), CALLS)
def test_a_differing_call_is_named(small: Planned, args: Any, kwargs: Any, sentence: str) -> None:
    planned = small.package.load(small.model())
    if len(args) == 1:
        kwargs = {"scale": 2.0, **kwargs}
    with pytest.raises(small.package.PlanMismatch) as caught:
        planned(*args, **kwargs)
    remedy = next((said for words, said in REMEDIES.items() if words in sentence), REMEDY)
    assert str(caught.value) == f"{sentence}; {remedy}"


@pytest.mark.parametrize(("change", "sentence"), MODELS)
def test_a_differing_model_is_named(small: Planned, change: Any, sentence: str) -> None:
    planned = small.package.load(small.model())
    change(planned)
    with pytest.raises(small.package.PlanMismatch) as caught:
        planned(X, 2.0)
    assert str(caught.value) == f"{sentence}; {REMEDY}"


def test_autocast_is_named(small: Planned) -> None:
    planned = small.package.load(small.model())
    with (
        torch.autocast("cpu", torch.bfloat16),
        pytest.raises(RuntimeError, match=r"autocast on cpu is bfloat16, the plan .* it off"),
    ):
        planned(X, 2.0)


def test_the_original_runs_where_asked(small: Planned) -> None:
    planned, model = small.package.load(small.model(), on_mismatch="original"), small.model()
    outputs = []
    for module in (planned, model):
        torch.manual_seed(3)
        outputs.append(module(small.inputs(batch=2), 2.0))
        outputs[-1]["logits"].sum().backward()
    assert torch.equal(outputs[0]["logits"], outputs[1]["logits"])
    assert not is_planned(outputs[0]) and is_planned(planned(X, 2.0))
    assert_same_gradients(planned, model)
    with torch.autocast("cpu", torch.bfloat16):
        assert planned(X, 2.0)["logits"].dtype == torch.bfloat16


def test_other_ways_to_say_the_same_call(small: Planned) -> None:
    planned = small.package.load(small.model())
    assert is_planned(planned(x=X, scale=2.0))
    assert is_planned(planned(X, 2.0, None))
    assert is_planned(planned(X, mask=None, scale=2.0))
    assert is_planned(planned(torch.zeros(4, 1, 6)[:, 0], 2.0))
    with pytest.raises(TypeError, match="missing a required argument"):
        planned(scale=2.0)


def test_strides_without_meaning_are_not_compared(tmp_path: Path) -> None:
    graph, built = traced((nn.Linear(3, 2), ((torch.zeros(1, 3),), {})))
    planned = generated(graph, tmp_path / "linear").load(built.model)
    assert planned(torch.zeros(3, 1).t()).requires_grad


def test_a_dict_comes_in_its_order_since_a_model_may_go_through_it(tmp_path: Path) -> None:
    class Both(nn.Sequential):
        def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            return self[0](batch["a"] + 2 * batch["b"])

    batch = {"a": torch.randn(2, 3), "b": torch.randn(2, 3)}
    graph, built = traced((Both(nn.Linear(3, 2)), ((batch,), {})))
    planned = generated(graph, tmp_path / "both").load(built.model)
    turned = dict(reversed(batch.items()))
    for other in (turned, {"a": batch["a"]}):
        with pytest.raises(RuntimeError, match=r"batch has .*, which the plan was made for"):
            planned(other)
    with pytest.raises(RuntimeError, match=r"batch\['b'\] has shape \(1, 3\)"):
        planned({"a": batch["a"], "b": batch["b"][:1]})


def test_modules_in_evaluation_stay_there(tmp_path: Path) -> None:
    graph, built = traced(modules.normalized())
    planned = generated(graph, tmp_path / "normalized").load(built.model)
    planned(*built.samples[0][0])
    planned.train()
    with pytest.raises(RuntimeError, match=r"fixed is in training mode, the plan .* evaluation"):
        planned(*built.samples[0][0])


def test_a_model_that_is_another_one_is_refused_at_once(small: Planned) -> None:
    with pytest.raises(RuntimeError, match="for small and this model has no parameter"):
        small.package.load(nn.Linear(2, 2))
    model = small.model()
    vars(model)["forward"] = torch.neg
    with pytest.raises(RuntimeError, match="forward was replaced on the instance"):
        small.package.load(model)
    with pytest.raises(ValueError, match="on_mismatch is 'maybe'"):
        small.package.load(small.model(), on_mismatch="maybe")


def test_a_planned_module_can_be_planned_anew(small: Planned) -> None:
    planned = small.package.load(small.package.load(small.model()), on_mismatch="original")
    assert type(planned).__mro__[1] is Small
    assert is_planned(planned(X, 2.0))


def test_an_infeasible_plan_says_so(tmp_path: Path) -> None:
    from tightfit.stages.generate.package import infeasible_package, write_directory

    sentence = 'no plan fits into 1MB, "2MB" is the least that works'
    plan = {**PLAN, "status": "infeasible", "message": sentence, "peak": None, "time": None}
    write_directory(tmp_path / "module", infeasible_package(plan))
    package = load_package(tmp_path / "module")
    assert package.STATUS == "infeasible" and package.BUDGET == "50%"
    with pytest.raises(RuntimeError) as caught:
        package.load(nn.Linear(1, 1))
    assert str(caught.value) == sentence


class PartlyUnread(nn.Module):
    """The forward uses a weight that no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.unread = nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.unread(x)
        return self.read(x)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda model: model.unread.double(),
            "unread.weight has dtype torch.float64, the plan was",
        ),
        (lambda model: model.unread.to("meta"), "unread.weight is on meta, the plan was made for"),
    ],
)
def test_what_no_output_depends_on_stays_as_it_is(
    change: Any, sentence: str, tmp_path: Path
) -> None:
    """Eager fails where the forward reads it."""
    graph, built = traced((PartlyUnread(), ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    planned(X)
    change(planned)
    with pytest.raises(package.PlanMismatch, match=sentence):
        planned(X)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x) * scale


def test_the_remedy_is_that_of_what_differs(tmp_path: Path) -> None:
    graph, built = traced((Scaled(), ((X,), {"scale": 0.5})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    with pytest.raises(package.PlanMismatch, match=r"made for 0\.5; pass a number that changes"):
        planned(X, scale=0.25)
    sliced = torch.zeros(4, 7)[:, 1:]
    with pytest.raises(package.PlanMismatch, match=r"strides .*; give it x\.contiguous\(\), plan"):
        planned(sliced, scale=0.5)
    planned(sliced.contiguous(), scale=0.5)


def test_load_takes_modules_alone(small: Planned) -> None:
    with pytest.raises(RuntimeError, match="load is given a int instead of a torch module"):
        small.package.load(3)


def test_parameters_that_were_tied_since_are_named(tmp_path: Path) -> None:
    """Eager adds up their gradients in an order that a plan of two does not have."""
    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6))
    graph, built = traced((model, ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    planned(X)
    planned[0].weight = planned[2].weight
    with pytest.raises(
        package.PlanMismatch, match=r"0\.weight is the same tensor as 2\.weight, wh"
    ):
        planned(X)


class Averaging(nn.Module):
    """Writes a buffer and reads another one, and a tensor beside the buffers."""

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("mean", torch.ones(6))
        self.register_buffer("scale", torch.ones(6))
        self.shift = torch.ones(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.mul_(0.9)
        return self.layer(x) * self.scale + self.shift


def tie(model: Averaging) -> None:
    model.scale = model.mean


def overlap(model: Averaging) -> None:
    both = torch.ones(9)
    model.mean, model.scale = both[:6], both[3:]


def beside(model: Averaging) -> None:
    model.shift = model.mean.view(-1)


@pytest.mark.parametrize(
    ("change", "names"), [(tie, "scale"), (overlap, "scale"), (beside, "a te")]
)
def test_buffers_that_share_bytes_since_are_named(tmp_path: Path, change: Any, names: str) -> None:
    graph, built = traced_watched((Averaging(), ((X,), {})))
    package = generated(graph, tmp_path / "plan")
    planned = package.load(built.model)
    assert planned(X).grad_fn is not None
    both = torch.ones(12)
    planned.mean, planned.scale = both[:6], both[6:]
    assert planned(X).grad_fn is not None
    planned.mean = torch.ones(6)
    change(planned)
    with pytest.raises(package.PlanMismatch, match=rf"{names}.* shares its bytes with mean, which"):
        planned(X)


def test_a_written_buffer_that_is_read_from_elsewhere_is_refused() -> None:
    model = Averaging()
    model.shift = model.mean
    said = "a tensor of shape .6,. that shares its memory with the buffer 'mean'"
    with pytest.raises(ModelError, match=said):
        traced_watched((model, ((X,), {})))


def lacks_drop(model: Small) -> None:
    del model.drop


def another_drop(model: Small) -> None:
    model.drop = nn.Identity()  # type: ignore[assignment]


def one_more(model: Small) -> None:
    model.more = nn.Identity()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lacks_drop, "this model has no module drop"),
        (another_drop, "drop is a Identity, the plan was made with a Dropout"),
        (one_more, "this model has the module more, the plan was made without it"),
    ],
)
def test_load_refuses_other_modules_without_parameters(
    small: Planned, change: Any, sentence: str
) -> None:
    model = small.model()
    change(model)
    with pytest.raises(RuntimeError, match=sentence):
        small.package.load(model)
