"""One module with a plan for each of several shapes, chosen at the call."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from tightfit.api.number_changes import Refusal, replace_floats
from tightfit.api.plan_options import REPLAN
from tightfit.mismatch import PlanMismatch
from tightfit.util.errors import ArtifactError

if TYPE_CHECKING:
    from torch import nn

    from tightfit.api.plan_result import ChosenPlan
    from tightfit.api.replanner import Replanner

_MAX_REMEMBERED_CALLS = 1 << 12
"""Calls of which it is remembered which plan took them: numbers among their arguments may count."""

ModuleLoader = Callable[["nn.Module", str], "nn.Module"]
"""Makes a planned module of a model, and of what a call that it was not made for does."""

_Call = tuple[Any, Any, Any]
"""A module with its arguments and its keyword arguments."""


@dataclass(frozen=True)
class MultiShapePlans:
    """How each plan is loaded, what shapes it was made for, and what other calls do: with a
    `replanner` they are planned, and their plans are added to these. Some plans have floats among
    the arguments as inputs: `float_inputs` has their names."""

    loads: list[ModuleLoader]
    shapes: list[str]
    on_mismatch: str
    replanner: Replanner | None = None
    float_inputs: dict[int, Sequence[str]] = field(default_factory=dict)

    def join(self, model: nn.Module) -> nn.Module:
        """The module that takes the place of `model` with all plans.

        The module shares the model's state and runs, in each call, the plan that was made for such
        a call. Any other call raises PlanMismatch or, with on_mismatch="original", runs the
        model's own forward; with "copy" it runs the plan that its inputs can be copied for, with
        "replan" one that is made then.
        """
        from tightfit.stages.runtime.guards.encode import original_class

        planned: list[Any] = []
        if self.replanner is None:
            ways = ["error", "copy"] if self.on_mismatch == "copy" else ["error"]
            planned += [type(load(model, way)) for way in ways for load in self.loads]
        else:
            self.load_further(model, planned)
        joined = _joined_class(self, original_class(model), planned, model)
        return module_with_state(joined, vars(model))

    def load_further(self, model: nn.Module, planned: list[Any]) -> None:
        """Adds the classes of the plans that `planned` does not have yet; None for a plan of
        modules that the model no longer has."""
        for load in self.loads[len(planned) :]:
            try:
                planned.append(type(load(_without_own_forward(model), "error")))
            except ArtifactError:
                planned.append(None)

    def add(
        self, made: Sequence[ChosenPlan], disk: str | None, float_inputs: Sequence[str]
    ) -> None:
        """Adds plans, whose tensors may wait in the folder `disk`."""
        from tightfit.api.pickling import package_loader, package_shapes

        if float_inputs:
            places = range(len(self.loads), len(self.loads) + len(made))
            self.float_inputs.update(dict.fromkeys(places, float_inputs))
        self.loads.extend(package_loader(one.package, disk=disk) for one in made)
        self.shapes.extend(package_shapes(one.package) for one in made)


def join_pickled(
    carried: Sequence[tuple[Any, ...]],
    shapes: list[str],
    on_mismatch: str,
    model: nn.Module,
    replanner: Replanner | None = None,
    float_inputs: dict[int, Sequence[str]] | None = None,
) -> nn.Module:
    """The joined module of a pickle, of what its plans' packages carry."""
    from tightfit.api.pickling import pickled_package_loader

    loads = [pickled_package_loader(*parts) for parts in carried]
    return MultiShapePlans(loads, shapes, on_mismatch, replanner, float_inputs or {}).join(model)


def _joined_class(plans: MultiShapePlans, base: Any, planned: list[Any], model: nn.Module) -> Any:
    def reduce(self: Any, protocol: Any) -> tuple[Any, ...]:
        return _reduce_joined(plans, planned, module_with_state(base, vars(self)))

    def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
        copied = memo[id(self)] = object.__new__(base)
        object.__setattr__(copied, "__dict__", copy.deepcopy(vars(self), memo))
        return plans.join(copied)

    def shallow(self: Any) -> Any:
        return plans.join(module_with_state(base, vars(self).copy()))

    body: dict[str, Any] = {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__reduce_ex__": reduce,
        "_tightfit_original": base,
        "forward": _JoinedForward(plans, base, planned, model).function(),
    }
    if not hasattr(base, "__copy__"):
        body["__copy__"] = shallow
    if not hasattr(base, "__deepcopy__"):
        body["__deepcopy__"] = deepcopy
    return type(base)(base.__name__, (base,), body)


def _reduce_joined(plans: MultiShapePlans, planned: list[Any], model: Any) -> tuple[Any, ...]:
    """How a joined module is pickled."""
    places = [place for place, kind in enumerate(planned[: len(plans.loads)]) if kind is not None]
    own = [module_with_state(planned[place], vars(model)) for place in places]
    parts = [module.__reduce_ex__(2)[1] for module in own]
    carried = [(*part[:3], *part[5:]) for part in parts]
    if plans.replanner is None:
        return join_pickled, (carried, plans.shapes, plans.on_mismatch, model)
    replanner = plans.replanner.for_pickle()
    action = "original" if replanner is None else plans.on_mismatch
    floats = {new: plans.float_inputs.get(old, ()) for new, old in enumerate(places)}
    return join_pickled, (carried, plans.shapes, action, model, replanner, floats)


