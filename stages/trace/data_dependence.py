"""What is said of a forward that depends on the data of a tensor, by what it does with the data."""

from __future__ import annotations

import ast
import dis
import linecache
import types
from traceback import walk_tb

from torch import nn

from tightfit.stages.trace.code_inspection import is_external_code

_BATCH_NORM = nn.modules.batchnorm._BatchNorm
_NUMBERS = ("item", "int", "float", "complex", "range", "round", "len")
_TRUTH = ("__bool__", "bool", "equal", "allclose", "is_nonzero", "any", "all", "max", "min")
_TRUTH_INSTRUCTIONS = ("UNARY_NOT", "CONTAINS_OP", "TO_BOOL")
_ARRAYS = ("numpy", "array", "asarray", "__array__")
_FUNCTION_MODULES = ("torch.nn.functional", "torch.functional")
"""Modules of PyTorch's functions, some of which check the data of their arguments."""


def data_dependence_message(model: nn.Module, error: BaseException) -> str:
    """Why a forward cannot be captured that asks for the data of a tensor, and what to do."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    codes = [frame.f_code for frame in frames]
    return (
        _message_of_library(codes)
        or averaging_norm_message(model)
        or _message_of_layerdrop(codes)
        or _message_of_function(frames)
        or _message_of_question(*_find_asked(error))
    )


def _find_asked(error: BaseException) -> tuple[str, str]:
    """What was asked of a tensor, as `_find_question` gives it; also inside of PyTorch if that was
    the NumPy array."""
    return ("numpy", "") if ".numpy() is not supported" in str(error) else _find_question(error)


def _message_of_library(codes: list[types.CodeType]) -> str:
    """What is said of parts of PyTorch that look at data and need not."""
    for code in codes:
        if code.co_name == "_detect_is_causal_mask":
            return (
                "nn.Transformer compares a mask with a causal one, which depends on the data of a "
                "tensor: call it with tgt_is_causal=True (of an encoder is_causal=True) where the "
                "mask is causal, else with False"
            )
        if code.co_name == "check_min_max_valid":
            return (
                "an observer of torch.ao.quantization checks the values that it has seen: take a "
                "fused one (get_default_qat_qconfig gives it), or stop it by "
                "model.apply(torch.ao.quantization.disable_observer) before planning"
            )
        if "torch/distributions/" in code.co_filename.replace("\\", "/"):
            return (
                "torch.distributions checks its arguments, which depends on the data of a tensor: "
                "give the distribution validate_args=False"
            )
    return ""


def averaging_norm_message(model: nn.Module) -> str:
    """What is said of a model with a batch norm that averages by its count of batches, else ""."""
    for path, module in model.named_modules():
        tracking = isinstance(module, _BATCH_NORM) and module.track_running_stats
        if tracking and module.training and module.momentum is None:
            return (
                f"{path or 'the model'} has momentum=None, so that it averages by its count of "
                "batches, which depends on the data of a tensor: give it a momentum"
            )
    return ""


def _message_of_layerdrop(codes: list[types.CodeType]) -> str:
    own = [code for code in codes if is_external_code(code.co_filename)]
    named = next((name for name in _code_names(own[-1:]) if "layerdrop" in name.lower()), "")
    if named:
        return (
            f"it leaves out layers at random ({named}), so that what runs depends on the data of a "
            f"tensor: set that rate to 0.0, in transformers in the configuration"
        )
    return ""


def _message_of_function(frames: list[types.FrameType]) -> str:
    """What is said of functions of PyTorch that look at data."""
    for frame in reversed(frames):
        module = frame.f_globals.get("__name__")
        if module in _FUNCTION_MODULES:
            return (
                f"{module}.{frame.f_code.co_name}() looks at the data of a tensor: leave it out of "
                "the model, and compute it from what the planned module gives"
            )
    return ""


def _code_names(codes: list[types.CodeType]) -> list[str]:
    return [name for code in codes for name in code.co_names]


def _find_question(error: BaseException) -> tuple[str, str]:
    """What the innermost line outside of PyTorch asked for, as the name of a method of tensors, and
    the text of the line."""
    trace, own = error.__traceback__, None
    while trace is not None:
        own = trace if is_external_code(trace.tb_frame.f_code.co_filename) else own
        trace = trace.tb_next
    if own is None:
        return "", ""
    code = own.tb_frame.f_code
    line = linecache.getline(code.co_filename, own.tb_lineno)
    name = dis.opname[code.co_code[own.tb_lasti]]
    if name.startswith(_TRUTH_INSTRUCTIONS) or "JUMP" in name:
        return "__bool__", line.strip()
    first, last, start, end = [*code.co_positions()][own.tb_lasti // 2]
    if first != last or start is None:
        return "", line.strip()
    return _called_name(line.encode()[start:end].decode()), line.strip()


def _called_name(text: str) -> str:
    """The name of the function or method that the text of a call calls."""
    try:
        call = ast.parse(text, mode="eval").body
    except SyntaxError:
        return ""
    function = call.func if isinstance(call, ast.Call) else None
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _message_of_question(name: str, line: str) -> str:
    if name in _TRUTH and line.startswith("assert"):
        return (
            "an assert depends on the data of a tensor: leave it out, or check the data outside of "
            "the model"
        )
    if name in _TRUTH:
        return (
            "its control flow (if, while, and, or, not, in) depends on the data of a tensor: "
            "compute both ways and choose by torch.where(), or decide outside of the model and "
            "pass a Python value in"
        )
    if name in _NUMBERS:
        return (
            "a Python number (item(), int(), float(), an index, a length, a range) depends on the "
            "data of a tensor: compute with the tensor itself, or pass the number in as an argument"
        )
    if name == "tolist":
        return (
            "a Python list (tolist()) depends on the data of a tensor: index by the tensor itself, "
            "or make the list outside of the model"
        )
    if name in _ARRAYS:
        return (
            "a NumPy array (numpy()) depends on the data of a tensor: compute with PyTorch's "
            "functions, with an operator of your own (torch.library.custom_op) that you name in "
            "operators, or outside of the model with what it returns"
        )
    return (
        "what it calls there depends on the data of a tensor, for a check, a shape or a number: "
        "call it outside of the model, or another function in its place"
    )
