"""Makes the module that takes the place of the model a plan was made for."""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from .autograd_chain import StepProgram, run_forward
from .call_context import check_call_context, check_tensor_types, disable_dynamo, is_tracing
from .cuda_graphs import CudaGraphStep, cuda_graph_obstacle
from .guards.check import Guards
from .guards.encode import original_class
from .interface import Interface, output_assembler
from .mismatch import PlanMismatch
from .preallocation import Preallocation
from .pytree_classes import register_key_value_caches

if TYPE_CHECKING:
    from .offload.setup import OffloadedModule

Model = TypeVar("Model", bound=torch.nn.Module)
MismatchAction = Literal["error", "original", "copy"]


def wrap_model(
    model: Model,
    interface: Interface,
    step: StepProgram,
    on_mismatch: MismatchAction,
    load: Callable[..., torch.nn.Module],
    cuda_graphs: bool = False,
    arena: int = 0,
    offloaded: OffloadedModule | None = None,
    more: tuple[Any, ...] = (),
    disk: str | None = None,
) -> Model:
    """A module of the model's own class that shares all its state and runs the planned step, with
    `cuda_graphs` as CUDA graphs (see `graphed`). Ahead of the first step it takes the bytes of an
    `arena` of the GPU (see `ahead`).

    Module and model share the attributes themselves: what is set, moved or replaced on one is so on
    the other. `load` rebuilds it when it is copied or unpickled, with what `more` it was given;
    where whoever loaded the package has put `carrying` into it, that says how it is pickled.
    Parameters that live in an offload target are `offloaded`. Tensors that wait on a disk do so in
    the folder `disk`."""
    if on_mismatch not in ("error", "original", "copy"):
        where = "which only tightfit.plan can do: here " if on_mismatch == "replan" else ""
        raise ValueError(
            f'on_mismatch is {on_mismatch!r}, {where}it can be "error", "original" or "copy"'
        )
    if disk is not None and (not isinstance(disk, str | os.PathLike) or not os.fspath(disk)):
        raise ValueError(f"disk is {disk!r}, it can be the path of a folder")
    if not isinstance(model, torch.nn.Module):
        raise RuntimeError(f"load is given a {type(model).__name__} instead of a torch module")
    base = original_class(model)
    if "forward" in vars(model):
        raise RuntimeError(
            "the model's forward was replaced on the instance, a planned module cannot replace it"
        )
    if cuda_graphs:
        refused = cuda_graph_obstacle(step, interface)
        if refused:
            raise RuntimeError(f"{refused}: load the plan without cuda_graphs")
    loading = LoadArguments(load, on_mismatch, cuda_graphs, arena, offloaded, more, disk)
    return _with_class(_make_planned_class(base, model, interface, step, loading), model)


@dataclass(frozen=True)
class LoadArguments:
    """How a planned module was loaded, and is loaded again where it is copied or unpickled; the
    package itself names the bytes of its `arena`."""

    load: Callable[..., torch.nn.Module]
    on_mismatch: MismatchAction
    cuda_graphs: bool
    arena: int
    offloaded: OffloadedModule | None = None
    more: tuple[Any, ...] = ()
    disk: str | None = None

    def check_copied(self) -> None:
        """Raises RuntimeError where a planned module is neither copied nor pickled."""
        if self.offloaded is not None:
            raise RuntimeError(
                "a planned module whose parameters live in an offload target is neither copied nor "
                "pickled: save its state_dict()"
            )

    def again(self, model: torch.nn.Module) -> torch.nn.Module:
        """The planned module of another model."""
        own = {} if self.disk is None else {"disk": self.disk}
        return self.load(model, self.on_mismatch, self.cuda_graphs, *self.more, **own)

    def pickle_arguments(self, model: torch.nn.Module) -> tuple[Any, ...]:
        """How the planned module of a model is pickled; the folder of a disk stays behind."""
        self.check_copied()
        carrying = getattr(sys.modules.get(self.load.__module__), "carrying", None)
        if carrying is None:
            return self.load, (model, self.on_mismatch, self.cuda_graphs, *self.more)
        reduced: tuple[Any, ...] = carrying(model, self.on_mismatch, self.cuda_graphs, *self.more)
        return reduced


