"""What a forward asks of the tensors that it is given, beside what every call compares.

A tensor tells more of itself than shape, strides, dtype, device and whether it requires a gradient.
`_FACT_OF_QUERY` and `_UNSUPPORTED_QUERIES` have all of that: what a plan compares at each call
where the forward asked for it, and what is refused. Which tensors are one object is found in the
code that ran."""

from __future__ import annotations

import contextlib
import dataclasses
import dis
import functools
import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.parameter import Buffer, Parameter

from tightfit.stages.runtime.guards.encode import (
    instance_fields,
    is_installed_class,
    is_installed_code,
)
from tightfit.stages.trace.code_inspection import is_external_code, is_tightfit_code, short_path
from tightfit.stages.trace.guards.function_caches import CachedTensorTracker

_FACT_OF_QUERY = {
    **dict.fromkeys(("is_leaf", "grad_fn", "_grad_fn", "output_nr", "retains_grad"), "leaf"),
    "__deepcopy__": "leaf",
    **dict.fromkeys(("_is_view", "_base"), "view"),
    **dict.fromkeys(("stride", "dim_order"), "strides"),
    **dict.fromkeys(("storage_offset", "as_strided", "as_strided_"), "offset"),
    **dict.fromkeys(("_backward_hooks", "_post_accumulate_grad_hooks"), "hooks"),
    **dict.fromkeys(("is_conj", "resolve_conj"), "conjugate"),
    **dict.fromkeys(("is_neg", "resolve_neg"), "negative"),
    "_is_zerotensor": "zero",
    **dict.fromkeys(("is_pinned", "pin_memory"), "pinned"),
    "is_shared": "shared",
}
"""What a plan compares at each call (`stages.runtime.guards.tensor_queries`) where this is asked of
an input, a parameter or a buffer, or of a view of one."""
_UNSUPPORTED_QUERIES = frozenset(
    (
        *("_version", "_grad", "grad_dtype", "_cdata", "is_set_to", "__dlpack__"),
        *("data_ptr", "const_data_ptr", "untyped_storage", "storage", "_typed_storage"),
        *("__cuda_array_interface__", "share_memory_"),
    )
)
"""What has another answer in each step, so that a plan cannot have one."""
_INSTANCE_CHECKS = {id(type(kind).__instancecheck__.__code__) for kind in (Parameter, Buffer)}
_HASH = torch.Tensor.__hash__.__code__
_IDENTITY_NAMES = {"id", "is_", "is_not"}
_TYPE_NAMES = {"type", "__class__"}
_FORWARDING_FILES = ("overrides.py", "_tensor.py", "_utils.py", "parameter.py")
"""Files of PyTorch between who asks a tensor and what answers."""
_MAX_DEPTH = 3


class TensorQueries:
    """What was asked of the tensors that a forward is given and of the model's own.

    `facts` has where each fact was asked, by its name and whether it was asked of an input or of
    one of the model's own. `identity` is where it was asked which tensors are one object, "" where
    it was not. `maker` says whether a function of autograd was asked for.
    """

    def __init__(self, making: CachedTensorTracker | None = None) -> None:
        self.making = making or CachedTensorTracker()
        self.facts: dict[tuple[str, bool], str] = {}
        self.identity = ""
        self.maker = False
        self.irrelevant_codes: set[int] = set()
        """The ids of codes that ran and ask nothing."""
        self.problems: list[str] = []
        self._inputs: dict[int, torch.Tensor] = {}
        self._own: dict[int, torch.Tensor] = {}
        self._kinds: dict[int, tuple[types.CodeType, int, bool]] = {}
        """By the id of a code, which takes long to hash: the code, and what it asks."""

    def begin(self, inputs: Sequence[torch.Tensor], own: Iterable[torch.Tensor]) -> None:
        """The forward is going to run on these tensors."""
        self._inputs = {id(tensor): tensor for tensor in inputs}
        self._own = {id(tensor): tensor for tensor in own}

    def call(self, name: str, args: Sequence[Any], place: str, frame: types.FrameType) -> None:
        """Notes that a frame asks a tensor for `name` at a place."""
        if name not in _FACT_OF_QUERY and name not in _UNSUPPORTED_QUERIES:
            return
        tensor = next((arg for arg in args if isinstance(arg, torch.Tensor)), None)
        asker = _querying_frame(frame)
        if tensor is None or asker is None or is_tightfit_code(asker.f_code.co_filename):
            return
        if "grad_fn" in name:
            self.maker = True
            self._note("leaf", True, place)
        of_input = self._of(tensor)
        if of_input is None:
            return
        if name in _FACT_OF_QUERY:
            self._note(_FACT_OF_QUERY[name], of_input, place)
        elif is_external_code(asker.f_code.co_filename):
            what = "an input" if of_input else "a parameter or a buffer"
            self.problems.append(
                f"the forward asks {what} for {name}{_location_suffix(place)}, which is another in "
                "each step "
                "and in a plan; leave it out, or work with what is the same in all steps"
            )

    def _note(self, fact: str, of_input: bool, place: str) -> None:
        self.facts.setdefault((fact, of_input), place)

    def _of(self, tensor: torch.Tensor) -> bool | None:
        """True for an input, False for one of the model's own, or a view of such; None else."""
        with torch._C.DisableTorchFunction():
            base = tensor._base
        for one in (tensor, base):
            if id(one) in self._inputs:
                return True
            if id(one) in self._own:
                return False
        return None

    def ran(self, frame: types.FrameType) -> None:
        """Looks at a frame that begins or ends, whose code is none of the `quiet` ones."""
        code = frame.f_code
        if id(code) in _INSTANCE_CHECKS:
            if id(frame.f_locals.get("instance")) in self._inputs:
                self._note("kind", True, _frame_location(frame.f_back))
            return
        if code is _HASH:
            back = frame.f_back
            if back is not None and id(frame.f_locals.get("self")) in self._inputs:
                self._compares(back)
            return
        found = self._kinds.get(id(code))
        if found is None:
            found = self._kinds[id(code)] = code, *_classify_code(frame)
            if not (found[1] or found[2]):
                self.irrelevant_codes.add(id(code))
        if found[1] and not self.identity and self._holds(frame, found[1]):
            self.identity = _frame_location(frame)
        if found[2] and ("kind", True) not in self.facts and self._holds(frame, 1):
            self._note("kind", True, _frame_location(frame))

    def _compares(self, frame: types.FrameType) -> None:
        if not self.identity and _may_query_tensors(frame.f_code.co_filename, frame):
            self.identity = _frame_location(frame)

    def _holds(self, frame: types.FrameType, least: int) -> bool:
        """True where a frame has an input among what it names, and so many tensors that the forward
        has not made: those that are given to it, and true ones."""
        found = {id(tensor): tensor for tensor in _tensors(frame.f_locals)}
        known = [
            number
            for number, tensor in found.items()
            if number in self._inputs or number in self._own or type(tensor) in _REAL_TENSOR_TYPES
        ]
        return len(known) >= least and not self._inputs.keys().isdisjoint(known)


