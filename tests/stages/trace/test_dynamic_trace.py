"""Traces whose sizes are expressions are those that calls of each size have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from data import models
from tests.stages.trace import dynamic_models as dynamic
from tightfit.schemas.graph.dynamic_inputs import DynamicDimension, DynamicInputs
from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, read_graph, write_graph
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.torch_utils.sample_sizes import resize_sample, resize_samples
from tightfit.stages.trace import capture as capturing
from tightfit.stages.trace.dynamic_trace import trace_dynamic, traced_sizes
from tightfit.stages.trace.forward import FunctionalForward
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError

MODELS: dict[str, Callable[[], BuiltModel]] = {
    "perceptron": lambda: dynamic.built_dynamic(
        (dynamic.Perceptron().train(), ((torch.randn(3, 8),), {})), dynamic.BATCH
    ),
    "convolutions": lambda: dynamic.built_dynamic(
        (dynamic.Convolutions().train(), ((torch.randn(3, 3, 8, 8),), {})), dynamic.BATCH
    ),
    "pointwise": lambda: dynamic.built_dynamic(
        (dynamic.Pointwise().train(), ((torch.randn(3, 3, 8, 8),), {})),
        (replace(dynamic.BATCH[0], largest=20),),
    ),
    "scaled": lambda: dynamic.built_dynamic(dynamic.tokens(dynamic.Scaled)),
    "gpt2": lambda: dynamic.built_dynamic(models.gpt2(1, 32, 2, 50, 2, 24, dropout=0.1)),
    "bert": lambda: dynamic.built_dynamic(models.bert(1, 32, 2, 50, 2, 24)),
    "llama": lambda: dynamic.built_dynamic(models.llama(1, 32, 4, 50, 2, 24)),
}


def comparable(graph: Graph) -> Graph:
    """A graph without the strides of dimensions of one element, and what it may overwrite. Before
    PyTorch 2.13 the result of a product is a view by another name where sizes are symbols."""
    values = [
        replace(
            value,
            strides=[
                step if size > 1 else 1
                for size, step in zip(value.shape, value.strides, strict=True)
            ],
        )
        for value in graph.values
    ]
    ops = [
        replace(op, in_place=[], target=op.target.replace("_unsafe_view", "view"))
        for op in graph.ops
    ]
    return replace(graph, values=values, ops=ops)


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_at_other_sizes_is_their_own_trace(name: str, tmp_path: Path) -> None:
    built = MODELS[name]()
    graph = trace_dynamic(built, name, loss_room=None)
    assert built.dynamic is not None and graph.dynamic is not None
    write_graph(tmp_path / "graph.arrow", graph)
    assert read_graph(tmp_path / "graph.arrow") == graph
    assert replace(graph, dynamic=None) == graph_at(graph, built.dynamic.largest)
    sizes = {one.name: (one.smallest + one.largest) // 2 for one in built.dynamic.dimensions}
    assert sizes not in traced_sizes(built.dynamic)
    own = trace(replace(resize_samples(built, sizes), dynamic=None), name, loss_room=None)
    assert comparable(graph_at(graph, sizes)) == comparable(own)
    for op, at_size in zip(graph.ops, own.ops, strict=True):
        assert {*op.in_place} <= {*at_size.in_place}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (dynamic.SquareRoot, r"fixes the dynamic dimension 'tokens' to be \d+ at .*dynamic_models"),
        (dynamic.Loop, r"fixes the dynamic dimension 'tokens' to be \d+ at .*dynamic_models"),
        (dynamic.Branch, r"goes another way where not .*tokens.* at .*dynamic_models.py.*min=17"),
        (dynamic.Shifted, r"at .*dynamic_models.py:\d+, as at tokens = 2: give tokens .*\(min=3\)"),
        (dynamic.Strided, r"at .*dynamic_models.py:\d+, as at tokens = 2: give tokens .*\(min="),
        (dynamic.Cached, r"dynamic_models.py:\d+: it keeps something by a dynamic size, as in"),
        (dynamic.Constant, r"fixes the dynamic dimension 'tokens' to be \d+ at .*dynamic_models"),
        (
            dynamic.Halves,
            "goes another way where not|fixes the dynamic dimension|cannot be captured",
        ),
        (dynamic.Shrinking, "may be larger at smaller sizes"),
    ],
)
def test_what_is_no_one_program_is_refused(kind: type[torch.nn.Module], said: str) -> None:
    built = dynamic.built_dynamic(dynamic.tokens(kind))
    with pytest.raises(ModelError, match=said):
        trace_dynamic(built, "model")


@pytest.mark.parametrize(
    ("kind", "least", "most"), [(dynamic.Square, 2, 20_000), (dynamic.OneSize, 2, 30_000)]
)
def test_a_branch_for_few_of_many_sizes_is_refused(
    kind: type[torch.nn.Module], least: int, most: int
) -> None:
    dimensions = (dynamic.TEXT[0], replace(dynamic.TEXT[1], smallest=least, largest=most))
    with pytest.raises(ModelError, match=r"goes another way where not Ne\("):
        trace_dynamic(dynamic.built_dynamic(dynamic.tokens(kind), dimensions), "model")


class TwoOutputs(torch.nn.Module):
    """Two outputs, of which a loss uses the second."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        made = self.layer(x)
        return made.tanh(), made.sigmoid()


