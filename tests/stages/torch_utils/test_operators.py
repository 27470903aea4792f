"""Names, arguments and in-place forms of operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tightfit.stages.torch_utils.operators import (
    IN_PLACE_FORMS,
    decode_argument,
    draws_random_numbers,
    encode_plain_argument,
    in_place_calls,
    in_place_form,
    in_place_position,
    resolve,
)
from tightfit.util.errors import ArtifactError

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.transpose(1, 3).contiguous().transpose(1, 3),
    "channels_last": lambda tensor: tensor.contiguous(memory_format=torch.channels_last),
}
SHAPES = [(2, 3, 5, 7), (1, 4, 8, 67)]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]

SCALARS: dict[str, list[list[Any]]] = {
    "add.Scalar": [[1.5]],
    "sub.Scalar": [[0.3]],
    "mul.Scalar": [[0.125], [3]],
    "div.Scalar": [[3.0]],
    "masked_fill.Scalar": [["mask", -1.5]],
    "masked_fill.Tensor": [["mask", "zero"]],
    "pow.Tensor_Scalar": [[2], [3], [0.5], [-1.0], [2.7]],
    "hardtanh.default": [[], [-0.5, 0.7]],
    "clamp.default": [[-0.4, 0.6], [None, 0.2]],
    "clamp_min.default": [[0.1]],
    "clamp_max.default": [[0.1]],
    "leaky_relu.default": [[], [0.2]],
    "_softmax.default": [[dim, False] for dim in (0, 1, 2, 3, -1)],
    "_log_softmax.default": [[dim, False] for dim in (0, 1, 2, 3, -1)],
    "_softmax_backward_data.default": [["other", dim, "dtype"] for dim in (0, 1, 2, 3, -1)],
    "_log_softmax_backward_data.default": [["other", dim, "dtype"] for dim in (0, 1, 2, 3, -1)],
    "threshold_backward.default": [["other", 0]],
    "hardtanh_backward.default": [["other", -0.5, 0.7]],
    "leaky_relu_backward.default": [["other", 0.1, False]],
    "elu_backward.default": [[1.0, 1.0, 1.0, False, "other"], [1.3, 1.0, 1.0, True, "other"]],
    "softplus_backward.default": [["other", 1.0, 20.0]],
    "native_dropout_backward.default": [["mask", 1 / 0.9], ["mask", 2.0]],
    "addcmul.default": [["other", "third"]],
    "addcdiv.default": [["other", "third"]],
}
KEYWORDS: dict[str, list[dict[str, Any]]] = {
    "add.Tensor": [{}, {"alpha": 2}],
    "sub.Tensor": [{}, {"alpha": 0.5}],
    "gelu.default": [{}, {"approximate": "tanh"}],
    "gelu_backward.default": [{}, {"approximate": "tanh"}],
    "addcmul.default": [{}, {"value": 0.3}],
    "addcdiv.default": [{}, {"value": -0.3}],
}
MIXED = ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor")
BITWISE = ("bitwise_and.Tensor", "bitwise_or.Tensor", "bitwise_not.default")


def operands(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, layout: str, device: str
) -> list[tuple[list[Any], dict[str, Any]]]:
    """Calls of an operator on random tensors of one layout."""
    generator = torch.Generator().manual_seed(len(name))

    def tensor() -> torch.Tensor:
        made = torch.randn(shape, generator=generator)
        if name in BITWISE or name == "logical_not.default":
            return LAYOUTS[layout](made > 0).to(device)
        return LAYOUTS[layout](made.to(dtype)).to(device)

    first, other, third = tensor(), tensor(), tensor()
    if name.startswith(("log.", "sqrt", "rsqrt", "log1p", "pow")):
        first = first.abs() + 0.1
    named: dict[str, Any] = {
        "mask": LAYOUTS[layout](torch.rand(shape, generator=generator) > 0.3).to(device),
        "zero": torch.zeros((), dtype=dtype, device=device),
        "other": other.abs() + 0.1 if name.startswith("addcdiv") else other,
        "third": third.abs() + 0.1 if name.startswith("addcdiv") else third,
        "dtype": dtype,
    }
    if name == "where.self":
        return [([named["mask"], first, other], {})]
    schema = resolve(f"aten.{name}")._schema.arguments
    two = sum(str(argument.type) == "Tensor" for argument in schema) > 1
    rests = SCALARS.get(name, [["other"]] if two else [[]])
    calls: list[tuple[list[Any], dict[str, Any]]] = []
    for rest in rests:
        args = [first] + [named.get(a, a) if isinstance(a, str) else a for a in rest]
        calls.extend((args, kwargs) for kwargs in KEYWORDS.get(name, [{}]))
    if name in MIXED:
        row = named["other"][:, :1, :1, :]
        calls += [([first, 2.5], {}), ([first, row], {}), ([row, first], {})]
    return calls


def run_in_place(target: str, position: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The overwritten copy of the argument, and the same tensor where it was given twice."""
    overwritten = args[position]
    copy = overwritten.clone()
    args = [copy if argument is overwritten else argument for argument in args]
    for call in in_place_calls(target, position, args, kwargs):
        result = resolve(call.target)(*call.args, **call.kwargs)
        assert result is copy
    return copy


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("target", IN_PLACE_FORMS)
def test_in_place_forms_give_the_same_bits(target: str, layout: str, device: str) -> None:
    name = target.removeprefix("aten.")
    compared = 0
    for shape in SHAPES:
        for dtype in FLOATS:
            for args, kwargs in operands(name, shape, dtype, layout, device):
                expected = resolve(target)(*args, **kwargs)
                for position in IN_PLACE_FORMS[target].positions:
                    if not in_place_form(target, position, device) or not fits(
                        args, position, expected
                    ):
                        continue
                    result = run_in_place(target, position, args, kwargs)
                    assert torch.equal(bits(result), bits(expected)), (shape, dtype, args, kwargs)
                    compared += 1
    assert compared or layout != "contiguous" or device not in IN_PLACE_FORMS[target].devices


