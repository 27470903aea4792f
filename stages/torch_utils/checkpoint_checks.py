"""Checks that a block's recomputation reads what its forward read.

PyTorch checks the versions of tensors that are a block's own positional arguments; those of keyword
arguments and within lists it does not, nor the random states of Python and NumPy.
"""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils import _pytree as pytree

from tightfit.mismatch import PlanMismatch
from tightfit.util.errors import ModelError

_REMEDY = "write x = x + y instead of x += y and inplace=False, or pass a copy to the block"


class InputVersions:
    """The versions of the tensors in a block's arguments, as they are when it is made.

    Args:
        path: Path of the block in the model.
        args: Positional arguments of its forward.
        kwargs: Keyword arguments of its forward.
    """

    def __init__(self, path: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.path = path
        self._known = [
            (name, weakref.ref(x), x._version) for name, x in _argument_tensors(args, kwargs)
        ]

    def changed_argument(self) -> str | None:
        """The first argument of which a tensor was changed in place since, by number or name."""
        for name, reference, version in self._known:
            tensor = reference()
            if tensor is not None and tensor._version != version:
                return name
        return None


def _argument_tensors(
    args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """The tensors in arguments, however nested, each with the argument's number or name."""
    for name, value in [*enumerate(args), *kwargs.items()]:
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, Tensor) and not leaf.is_inference():
                yield str(name), leaf


def check_recomputed_inputs(
    path: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Callable[..., Any]:
    """A block's function for `torch.utils.checkpoint`. Its second call, the recomputation, raises
    PlanMismatch if a tensor in a keyword argument or a list was changed in place since the first.
    """
    nested = [None if isinstance(x, Tensor) else x for x in args]
    versions = InputVersions(path, nested, kwargs)
    calls = 0

    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 1:
            name = versions.changed_argument()
            if name is not None:
                raise PlanMismatch(
                    f"argument {name} of block {path!r} was changed in place between its forward "
                    f"and its recomputation: {_REMEDY}"
                )
        return function(*args, **kwargs)

    return run


class RecordedInputs:
    """Checks of the blocks of one step that is recorded; see `run`."""

    def __init__(self) -> None:
        self._versions: list[InputVersions] = []
        self._changed: dict[str, str] = {}

    def run(
        self,
        path: str,
        checkpoint: Callable[..., Any],
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Runs a block under a checkpoint.

        Raises:
            ModelError: The forward draws from Python's or NumPy's random numbers.
        """
        versions = InputVersions(path, args, kwargs)
        self._versions.append(versions)
        python, numpy = random.getstate(), _numpy_state()
        output = checkpoint(function, *args, **kwargs)
        for changed, source in (
            (random.getstate() != python, "Python's random module"),
            (_numpy_state() != numpy, "NumPy's random module"),
        ):
            if changed:
                raise ModelError(
                    f"block {path!r} draws from {source}, and its recomputation would draw other "
                    "numbers: draw outside of the blocks and pass the number, or draw by torch.rand"
                )
        name = versions.changed_argument()
        if name is not None:
            self._changed[path] = f"argument {name} of block {path!r} within its forward"
        return output

    def check_before_backward(self) -> None:
        """Raises ModelError if arguments of blocks were changed in place since their forwards
        began."""
        for versions in self._versions:
            name, path = versions.changed_argument(), versions.path
            if name is not None and path not in self._changed:
                self._changed[path] = f"argument {name} of block {path!r} after its forward"
        if self._changed:
            raise ModelError(
                f"the step changes in place what a recomputation would read: "
                f"{', '.join(self._changed.values())}: {_REMEDY}, or leave these blocks out "
                "(blocks=[...])"
            )


def _numpy_state() -> tuple[Any, ...]:
    _, keys, *others = np.random.get_state(legacy=True)
    return (np.asarray(keys).tobytes(), *others)