def test_the_outputs_of_a_loss_are_found_without_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    symbolic: list[bool] = []
    original = capturing._capture

    def count(built: BuiltModel, forward: FunctionalForward) -> capturing.Capture:
        symbolic.append(built.symbolic)
        return original(built, forward)

    monkeypatch.setattr(capturing, "_capture", count)
    made = (*dynamic.tokens(TwoOutputs), lambda outputs: outputs[1].square().mean())
    graph = trace_dynamic(dynamic.built_dynamic(made), "model")
    assert symbolic == [False, True]
    assert [output.tangent != NO_VALUE for output in graph.outputs] == [False, True]


def test_a_classifier_may_find_out_its_kind_in_its_first_forward() -> None:
    """Runs that are compared to see that it does so once have the same symbols."""
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    sizes: dict[str, Any] = {"vocab_size": 50, "n_layers": 1, "n_heads": 2, "num_labels": 3}
    config = DistilBertConfig(**sizes, dim=16, hidden_dim=32)
    ids = torch.randint(50, (4, 24))
    sample = {"input_ids": ids, "labels": ids[:, 0] % 3}
    model = DistilBertForSequenceClassification(config).train()
    built = dynamic.built_dynamic((model, ((), sample), lambda output: output.loss), axes=[0])
    assert built.dynamic is not None
    axes = {**built.dynamic.axes, 1: {0: "batch"}}
    graph = trace_dynamic(replace(built, dynamic=replace(built.dynamic, axes=axes)), "model")
    assert graph.dynamic is not None and model.config.problem_type is None


def test_a_branch_beyond_the_range_is_none() -> None:
    dimensions = (dynamic.TEXT[0], replace(dynamic.TEXT[1], smallest=5, largest=400))
    for kind in (dynamic.Square, dynamic.OneSize):
        graph = trace_dynamic(dynamic.built_dynamic(dynamic.tokens(kind), dimensions), "model")
        assert graph.dynamic is not None


def test_small_ranges_have_sizes_that_tell_dimensions_apart() -> None:
    small = tuple(replace(one, smallest=2, largest=4) for one in dynamic.TEXT)
    built = dynamic.built_dynamic(dynamic.tokens(dynamic.Weighted), small)
    assert built.dynamic is not None
    assert any(sizes["batch"] != sizes["tokens"] for sizes in traced_sizes(built.dynamic))
    assert trace_dynamic(built, "model").dynamic is not None


ODD = (dynamic.TEXT[0], replace(dynamic.TEXT[1], smallest=3, largest=23))
SIDES = (
    replace(dynamic.BATCH[0], largest=4),
    DynamicDimension("height", 6, 16),
    DynamicDimension("width", 6, 16),
)


