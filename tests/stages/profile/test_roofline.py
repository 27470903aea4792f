"""Costs by roofline: positive, rising with sizes, at the speed of the dtype, equal at each call."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tests.schemas.machine_descriptions import described
from tests.stages.trace import dynamic_models
from tightfit.schemas.costs import Costs, OpCost
from tightfit.schemas.graph.dynamic_shapes import graph_at
from tightfit.schemas.graph.op_arguments import encode_arguments
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph, GraphValue, Op
from tightfit.stages.profile.roofline import count_flops, roofline, temporary_bytes
from tightfit.stages.torch_utils.model_factory import check_factory_result
from tightfit.stages.trace.dynamic_trace import trace_dynamic
from tightfit.stages.trace.trace import trace
from tightfit.util.errors import ArtifactError

FLASH = "aten._scaled_dot_product_flash_attention_for_cpu"


def graph_of(
    target: str,
    arguments: list[Any],
    made: list[list[int]],
    dtype: str = "float32",
    phase: Any = "forward",
) -> Graph:
    """A graph of one op: lists of sizes among its arguments are tensors, each in its storage."""
    shapes = [argument for argument in arguments if isinstance(argument, list)]
    width = getattr(torch, dtype).itemsize
    values = [
        GraphValue(index, "intermediate", shape, [1] * len(shape), 0, dtype, index)
        for index, shape in enumerate([*shapes, *made])
    ]
    numbers = iter(range(len(shapes)))
    call = [{"value": next(numbers)} if isinstance(a, list) else a for a in arguments]
    inputs, outputs = list(range(len(shapes))), list(range(len(shapes), len(values)))
    op = Op(
        0, target, phase, encode_arguments(call, {}), inputs, outputs, [], [], False, True, "", ""
    )
    sizes = [prod(value.shape) * width for value in values]
    return Graph("m", "cpu", "2", False, [op], values, sizes, [], [], [], [], "", "", "{}")


def cost(graph: Graph, folder: Path, **changes: Any) -> OpCost:
    """The cost of the one op of a graph."""
    costs = roofline(graph, described(folder / "machine.json", **changes))
    return costs.of(graph, graph.ops[0])


def test_the_sizes_of_a_second_plan_have_costs_of_their_own(tmp_path: Path) -> None:
    built = dynamic_models.built_dynamic(dynamic_models.tokens(dynamic_models.Weighted))
    assert built.dynamic is not None
    graph = trace_dynamic(replace(built, dynamic=replace(built.dynamic, plans=2)), "model")
    assert graph.dynamic is not None
    assert graph.dynamic.small_sizes == {"batch": 4, "tokens": 13}
    costs = roofline(graph, described(tmp_path / "machine.json"))
    small = graph_at(graph, graph.dynamic.small_sizes)
    ops = [op for op in graph.ops if not graph.is_view(op)]
    assert all(costs.of(small, op).seconds <= costs.of(graph, op).seconds for op in ops)
    assert sum(costs.of(small, op).seconds for op in ops) > 0


def product(rows: int, inner: int, columns: int, dtype: str = "float32") -> Graph:
    return graph_of("aten.mm.default", [[rows, inner], [inner, columns]], [[rows, columns]], dtype)


SIZE = st.integers(1, 4096)


@settings(max_examples=50, deadline=None)
@given(sizes=st.tuples(SIZE, SIZE, SIZE), more=st.integers(1, 8), place=st.integers(0, 2))
def test_a_larger_product_takes_longer(
    tmp_path_factory: pytest.TempPathFactory, sizes: tuple[int, int, int], more: int, place: int
) -> None:
    folder = tmp_path_factory.mktemp("roofline")
    rows, inner, columns = (size + more * (i == place) for i, size in enumerate(sizes))
    small, large = cost(product(*sizes), folder), cost(product(rows, inner, columns), folder)
    assert 0 < small.seconds < large.seconds
    assert 0 < small.peak <= large.peak and small.peak == small.net


@settings(max_examples=50, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 4), st.integers(1, 8), SIZE, st.integers(1, 256)),
    place=st.integers(0, 3),
    causal=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_larger_attention_takes_longer_and_more(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: tuple[int, int, int, int],
    place: int,
    causal: bool,
    dtype: str,
) -> None:
    folder = tmp_path_factory.mktemp("roofline")

    def backward(*shape: int) -> Graph:
        whole, rows = list(shape), list(shape[:3])
        arguments = [whole, whole, whole, whole, whole, rows, 0.0, causal]
        return graph_of(f"{FLASH}_backward.default", arguments, [whole] * 3, dtype)

    small = cost(backward(*sizes), folder)
    large = cost(backward(*[n + (i == place) for i, n in enumerate(sizes)]), folder)
    assert 0 < small.seconds < large.seconds
    assert small.net < large.net and small.peak <= large.peak
    assert (small.peak > small.net) == (dtype == "bfloat16")


def test_a_product_takes_the_longer_of_work_and_traffic(tmp_path: Path) -> None:
    graph, plain = product(512, 512, 512), {"latency": 0}
    work, bytes_ = 2 * 512**3, 3 * 4 * 512**2
    assert cost(graph, tmp_path, flops=1e9, **plain).seconds == pytest.approx(work / 1e9)
    assert cost(graph, tmp_path, bandwidth=1e4, **plain).seconds == pytest.approx(bytes_ / 1e4)
    assert cost(graph, tmp_path, latency=0.5).seconds > 0.5


def test_work_is_done_at_the_speed_of_its_dtype(tmp_path: Path) -> None:
    fast = {"flops": {"float32": 1e9, "float16": 8e9}, "bandwidth": 1e17, "latency": 0}
    single = cost(product(64, 64, 64), tmp_path, **fast).seconds
    assert cost(product(64, 64, 64, "float16"), tmp_path, **fast).seconds == single / 8
    assert cost(product(64, 64, 64, "bfloat16"), tmp_path, **fast).seconds == single
    assert cost(product(64, 64, 64, "complex64"), tmp_path, **fast).seconds == 4 * single


def test_half_of_causal_attention_is_left_out() -> None:
    shape = [2, 3, 5, 7]
    whole, causal = (
        graph_of(f"{FLASH}.default", [shape, shape, shape, 0.0, c], [shape, shape[:3]])
        for c in (False, True)
    )
    assert count_flops(whole, whole.ops[0]) == 4 * prod(shape) * 5
    assert count_flops(causal, causal.ops[0]) == 2 * prod(shape) * 5


def test_attention_of_a_tensor_with_itself_is_work() -> None:
    class Attention(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.ones(2, 3, 8, 4, requires_grad=True)
    graph = trace(check_factory_result((Attention(), ((x,), {})), "a"), "a")
    done = {op.target: count_flops(graph, op) for op in graph.ops if count_flops(graph, op)}
    each = x.numel() * 8
    assert done == {f"{FLASH}.default": 4 * each, f"{FLASH}_backward.default": 10 * each}


def test_temporaries_of_attention_with_few_keys() -> None:
    query, key = [8, 32, 4096, 128], [8, 8, 4096, 128]
    arguments = [query, query, key, key, query, query[:3], 0.0, True]
    made = [query, key, key]
    graph = graph_of(f"{FLASH}_backward.default", arguments, made, "bfloat16")
    accumulated, sums = 4 * prod(query), 4 * prod(query[:3])
    assert temporary_bytes(graph, graph.ops[0]) == accumulated + sums + 2 * 2 * prod(query)


@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_are_work(transposed: bool) -> None:
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = nn.Sequential(kind(3, 4, 3), kind(4, 6, 3, groups=2))
    graph = trace(check_factory_result((model, ((torch.ones(2, 3, 8, 8),), {})), "r"), "r")
    done = [count_flops(graph, op) for op in graph.ops if "convolution" in op.target]
    first = 2 * 2 * (3 * 64 * 4 if transposed else 4 * 36 * 3) * 9
    second = 2 * 2 * (4 * 100 * 3 if transposed else 6 * 16 * 2) * 9
    assert done == [first, second, 2 * second, first]


def test_a_view_moves_nothing_and_a_table_what_is_taken_of_it(tmp_path: Path) -> None:
    table = graph_of("aten.embedding.default", [[50_000, 64], [10]], [[10, 64]])
    plain = {"latency": 0, "bandwidth": 1e6}
    taken = 10 * 64 * 4
    assert cost(table, tmp_path, **plain).seconds == pytest.approx((2 * taken + 40) / 1e6)
    empty = graph_of("aten.empty_like.default", [[64, 64]], [[64, 64]])
    assert cost(empty, tmp_path, **plain).seconds == 0
    ones = graph_of("aten.ones_like.default", [[64, 64]], [[64, 64]])
    assert cost(ones, tmp_path, **plain).seconds == pytest.approx(64 * 64 * 4 / 1e6)


def test_a_whole_step_costs_the_same_at_each_call(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.GELU(), nn.Linear(16, 1))
    samples: tuple[Any, ...] = ((torch.randn(4, 8),), {})
    graph = trace(check_factory_result((model, samples, lambda out: out.mean()), "m"), "m")
    path = described(tmp_path / "machine.json", memory=80_000_000_000)
    first, second = roofline(graph, path), roofline(graph, path)
    assert first.rows == second.rows and first.device == second.device
    assert (first.device.name, first.device.type) == ("a GPU", "cuda")
    assert first.device.described and first.device.memory == 80_000_000_000
    assert _made(graph, first)


def _made(graph: Graph, costs: Costs) -> bool:
    """Whether each op has a time and leaves what the graph says it makes."""
    for op in graph.ops:
        row = costs.of(graph, op)
        read = {graph.values[value].storage for value in op.inputs}
        made = {graph.values[value].storage for value in op.outputs if value != NO_VALUE} - read
        assert row.net == sum(graph.storages[storage] for storage in made), op.target
        assert (row.seconds > 0) != graph.is_view(op) and row.peak >= row.net
    return any(op.target == LOSS_TARGET for op in graph.ops)


@pytest.mark.parametrize(
    ("target", "given"),
    [
        ("aten.mm.default", [2.0]),
        ("aten.addmm.default", [[2, 3]]),
        ("aten.convolution.default", [[1, 2, 3, 3], [2, 2, 1, 1]]),
        (f"{FLASH}.default", [[3], [3], [3]]),
    ],
)
def test_an_op_of_other_arguments_is_refused(target: str, given: list[Any], tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"op 0 \(.*\) is given what its operator does not"):
        cost(graph_of(target, given, [[2, 2]]), tmp_path)
