"""Which operators a graph may call: they take tensors, make tensors, and do nothing else."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tightfit.stages.device.foreign import OWN

_PLAIN = ("BoolType", "FloatType", "IntType", "NumberType", "SymIntType", "SymBoolType")
_SETTINGS = (*_PLAIN, "StringType", "DeviceObjType", "GeneratorType", "ComplexType")
_FACTORY = {"dtype", "device"}
_FORBIDDEN = re.compile(
    r"""
    _?(resize|set|sparse_resize).*     # change what storage a tensor has, functional forms too
    | _?(copy_from).* | _?pin_memory | _lazy_clone | _to_cpu | device_put   # write or move bytes
    | .*flatten_weight | .*dropout_state                         # rewire weights, seed a generator
    | .*(token|_assert|sym_constrain).* | .*_test_.* | _foobar   # checks of a program, not of it
    | .*(dual(_copy)?|_batch_dim) | _fw_primal.* | .*_levels?    # states of autograd, functorch
    | .*(fbgemm|prepack|quantized|_obs_).* | quantize_.*         # bytes that hold pointers, state
    | _amp_.* | _fused_(sgd|adam|adamw|adagrad).* | _sobol_.*    # steps of optimisers and engines
    | .*(sparse|nested|jagged|mkldnn_reshape|to_mkldnn|_cslt_|semi_structured).*  # other layouts
    | .*(ccol|crow|col|row)_indices.* | _?(indices|values)(_copy)? | _?coalesced?
    | _index_put_impl | data | rename | align_.* | refine_names  # unchecked, or beside the bytes
    """,
    re.VERBOSE,
)
_KEEPS_STATISTICS = re.compile(
    r"(native_|cudnn_|miopen_)?(batch|instance)_norm|_batch_norm_impl_index|batch_norm_(gather|update)_stats.*"
)


def objection(overload: torch._ops.OpOverload, mutates: bool) -> str | None:
    """Why a graph may not call an operator, in words after its name; None where it may.

    `mutates` says that it may change its arguments as its schema says.
    """
    schema = overload._schema
    name = schema.name.partition("::")[2]
    if overload.name() not in _dispatched(overload.namespace):
        return "is none that tensors are computed with"
    if overload.namespace in OWN and _FORBIDDEN.fullmatch(name):
        return "has effects beside its results, or is for other tensors than a graph has"
    if schema.is_mutable and not mutates:
        return "changes its arguments"
    if not any(_is_tensor(result.type) for result in schema.returns) or not all(
        _is_tensor(result.type) or _is_of(result.type, _PLAIN) for result in schema.returns
    ):
        return "does not make tensors"
    takes = [argument.type for argument in schema.arguments]
    if not all(_is_tensor(kind) or _is_of(kind, _SETTINGS) for kind in takes):
        return "takes arguments that a graph cannot have"
    if any(map(_is_tensor, takes)):
        return None
    factory = {argument.name for argument in schema.arguments} >= _FACTORY
    texts = any(_is_of(kind, ("StringType",)) for kind in takes)
    return None if factory and not texts else "takes no tensors"


def hidden_writes(
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


def _dispatched(namespace: str) -> frozenset[str]:
    """The operators of PyTorch's dispatcher, those of PyTorch itself or all that are registered by
    now; TorchScript has more, with effects of every kind."""
    return _own() if namespace in OWN else frozenset(torch._C._dispatch_get_all_op_names())


@functools.cache
def _own() -> frozenset[str]:
    return frozenset(torch._C._dispatch_get_all_op_names())


def _is_tensor(kind: Any) -> bool:
    return _is_of(kind, ("TensorType",))


def _is_of(kind: Any, names: tuple[str, ...]) -> bool:
    """True for these types, for lists of them, and where None is one more value."""
    if kind.kind() in ("ListType", "OptionalType"):
        return _is_of(kind.getElementType(), names)
    return kind.kind() in names
