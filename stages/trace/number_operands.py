"""Arithmetic with numbers that are inputs of a plan: tensors that compute as Python's floats do.

A Python float takes part in an operation with a tensor in the dtype of that tensor, also if neither
has dimensions, and floats among themselves are added and multiplied in double precision. A tensor
of float64 without dimensions does the same but for the first: there it is converted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch.utils.weak import WeakTensorKeyDictionary

from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.trace.capture_errors import line_suffix
from tightfit.stages.trace.code_inspection import node_source_line
from tightfit.util.errors import ModelError

aten = torch.ops.aten
_ARITHMETIC = ("add", "sub", "mul", "div", "neg", "__rsub__")
"""What a number may go into: Python's operators by the names that PyTorch has for them."""
_NUMBER_OPERATORS = {
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.rsub.Tensor),
    *(aten.rsub.Scalar, aten.neg.default, aten._to_copy.default),
    *(aten.detach.default, aten.alias.default),
}
_REFLECTED: dict[str, Any] = {
    "add": lambda number, tensor: torch.add(tensor, number),
    "sub": lambda number, tensor: torch.rsub(tensor, number),
    "mul": lambda number, tensor: torch.mul(tensor, number),
    "div": lambda number, tensor: torch.mul(tensor.reciprocal(), number),
}
"""What Python calls for a float in front of a tensor."""
_EXACT_DTYPES = (torch.float32, torch.float64)
"""Those in which an operation on a tensor without dimensions takes the rounded number."""


class NumberOperands:
    """Follows the tensors that stand for numbers, and what is computed of these alone."""

    def __init__(self) -> None:
        self._numbers = WeakTensorKeyDictionary()

    def begin(self, tensors: Iterable[torch.Tensor]) -> None:
        """A run begins in which these tensors stand for numbers."""
        self._numbers = WeakTensorKeyDictionary()
        for tensor in tensors:
            self._numbers[tensor] = True

    def call(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What a function gives where numbers stand in the places of their tensors."""
        operands = [arg for arg in args if isinstance(arg, torch.Tensor)]
        name = getattr(function, "__name__", "")
        stand = [operand in self._numbers for operand in operands] if len(self._numbers) else []
        if not any(stand) or kwargs or name not in _ARITHMETIC:
            return function(*args, **kwargs)
        if all(stand):
            result = function(*args)
            self._numbers[result] = True
            return result
        number, tensor = operands if stand[0] else operands[::-1]
        wanted = torch.result_type(tensor, 1.0)
        if (not tensor.dim() or not tensor.is_floating_point()) and wanted in _EXACT_DTYPES:
            number = number.to(wanted)
        if not stand[0]:
            return function(tensor, number)
        return _REFLECTED.get(name, function)(number, tensor)


def check_number_operands(
    built: BuiltModel, graph: fx.GraphModule, inputs: dict[fx.Node, int]
) -> None:
    """Raises ModelError where something is done with a number that is an input, or with what is
    computed of it, for which the tensor might give something else than the number."""
    numbers = {node for node, leaf in inputs.items() if leaf in built.numbers}
    for node in graph.graph.nodes if numbers else ():
        used = [each for each in node.all_input_nodes if each in numbers]
        if not used:
            continue
        tensors = [each.meta["val"] for each in node.all_input_nodes if each not in numbers]
        if node.op == "output" or not _computes_as_number(node, tensors):
            what = "is returned" if node.op == "output" else f"goes into {node.target}"
            line = line_suffix(node_source_line(node.meta))
            raise ModelError(
                f"{built.label}: a number {what}{line}, which a plan would compute otherwise of a "
                "tensor"
            )
        if not tensors:
            numbers.add(node)


def _computes_as_number(node: fx.Node, tensors: list[torch.Tensor]) -> bool:
    """Whether an operator gives of numbers, in the places of which there are tensors, and at most
    one other tensor what it gives of Python's floats."""
    if node.target not in _NUMBER_OPERATORS or node.kwargs.keys() - {"dtype"}:
        return False
    dtype = node.meta["val"].dtype
    if not tensors:
        return dtype == torch.float64 or node.target is aten._to_copy.default
    (tensor,) = tensors
    rounded = tensor.dim() or dtype in _EXACT_DTYPES
    return bool(rounded) and torch.result_type(tensor, 1.0) == dtype
