"""Small modules with one difficulty each: the file runs like the module, or one sentence says why
it cannot."""

from __future__ import annotations

import gc
import json
import random
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.stages.trace import layers, modules, unsupported_modules
from tests.stages.trace.eager_comparison import check_against_eager
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph
from tightfit.stages.torch_utils.model_factory import BuiltModel, build_from_factory
from tightfit.stages.trace.program import FakeConstantError
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ModelError

FILES = (modules, layers, unsupported_modules)


def made(name: str, fake: bool = False) -> BuiltModel:
    file = next(file for file in FILES if hasattr(file, name))
    return build_from_factory(f"{file.__name__}:{name}", {}, fake=fake)


@pytest.mark.parametrize(
    "name",
    "structured transposed normalized watching counting tied shared noisy heads mixed slicing "
    "summed exposing spectral images checkpointed pythonic stepping naming twice".split(),
)
def test_runs_like_the_module(name: str, tmp_path: Path) -> None:
    built = made(name)
    check_against_eager(trace(built, name), built, tmp_path / "graph.arrow")


@pytest.mark.parametrize(
    "name", "transposed normalized watching counting tied shared noisy mixed".split()
)
def test_without_memory_it_is_the_same_graph(name: str) -> None:
    fake = made(name, fake=True)
    assert fake.fake_mode is not None
    assert trace(fake, name) == trace(made(name), name)


