from __future__ import annotations

from typing import Any

import pytest
import torch

from tightfit.schemas.graph.op_arguments import (
    decode_arguments,
    encode_arguments,
    iterate_argument_values,
)
from tightfit.schemas.graph.training_graph import Graph, GraphValue, Op
from tightfit.stages.profile.operands import make_operands
from tightfit.stages.torch_utils.operators import decode_argument, resolve

torch.set_num_threads(1)
CPU = torch.device("cpu")


def call(target: str, *args: Any, **kwargs: Any) -> tuple[Graph, Op]:
    """A graph of one op whose tensor arguments have the layouts of the given tensors."""
    values: list[GraphValue] = []

    def encode(argument: Any) -> Any:
        if isinstance(argument, list):
            return [encode(item) for item in argument]
        if not isinstance(argument, torch.Tensor):
            return argument
        dtype = str(argument.dtype).removeprefix("torch.")
        layout = (list(argument.shape), list(argument.stride()), 0, dtype, len(values))
        values.append(GraphValue(len(values), "intermediate", *layout))
        return {"value": len(values) - 1}

    encoded = [encode(argument) for argument in args]
    named = {name: encode(argument) for name, argument in kwargs.items()}
    inputs = list(dict.fromkeys(iterate_argument_values([encoded, list(named.values())])))
    op = Op(
        0,
        target,
        "forward",
        encode_arguments(encoded, named),
        inputs,
        [],
        [],
        [],
        False,
        True,
        "",
        "",
    )
    sizes = [1] * len(values)
    return Graph("m", "cpu", "", False, [op], values, sizes, [], [], [], [], "", "", "{}"), op


def run(target: str, *args: Any, **kwargs: Any) -> tuple[dict[int, torch.Tensor], Any]:
    graph, op = call(target, *args, **kwargs)
    overload = resolve(target)
    operands = make_operands(graph, op, overload, CPU)
    for value, tensor in operands.items():
        assert list(tensor.shape) == graph.values[value].shape
        assert list(tensor.stride()) == graph.values[value].strides
        assert tensor.dtype == getattr(torch, graph.values[value].dtype)
    assert set(operands) == set(op.inputs)
    encoded, kwargs = decode_arguments(op.arguments)
    named = {name: decode_argument(item, operands) for name, item in kwargs.items()}
    return operands, overload(*(decode_argument(item, operands) for item in encoded), **named)


F = torch.empty
INDICES = torch.empty(50, dtype=torch.int64)


def test_layouts_are_those_of_the_graph() -> None:
    run("aten.add.Tensor", F(4, 5).t(), F(5, 4))
    run("aten.mul.Tensor", F(1, 5).expand(4, 5), F(4, 5, dtype=torch.bfloat16))
    run("aten.add.Tensor", F(0, 5), F(0, 5))
    run("aten.mul.Tensor", F(3, dtype=torch.complex64), F(3, dtype=torch.complex64))
    run("aten.add.Tensor", F(()), F(()))


@pytest.mark.parametrize(
    "arguments",
    [
        ("aten.embedding.default", F(7, 3), INDICES),
        ("aten.embedding_dense_backward.default", F(50, 3), INDICES, 7, -1, False),
        ("aten.index_select.default", F(4, 7), 1, INDICES),
        ("aten.gather.default", F(7, 60), 0, F(5, 50, dtype=torch.int64)),
        ("aten.index.Tensor", F(7, 3), [INDICES]),
        ("aten.index.Tensor", F(2, 7, 3), [None, INDICES]),
        ("aten.index_put.default", F(7, 3), [INDICES], F(50, 3), True),
        ("aten.scatter_add.default", F(7), 0, INDICES, F(50)),
    ],
    ids=lambda arguments: arguments[0],
)
def test_indices_are_in_range_and_not_all_the_same(arguments: tuple[Any, ...]) -> None:
    operands, _ = run(*arguments)
    indices = next(t for t in operands.values() if t.dtype == torch.int64)
    assert len(indices.unique()) > 1


def test_targets_of_a_classification_are_classes() -> None:
    operands, (loss, _) = run("aten.nll_loss_forward.default", F(50, 7), INDICES, None, 1, -100)
    assert torch.isfinite(loss) and int(operands[1].max()) < 7


def test_maxima_lie_where_the_forward_found_them() -> None:
    image, pooled = F(2, 3, 8, 8), F(2, 3, 4, 4)
    operands, gradient = run(
        "aten.max_pool2d_with_indices_backward.default",
        pooled,
        image,
        [2, 2],
        [2, 2],
        [0, 0],
        [1, 1],
        False,
        F(2, 3, 4, 4, dtype=torch.int64),
    )
    expected = torch.nn.functional.max_pool2d(operands[1], 2, return_indices=True)[1]
    assert torch.equal(operands[2], expected)
    assert torch.isfinite(gradient).all()


def test_attention_reads_the_logsumexp_of_its_own_forward() -> None:
    query = F(2, 2, 8, 4)
    operands, gradients = run(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        F(2, 2, 8, 4),
        query,
        F(2, 2, 8, 4),
        F(2, 2, 8, 4),
        F(2, 8, 2, 4).transpose(1, 2),
        F(2, 8, 2).transpose(1, 2),
        0.0,
        True,
    )
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        operands[1], operands[2], operands[3], 0.0, True
    )
    assert torch.equal(operands[4], forward[0]) and torch.equal(operands[5], forward[1])
    assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize(
    "arguments",
    [
        (
            "aten.native_batch_norm_backward.default",
            *(F(2, 3, 4, 4), F(2, 3, 4, 4), F(3), F(3), F(3), F(3), F(3)),
            *(True, 1e-5, [True, True, True]),
        ),
        (
            "aten.native_layer_norm_backward.default",
            *(F(2, 6), F(2, 6), [6], F(2, 1), F(2, 1), F(6), F(6), [True, True, True]),
        ),
        ("aten.rsqrt.default", F(20)),
        ("aten.pow.Tensor_Scalar", F(20), 0.5),
        ("aten.div.Tensor", F(20), F(20)),
        ("aten.floor_divide.default", INDICES, INDICES),
    ],
    ids=lambda arguments: arguments[0],
)
def test_results_are_finite(arguments: tuple[Any, ...]) -> None:
    _, results = run(*arguments)
    results = results if isinstance(results, tuple) else (results,)
    assert all(torch.isfinite(result).all() for result in results)


def test_masks_are_mostly_true() -> None:
    mask = F(1000, dtype=torch.bool)
    operands, _ = run("aten.native_dropout_backward.default", F(1000), mask, 1.1)
    assert 0.5 < float(operands[1].double().mean()) < 1.0
