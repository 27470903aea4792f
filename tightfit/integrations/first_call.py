"""A model that plans its training step itself, within its first training call."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tightfit.api.multi_shape_module import module_with_state
from tightfit.api.plan_options import REPLAN
from tightfit.api.planning import plan
from tightfit.api.replanner import detach_inputs
from tightfit.schemas.config_errors import find_closest
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn

    from tightfit.api.plan_result import ChosenPlan

CallOptions = Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]
"""Gives further options of `tightfit.plan` from the arguments of the call that is planned."""
_WITHOUT_REPLANS = ("cuda_graphs", "dynamic_shapes")
"""Options of `tightfit.plan` that exclude plans for further calls."""
_EXCLUDED = ("args", "kwargs", "samples", "optimizer")
_PLANNED = weakref.WeakSet[Any]()
"""The models that have planned their first training call."""


@dataclass
class FirstCallPlan:
    """The plan of a model that plans its first training call.

    Args:
        options: Options of `tightfit.plan`.
        call_options: Gives further ones from the arguments of the call; `options` go before them.
        plan: The plan, None before the first training call.
    """

    options: Mapping[str, Any]
    call_options: CallOptions | None = None
    plan: ChosenPlan | None = None

    def install(self, model: nn.Module) -> None:
        """Has a model plan its first training call; anew where it has done so before."""
        from tightfit.stages.runtime.guards.encode import original_class

        if original_class(model) is not type(model):
            if model not in _PLANNED:
                raise ConfigError(
                    f"the model, a {type(model).__name__}, is planned already: plan it once, "
                    "either by a callback or by a function"
                )
            _PLANNED.discard(model)
            object.__setattr__(model, "__class__", original_class(model))
        object.__setattr__(model, "__class__", _first_call_class(self, _forward_class(model)))

    def make(self, model: Any, base: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Plans a call of a model of the class `base`, which runs its plan from then on. What a
        wrapper has put around the forward on the model itself stays around it."""
        from tightfit.stages.torch_utils.devices import preserve_all_random_states

        further = {} if self.call_options is None else self.call_options(args, kwargs)
        options = {**further, **self.options}
        if not any(options.get(name) for name in _WITHOUT_REPLANS):
            options.setdefault("on_mismatch", REPLAN)
        around = vars(model).pop("forward", None)
        try:
            with preserve_all_random_states(), _without_hooks(model):
                original = module_with_state(base, vars(model))
                fitted, self.plan = plan(
                    original, samples=[detach_inputs((args, kwargs))], **options
                )
        finally:
            if around is not None:
                vars(model)["forward"] = around
        object.__setattr__(model, "__class__", type(fitted))
        _PLANNED.add(model)


def plan_at_first_call(model: nn.Module, **options: Any) -> FirstCallPlan:
    """Has a model plan its training step within its first training call, for loops that make their
    batches themselves.

    The model stays the same object: hooks, optimizers and wrappers around it stay as they are. Its
    first call in training mode with gradients is the sample. Calls of other shapes are planned
    within the same budget when they come (`on_mismatch="replan"`), unless `dynamic_shapes` are
    given. A copy or a pickle made before the first call is the model without a plan.

    Args:
        model: Module to plan.
        **options: Options of `tightfit.plan` except samples and `optimizer`.

    Returns:
        The future plan: its `plan` is None before the first training call.

    Raises:
        ConfigError: The model is planned already, its forward was replaced on the instance, or an
            option is not for such a plan. What `tightfit.plan` raises is raised in the first call.

    Example:
        >>> fit = tightfit.integrations.plan_at_first_call(model, budget="8GiB")
        >>> model(x).mean().backward()
        >>> print(fit.plan.summary())
    """
    check_first_call_options("plan_at_first_call", options)
    found = FirstCallPlan(options)
    found.install(model)
    return found


def check_first_call_options(caller: str, options: Mapping[str, Any]) -> None:
    """Raises ConfigError for options of `tightfit.plan` that do not go with a plan of the first
    call, and for those that it does not have."""
    known = set(inspect.signature(plan).parameters) - {"model"}
    for name in options:
        if name not in known:
            close = find_closest(name, known)
            hint = f"did you mean {close}" if close else "see tightfit.plan for those there are"
            raise ConfigError(f"{caller}: {name} is no option, {hint}")
    for name in _EXCLUDED:
        if options.get(name) is not None:
            why = (
                "the optimizer of the loop exists already: call tightfit.plan ahead of the loop"
                if name == "optimizer"
                else "the sample is the first training call: leave it out"
            )
            raise ConfigError(f"{caller}: {name}: {why}")


def warn_of_missing_plan(caller: str, remedy: str) -> None:
    """Warns at the end of a training in which the model was never called in training mode."""
    warnings.warn(
        f"tightfit: {caller} has planned nothing, since its model was never called with gradients "
        f"in training mode: plan the module that the training step calls, by {remedy}",
        stacklevel=2,
    )


@contextlib.contextmanager
def _without_hooks(model: nn.Module) -> Iterator[None]:
    """Within it a model has no hooks of its own, which planning would call; they stay around its
    planned forward."""
    from torch import nn

    state = vars(model)
    names = [name for name in vars(nn.Module()) if name.endswith("_hooks")]
    kept = {name: state[name] for name in names if state.get(name)}
    state.update({name: type(hooks)() for name, hooks in kept.items()})
    try:
        yield
    finally:
        state.update(kept)


def _forward_class(model: nn.Module) -> Any:
    """The class of a model, with the forward that was put onto the model itself (accelerate's
    prepare and trl do so), which the model then has from its class."""
    base, own = type(model), vars(model).get("forward")
    if own is None:
        return base
    if not isinstance(own, types.MethodType) or own.__self__ is not model:
        raise ConfigError(
            f"the forward of the model, a {base.__name__}, was replaced on the instance by "
            f"{own!r}, which is no method of it: use types.MethodType(function, model)"
        )
    del model.forward
    return _make_subclass(base, own.__func__)


def _first_call_class(first: FirstCallPlan, base: Any) -> Any:
    """A class of the model's own name whose first training call is planned."""

    @functools.wraps(base.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        import torch

        from tightfit.stages.runtime.call_context import disable_dynamo

        if type(self) is not planning:  # a wrapper kept this forward, and the model has its plan
            return type(self).forward(self, *args, **kwargs)
        if not self.training or not torch.is_grad_enabled():
            return base.forward(self, *args, **kwargs)
        with disable_dynamo():
            first.make(self, base, args, kwargs)
        return type(self).forward(self, *args, **kwargs)

    forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    planning = _make_subclass(
        base, forward, _tightfit_original=base, __reduce_ex__=_reduce_as(base)
    )
    return planning


def _make_subclass(base: Any, forward: Any, **members: Any) -> Any:
    """A class of the same name with another forward."""
    names = {name: getattr(base, name) for name in ("__doc__", "__module__", "__qualname__")}
    return type(base)(base.__name__, (base,), {**names, "forward": forward, **members})


def _reduce_as(base: Any) -> Any:
    """How a model is copied and pickled that has no plan yet: as one of the class `base`."""

    def reduce(self: Any, protocol: Any) -> Any:
        original = module_with_state(base, vars(self).copy())
        make, *others = original.__reduce_ex__(protocol)
        return (_new_object if make is copyreg.__newobj__ else make, *others)  # type: ignore[attr-defined]

    return reduce


def _new_object(kind: Any, *args: Any) -> Any:
    """As `copyreg.__newobj__`, of which pickle asks that the object is of that very class."""
    return kind.__new__(kind, *args)
