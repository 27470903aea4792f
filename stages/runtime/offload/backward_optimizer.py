"""An optimizer that updates each parameter in the backward, as soon as its gradient is whole."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeVar

import torch

from ..backward_tracker import BackwardTracker, attach_optimizer, detach_optimizer
from .consumed_gradients import ConsumedGradients
from .piecewise_optimizer import PiecewiseOptimizer, check_single_process
from .placeholder_parameter import prevent_swapping
from .supported_optimizers import check_supported_optimizer


class OptimizerStates(Mapping[Any, Any]):
    """The states of an optimizer by parameter, fetched whenever they are looked at. They are
    copies: unless they are to be `taken` away, they refuse to be changed in place, as tensors of
    inference mode do."""

    def __init__(self, optimizer: Any, taken: bool = False) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.taken = taken

    def __getitem__(self, parameter: Any) -> Any:
        owner: Any = self.optimizer()
        number = owner._numbers.get(id(parameter))
        if number not in owner._updates.keys:
            raise KeyError(parameter)
        with torch.inference_mode(not self.taken):
            return owner._updates.states(number)

    def __iter__(self) -> Iterator[Any]:
        owner: Any = self.optimizer()
        return (owner._updates.parameters[number] for number in sorted(owner._updates.keys))

    def __len__(self) -> int:
        owner: Any = self.optimizer()
        return len(owner._updates.keys)


PIECE_BYTES = 1 << 20
OptimizerT = TypeVar("OptimizerT", bound=torch.optim.Optimizer)


def in_backward(
    optimizer: OptimizerT,
    folder: str | os.PathLike[str] | None = None,
    piece_bytes: int | None = None,
    resident: Collection[int] = (),
    keep_gradients: bool = False,
) -> OptimizerT:
    """An optimizer that takes the place of `optimizer`: of its class, with its groups and states.

    Each backward updates every parameter as soon as its gradient is whole, and drops the gradient.
    `step()` then ends the step; it updates what still has a gradient, as it does where all of a
    backward ran within `accumulating()`. States are on the disk, in a file of `folder` (else that
    named by TIGHTFIT_DISK, else that of temporary files); those of a GPU's parameters are in pinned
    memory of the host. They come to the device in pieces of `piece_bytes`, unless given
    PIECE_BYTES. Those of the `resident` parameters, by their numbers in all groups, stay on the
    device. The states of `optimizer` move. With `keep_gradients` a backward updates nothing:
    gradients stay, to be clipped, scaled or read, and `step()` updates by them.

    Raises RuntimeError, in one sentence, for an optimizer that is not known, settings that this
    cannot be exact with, parameters that share memory, and a disk that has no room.
    """
    check_supported_optimizer(optimizer)
    folder = None if folder is None else os.fspath(folder)
    size = PIECE_BYTES if piece_bytes is None else piece_bytes
    kind, groups = type(optimizer), optimizer.param_groups
    made = make_backward_optimizer(
        optimizer, PiecewiseOptimizer(kind, groups, folder, size, resident=resident)
    )
    made.keep_gradients = keep_gradients
    return made


def make_backward_optimizer(optimizer: torch.optim.Optimizer, updates: PiecewiseOptimizer) -> Any:
    """The optimizer that takes the place of another one by its updates; see `in_backward`."""
    kind = type(optimizer)
    settings = {"defaults": optimizer.defaults, "param_groups": optimizer.param_groups}
    body = {"__doc__": kind.__doc__, "__module__": kind.__module__, "_kind": kind}
    derived: Any = object.__new__(type(kind.__name__, (_BackwardOptimizer, kind), body))
    derived._updates = updates
    derived._numbers = {id(p): number for number, p in enumerate(derived._updates.parameters)}
    derived.__setstate__({**settings, "state": OptimizerStates(derived)})
    for number, parameter in enumerate(derived._updates.parameters):
        derived._updates.store(number, optimizer.state.get(parameter, {}))
    optimizer.state.clear()
    derived._begin(optimizer)
    return derived


class _BackwardOptimizer(torch.optim.Optimizer):
    """What takes the place of an optimizer; see `in_backward`. With `keep_gradients` its `step()`
    alone updates, as that of any optimizer."""

    _kind: type[torch.optim.Optimizer]
    _updates: PiecewiseOptimizer
    _numbers: dict[int, int]

    def _begin(self, replaced: torch.optim.Optimizer) -> None:
        """Listens to the gradients of all parameters, in the place of the `replaced` optimizer."""
        self._waiting = False
        self.keep_gradients = False
        self._backwards = BackwardTracker()
        self._taken: dict[int, int | None] = {}
        """The parameters that are updated, with their versions then where that is known."""
        self._consumed = ConsumedGradients(self._updates.parameters)
        self._settings: dict[int, dict[str, Any]] = {}
        self._unswapped = prevent_swapping(self._updates.parameters)
        own = weakref.ref(self)
        attach_optimizer(self._updates.parameters, self)
        handles: list[Any] = [replaced.register_step_pre_hook(_refuse_replaced)]
        for number, parameter in enumerate(self._updates.parameters):
            if parameter.requires_grad:
                handles.append(
                    parameter.register_post_accumulate_grad_hook(_gradient_hook(own, number))
                )
        self._remove = weakref.finalize(self, _remove_hooks, handles, self._consumed)
        self._remove.atexit = False

    @contextlib.contextmanager
    def accumulating(self) -> Iterator[None]:
        """A backward within it updates nothing, so that gradients add up."""
        before, self._waiting = self._waiting, True
        try:
            yield
        finally:
            self._waiting = before

    def _arrived(self, number: int) -> None:
        """A gradient is whole."""
        adds = self._waiting or self.keep_gradients
        if number in self._taken or (self._taken and not adds and self._backwards.ended_unfinished):
            raise self._refused(
                "a second backward comes before optimizer.step(), and the first one has updated "
                "the parameters: run all but the last within optimizer.accumulating(), or plan "
                "with gradients=GradientOptions(keep=True)"
            )
        self._consumed.check_zeroed(number)
        if adds:
            self._updates.wait(number)
            return
        check_single_process()
        try:
            group = self.group_to_update(number)
            self._backwards.begin()
            self._updates.update(number, group, arriving=True)
            self._consumed.add(number)
            self._taken[number] = self._updates.version(number)
        except BaseException as error:
            self.ended_early(error)
            raise

    @property
    def ended_by(self) -> str:
        """By what a backward or step() has ended early, "" for nothing that is known."""
        return self._backwards.ended

    def ended_early(self, error: BaseException, place: str = "backward") -> None:
        """A backward or step() has ended by an error: what it has updated is told by that."""
        if self._taken:
            self._backwards.fail(error, place)

    def _refused(self, sentence: str) -> RuntimeError:
        """Why something cannot be between a backward and its step: a sentence, unless the backward
        has ended early, which is then told."""
        torn = self._backwards.ended_unfinished
        return RuntimeError(self._backwards.sentence() if torn else sentence)

    def group_to_update(self, number: int) -> dict[str, Any]:
        """The group of a parameter that is updated from here on."""
        if not isinstance(self.state, OptimizerStates):
            raise RuntimeError(
                "optimizer.state was replaced, and states are on the disk: give others by "
                "load_state_dict()"
            )
        place = self._updates.groups[number]
        group = self.param_groups[place]
        self._updates.check_room(number, group)
        self._settings.setdefault(place, _plain_settings(group))
        self._taken[number] = None
        return group

    def discard_update(self, number: int) -> None:
        """A parameter was not updated, and has its gradient again."""
        self._taken.pop(number, None)
        self._consumed.drop([number])

    def check_gradient(self, parameter: torch.Tensor, sets: bool) -> None:
        """Raises RuntimeError where the gradient of a parameter, which is read or set, was consumed
        in the backward."""
        self._consumed.check(parameter, sets)

    def guard(self, parameter: torch.Tensor) -> None:
        """A parameter that was shown is guarded again, where its gradient was consumed."""
        self._consumed.guard(parameter)

    @property
    def adding(self) -> bool:
        """Whether gradients add up now."""
        return self._waiting

    def step(self, closure: Any = None) -> Any:
        """Ends a step, and updates what still has a gradient."""
        loss = None
        if closure is not None:
            if not self.keep_gradients:
                raise RuntimeError(
                    "an optimizer that steps in the backward takes no closure: plan with "
                    "gradients=GradientOptions(keep=True)"
                )
            with torch.enable_grad():
                loss = closure()
        self._check_unchanged()
        self._update_remaining()
        self._taken.clear()
        self._consumed.end_step()
        self._backwards.clear()
        self._settings.clear()
        self._updates.begin()
        return loss

    def _check_unchanged(self) -> None:
        """Raises RuntimeError where settings or parameters were changed since the backward, which
        has used them, or gradients of the step before were not dropped."""
        self._consumed.check_zeroed()
        for place, settings in self._settings.items():
            changed = _changed_setting(settings, _plain_settings(self.param_groups[place]))
            if changed:
                raise RuntimeError(
                    f"{changed} of the optimizer was changed between a backward, which has used it "
                    f"already, and step(): change it before the backward"
                )
        for number, version in self._taken.items():
            if version is not None and self._updates.version(number) != version:
                shape = tuple(self._updates.parameters[number].shape)
                raise RuntimeError(
                    f"a parameter of shape {shape} was changed between a backward, which has "
                    "updated it already, and step(): change it after the step, or plan with "
                    "gradients=GradientOptions(keep=True)"
                )

    def _update_remaining(self) -> None:
        """Updates what still has a gradient."""
        self._settle()
        updater = self._updates.host_updater
        if updater is not None and updater.summed:
            raise RuntimeError(
                "step() comes after backwards within accumulating() alone, whose gradients wait in "
                "an offload target: run the last backward of a step outside of it"
            )
        if self._backwards.ended_unfinished:
            raise (
                self._refused("")
                if self._taken
                else RuntimeError(
                    "an error ended a backward, which has left the gradients of a part of it: drop "
                    "them by zero_grad()"
                )
            )
        for number, parameter in enumerate(self._updates.parameters):
            if number in self._taken or parameter.grad is None:
                continue
            group = self.group_to_update(number)
            try:
                self._updates.update(number, group, keep=self.keep_gradients)
            except BaseException as error:
                self.ended_early(error, "step")
                raise
            if not self.keep_gradients:
                self._consumed.add(number)

    def _settle(self) -> None:
        """What a backward that was interrupted has not come to is a gradient again; raises
        RuntimeError where the memory that parameters live in has failed."""
        store, updater = self._updates.parameter_store, self._updates.host_updater
        if store is not None and not store.memory.healthy:
            store.check()
        if updater is not None:
            updater.settle()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As that of every optimizer; refused where a backward has taken gradients already."""
        self._settle()
        if self._taken:
            raise self._refused(
                "zero_grad() comes before optimizer.step(), and the backward has updated the "
                "parameters already: call it after the step"
            )
        if self._updates.host_updater is not None:
            self._updates.host_updater.forget()
        self._backwards.clear()
        if self._consumed.stepped and not set_to_none:
            raise RuntimeError(
                "zero_grad(set_to_none=False) leaves zeros as gradients, and those that the "
                "backward has consumed have no bytes for these: leave set_to_none out, or plan "
                "with gradients=GradientOptions(keep=True)"
            )
        self._consumed.drop([*self._consumed.stepped])
        super().zero_grad(set_to_none)

    def state_dict(self) -> Any:
        """As that of the class, with tensors of their own."""
        kept, self.state = self.state, OptimizerStates(self, taken=True)  # type: ignore[assignment]
        try:
            return super().state_dict()
        finally:
            self.state = kept

    def load_state_dict(self, state_dict: Any) -> None:
        """Takes settings and states, which go to the offload target."""
        if self._taken:
            raise self._refused("load_state_dict() comes between a backward and its step()")
        super().load_state_dict(state_dict)
        loaded = self.state
        self.state = OptimizerStates(self)  # type: ignore[assignment]
        for number, parameter in enumerate(self._updates.parameters):
            self._updates.store(number, loaded.pop(parameter, {}))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the states of all parameters have their places."""
        raise RuntimeError(
            "an optimizer that steps in the backward takes no further group: add it before"
        )

    def gathered(self) -> contextlib.AbstractContextManager[None]:
        """Within it all parameters are on the device, to be read, changed, and used by the model
        itself. At its end those that live in the offload target are sent back as they are then."""
        store = self._updates.parameter_store
        return contextlib.nullcontext() if store is None else store.gathered()

    def close(self) -> None:
        """Stops updating, and gives the offload target its bytes back: the states are gone, and
        parameters that live there come back to the device. Where that memory has failed they are
        lost, and have no values from then on; raises RuntimeError where it fails now."""
        store = self._updates.parameter_store
        try:
            if store is not None:
                store.close()
        finally:
            if store is None or store.closed:
                self._remove()
                self._unswapped.clear()
                self._updates.ring.close()

    @property
    def staging_bytes(self) -> int:
        """Bytes of the device that states pass through, for as long as the optimizer lives."""
        return self._updates.staging

    @property
    def waited_seconds(self) -> float:
        """Seconds for which steps have waited for states so far, on the CPU, and for parameters
        that live in the offload target."""
        store = self._updates.parameter_store
        return self._updates.ring.waited + (
            0.0 if store is None else store.memory.waited + store.copies.waited
        )

    @property
    def slow_bytes(self) -> int:
        """Bytes of the offload target that the states have, and parameters that live there."""
        store = self._updates.parameter_store
        own = self._updates.slow_bytes
        updater = self._updates.host_updater
        own += 0 if updater is None else updater.sums.size
        return own if store is None else own + store.memory.size + store.copies.size

    @property
    def far_bytes(self) -> int:
        """Bytes of a second offload tier that states have."""
        return self._updates.far_bytes

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError(
            "an optimizer that steps in the backward is neither copied nor pickled: save its "
            "state_dict()"
        )


def _gradient_hook(optimizer: weakref.ref[_BackwardOptimizer], number: int) -> Any:
    def arrived(parameter: torch.Tensor) -> None:
        owner = optimizer()
        if owner is not None:
            owner._arrived(number)

    return arrived


def _refuse_replaced(optimizer: Any, args: Any, kwargs: Any) -> None:
    """What the step of an optimizer that was replaced begins with."""
    raise RuntimeError(
        "the states of this optimizer belong to the one that has taken its place: call step() of "
        "that one (the plan's optimizer, or what in_backward gave)"
    )


def _remove_hooks(handles: list[Any], consumed: ConsumedGradients) -> None:
    for handle in handles:
        handle.remove()
    consumed.drop([*consumed.stepped])
    detach_optimizer(consumed.parameters)


def _plain_settings(group: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.item() if isinstance(value, torch.Tensor) else value
        for name, value in group.items()
        if name != "params"
    }


def _changed_setting(before: dict[str, Any], now: dict[str, Any]) -> str:
    """The first setting that differs, "" where none does."""
    return next((name for name in now if before.get(name) != now[name]), "")
