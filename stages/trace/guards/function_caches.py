"""Functions that keep what they return (functools.cache, functools.lru_cache), while a model runs.

A plan makes anew what such a function makes when it is first called, and eager keeps it. Both are
the same where the function only makes constants. What it makes of inputs, weights or random numbers
is refused, and so is a forward that changes what is kept.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

from tightfit.stages.runtime.guards.encode import tensor_digest
from tightfit.stages.runtime.guards.lru_caches import (
    LRU_CACHE_WRAPPER,
    cached_results,
    nested_tensors,
)
from tightfit.stages.torch_utils.devices import preserve_random_states
from tightfit.util.errors import ModelError

_RANDOM_NAMES = (
    *("rand", "normal", "bernoulli", "multinomial", "poisson", "exponential", "dropout"),
    *("uniform", "cauchy", "geometric"),
)


class CachedTensorTracker:
    """What a function that keeps its results makes them of, while it runs.

    Tensors that are there when it is called can change from step to step, but while a model is
    captured for true ones (unless `strict`), which are no inputs or weights.
    """

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self.changed = False
        self._changing: list[bool] = []
        self._kept = WeakTensorKeyDictionary()
        self._fresh = WeakTensorKeyDictionary()

    def begin(self) -> None:
        """A cached function is called."""
        self._changing.append(False)

    def end(self, result: Any) -> bool:
        """A cached function has returned; True where it made tensors of what can change."""
        changing = self._changing.pop() if self._changing else False
        made = list(nested_tensors(result))
        for tensor in made:
            self._kept[tensor] = True
        return bool(made) and (changing or any(not self._is_constant(one) for one in made))

    def follow(self, func: Any, args: Any, kwargs: dict[str, Any], result: Any) -> None:
        """Takes note of a call of PyTorch's that was made."""
        name = str(getattr(func, "__name__", ""))
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
        if writes and self._kept.get(args[0]) is not None:
            self.changed = True
        if not self._changing:
            return
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        given = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        ]
        draws = any(word in name for word in _RANDOM_NAMES)
        if (made or writes) and (draws or not all(map(self._is_constant, given))):
            self._changing = [True] * len(self._changing)
        for tensor in made:
            self._fresh[tensor] = True

    def _is_constant(self, tensor: torch.Tensor) -> bool:
        true = type(tensor) is torch.Tensor and not self._strict
        return true or self._fresh.get(tensor) is not None


class FunctionCaches:
    """The functions that keep what they return, of those that a forward reaches."""

    def __init__(self) -> None:
        self.making = CachedTensorTracker()
        self.problems: list[str] = []
        self._functions: dict[int, tuple[Any, int]] = {}
        self._codes: dict[types.CodeType, Any] = {}

    def take(self, value: Any) -> Any:
        """Notes a function where it is one that keeps its results; gives it, else None."""
        value = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        if not isinstance(value, LRU_CACHE_WRAPPER) or id(value) in self._functions:
            return None
        self._functions[id(value)] = (value, value.cache_info().misses)
        code = getattr(value.__wrapped__, "__code__", None)
        if code is not None:
            self._codes[code] = value
        return value

    def forget(self) -> None:
        """Empties the caches that a run has filled: with tensors that have no memory."""
        for number, (function, misses) in self._functions.items():
            if function.cache_info().misses != misses:
                function.cache_clear()
                self._functions[number] = (function, function.cache_info().misses)

    def began(self, frame: types.FrameType) -> None:
        """A frame begins to run."""
        if self._codes and frame.f_code in self._codes:
            self.making.begin()

    def ended(self, frame: types.FrameType, result: Any) -> bool:
        """A frame ends; True where it is that of such a function, whose result is kept."""
        if not self._codes or frame.f_code not in self._codes:
            return False
        if self.making.end(result):
            self.problems.append(_cache_problem(self._codes[frame.f_code]))
        return True

    def finish(self) -> list[str]:
        """Sentences on what such functions did that a plan would not do."""
        if self.making.changed:
            self.problems.append(
                "the forward changes in place what a function keeps that keeps its results "
                "(functools), which a plan would not do; change a clone of it"
            )
        return self.problems

    def check(self, label: str, constants: Iterable[torch.Tensor]) -> None:
        """Raises ModelError where one of the constants was kept before planning, and is not what
        the function makes of nothing but constants."""
        used = {id(constant) for constant in constants}
        for function, _ in self._functions.values():
            for key, kept in cached_results(function):
                found = list(nested_tensors(kept))
                if any(id(tensor) in used for tensor in found) and not _is_reproducible(
                    function, key, found
                ):
                    raise ModelError(f"{label}: {_cache_problem(function)}")


def _is_reproducible(function: Any, key: Any, kept: list[torch.Tensor]) -> bool:
    """True where a function makes the same tensors again, of nothing but constants."""
    args = list(key) if type(key) is tuple else [key]
    if any(type(arg) is object for arg in args):  # named arguments follow
        return False
    making = CachedTensorTracker(strict=True)
    with (
        _disable_current_modes(),
        torch.no_grad(),
        preserve_random_states(),
        _CachedTensorMode(making),
    ):
        making.begin()
        result = function.__wrapped__(*args)
        changing = making.end(result)
        made = list(nested_tensors(result))
    same = len(made) == len(kept) and all(
        tensor_digest(one) == tensor_digest(other) for one, other in zip(made, kept, strict=True)
    )
    return same and not changing


class _CachedTensorMode(TorchFunctionMode):
    """Follows the calls of a function on true tensors."""

    def __init__(self, making: CachedTensorTracker) -> None:
        super().__init__()
        self.making = making

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.making.follow(func, args, kwargs or {}, result)
        return result


def describe_cache(function: Any) -> str:
    """How what a function keeps is shown."""
    name = getattr(function, "__qualname__", None) or getattr(function, "co_qualname", "a function")
    return f"what {name} keeps"


def _cache_problem(function: Any) -> str:
    name = getattr(function, "__qualname__", "a function")
    return (
        f"{name} keeps what it returns (functools), and makes tensors of inputs, weights, random "
        "numbers or what else can change, which a plan would make anew in each step: let it return "
        f"constants alone, or keep none, as by {name} = {name}.__wrapped__ before planning"
    )
