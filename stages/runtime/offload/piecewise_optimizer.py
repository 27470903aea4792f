"""Updates parameters piece by piece as their optimizer does, their states in an offload target.

Each piece is given to the optimizer's own `step` as a parameter of its own. All that is known here
works element by element, so that a parameter in pieces is, bit for bit, what it is in one.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .host_target import create_offload_target
from .parameter_pieces import ParameterPiece, flat_view, split_into_pieces, states_per_parameter
from .parameter_store import ParameterStore
from .placeholder_parameter import MemoryLayout
from .staging import ResidentStates, StagingBuffer, StagingRing, StateTarget

if TYPE_CHECKING:
    from .host_update import HostUpdater
    from .second_tier import SecondTierStore

KNOWN_OPTIMIZERS = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
EXTRA_STATE_SETTINGS = ("momentum", "amsgrad")
"""Settings with which an optimizer keeps one more state."""
STAGING_BUFFER_COUNT = 4
"""Staging buffers: of one the states are updated, two come, and one goes back."""


class PiecewiseOptimizer:
    """The states of the parameters of some groups, and how they are updated; `memory` makes what
    they are stored in, of that many bytes, where that is not the device's offload target. Those
    of the parameters that live in a `parameter_store` come from there, and the `host_updater`
    updates some there; the states of some of these, of the numbers `apart`, are `far` away, behind
    all others. Those that are `resident` stay on the device.

    `keys` are the names of the states of each parameter that has been updated, `scalars` those that
    are numbers: these stay in memory. `staging` are the bytes of the staging buffers.
    """

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        groups: Sequence[dict[str, Any]],
        folder: str | None,
        piece_bytes: int,
        memory: Callable[[int], StateTarget] | None = None,
        parameter_store: ParameterStore | None = None,
        apart: Collection[int] = (),
        resident: Collection[int] = (),
    ) -> None:
        self.parameters = [p for group in groups for p in group["params"]]
        self.layouts = [MemoryLayout.of(parameter) for parameter in self.parameters]
        self.parameter_store = parameter_store
        self.host_updater: HostUpdater | None = None
        self.far: SecondTierStore | None = None
        self.kind = kind
        self.groups = [number for number, group in enumerate(groups) for _ in group["params"]]
        counts = [states_per_parameter(kind, groups[number]) for number in self.groups]
        self.pieces = split_into_pieces(self.parameters, counts, piece_bytes, (apart, resident))
        every = [p for number, own in enumerate(self.pieces) for p in own if number not in resident]
        device = self.parameters[0].device
        self.size = sum(piece.size for piece in every)
        most = max(piece.size for own in self.pieces for piece in own)
        self.staging = STAGING_BUFFER_COUNT * most
        slow = (
            create_offload_target(device, self.size, folder)
            if memory is None
            else memory(self.size)
        )
        self.ring = StagingRing(
            slow, [StagingBuffer.of(most, device) for _ in range(STAGING_BUFFER_COUNT)]
        )
        stay = [p for number in sorted(resident) for p in self.pieces[number]]
        self.resident = ResidentStates(stay, device)
        self.keys: dict[int, tuple[str, ...]] = {}
        self.scalars: dict[int, dict[str, Any]] = {}
        self.shadow_optimizers = [
            make_shadow_optimizer(kind, group, self.parameters[0]) for group in groups
        ]
        self.step = _step_without_hooks(kind)

    def update(
        self, number: int, group: dict[str, Any], arriving: bool = False, keep: bool = False
    ) -> None:
        """Updates a parameter by its gradient, if it has one, and drops that unless told to `keep`
        it. One that is `arriving` in a backward is handed to the host updater of the offload target
        where that updates it."""
        parameter = self._unmoved(number)
        gradient = self._gradient(number)
        if gradient is None:
            return
        settings = group_settings(group)
        if arriving and self.host_updater is not None and self.host_updater.takes(number):
            self.host_updater.hand(number, gradient, settings)
            parameter.grad = None
            return
        self.shadow_optimizers[self.groups[number]].param_groups[0].update(settings)
        scalars: dict[str, Any] = {}
        with torch.no_grad(), self._changing(parameter) as whole:
            for piece in self.pieces[number]:
                scalars = self._piece(piece, whole, flat_view(gradient))
        self.keep(number, scalars)
        if not keep:
            parameter.grad = None

    def _gradient(self, number: int) -> torch.Tensor | None:
        """The gradient of a parameter, if it has one, whose elements lie as the parameter's do."""
        parameter = self.parameters[number]
        gradient = parameter.grad
        if gradient is None:
            return None
        if gradient.layout != torch.strided:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which the "
                f"optimizers known here do not take in pieces: use the optimizer after the backward"
            )
        if gradient.stride() != parameter.stride():
            return self.layouts[number].empty().copy_(gradient)
        return gradient

    def version(self, number: int) -> int | None:
        """How often a parameter was changed in place, None where it lives in an offload target."""
        parameter = self.parameters[number]
        elsewhere = (
            self.parameter_store is not None and id(parameter) in self.parameter_store.numbers
        )
        return None if elsewhere else parameter._version

    def begin(self) -> None:
        """A step has ended: the next one is expected to take the states in the same order."""
        self.ring.begin()
        if self.far is not None:
            self.far.begin()

    @property
    def slow_bytes(self) -> int:
        """The bytes of the offload target for states and for what those of a third one pass
        through."""
        return self.size if self.far is None else self.size - self.far_bytes + self.far.through

    @property
    def far_bytes(self) -> int:
        """The bytes of states in a second offload tier."""
        return 0 if self.far is None else self.far.behind.size

    def wait(self, number: int) -> None:
        """Gradients add up: that of a parameter stays, or is added up where that lives."""
        if self.host_updater is None or not self.host_updater.adding(number):
            return
        gradient = self._gradient(number)
        if gradient is not None:
            self.host_updater.hand(number, gradient, {})
            self.parameters[number].grad = None

    def states(self, number: int) -> dict[str, Any]:
        """The states of a parameter as its optimizer keeps them, tensors of their own."""
        if number not in self.keys:
            return {}
        self._unmoved(number)
        tensors = {key: self.layouts[number].empty() for key in self._tensors(number)}
        for piece, staging in self._each(number):
            for place, tensor in enumerate(tensors.values()):
                part = flat_view(tensor)[piece.begin : piece.end]
                part.copy_(staging.state(piece, place, tensor.dtype))
            self._ring(piece).drop(staging)
        scalars = {key: _copy_value(value) for key, value in self.scalars[number].items()}
        return {key: tensors.get(key, scalars.get(key)) for key in self.keys[number]}

    def store(self, number: int, states: dict[str, Any]) -> None:
        """Takes states that a parameter has from elsewhere, none where there are none."""
        self.ring.forget()
        parameter = self._unmoved(number)
        for piece in self.pieces[number]:
            self._ring(piece).stored.pop(piece, None)
        self.keys.pop(number, None)
        self.scalars.pop(number, None)
        states = {key: value for key, value in states.items() if value is not None}
        if not states:
            return
        tensors = {
            key: value for key, value in states.items() if _is_state_tensor(key, value, parameter)
        }
        self._check(number, tensors)
        self.keys[number] = tuple(states)
        self.scalars[number] = {
            key: _copy_value(value) for key, value in states.items() if key not in tensors
        }
        for piece, staging in self._each(number):
            for place, tensor in enumerate(tensors.values()):
                same = (
                    self.layouts[number].empty().copy_(tensor)
                    if _needs_copy(tensor, parameter)
                    else tensor
                )
                part = flat_view(same)[piece.begin : piece.end]
                staging.state(piece, place, parameter.dtype).copy_(part)
            self._ring(piece).leave(piece, staging)
        self.ring.order = []

    def _unmoved(self, number: int) -> torch.Tensor:
        """A parameter, which lies as it did when its states got their places; where it is in the
        parameter store, that has not failed, since its states are then those of another step."""
        if self.parameter_store is not None:
            self.parameter_store.check()
        parameter = self.parameters[number]
        if MemoryLayout.of(parameter) != self.layouts[number]:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} has another dtype, layout or "
                f"device than when its optimizer was made: make it anew"
            )
        return parameter

    @contextlib.contextmanager
    def _changing(self, parameter: torch.Tensor) -> Iterator[torch.Tensor]:
        """All elements of a parameter, on the device, in the order of its storage."""
        if self.parameter_store is None or id(parameter) not in self.parameter_store.numbers:
            yield flat_view(parameter)
            return
        with self.parameter_store.modify_parameter(self.parameter_store.number(parameter)) as whole:
            yield flat_view(whole)

    def _each(self, number: int) -> Iterator[tuple[ParameterPiece, StagingBuffer]]:
        self.ring.forget()
        for piece in self.pieces[number]:
            yield piece, self._ring(piece).arrive(piece)

    def _ring(self, piece: ParameterPiece) -> StagingRing[StagingBuffer] | ResidentStates:
        """Where the states of a piece come from."""
        return self.resident if piece in self.resident.buffers else self.ring

    def _piece(
        self, piece: ParameterPiece, whole: torch.Tensor, gradient: torch.Tensor
    ) -> dict[str, Any]:
        """Updates a piece; returns the states of it that are numbers."""
        ring = self._ring(piece)
        staging = ring.arrive(piece)
        try:
            part = whole[piece.begin : piece.end]
            part.grad = gradient[piece.begin : piece.end]
            stored = piece in ring.stored
            own = [staging.state(piece, place, part.dtype) for place in range(piece.states)]
            given = self.given(piece.parameter, own) if stored else {}
            shadow = self.shadow_optimizers[self.groups[piece.parameter]]
            scalars, kept = self.stepped(piece, part, given, shadow, own)
        except BaseException:
            ring.drop(staging)
            raise
        if kept:
            ring.leave(piece, staging)
        else:
            ring.drop(staging)
        return scalars

    def given(self, number: int, own: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The states of a part of a parameter that was updated before, of which its `own` are
        tensors."""
        numbers, keys = self.scalars[number], self.keys[number]
        places = {key: place for place, key in enumerate(k for k in keys if k not in numbers)}
        return {
            key: own[places[key]] if key in places else _copy_value(numbers[key]) for key in keys
        }

    def stepped(
        self,
        piece: ParameterPiece,
        part: torch.Tensor,
        given: dict[str, Any],
        shadow: torch.optim.Optimizer,
        own: Sequence[torch.Tensor],
    ) -> tuple[dict[str, Any], bool]:
        """Updates a piece that has its gradient by a `shadow` of its optimizer, and leaves the
        states that are tensors in its `own`; those that are numbers, and whether there are any."""
        states = self._stepped(part, given, shadow)
        tensors = {
            key: value for key, value in states.items() if _is_state_tensor(key, value, part)
        }
        self._check(piece.parameter, tensors)
        for value, state in zip(tensors.values(), own, strict=False):
            if value.data_ptr() != state.data_ptr():
                state.copy_(value)
        if states and piece.last:
            self.keys[piece.parameter] = tuple(states)
        return {key: value for key, value in states.items() if key not in tensors}, bool(states)

    def _stepped(
        self, part: torch.Tensor, given: dict[str, Any], shadow: torch.optim.Optimizer
    ) -> dict[str, Any]:
        """The states of a parameter after a step of the optimizer's own."""
        if given:
            shadow.state[part] = given
        shadow.param_groups[0]["params"] = [part]
        try:
            self.step(shadow)
            return dict(shadow.state.pop(part, {}))
        finally:
            shadow.param_groups[0]["params"] = []
            shadow.state.clear()

    def keep(self, number: int, scalars: dict[str, Any]) -> None:
        """Keeps the states that are numbers, in the tensors that they have."""
        known = self.scalars.setdefault(number, scalars)
        for key, value in scalars.items():
            if isinstance(value, torch.Tensor) and key in known:
                known[key].copy_(value)
            else:
                known[key] = value

    def _tensors(self, number: int) -> list[str]:
        return [key for key in self.keys[number] if key not in self.scalars[number]]

    def check_room(self, number: int, settings: dict[str, Any]) -> None:
        """Raises RuntimeError where the settings of a group ask for more states than have their
        places."""
        room = self.pieces[number][0].states
        if states_per_parameter(self.kind, settings) > room:
            named = {name: settings[name] for name in EXTRA_STATE_SETTINGS if settings.get(name)}
            told = ", ".join(f"{name} {value}" for name, value in named.items())
            raise RuntimeError(
                f"the optimizer has {told} now, which takes more states of a parameter than the "
                f"{room} that it had a place for: give it that setting before it is planned or "
                "moved; a scheduler as OneCycleLR or CyclicLR sets a momentum unless it is made "
                "with cycle_momentum=False"
            )

    def _check(self, number: int, tensors: dict[str, torch.Tensor]) -> None:
        parameter, room = self.parameters[number], self.pieces[number][0].states
        if len(tensors) > room:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} has the states "
                f"{', '.join(tensors)}, and there is room for {room}: give the optimizer its "
                f"settings before its states leave"
            )
        for key, value in tensors.items():
            if value.dtype != parameter.dtype:
                raise RuntimeError(
                    f"the state {key} is of {value.dtype}, its parameter of {parameter.dtype}"
                )