@pytest.mark.parametrize(
    "build",
    [
        lambda: dynamic.built_dynamic(dynamic.tokens(dynamic.Parity), ODD),
        lambda: replace(
            dynamic.built_dynamic(
                (dynamic.Halved().train(), ((torch.randn(2, 3, 8, 8),), {})), dynamic.BATCH
            ),
            dynamic=DynamicInputs(SIDES, {0: {0: "batch", 2: "height", 3: "width"}}),
        ),
    ],
    ids=["parity", "halved"],
)
def test_numbers_that_agree_at_some_sizes_are_told_apart(
    build: Callable[[], BuiltModel],
) -> None:
    built = build()
    assert built.dynamic is not None
    built = resize_samples(built, built.dynamic.largest)
    graph = trace_dynamic(built, "model", loss_room=None)
    assert built.dynamic is not None
    last = built.dynamic.dimensions[-1]
    for size in range(last.smallest, min(last.smallest + 6, last.largest)):
        sizes = {**built.dynamic.largest, last.name: size}
        own = trace(replace(resize_samples(built, sizes), dynamic=None), "model", loss_room=None)
        assert comparable(graph_at(graph, sizes)) == comparable(own)


def test_plans_are_compared_at_even_and_odd_sizes() -> None:
    for least, most in ((3, 11), (5, 49), (4, 12), (2, 1024)):
        inputs = DynamicInputs((DynamicDimension("tokens", least, most),))
        sizes = [at["tokens"] for at in (*inputs.checked_sizes(), inputs.largest)]
        assert {size % 2 for size in sizes} == {0, 1}
        assert all(least <= size <= most for size in sizes)


class Sum(torch.nn.Module):
    """A layer and another tensor, which may be one of its own for four rows."""

    table: torch.Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("table", torch.ones(4, 4))
        self.how = how

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.layer(x)
        if self.how == "view":
            return made.view(2, -1, 4) + y.sum()
        return made + (self.table if self.how == "table" else y)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("sum", r"tensor a \(batch\) must match the size of tensor b \(others\) at .* 0 \(with "),
        ("sum", "; dimensions that have to be equal need one name"),
        ("table", "leave batch out of dynamic_shapes, which the model fixes to be 4, or give"),
        ("view", r"of size 4\*batch \(.*; give what is divided as a multiple, .*and leave a dim"),
    ],
)
def test_sizes_that_do_not_go_together_are_told(how: str, said: str) -> None:
    dimensions = (dynamic.TEXT[0], replace(dynamic.TEXT[0], name="others"))
    given: Any = Sum(how), ((torch.randn(4, 4), torch.randn(4, 4)), {})
    built = dynamic.built_dynamic(given, dimensions[:1])
    assert built.dynamic is not None
    apart = replace(built.dynamic, dimensions=dimensions, axes={0: {0: "batch"}, 1: {0: "others"}})
    with pytest.raises(ModelError, match=said):
        trace_dynamic(replace(built, dynamic=apart), "model")


def test_a_sample_is_repeated_to_other_sizes() -> None:
    built = dynamic.built_dynamic(models.gpt2(1, 32, 2, 50, 2, 24))
    (ids,), _ = built.samples[0]
    assert built.dynamic is not None
    longer = replace(
        built.dynamic, dimensions=(replace(dynamic.TEXT[0], largest=9), dynamic.TEXT[1])
    )
    ((more,), _) = resize_sample(
        ((ids.t().contiguous().t(),), {}), longer, {"batch": 9, "tokens": 5}
    )
    assert more.shape == (9, 5) and more.stride() == (1, 9)
    assert torch.equal(more[4:8], ids[:, :5]) and torch.equal(more[8], ids[0, :5])


def test_a_mask_masks_something_at_all_sizes() -> None:
    mask = torch.ones(2, 24, dtype=torch.int64)
    mask[1, 20:] = 0
    built = dynamic.built_dynamic((torch.nn.Identity(), ((mask, torch.ones(2, 24)), {})))
    (small, ones), _ = resize_samples(built, {"batch": 2, "tokens": 3}).samples[0]
    assert small.tolist() == [[1, 1, 1], [1, 1, 0]] and bool((ones == 1).all())
