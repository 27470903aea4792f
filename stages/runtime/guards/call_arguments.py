"""Binds the arguments of a call as the model's own forward does, and compares them."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch

from ..interface import Interface
from ..mismatch import PlanMismatch
from ..pytree import TreeSpec, read_tree
from .compare import ModelDifference, changed_number, same_plain

_TENSOR_REMEDY = (
    'pass a number that changes as a tensor, or load the plan with on_mismatch="original"'
)


class CallArguments:
    """The arguments that a plan was made for, as one model's forward takes them.

    `names` are what a person would call the input tensors, by their position. Raises RuntimeError
    when the model's forward takes other arguments.
    """

    def __init__(self, interface: Interface, model: torch.nn.Module) -> None:
        self.signature = inspect.signature(model.forward)
        self.leaves = interface.leaves
        try:
            self.expected = read_tree(interface.input_tree).bind(self.signature)
        except TypeError as error:
            raise RuntimeError(
                f"the plan was made for {interface.model} and this model's forward takes other "
                "arguments"
            ) from error
        self.defaults = {
            name: parameter.default for name, parameter in self.signature.parameters.items()
        }
        self.paths = {name: tree.paths(name) for name, (tree, _) in self.expected.items()}
        self.names = {
            position: path
            for name, (_, places) in self.expected.items()
            for place, path in zip(places, self.paths[name], strict=True)
            if isinstance(position := self.leaves[place], int)
        }

    def gather(self, args: Sequence[Any], kwargs: dict[str, Any], tensors: list[Any]) -> None:
        """Puts the input tensors at their positions and compares all other leaves."""
        arguments = self.signature.bind(*args, **kwargs).arguments
        for name, value in arguments.items():
            if name not in self.expected and not _same_argument(value, self.defaults[name]):
                raise PlanMismatch(f"{name} is given, the plan was made without it")
        for name, (tree, places) in self.expected.items():
            value = arguments.get(name, self.defaults[name])
            found = self._flatten(name, tree, value) if tree.kind else [value]
            for place, path, item in zip(places, self.paths[name], found, strict=True):
                self._take(place, path, item, tensors)

    def _flatten(self, name: str, tree: TreeSpec, value: Any) -> list[Any]:
        try:
            return tree.flatten_as(value, name)
        except ValueError as error:
            raise PlanMismatch(f"{error}, which the plan was made for") from error

    def _take(self, place: int, path: str, item: Any, tensors: list[Any]) -> None:
        expected = self.leaves[place]
        if isinstance(expected, int):
            if not isinstance(item, torch.Tensor):
                raise PlanMismatch(
                    f"{path} is {_describe_argument(item)}, the plan was made for a tensor"
                )
            tensors[expected] = item
        elif expected.unused and type(item) is type(expected.value):
            return
        elif not _same_argument(item, expected.value):
            planned = expected.value
            clause = f"{path} is {_describe_argument(item)}, the plan was made for {planned!r}"
            moves = isinstance(item, float) and isinstance(planned, float)
            number = changed_number(path, item, planned)
            raise ModelDifference(clause, _TENSOR_REMEDY if moves else "", number)


def _same_argument(value: Any, expected: Any) -> bool:
    if value is expected:
        return True
    plain = (bool, int, float, complex, str, torch.device)
    return isinstance(value, plain) and same_plain(value, expected)


def _describe_argument(item: Any) -> str:
    if isinstance(item, torch.Tensor):
        return "a tensor"
    return (
        repr(item)
        if isinstance(item, (bool, int, float, str, type(None)))
        else (f"of type {type(item).__name__}")
    )