def _is_state_tensor(key: str, value: Any, parameter: torch.Tensor) -> bool:
    tensor = isinstance(value, torch.Tensor) and key != "step"
    return tensor and value.shape == parameter.shape


def _needs_copy(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    return tensor.stride() != parameter.stride() or tensor.device != parameter.device


def _copy_value(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def group_settings(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a group."""
    return {name: value for name, value in group.items() if name != "params"}


def make_shadow_optimizer(
    kind: type[torch.optim.Optimizer], group: dict[str, Any], some: torch.Tensor
) -> torch.optim.Optimizer:
    """An optimizer of the kind with the settings of a group and no parameter; `some` is one."""
    taken = inspect.signature(kind.__init__).parameters
    settings = {name: value for name, value in group.items() if name in taken and name != "params"}
    made = kind([torch.empty(0, dtype=some.dtype, device=some.device)], **settings)
    made.param_groups[0]["params"] = []
    return made


def _step_without_hooks(
    kind: type[torch.optim.Optimizer],
) -> Callable[[torch.optim.Optimizer], Any]:
    """The step of an optimizer without the hooks that run once for a step of all parameters."""
    step: Any = kind.step
    while hasattr(step, "hooked"):
        step = step.__wrapped__
    return step


def check_reproducible(kind: type[torch.optim.Optimizer], group: dict[str, Any]) -> None:
    """Raises RuntimeError where a group's updates are not the same from call to call: PyTorch's
    fused SGD on a CPU stores momenta of two bytes an element that are not the sums which it
    forms."""
    if kind is not torch.optim.SGD or not (group.get("fused") and group["momentum"]):
        return
    for parameter in group["params"]:
        if parameter.device.type == "cpu" and parameter.dtype.itemsize == 2:
            raise RuntimeError(
                f"PyTorch's fused SGD leaves wrong momenta of {parameter.dtype} on a CPU: make the "
                "optimizer with fused=False"
            )


def check_single_process() -> None:
    """Raises RuntimeError where there are several processes: a gradient of one is not yet the sum
    of all."""
    distributed = torch.distributed
    several = distributed.is_available() and distributed.is_initialized()
    if several and distributed.get_world_size() > 1:
        raise RuntimeError(
            "the optimizer would step in the backward before the gradients of all processes are "
            "added up: use it after the backward"
        )
