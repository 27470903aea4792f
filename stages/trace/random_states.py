"""Random states that a forward or its backward takes and puts back, while it is captured.

Nothing is drawn in a capture. What is drawn again from a state that was taken before is what was
drawn after that; what is drawn from a seed is a constant.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from tightfit.stages.trace.code_inspection import caller_location, short_path
from tightfit.stages.trace.constant_folding import ConstantFolder, nested_tensors
from tightfit.util.errors import ModelError

aten = torch.ops.aten

_SHAPED_DRAWS = ("normal_", "uniform_", "bernoulli_", "random_", "exponential_", "cauchy_")
"""Operators that write what is drawn over all of their operand, whatever it holds."""
_DROPOUT = aten.native_dropout.default


class _Draw:
    """An operator that draws, what two equal ones have in common, and what it gave."""

    def __init__(self, signature: Any, result: Any, place: str) -> None:
        self.signature = signature
        self.result = result
        self.place = place


class RandomStates:
    """The random state of the CPU while a model is captured.

    The state is a position in the list of draws, or one that follows from a seed. `known` works
    out what is drawn from a seed.
    """

    def __init__(self, label: str, known: ConstantFolder) -> None:
        self.label = label
        self.known = known
        self._taken: dict[int, tuple[torch.Tensor, int | torch.Tensor]] = {}
        self.begin()

    def begin(self) -> None:
        """The forward is going to run."""
        self._draws: list[_Draw] = []
        self._position = 0
        self._seeded: torch.Tensor | None = None
        self._place = ""

    def end(self) -> None:
        """Raises ModelError where the state is not what the draws leave."""
        at = f" at {short_path(self._place)}" if self._place else ""
        if self._seeded is not None:
            raise ModelError(
                f"{self.label}: the forward calls torch.manual_seed{at}, which a plan would not "
                "do; call it before the model, or within torch.random.fork_rng()"
            )
        if self._position < len(self._draws):
            drawn = short_path(self._draws[self._position].place)
            raise ModelError(
                f"{self.label}: the random state that is put back{at} (as fork_rng() does) forgets "
                f"what was drawn at {drawn}, which a plan does not: seed there first "
                "(torch.manual_seed), or draw before the model and pass it in"
            )

    @contextlib.contextmanager
    def follow_states(self) -> Iterator[None]:
        """Within it states are taken and put back here."""
        names = {
            "get_rng_state": self._get_state,
            "set_rng_state": self._set_state,
            "manual_seed": self._seed,
        }
        before = {name: getattr(torch, name) for name in names}
        for name, replacement in names.items():
            for module in (torch, torch.random):
                setattr(module, name, replacement)
        try:
            yield
        finally:
            for name, original in before.items():
                for module in (torch, torch.random):
                    setattr(module, name, original)

    def _get_state(self) -> torch.Tensor:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            state = torch.default_generator.get_state()
            if self._seeded is not None:
                state = self._seeded.clone()
        self._taken[id(state)] = state, self._position if self._seeded is None else state
        return state

    def _set_state(self, new_state: torch.Tensor) -> None:
        self._place = caller_location()
        taken = self._taken.get(id(new_state))
        if taken is None:
            raise ModelError(
                f"{self.label}: the forward calls torch.set_rng_state at "
                f"{short_path(self._place)}, which a plan would not do; call it before the model"
            )
        if isinstance(taken[1], int):
            self._position, self._seeded = taken[1], None
        else:
            with _disable_current_modes(), torch._C.DisableTorchFunction():
                self._seeded = taken[1].clone()

    def _seed(self, seed: Any) -> torch.Generator:
        self._place = caller_location()
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            self._seeded = torch.Generator().manual_seed(int(seed)).get_state()
        return torch.default_generator

    def draw(self, func: Any, args: Any, kwargs: dict[str, Any], run: Callable[..., Any]) -> Any:
        """What an operator that draws random numbers gives; `run` calls it."""
        if self._seeded is not None:
            return self._draw_from_seed(self._seeded, func, args, kwargs)
        signature = func, pytree.tree_map_only(torch.Tensor, _describe, (args, kwargs))
        if self._position < len(self._draws):
            again = self._draws[self._position]
            if again.signature == signature and (made := _repeat(func, args, again)) is not None:
                self._position += 1
                return made
            raise self._unlike(func)
        result = kept = run(func, args, kwargs)
        if self._taken and isinstance(result, torch.Tensor):
            kept = aten.clone.default(result)
        self._draws.append(_Draw(signature, kept, caller_location()))
        self._position += 1
        return result

    def _unlike(self, func: Any) -> ModelError:
        return ModelError(
            f"{self.label}: {func._opname}() at {short_path(caller_location())} draws random "
            f"numbers from a state that was put back at {short_path(self._place)}, which a plan "
            "does not for this operator: draw before the model and pass it in"
        )

    def _draw_from_seed(
        self, seeded: torch.Tensor, func: Any, args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """The constant that is drawn from the state of a seed."""
        given = nested_tensors((args, kwargs))
        writes = func._schema.is_mutable
        shaped = func._opname.endswith("_like") or func._opname in _SHAPED_DRAWS
        device = kwargs.get("device")
        on_cpu = (device is None or torch.device(device).type == "cpu") and all(
            tensor.is_cpu for tensor in given
        )
        if not on_cpu or len(given) > 1 or (given and not shaped):
            raise self._unlike(func)
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
            args = pytree.tree_map_only(torch.Tensor, _empty_like, args)
            before = torch.default_generator.get_state()
            torch.default_generator.set_state(seeded)
            try:
                true = func(*args, **kwargs)
                self._seeded = torch.default_generator.get_state()
            finally:
                torch.default_generator.set_state(before)
        constant = aten.lift_fresh.default(true)
        self.known.follow(aten.lift_fresh.default, (true,), {}, constant)
        if not writes:
            return constant
        written = aten.copy_.default(given[0], constant)
        self.known.follow(aten.copy_.default, (given[0], constant), {}, written)
        return written


def eager_dropout_scale(p: float, dtype: torch.dtype) -> float:
    """What eager dropout on the CPU multiplies the kept elements by."""
    return torch.ones(1, dtype=dtype).div_(1 - p).item()


def _repeat(func: Any, args: Any, draw: _Draw) -> Any:
    """What an operator gives that draws once more what was drawn, None where that is not known."""
    if func is _DROPOUT:
        source, p = args[:2]
        if not source.is_cpu or not 0 < p < 1:
            return None
        mask = draw.result[1]
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            scale = eager_dropout_scale(p, source.dtype)
        return aten.mul.Tensor(aten.mul.Tensor(source, mask), scale), mask
    if isinstance(draw.result, torch.Tensor) and not func._schema.is_mutable:
        return aten.clone.default(draw.result)
    return None


def _describe(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device


def _empty_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