@pytest.mark.parametrize("p", [0.1, 0.15, 0.42, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_dropout_is_that_of_eager(p: float, dtype: str, tmp_path: Path) -> None:
    built = build_from_factory(f"{layers.__name__}:dropout", {"p": p, "dtype": dtype})
    check_against_eager(trace(built, "dropout"), built, tmp_path / "graph.arrow")


def test_autocast_around_the_trace_is_captured_and_recorded(tmp_path: Path) -> None:
    built = made("heads")
    with torch.autocast("cpu", torch.bfloat16):
        graph = trace(built, "heads")
        check_against_eager(graph, built, tmp_path / "graph.arrow")
    assert json.loads(graph.guards)["autocast"] == {
        "enabled": True,
        "dtype": "bfloat16",
        "cache": True,
    }
    assert "bfloat16" in {value.dtype for value in graph.values}


def test_a_plain_tensor_attribute_needs_the_real_model() -> None:
    with pytest.raises(FakeConstantError, match="scale"):
        trace(made("structured", fake=True), "structured")


def ops_of(graph: Graph, target: str) -> list[int]:
    return [op.id for op in graph.ops if op.target == target]


def test_batch_norm_writes_its_buffers_once_and_early() -> None:
    graph = trace(made("normalized"), "normalized")
    writes = [op for op in graph.ops if op.writes]
    assert all(op.phase == "forward" and not op.repeatable for op in writes)
    paths = [graph.values[op.writes[0]].path for op in writes]
    assert sorted(set(paths)) == [
        "norm.num_batches_tracked",
        "norm.running_mean",
        "norm.running_var",
    ]
    norms = ops_of(graph, "aten._native_batch_norm_legit_functional.default")
    assert [graph.ops[op].repeatable for op in norms] == [True, True]


def test_a_batch_norm_whose_statistics_are_used_runs_once() -> None:
    graph = trace(made("watching"), "watching")
    norms = ops_of(graph, "aten._native_batch_norm_legit_functional.default")
    assert [graph.ops[op].repeatable for op in norms] == [False, False]


def test_gradients_have_storages_of_their_own() -> None:
    graph = trace(made("shared"), "shared")
    storages = [graph.values[gradient.gradient].storage for gradient in graph.gradients]
    assert len(set(storages)) == len(storages) == 7
    held = {graph.values[output.tangent].storage for output in graph.outputs}
    assert not held & set(storages)


def test_tied_weights_are_one_value() -> None:
    graph = trace(made("tied"), "tied")
    [weight] = [value for value in graph.values if value.path == "embedding.weight"]
    assert weight.aliases == ["head.weight"]
    owners = [graph.values[gradient.value].path for gradient in graph.gradients]
    assert sorted(owners) == ["embedding.weight", "embedding.weight", "shift"]


def test_what_autograd_adds_up_is_in_its_order() -> None:
    graph = trace(made("twice"), "twice")
    made_in = {value: op for op in graph.ops for value in op.outputs}
    parts = [
        made_in[gradient.gradient]
        for gradient in graph.gradients
        if graph.values[gradient.value].path == "weight"
    ]
    assert len(parts) == 3
    assert [op.id for op in parts] == sorted(op.id for op in parts)


def test_one_tensor_given_twice_is_two_inputs() -> None:
    graph = trace(made("exposing"), "exposing")
    assert len(set(graph.inputs)) == 2
    assert len({graph.values[value].storage for value in graph.inputs}) == 2


def test_the_backward_reads_no_written_buffer() -> None:
    graph = trace(made("stepping"), "stepping")
    written = {graph.values[value].storage for op in graph.ops for value in op.writes}
    assert written
    for op in graph.ops:
        if op.phase == "backward":
            assert not written & {graph.values[value].storage for value in op.inputs}


def test_random_generators_and_the_model_are_left_as_they_were() -> None:
    built = made("noisy")
    states = torch.get_rng_state(), random.getstate()
    before = dict(vars(built.model))
    trace(built, "noisy")
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert vars(built.model) == before


def test_a_loss_leaves_out_what_it_does_not_use() -> None:
    graph = trace(made("heads"), "heads")
    assert graph.has_loss
    assert [output.tangent != NO_VALUE for output in graph.outputs] == [True, False, True]
    owners = {graph.values[gradient.value].path for gradient in graph.gradients}
    assert owners == {"body.weight", "body.bias", "used.weight", "used.bias"}
    assert len(ops_of(graph, LOSS_TARGET)) == 1


@pytest.mark.parametrize(
    ("loss", "held"),
    [
        (lambda output: output["y"].sum(), True),
        (lambda output: output["y"].sum() + output["y"][0, 0], False),
        (lambda output: output["y"].mean(), False),
    ],
)
def test_the_gradient_that_a_loss_is_given_is_held(loss: Any, held: bool) -> None:
    built = replace(made("structured"), loss=loss)
    graph = trace(built, "structured")
    [output] = [output for output in graph.outputs if output.tangent != NO_VALUE][:1]
    assert (output.tangent in graph.caller_owned_values()) == held


def test_only_draws_are_random() -> None:
    graph = trace(made("noisy"), "noisy")
    random = [op.target for op in graph.ops if op.random]
    assert random == [
        "aten.rand.default",
        "aten.native_dropout.default",
        "aten.randn_like.default",
    ]


def test_phases_are_one_after_the_other_and_backward_needs_tangents_late() -> None:
    graph = trace(made("tied"), "tied")
    phases = [op.phase for op in graph.ops]
    assert phases == sorted(phases, key=["forward", "loss", "backward"].index)
    made_in = {value: op for op in graph.ops for value in op.outputs}
    for output in graph.outputs:
        assert made_in[output.value].phase == "forward"


def test_guards_name_modules_in_evaluation() -> None:
    graph = trace(made("normalized"), "normalized")
    guards = json.loads(graph.guards)
    assert guards["eval_modules"] == ["fixed"]
    assert guards["autocast"]["enabled"] is False


def test_ops_know_where_they_come_from() -> None:
    graph = trace(made("heads"), "heads")
    [tanh] = [op for op in graph.ops if op.target == "aten.tanh.default"]
    assert tanh.source.startswith("tests/stages/trace/modules.py:")
    linears = {
        op.module for op in graph.ops if op.target in ("aten.addmm.default", "aten.mm.default")
    }
    assert linears == {"body", "used"} | ({"unused"} & linears)


def test_in_place_forms_are_offered_where_an_input_is_alone_in_its_storage() -> None:
    graph = trace(made("heads"), "heads")
    [tanh] = [op for op in graph.ops if op.target == "aten.tanh.default"]
    [backward] = [op for op in graph.ops if op.target == "aten.tanh_backward.default"]
    assert len(tanh.in_place) == 1 and graph.values[tanh.in_place[0]].shape == [3, 4]
    assert set(backward.in_place) == set(backward.inputs)
    shared = trace(made("shared"), "shared")
    for op in shared.ops:
        for value in op.in_place:
            assert shared.values[value].kind in ("intermediate", "tangent")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("branching", ["tests/stages/trace/unsupported_modules.py:", "depends on the data"]),
        ("overwriting", ["input", "in place"]),
        ("showing", ["buffer 'scale'", "clone"]),
        ("listing", ["does not register", "ModuleList"]),
        ("filling", ["dictionary that it is given"]),
        ("jumping", ["tests/stages/trace/unsupported_modules.py:", "Python's random"]),
        ("sparse", ["makes sparse gradients", "set its sparse to False"]),
        ("detached", ["no output of the model depends"]),
        ("decoding", ["tests/stages/trace/unsupported_modules.py:", "JSONDecodeError"]),
    ],
)
def test_what_cannot_be_traced_is_told_in_a_sentence(name: str, words: list[str]) -> None:
    with pytest.raises(ModelError) as caught:
        trace(made(name), name)
    text = str(caught.value)
    assert "\n" not in text
    for word in words:
        assert word in text, text


def test_nothing_of_the_trace_refers_to_the_tensors_of_the_model() -> None:
    """A parameter that anything refers to weakly cannot be swapped, as conversions may want to."""
    built = made("normalized")
    trace(built, "normalized")
    gc.collect()
    state = [*built.model.parameters(), *built.model.buffers()]
    assert [weakref.getweakrefcount(tensor) for tensor in state] == [0] * len(state)
