"""From the texts of a graph to PyTorch: operators by name, arguments, and in-place forms.

A graph is data that anyone may have written, so nothing here calls what it reads: a name must be
that of a known functional operator, an argument one of a few plain kinds.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.stages.runtime.operators import RNN_LAYER, run_rnn_layer
from tightfit.stages.torch_utils.custom_operators import (
    TORCH_NAMESPACES,
    is_allowed_namespace,
    is_custom_operator,
)
from tightfit.util.errors import ArtifactError

_PLAIN_TYPES = ("BoolType", "FloatType", "IntType", "NumberType", "SymIntType", "SymBoolType")
_ARGUMENT_TYPES = (*_PLAIN_TYPES, "StringType", "DeviceObjType", "GeneratorType", "ComplexType")
_FACTORY_ARGUMENTS = {"dtype", "device"}
_FORBIDDEN = re.compile(
    r"""
    _?(resize|set|sparse_resize).*     # change what storage a tensor has, functional forms too
    | _?(copy_from).* | _?pin_memory | _lazy_clone | _to_cpu | device_put   # write or move bytes
    | .*flatten_weight | .*dropout_state                         # rewire weights, seed a generator
    | .*(token|_assert|sym_constrain).* | .*_test_.* | _foobar   # checks of a program, not of it
    | .*(dual(_copy)?|_batch_dim) | _fw_primal.* | .*_levels?    # states of autograd, functorch
    | .*(fbgemm|prepack|quantized).* | quantize_.*               # bytes that hold pointers
    | .*_obs_(?!fq_helper_functional).*                          # state of observers
    | _amp_.* | _fused_(sgd|adam|adamw|adagrad).* | _sobol_.*    # steps of optimizers and engines
    | .*(sparse|nested|jagged|mkldnn_reshape|to_mkldnn|_cslt_|semi_structured).*  # other layouts
    | .*(ccol|crow|col|row)_indices.* | _?(indices|values)(_copy)? | _?coalesced?
    | _index_put_impl | data | rename | align_.* | refine_names  # unchecked, or beside the bytes
    """,
    re.VERBOSE,
)
_KEEPS_STATISTICS = re.compile(
    r"(native_|cudnn_|miopen_)?(batch|instance)_norm|_batch_norm_impl_index|batch_norm_(gather|update)_stats.*"
)


def operator_objection(overload: torch._ops.OpOverload, mutates: bool) -> str | None:
    """Why a graph may not call an operator, in words after its name; None where it may.

    `mutates` says that it may change its arguments as its schema says.
    """
    schema = overload._schema
    name = schema.name.partition("::")[2]
    if overload.name() not in _dispatcher_operators(overload.namespace):
        return "is none that tensors are computed with"
    if overload.namespace in TORCH_NAMESPACES and _FORBIDDEN.fullmatch(name):
        return (
            "has effects beside its results, or makes sparse, nested, quantized or named tensors, "
            "which a plan does not hold"
        )
    if schema.is_mutable and not mutates:
        return "changes its arguments"
    if not any(_is_tensor_type(result.type) for result in schema.returns) or not all(
        _is_tensor_type(result.type) or _is_of_type(result.type, _PLAIN_TYPES)
        for result in schema.returns
    ):
        return "does not make tensors"
    takes = [argument.type for argument in schema.arguments]
    if not all(_is_tensor_type(kind) or _is_of_type(kind, _ARGUMENT_TYPES) for kind in takes):
        return "takes arguments that a graph cannot have"
    if any(map(_is_tensor_type, takes)):
        return None
    factory = {argument.name for argument in schema.arguments} >= _FACTORY_ARGUMENTS
    texts = any(_is_of_type(kind, ("StringType",)) for kind in takes)
    return None if factory and not texts else "takes no tensors"


def writes_running_statistics(
    overload: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> bool:
    """True when the call changes running statistics, which its schema does not say."""
    schema = overload._schema
    if not _KEEPS_STATISTICS.fullmatch(schema.name.partition("::")[2]):
        return False
    names = [argument.name for argument in schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    training = given.get("training", given.get("use_input_stats", True)) is not False
    return training and any(given.get(f"running_{what}") is not None for what in ("mean", "var"))


def _dispatcher_operators(namespace: str) -> frozenset[str]:
    """The operators of PyTorch's dispatcher, those of PyTorch itself or all that are registered by
    now; TorchScript has more, with effects of every kind."""
    return (
        _torch_operators()
        if namespace in TORCH_NAMESPACES
        else frozenset(torch._C._dispatch_get_all_op_names())
    )


@functools.cache
def _torch_operators() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def _is_tensor_type(kind: Any) -> bool:
    return _is_of_type(kind, ("TensorType",))


def _is_of_type(kind: Any, names: tuple[str, ...]) -> bool:
    """True for these types, for lists of them, and where None is one more value."""
    if kind.kind() in ("ListType", "OptionalType"):
        return _is_of_type(kind.getElementType(), names)
    return kind.kind() in names


WRITE_TARGET = "aten.copy_.default"
"""The one operator with a side effect that a graph may call: it writes a buffer."""

_TARGET = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)"
)
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


def resolve(target: str) -> torch._ops.OpOverload:
    """The operator that "namespace.name.overload" names.

    It is one of PyTorch itself, or of a namespace that the user allows
    (`stages.torch_utils.custom_operators`). Raises ArtifactError unless that operator exists and
    takes and makes tensors without side effects, is an in-place form of the table below, or writes
    a buffer."""
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ArtifactError(f"{target!r} is not the name of an operator that a graph may call")
    namespace, name, overload = match.groups()
    if not is_allowed_namespace(namespace):
        raise ArtifactError(
            f"{target!r} is not the name of an operator that a graph may call: {namespace!r} is "
            "not PyTorch's own, and not allowed as one of `operators`"
        )
    return _resolve_overload(namespace, name, overload)


@functools.cache
def _resolve_overload(namespace: str, name: str, overload_name: str) -> torch._ops.OpOverload:
    target = f"{namespace}.{name}.{overload_name}"
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, overload_name, None)
    if not isinstance(overload, torch._ops.OpOverload):
        if is_custom_operator(target):
            raise ArtifactError(
                f"there is no operator {target!r}: import the module that registers it first"
            )
        raise ArtifactError(f"this PyTorch ({torch.__version__}) has no operator {target!r}")
    reason = operator_objection(overload, target == WRITE_TARGET or target in _MUTABLE_TARGETS)
    if reason is not None:
        raise ArtifactError(f"the operator {target!r} {reason}")
    return overload


def training_operator(target: str) -> Callable[..., Any]:
    """What runs the operator as a training step does; raises ArtifactError as `resolve` does."""
    overload = resolve(target)
    return run_rnn_layer if target == RNN_LAYER else overload


def decode_argument(argument: Any, values: Mapping[int, Any]) -> Any:
    """The Python object that an encoded argument (`schemas.graph.op_arguments.encode_arguments`)
    stands for.

    `values` gives the tensor of each value id. Raises ArtifactError for an unknown encoding or a
    value that is not there.
    """
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    if isinstance(argument, list):
        return [decode_argument(item, values) for item in argument]
    if isinstance(argument, dict) and len(argument) == 1:
        [(kind, content)] = argument.items()
        if kind == "value" and type(content) is int and content in values:
            return values[content]
        plain = _decode_plain(kind, content)
        if plain is not None:
            return plain
    raise ArtifactError(f"{argument!r} is not an argument that a graph may have")


def encode_plain_argument(argument: Any) -> Any:
    """The JSON form of an argument that is no tensor; raises TypeError when it has none."""
    if argument is None or isinstance(argument, bool | int | str):
        return argument
    if isinstance(argument, float):
        return argument if math.isfinite(argument) else {"float": str(argument)}
    if isinstance(argument, complex):
        return {"complex": [argument.real, argument.imag]}
    if isinstance(argument, torch.dtype):
        return {"dtype": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.device):
        return {"device": argument.type}
    if isinstance(argument, torch.layout):
        return {"layout": str(argument).removeprefix("torch.")}
    if isinstance(argument, torch.memory_format):
        return {"memory_format": str(argument).removeprefix("torch.")}
    raise TypeError(type(argument).__name__)


def _decode_plain(kind: str, content: Any) -> Any:
    if kind == "float" and content in ("inf", "-inf", "nan"):
        return float(content)
    if kind == "complex" and isinstance(content, list) and len(content) == 2:
        if all(isinstance(part, int | float) for part in content):
            return complex(*content)
    elif kind == "dtype" and content in DTYPE_BYTES:
        return getattr(torch, content)
    elif kind == "device" and isinstance(content, str):
        if re.fullmatch(r"(cpu|cuda|meta)(:\d+)?", content):
            return torch.device(content)
    elif kind == "layout" and content == "strided":
        return torch.strided
    elif kind == "memory_format" and content in _MEMORY_FORMATS:
        return getattr(torch, content)
    return None


def draws_random_numbers(overload: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
    """True when the call draws from the default generator.

    Attention and dropout operators carry the tag but draw nothing without dropout.
    """
    if torch.Tag.nondeterministic_seeded not in overload.tags:
        return False
    named = dict(
        zip((argument.name for argument in overload._schema.arguments), args, strict=False)
    )
    if overload._schema.name == "aten::native_dropout":
        return named["train"] is not False
    if "dropout_p" in [argument.name for argument in overload._schema.arguments]:
        return bool(named.get("dropout_p", 0.0))
    return True


@dataclass(frozen=True)
class InPlaceStep:
    """One call of an in-place form.

    `arguments` are positions in the original call's arguments (None: all, with its keywords).
    The overwritten tensor is passed as the keyword `out`; where that is "", it is the first
    argument, which `target` mutates.
    """

    target: str
    out: str = ""
    arguments: tuple[int, ...] | None = None


@dataclass(frozen=True)
class InPlaceForm:
    """How to run an operator so that its first output overwrites one of its arguments.

    The results are those of the operator bit for bit, where the argument has the output's shape,
    strides and dtype, fills its storage, and no other argument overlaps it but itself.
    """

    positions: tuple[int, ...]
    steps: tuple[InPlaceStep, ...]
    devices: tuple[str, ...] = ("cpu", "cuda")


@dataclass(frozen=True)
class InPlaceCall:
    """A call to make: `resolve(target)(*args, **kwargs)`."""

    target: str
    args: list[Any]
    kwargs: dict[str, Any]


def in_place_form(target: str, position: int, device: str = "cpu") -> InPlaceForm | None:
    """The form of `target` that overwrites its argument at `position`, None where there is none."""
    form = IN_PLACE_FORMS.get(target)
    if form is None or position not in form.positions or device not in form.devices:
        return None
    return form


def in_place_calls(
    target: str, position: int, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[InPlaceCall]:
    """The calls that replace `target(*args, **kwargs)` and leave its result in `args[position]`.

    Arguments may be tensors or anything that stands for them, such as source text.
    Raises ArtifactError when there is no such form.
    """
    form = in_place_form(target, position, "cpu") or in_place_form(target, position, "cuda")
    if form is None:
        raise ArtifactError(f"{target!r} cannot overwrite its argument {position}")
    calls = []
    for step in form.steps:
        chosen = list(args) if step.arguments is None else [args[i] for i in step.arguments]
        named = dict(kwargs) if step.arguments is None else {}
        if step.out:
            named[step.out] = args[position]
        calls.append(InPlaceCall(step.target, chosen, named))
    return calls


def in_place_position(
    args: Sequence[Any], value: int, target: str, device: str = "cpu"
) -> int | None:
    """Where the in-place form may overwrite `value` among an op's encoded positional arguments,
    None where it may not."""
    for position, argument in enumerate(args):
        if argument == {"value": value} and in_place_form(target, position, device):
            return position
    return None


def _out_form(
    *positions: int, out: str = "out", overload: str = ""
) -> tuple[tuple[int, ...], str, str]:
    return positions, out, overload or out


_ELEMENTWISE: dict[str, tuple[tuple[int, ...], str, str]] = {
    **{f"{name}.Tensor": _out_form(0, 1) for name in ("add", "sub", "mul", "div")},
    "addcmul.default": _out_form(0, 1, 2),
    "addcdiv.default": _out_form(0, 1, 2),
    "maximum.default": _out_form(0, 1),
    "minimum.default": _out_form(0, 1),
    "where.self": _out_form(1, 2, overload="self_out"),
    "pow.Tensor_Scalar": _out_form(0, overload="Tensor_Scalar_out"),
    "bitwise_and.Tensor": _out_form(0, 1, overload="Tensor_out"),
    "bitwise_or.Tensor": _out_form(0, 1, overload="Tensor_out"),
    **{
        f"{name}.default": _out_form(0)
        for name in (
            "gelu tanh sigmoid silu neg exp log sqrt rsqrt reciprocal hardtanh leaky_relu elu "
            "hardswish hardsigmoid softplus mish abs sin cos sgn sign clamp clamp_min clamp_max "
            "erf log1p expm1 bitwise_not logical_not _softmax _log_softmax"
        ).split()
    },
    **{
        f"{name}.default": _out_form(0, 1, out="grad_input")
        for name in (
            "gelu_backward threshold_backward tanh_backward sigmoid_backward silu_backward "
            "hardtanh_backward leaky_relu_backward hardsigmoid_backward "
            "softplus_backward"
        ).split()
    },
    "elu_backward.default": _out_form(0, 5, out="grad_input"),
    "_softmax_backward_data.default": _out_form(0, 1, out="grad_input", overload="out"),
    "_log_softmax_backward_data.default": _out_form(0, 1, out="out"),
}
_MUTATING_OPERATORS = (
    "relu.default add.Scalar sub.Scalar mul.Scalar div.Scalar masked_fill.Scalar masked_fill.Tensor"
).split()


def _in_place_table() -> dict[str, InPlaceForm]:
    table = {}
    for name, (positions, out, overload) in _ELEMENTWISE.items():
        packet = name.split(".")[0]
        table[f"aten.{name}"] = InPlaceForm(
            positions, (InPlaceStep(f"aten.{packet}.{overload}", out),)
        )
    for name in _MUTATING_OPERATORS:
        packet, overload = name.split(".")
        table[f"aten.{name}"] = InPlaceForm((0,), (InPlaceStep(f"aten.{packet}_.{overload}"),))
    # On CPU it is two multiplications; CUDA has one kernel that rounds once.
    table["aten.native_dropout_backward.default"] = InPlaceForm(
        (0,),
        (InPlaceStep("aten.mul_.Tensor", "", (0, 1)), InPlaceStep("aten.mul_.Tensor", "", (0, 2))),
        ("cpu",),
    )
    return table


IN_PLACE_FORMS: dict[str, InPlaceForm] = _in_place_table()
"""In-place forms by operator; each entry is compared with the operator bit for bit by a test."""

_MUTABLE_TARGETS = frozenset(step.target for form in IN_PLACE_FORMS.values() for step in form.steps)