_REAL_TENSOR_TYPES = (torch.Tensor, Parameter)
_PLAIN = (bool, int, float, str, type(None), type, torch.nn.Module, types.FunctionType)


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    """The tensors in a value, in containers and fields of objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth <= _MAX_DEPTH and not isinstance(value, _PLAIN):
        inside: Any = ()
        if isinstance(value, dict):
            inside = value.values()
        elif isinstance(value, list | tuple):
            inside = value
        elif dataclasses.is_dataclass(value) or not is_installed_class(type(value)):
            inside = instance_fields(value).values()
        for item in inside:
            yield from _tensors(item, depth + 1)


def _classify_code(frame: types.FrameType) -> tuple[int, bool]:
    """How many given tensors there are to be where the code of a frame asks which objects are one
    (0: it does not), and whether it asks of what class one is."""
    code = frame.f_code
    if not _may_query_tensors(code.co_filename, frame):
        return 0, False
    names = set(code.co_names)
    users = not is_installed_code(code, frame.f_globals) or code.co_filename == functools.__file__
    types_of = bool(names & _TYPE_NAMES) and users
    return 1 if names & _IDENTITY_NAMES else _count_identity_operands(frame), types_of


def _may_query_tensors(file: str, frame: types.FrameType) -> bool:
    """True for code that decides something in a forward: the model's and that of `torch.nn`."""
    if is_tightfit_code(file) or file == contextlib.__file__:
        return False
    module = str(frame.f_globals.get("__name__", ""))
    return is_external_code(file) or module.startswith("torch.nn.")


def _count_identity_operands(frame: types.FrameType) -> int:
    """Whether a code compares by `is` what may be a tensor: neither operand is a constant, a class,
    a function or another thing that a global stands for. 2 where all that it so compares are
    arguments, which it has when it begins, 1 where others are."""
    code = frame.f_code
    known = [one for one in dis.get_instructions(code) if one.opname not in _IGNORED_OPCODES]
    given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    loops = any(one.opname in _LOOP_OPCODES for one in known)
    least = 0
    for at, one in enumerate(known):
        if one.opname != "IS_OP":
            continue
        right, left = known[at - 1], known[at - 2]
        simple = right.opname in _LOAD_OPCODES
        if _is_plain(right, frame) or (simple and _is_plain(left, frame)):
            continue
        names = all(part.opname == "LOAD_FAST" and part.argval in given for part in (left, right))
        if loops or not names:
            return 1
        least = 2
    return least


_LOOP_OPCODES = ("FOR_ITER", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
_LOAD_OPCODES = ("LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_FAST_CHECK")
_IGNORED_OPCODES = ("CACHE", "PUSH_NULL", "NOP", "PRECALL", "EXTENDED_ARG", "RESUME")


def _is_plain(instruction: dis.Instruction, frame: types.FrameType) -> bool:
    if instruction.opname == "LOAD_CONST":
        return True
    if instruction.opname != "LOAD_GLOBAL":
        return False
    value = frame.f_globals.get(instruction.argval, frame.f_builtins.get(instruction.argval))
    return not isinstance(value, torch.Tensor | list | tuple | dict)


def _querying_frame(frame: types.FrameType | None) -> types.FrameType | None:
    """The frame that asks, behind PyTorch's own ways from a method to its answer."""
    while frame is not None and not is_external_code(frame.f_code.co_filename):
        if not frame.f_code.co_filename.endswith(_FORWARDING_FILES):
            break
        frame = frame.f_back
    return frame


def _frame_location(frame: types.FrameType | None) -> str:
    """The "file:line" of a frame."""
    return "" if frame is None else f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def _location_suffix(place: str) -> str:
    return f" at {place}" if place else ""