@dataclass(frozen=True)
class _JoinedForward:
    """Tries the plan that took such a call before, then the others, in the classes `planned`.

    Of a refusal only its text is kept: its frames would keep the tensors of the call.
    """

    plans: MultiShapePlans
    base: Any
    planned: list[Any]
    model: nn.Module
    known: dict[Hashable, int] = field(default_factory=dict)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The arguments of the model's forward."""
        return inspect.signature(_without_own_forward(self.model).forward)

    def function(self) -> Callable[..., Any]:
        """The forward of the joined class."""

        @functools.wraps(self.base.forward)
        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            return self.run(module, args, kwargs)

        forward._torchdynamo_disable = True  # type: ignore[attr-defined]
        return forward

    def run(self, module: Any, args: Any, kwargs: Any) -> Any:
        """What a call gives."""
        plans = self.plans
        like = call_signature(args, kwargs, floats=plans.replanner is None)
        if plans.replanner is not None:
            plans.load_further(self.model, self.planned)
        first = self.known.get(like)
        order = sorted(range(len(self.planned)), key=lambda number: number != first)
        refusals: dict[int, Refusal] = {}
        found = self.first_result(order, (module, args, kwargs), like, refusals)
        if not found and plans.replanner is not None:
            found = self.replan((module, args, kwargs), like, refusals)
        if found:
            return found[0]
        if plans.on_mismatch in ("original", REPLAN):
            return self.base.forward(module, *args, **kwargs)
        texts = [refusal.text for refusal in refusals.values()]
        if like in self.known or len(set(texts)) == 1:
            raise PlanMismatch(texts[0])
        raise PlanMismatch(_mismatch_message(texts[-len(plans.shapes) :], plans.shapes))

    def first_result(
        self, order: Sequence[int], call: _Call, like: Hashable, refusals: dict[int, Refusal]
    ) -> tuple[Any, ...]:
        """The result of the first plan that takes a call, in a tuple; an empty one where none
        does, and what each says of it."""
        import torch

        module = call[0]
        for number in order:
            if self.planned[number] is None:
                continue
            try:
                args, kwargs = self.plan_arguments(number, call[1], call[2])
                result = self.planned[number].forward(module, *args, **kwargs)
            except PlanMismatch as error:
                refusals[number] = Refusal.of(error)
            else:
                if torch.is_grad_enabled() and len(self.known) < _MAX_REMEMBERED_CALLS:
                    self.known[like] = number
                return (result,)
        return ()

    def plan_arguments(self, number: int, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """The arguments of a call as a plan takes them."""
        names = self.plans.float_inputs.get(number)
        if not names:
            return args, kwargs
        from tightfit.stages.torch_utils.number_inputs import number_tensor

        return replace_floats(self.signature, args, kwargs, dict.fromkeys(names, number_tensor))

    def replan(self, call: _Call, like: Hashable, refusals: dict[int, Refusal]) -> tuple[Any, ...]:
        """The result of a plan that is made for a call which no other takes, in a tuple; an empty
        one where there is none."""
        replanner = self.plans.replanner
        assert replanner is not None
        module, args, kwargs = call
        situation = refusals.get(0), like
        shared = module.__dict__ is self.model.__dict__
        model = self.model if shared else module_with_state(self.base, module.__dict__)
        model = _without_own_forward(model)
        made, floats = replanner.plans_for(model, args, kwargs, situation, [*refusals.values()])
        before = len(self.planned)
        self.plans.add(made, replanner.disk, floats)
        self.plans.load_further(self.model, self.planned)
        numbers = range(before, len(self.planned))
        found = self.first_result(numbers, call, like, refusals)
        if made and not found:
            said = refusals[before].text if before in refusals else "the model is another one"
            replanner.refuse(situation, f"the plan that was made for it does not take it: {said}")
        return found


def _without_own_forward(model: nn.Module) -> nn.Module:
    """A model as its class runs it, without a forward that was put onto the module itself."""
    from tightfit.stages.runtime.guards.encode import original_class

    if "forward" not in vars(model):
        return model
    state = {name: value for name, value in vars(model).items() if name != "forward"}
    return cast("nn.Module", module_with_state(original_class(model), state))


def call_signature(args: Any, kwargs: Any, floats: bool = True) -> Hashable:
    """What the calls of one plan have in common: structure, shapes, dtypes and plain values, those
    of `floats` unless they may be inputs."""
    import torch

    from tightfit.stages.runtime.pytree import flatten

    kinds = (bool, int, float, str) if floats else (bool, int, str)
    leaves, tree = flatten((tuple(args), dict(sorted(kwargs.items()))))
    return tree, tuple(
        (leaf.shape, leaf.dtype, leaf.requires_grad)
        if isinstance(leaf, torch.Tensor)
        else (type(leaf), leaf if isinstance(leaf, kinds) else None)
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


def module_with_state(kind: Any, state: dict[str, Any]) -> Any:
    """A module of a class that shares its state with another one."""
    face = object.__new__(kind)
    object.__setattr__(face, "__dict__", state)
    return face
