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

from tightfit.schemas.dtypes import DTYPES
from tightfit.schemas.errors import ArtifactError
from tightfit.stages.device.admission import objection
from tightfit.stages.device.foreign import is_foreign, may_call
from tightfit.stages.device.recurrent import LAYER, recurrent_layer

WRITE_TARGET = "aten.copy_.default"
"""The one operator with a side effect that a graph may call: it writes a buffer."""

_TARGET = re.compile(
    r"([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)\.([A-Za-z_][A-Za-z0-9_]*)"
)
_MEMORY_FORMATS = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")


def resolve(target: str) -> torch._ops.OpOverload:
    """The operator that "namespace.name.overload" names.

    It is one of PyTorch itself, or of a namespace that the user allows (`stages.device.foreign`).
    Raises ArtifactError unless that operator exists and takes and makes tensors without side
    effects, is an in-place form of the table below, or writes a buffer.
    """
    match = _TARGET.fullmatch(target)
    if match is None:
        raise ArtifactError(f"{target!r} is not the name of an operator that a graph may call")
    namespace, name, overload = match.groups()
    if not may_call(namespace):
        raise ArtifactError(
            f"{target!r} is not the name of an operator that a graph may call: {namespace!r} is "
            "not PyTorch's own, and not allowed as one of `operators`"
        )
    return _resolved(namespace, name, overload)


@functools.cache
def _resolved(namespace: str, name: str, overload_name: str) -> torch._ops.OpOverload:
    target = f"{namespace}.{name}.{overload_name}"
    packet = getattr(getattr(torch.ops, namespace), name, None)
    overload = getattr(packet, overload_name, None)
    if not isinstance(overload, torch._ops.OpOverload):
        if is_foreign(target):
            raise ArtifactError(
                f"there is no operator {target!r}: import the module that registers it first"
            )
        raise ArtifactError(f"this PyTorch ({torch.__version__}) has no operator {target!r}")
    reason = objection(overload, target == WRITE_TARGET or target in _MUTABLE)
    if reason is not None:
        raise ArtifactError(f"the operator {target!r} {reason}")
    return overload


def runner(target: str) -> Callable[..., Any]:
    """What runs the operator as a training step does; raises ArtifactError as `resolve` does."""
    overload = resolve(target)
    return recurrent_layer if target == LAYER else overload


def decode(argument: Any, values: Mapping[int, Any]) -> Any:
    """The Python object that an encoded argument (`schemas.arguments.encode_arguments`) stands for.

    `values` gives the tensor of each value id. Raises ArtifactError for an unknown encoding or a
    value that is not there.
    """
    if argument is None or isinstance(argument, bool | int | float | str):
        return argument
    if isinstance(argument, list):
        return [decode(item, values) for item in argument]
    if isinstance(argument, dict) and len(argument) == 1:
        [(kind, content)] = argument.items()
        if kind == "value" and type(content) is int and content in values:
            return values[content]
        plain = _decode_plain(kind, content)
        if plain is not None:
            return plain
    raise ArtifactError(f"{argument!r} is not an argument that a graph may have")


def encode_plain(argument: Any) -> Any:
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
    elif kind == "dtype" and content in DTYPES:
        return getattr(torch, content)
    elif kind == "device" and isinstance(content, str):
        if re.fullmatch(r"(cpu|cuda|meta)(:\d+)?", content):
            return torch.device(content)
    elif kind == "layout" and content == "strided":
        return torch.strided
    elif kind == "memory_format" and content in _MEMORY_FORMATS:
        return getattr(torch, content)
    return None


def is_random(overload: torch._ops.OpOverload, args: Sequence[Any]) -> bool:
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
    form = IN_PLACE.get(target)
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


def position_of(args: Sequence[Any], value: int, target: str, device: str = "cpu") -> int | None:
    """Where the in-place form may overwrite `value` among an op's encoded positional arguments,
    None where it may not."""
    for position, argument in enumerate(args):
        if argument == {"value": value} and in_place_form(target, position, device):
            return position
    return None


def _out(*positions: int, out: str = "out", overload: str = "") -> tuple[tuple[int, ...], str, str]:
    return positions, out, overload or out


_ELEMENTWISE: dict[str, tuple[tuple[int, ...], str, str]] = {
    **{f"{name}.Tensor": _out(0, 1) for name in ("add", "sub", "mul", "div")},
    "addcmul.default": _out(0, 1, 2),
    "addcdiv.default": _out(0, 1, 2),
    "maximum.default": _out(0, 1),
    "minimum.default": _out(0, 1),
    "where.self": _out(1, 2, overload="self_out"),
    "pow.Tensor_Scalar": _out(0, overload="Tensor_Scalar_out"),
    "bitwise_and.Tensor": _out(0, 1, overload="Tensor_out"),
    "bitwise_or.Tensor": _out(0, 1, overload="Tensor_out"),
    **{
        f"{name}.default": _out(0)
        for name in (
            "gelu tanh sigmoid silu neg exp log sqrt rsqrt reciprocal hardtanh leaky_relu elu "
            "hardswish hardsigmoid softplus mish abs sin cos sgn sign clamp clamp_min clamp_max "
            "erf log1p expm1 bitwise_not logical_not _softmax _log_softmax"
        ).split()
    },
    **{
        f"{name}.default": _out(0, 1, out="grad_input")
        for name in (
            "gelu_backward threshold_backward tanh_backward sigmoid_backward silu_backward "
            "hardtanh_backward leaky_relu_backward hardsigmoid_backward "
            "softplus_backward"
        ).split()
    },
    "elu_backward.default": _out(0, 5, out="grad_input"),
    "_softmax_backward_data.default": _out(0, 1, out="grad_input", overload="out"),
    "_log_softmax_backward_data.default": _out(0, 1, out="out"),
}
_MUTATING = (
    "relu.default add.Scalar sub.Scalar mul.Scalar div.Scalar masked_fill.Scalar masked_fill.Tensor"
).split()


def _table() -> dict[str, InPlaceForm]:
    table = {}
    for name, (positions, out, overload) in _ELEMENTWISE.items():
        packet = name.split(".")[0]
        table[f"aten.{name}"] = InPlaceForm(
            positions, (InPlaceStep(f"aten.{packet}.{overload}", out),)
        )
    for name in _MUTATING:
        packet, overload = name.split(".")
        table[f"aten.{name}"] = InPlaceForm((0,), (InPlaceStep(f"aten.{packet}_.{overload}"),))
    # On CPU it is two multiplications; CUDA has one kernel that rounds once.
    table["aten.native_dropout_backward.default"] = InPlaceForm(
        (0,),
        (InPlaceStep("aten.mul_.Tensor", "", (0, 1)), InPlaceStep("aten.mul_.Tensor", "", (0, 2))),
        ("cpu",),
    )
    return table


IN_PLACE: dict[str, InPlaceForm] = _table()
"""In-place forms by operator; each entry is compared with the operator bit for bit by a test."""

_MUTABLE = frozenset(step.target for form in IN_PLACE.values() for step in form.steps)