def _make_planned_class(
    base: type[Model],
    model: Model,
    interface: Interface,
    step: StepProgram,
    loading: LoadArguments,
) -> type[Model]:
    """The class that takes the place of the model's own."""
    register_key_value_caches()
    offloaded = loading.offloaded
    transfer_settings = None if offloaded is not None else transfer_settings_of(step, loading.disk)
    run = CudaGraphStep(step, interface, loading.arena) if loading.cuda_graphs else step
    if transfer_settings is not None:
        run = functools.partial(step, transfer_settings)
    body: dict[str, Any] = {
        "__doc__": base.__doc__,
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "_tightfit_original": base,
        "_tightfit_transfers": transfer_settings,
        "forward": _make_forward(base, model, interface, step, run, loading),
        **_copy_methods(base, model, loading),
        **({} if offloaded is None else offloaded.members(base)),
    }
    metaclass: Any = type(base)
    return metaclass(base.__name__, (base,), body)


def _make_forward(
    base: type[Model],
    model: Model,
    interface: Interface,
    step: StepProgram,
    run: Any,
    loading: LoadArguments,
) -> Callable[..., Any]:
    """The forward of a planned module: the step, as it is `run`, for calls that it was planned for,
    and the model's own where nothing is trained or PyTorch traces."""
    offloaded = loading.offloaded
    ahead = Preallocation(0 if loading.cuda_graphs else loading.arena)
    copying = loading.on_mismatch == "copy"
    guards = Guards(interface, _with_class(base, model), Path(__file__).parents[1], copying)
    if offloaded is not None:
        # The first step is to take what was predicted, and reads no constants.
        guards.constants.on(offloaded.store.device)
    assemble = output_assembler(interface)
    effects = guards.watch.side_effects

    @functools.wraps(base.forward)
    def forward(self: Model, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled() or self.training != guards.training:
            return base.forward(self, *args, **kwargs)
        if is_tracing(args, kwargs):
            return base.forward(self, *args, **kwargs)
        with disable_dynamo():
            try:
                check_call_context(guards.writes)
                tensors = guards.gather(self, args, kwargs)
                effects.check(self)
                check_tensor_types(tensors if offloaded is None else offloaded.plain(tensors))
            except PlanMismatch:
                if loading.on_mismatch != "original":
                    raise
                tensors = None
            if tensors is not None:
                ahead.take(tensors[0].device)
                expected = guards.expected(tensors)
                own, facts = expected.step or run, expected.interface
                if offloaded is not None:
                    own, facts = offloaded.program(step, interface)
                result = assemble(*run_forward(own, facts, tensors, run is step), tensors)
                return effects.apply(self, result) if effects else result
        return base.forward(self, *args, **kwargs)

    # Dynamo breaks its graph here and lets the step run as it is.
    forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    return forward


def _copy_methods(base: type[Model], model: Model, loading: LoadArguments) -> dict[str, Any]:
    """How planned modules are pickled and, unless their class says how, copied."""

    def reduce(self: Model, protocol: Any) -> tuple[Any, ...]:
        return loading.pickle_arguments(_with_class(base, self))

    def deepcopy(self: Model, memo: dict[int, Any]) -> Any:
        loading.check_copied()
        copied = object.__new__(base)
        memo[id(self)] = memo[id(model)] = copied
        object.__setattr__(copied, "__dict__", copy.deepcopy(vars(self), memo))
        return loading.again(copied)

    def shallow(self: Model) -> Any:
        loading.check_copied()
        copied = object.__new__(base)
        object.__setattr__(copied, "__dict__", vars(self).copy())
        return loading.again(copied)

    members: dict[str, Any] = {"__reduce_ex__": reduce}
    if not hasattr(base, "__copy__"):
        members["__copy__"] = shallow
    if not hasattr(base, "__deepcopy__"):
        # A submodule may refer to the model, which then is there before its copy is planned.
        members["__deepcopy__"] = deepcopy
    return members


def transfer_settings_of(step: StepProgram, disk: str | None) -> Any:
    """How a step sends tensors, None for one that sends none."""
    transfer_settings = getattr(step, "__globals__", {}).get("TransferSettings")
    return None if transfer_settings is None else transfer_settings(disk)


def _with_class(kind: type[Model], module: torch.nn.Module) -> Model:
    """The same module as an instance of another class: both have one state."""
    face = object.__new__(kind)
    object.__setattr__(face, "__dict__", vars(module))
    return face
