"""One module with a plan for each of several shapes, chosen at the call."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.mismatch import PlanMismatch

if TYPE_CHECKING:
    from torch import nn

_MAX_REMEMBERED_CALLS = 1 << 12
"""Calls of which it is remembered which plan took them: numbers among their arguments may count."""

ModuleLoader = Callable[["nn.Module", str], "nn.Module"]
"""Makes a planned module of a model, and of what a call that it was not made for does."""


@dataclass(frozen=True)
class MultiShapePlans:
    """How each plan is loaded, what shapes it was made for, and what other calls do."""

    loads: list[ModuleLoader]
    shapes: list[str]
    on_mismatch: str

    def join(self, model: nn.Module) -> nn.Module:
        """The module that takes the place of `model` with all plans.

        The module shares the model's state and runs, in each call, the plan that was made for such
        a call. Any other call raises PlanMismatch or, with on_mismatch="original", runs the
        model's own forward; with "copy" it runs the plan that its inputs can be copied for.
        """
        ways = ["error", "copy"] if self.on_mismatch == "copy" else ["error"]
        planned = [load(model, way) for way in ways for load in self.loads]
        return _module_with_state(_joined_class(self, planned), vars(model))


def join_pickled(
    carried: Sequence[tuple[Any, ...]], shapes: list[str], on_mismatch: str, model: nn.Module
) -> nn.Module:
    """The joined module of a pickle, of what its plans' packages carry."""
    from tightfit.api.pickling import pickled_package_loader

    return MultiShapePlans(
        [pickled_package_loader(*parts) for parts in carried], shapes, on_mismatch
    ).join(model)


def _joined_class(plans: MultiShapePlans, planned: Sequence[nn.Module]) -> Any:
    kinds: list[Any] = [type(part) for part in planned]
    base = kinds[0]._tightfit_original

    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        own = kinds[: len(plans.loads)]
        parts = [_module_with_state(kind, vars(self)).__reduce_ex__(2)[1] for kind in own]
        carried = [(*part[:3], *part[5:]) for part in parts]
        return join_pickled, (
            carried,
            plans.shapes,
            plans.on_mismatch,
            _module_with_state(base, vars(self)),
        )

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        copied = memo[id(self)] = object.__new__(base)
        object.__setattr__(copied, "__dict__", copy.deepcopy(vars(self), memo))
        return plans.join(copied)

    def shallow(self: Any) -> Any:
        return plans.join(_module_with_state(base, vars(self).copy()))

    body: dict[str, Any] = {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": reduce,
        "_tightfit_original": base,
        "forward": _joined_forward(base, kinds, plans),
    }
    if not hasattr(base, "__copy__"):
        body["__copy__"] = shallow
    if not hasattr(base, "__deepcopy__"):
        body["__deepcopy__"] = deepcopy
    return type(base)(base.__name__, (base,), body)


def _joined_forward(base: Any, kinds: Sequence[Any], plans: MultiShapePlans) -> Callable[..., Any]:
    """The forward that tries the plan that took such a call before, then the others.

    Of a refusal only its text is kept: its frames would keep the tensors of the call.
    """
    import torch

    known: dict[Hashable, int] = {}

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        like = call_signature(args, kwargs)
        refusals: list[str] = []
        for number in sorted(range(len(kinds)), key=lambda number: number != known.get(like)):
            try:
                result = kinds[number].forward(self, *args, **kwargs)
            except PlanMismatch as error:
                refusals.append(str(error))
            else:
                if torch.is_grad_enabled() and len(known) < _MAX_REMEMBERED_CALLS:
                    known[like] = number
                return result
        if plans.on_mismatch == "original":
            return base.forward(self, *args, **kwargs)
        if like in known or len(set(refusals)) == 1:
            raise PlanMismatch(refusals[0])
        raise PlanMismatch(_mismatch_message(refusals[-len(plans.shapes) :], plans.shapes))

    forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    return forward


def call_signature(args: Any, kwargs: Any) -> Hashable:
    """What the calls of one plan have in common: structure, shapes, dtypes and plain values."""
    import torch

    from tightfit.stages.runtime.pytree import flatten

    leaves, tree = flatten((tuple(args), dict(sorted(kwargs.items()))))
    return tree, tuple(
        (leaf.shape, leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf), leaf if isinstance(leaf, bool | int | float | str) else None)
        for leaf in leaves
    )


def _mismatch_message(refusals: Sequence[str], shapes: Sequence[str]) -> str:
    said = ", ".join(
        f"that for {shape} since {refusal.partition(';')[0]}"
        for shape, refusal in zip(shapes, refusals, strict=True)
    )
    return (
        f"no plan takes the call, {said}; plan with a sample of its shapes too, or with "
        f'on_mismatch="original"'
    )


def _module_with_state(kind: Any, state: dict[str, Any]) -> Any:
    face = object.__new__(kind)
    object.__setattr__(face, "__dict__", state)
    return face
