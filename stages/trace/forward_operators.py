"""The operators of a forward while it is captured: what eager would see of each."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from tightfit.stages.torch_utils.operators import draws_random_numbers
from tightfit.stages.trace.assumed_data import AssumedData
from tightfit.stages.trace.constant_folding import ConstantFolder, nested_tensors
from tightfit.stages.trace.random_states import RandomStates

aten = torch.ops.aten

_SPLITS = {
    aten.unsafe_split.Tensor: aten.split.Tensor,
    aten.unsafe_split_with_sizes.default: aten.split_with_sizes.default,
}
_READS = {
    aten._local_scalar_dense.default: 1,
    aten.equal.default: 2,
    aten.allclose.default: 2,
}
"""Operators that give data of tensors to Python, and of how many they do."""
_INDEXED = (
    aten.index.Tensor,
    *(aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default),
)
_SHAPED_BY_DATA = torch.Tag.dynamic_output_shape


class ForwardOperatorsMode(TorchDispatchMode):
    """Within it Python gets the data of tensors that hang on no input, and the parts that PyTorch's
    unsafe splits give are known to be views.

    Recurrent cells write into such parts. A capture would take each for a tensor of its own and,
    where it is written, for a dense one. Kernels round by the row that they work on: a part with
    gaps between its rows gets other last bits than a dense tensor.

    Random numbers are drawn from the states that the forward takes and puts back (`states`).
    An operator whose result has a shape by data, and hangs on no input, has a constant as result.
    Where data are `assumed`, all that is asked of them is answered.
    """

    def __init__(
        self, known: ConstantFolder, states: RandomStates, assumed: AssumedData | None = None
    ) -> None:
        super().__init__()
        self.known = known
        self.states = states
        self.assumed = assumed

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in _READS:
            found = self.known.answer(*args[: _READS[func]])
            if found is None and self.assumed is not None:
                return self.assumed.read(func, args[0])
            if found is None:
                raise DataDependentOutputException(func)
            return self.known.compute(func, args, named)
        func = _SPLITS.get(func, func)
        if func in _INDEXED:
            args = (args[0], self._whole_indices(args[1]), *args[2:])
        if _SHAPED_BY_DATA in getattr(func, "tags", ()):
            folded = self._fold(func, args, named)
            if folded is None and self.assumed is not None:
                folded = self.assumed.select(func, args)
            if folded is not None:
                return folded
        if isinstance(func, torch._ops.OpOverload) and draws_random_numbers(func, args):
            return self.states.draw(func, args, named, self._run)
        return self._run(func, args, named)

    def _run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        self.known.follow(func, args, kwargs, result)
        return result

    def _fold(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """The result of an operator as constants, None where an operand is not known."""
        if self.known.answer(*nested_tensors((args, kwargs))) is None:
            return None
        return torch.utils._pytree.tree_map_only(
            torch.Tensor, self._constant, self.known.compute(func, args, kwargs)
        )

    def _constant(self, true: torch.Tensor) -> torch.Tensor:
        constant = aten.lift_fresh.default(true)
        self.known.follow(aten.lift_fresh.default, (true,), {}, constant)
        return constant

    def _whole_indices(self, indices: Any) -> list[Any]:
        """Indices with the places of the ones in those of truth values that are known."""
        found: list[Any] = []
        for index in indices:
            masks = isinstance(index, torch.Tensor) and index.dtype in (torch.bool, torch.uint8)
            places = self._fold(aten.nonzero.default, (index,), {}) if masks else None
            if masks and places is None and self.assumed is not None:
                places = self.assumed.nonzero(index)
            if places is None:
                found.append(index)
            else:
                found += [aten.select.int(places, 1, column) for column in range(index.dim())]
        return found