def fits(args: list[Any], position: int, expected: torch.Tensor) -> bool:
    argument = args[position] if position < len(args) else None
    return (
        isinstance(argument, torch.Tensor)
        and argument.shape == expected.shape
        and argument.stride() == expected.stride()
        and argument.dtype == expected.dtype
    )


@pytest.mark.parametrize("target", ["aten.mul.Tensor", "aten.add.Tensor", "aten.div.Tensor"])
def test_an_operand_given_twice_may_be_overwritten(target: str) -> None:
    tensor = torch.randn(5, 33)
    expected = resolve(target)(tensor, tensor)
    for position in (0, 1):
        result = run_in_place(target, position, [tensor, tensor], {})
        assert torch.equal(bits(result), bits(expected))


def test_source_text_can_stand_for_tensors() -> None:
    [call] = in_place_calls("aten.gelu_backward.default", 1, ["g", "x"], {"approximate": "'tanh'"})
    assert call.target == "aten.gelu_backward.grad_input"
    assert call.args == ["g", "x"]
    assert call.kwargs == {"approximate": "'tanh'", "grad_input": "x"}
    first, second = in_place_calls("aten.native_dropout_backward.default", 0, ["g", "m", "2.0"], {})
    assert (first.target, first.args) == ("aten.mul_.Tensor", ["g", "m"])
    assert (second.target, second.args) == ("aten.mul_.Tensor", ["g", "2.0"])


def test_what_has_no_in_place_form() -> None:
    assert in_place_form("aten.mm.default", 0) is None
    assert in_place_form("aten.where.self", 0) is None
    assert in_place_form("aten.native_dropout_backward.default", 0, "cuda") is None
    with pytest.raises(ArtifactError, match="cannot overwrite"):
        in_place_calls("aten.mm.default", 0, ["a", "b"], {})
    assert in_place_position([{"value": 3}, {"value": 5}], 5, "aten.mul.Tensor") == 1
    assert in_place_position([{"value": 3}, {"value": 5}], 5, "aten.mm.default") is None


@pytest.mark.parametrize(
    "target",
    [
        "aten.no_such_thing.default",
        "aten.add.NoSuchOverload",
        "os.system.default",
        "aten.add",
        "aten.add.Tensor.more",
        "aten.__class__.mro",
        "aten.add.__class__",
        "aten.add_.Scalar_",
        "aten.resize_.default",
        "aten.set_.source_Storage",
        "aten.from_file.default",
        "higher_order.cond.default",
        "",
    ],
)
def test_names_that_a_graph_may_not_call(target: str) -> None:
    with pytest.raises(ArtifactError):
        resolve(target)


def test_names_that_a_graph_may_call() -> None:
    assert resolve("aten.addmm.default") is torch.ops.aten.addmm.default
    assert resolve("aten.copy_.default") is torch.ops.aten.copy_.default


PLAIN = [
    None,
    True,
    3,
    2.5,
    "tanh",
    float("inf"),
    float("-inf"),
    1 + 2j,
    torch.bfloat16,
    torch.device("cpu"),
    torch.strided,
    torch.channels_last,
]


@pytest.mark.parametrize("argument", PLAIN, ids=str)
def test_plain_arguments_come_back(argument: Any) -> None:
    assert decode_argument(encode_plain_argument(argument), {}) == argument
    assert decode_argument([[encode_plain_argument(argument)]], {}) == [[argument]]


def test_values_are_looked_up() -> None:
    tensor = torch.ones(1)
    assert decode_argument([{"value": 4}, None, {"value": 4}], {4: tensor}) == [
        tensor,
        None,
        tensor,
    ]


@pytest.mark.parametrize(
    "argument",
    [
        {"value": 9},
        {"value": "1"},
        {"value": True},
        {"dtype": "no_such"},
        {"dtype": "load"},
        {"device": "cpu; rm"},
        {"memory_format": "__class__"},
        {"layout": "sparse_coo"},
        {"float": "1e5"},
        {"complex": ["1", 2]},
        {"call": "os.system"},
        {},
        {"value": 1, "dtype": "float32"},
    ],
    ids=str,
)
def test_doctored_arguments_are_refused(argument: Any) -> None:
    with pytest.raises(ArtifactError):
        decode_argument(argument, {1: torch.ones(1)})


def test_attention_draws_only_with_dropout() -> None:
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert not draws_random_numbers(attention, [None, None, None])
    dropout = torch.ops.aten.native_dropout.default
    assert draws_random_numbers(dropout, [None, 0.5, True]) and not draws_random_numbers(
        dropout, [None, 0.5, False]
    )
    assert draws_random_numbers(torch.ops.aten.rand.default, [[3]])
