"""Updates parameters piece by piece as their optimiser does, their states in a slow memory.

Each piece is given to the optimiser's own `step` as a parameter of its own. All that is known here
works element by element, so that a parameter in pieces is, bit for bit, what it is in one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from stages.device.memories import slow_memory
from stages.device.pieces import Piece, flat, pieces_of, states_of
from stages.device.ring import Ring, Slot
from stages.device.slow import Slow

KNOWN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
SLOTS = 4


class Updates:
    """The states of the parameters of some groups, and how they are updated; `memory` makes what
    they are stored in, of that many bytes, where that is not the device's slow memory.

    `keys` are the names of the states of each parameter that has been updated, `scalars` those that
    are numbers: these stay in memory.
    """

    def __init__(
        self,
        kind: type[torch.optim.Optimizer],
        groups: Sequence[dict[str, Any]],
        folder: str | None,
        piece_bytes: int,
        memory: Callable[[int], Slow] | None = None,
    ) -> None:
        self.parameters = [p for group in groups for p in group["params"]]
        self.groups = [number for number, group in enumerate(groups) for _ in group["params"]]
        counts = [states_of(kind, groups[number]) for number in self.groups]
        self.pieces = pieces_of(self.parameters, counts, piece_bytes)
        every = [piece for own in self.pieces for piece in own]
        device = self.parameters[0].device
        size = sum(piece.size for piece in every)
        slot = max(piece.size for piece in every)
        slow = slow_memory(device, size, folder) if memory is None else memory(size)
        self.ring = Ring(slow, SLOTS, slot, device)
        self.keys: dict[int, tuple[str, ...]] = {}
        self.scalars: dict[int, dict[str, Any]] = {}
        self.shadows = [_shadow(kind, group) for group in groups]
        self.step = _plain_step(kind)

    @property
    def staging(self) -> int:
        """The bytes of the device that slots take."""
        return sum(slot.bytes.numel() for slot in self.ring.free)

    def update(self, number: int, group: dict[str, Any]) -> None:
        """Updates a parameter by its gradient, which it no longer has afterwards."""
        parameter = self.parameters[number]
        gradient = parameter.grad
        if gradient.layout != torch.strided:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which the "
                f"optimisers known here do not take in pieces: use the optimiser after the backward"
            )
        if gradient.stride() != parameter.stride():
            gradient = torch.empty_like(parameter).copy_(gradient)
        settings = {name: value for name, value in group.items() if name != "params"}
        self.shadows[self.groups[number]].param_groups[0].update(settings)
        scalars: dict[str, Any] = {}
        with torch.no_grad():
            for piece in self.pieces[number]:
                scalars = self._piece(piece, flat(parameter), flat(gradient))
        self._keep(number, scalars)
        parameter.grad = None

    def states(self, number: int) -> dict[str, Any]:
        """The states of a parameter as its optimiser keeps them, tensors of their own."""
        if number not in self.keys:
            return {}
        parameter = self.parameters[number]
        tensors = {key: torch.empty_like(parameter).detach() for key in self._tensors(number)}
        for piece, slot in self._each(number):
            for place, tensor in enumerate(tensors.values()):
                part = flat(tensor)[piece.begin : piece.end]
                part.copy_(slot.state(piece, place, tensor.dtype))
            self.ring.free.append(slot)
        scalars = {key: _copied(value) for key, value in self.scalars[number].items()}
        return {key: tensors.get(key, scalars.get(key)) for key in self.keys[number]}

    def store(self, number: int, states: dict[str, Any]) -> None:
        """Takes states that a parameter has from elsewhere, none where there are none."""
        self.ring.forget()
        parameter = self.parameters[number]
        for piece in self.pieces[number]:
            self.ring.stored.pop(piece, None)
        self.keys.pop(number, None)
        self.scalars.pop(number, None)
        states = {key: value for key, value in states.items() if value is not None}
        if not states:
            return
        tensors = {key: value for key, value in states.items() if _is_state(key, value, parameter)}
        self._check(number, tensors)
        self.keys[number] = tuple(states)
        self.scalars[number] = {
            key: _copied(value) for key, value in states.items() if key not in tensors
        }
        for piece, slot in self._each(number):
            for place, tensor in enumerate(tensors.values()):
                same = (
                    torch.empty_like(parameter).copy_(tensor)
                    if _moved(tensor, parameter)
                    else tensor
                )
                part = flat(same)[piece.begin : piece.end]
                slot.state(piece, place, parameter.dtype).copy_(part)
            self.ring.leave(piece, slot)
        self.ring.order = []

    def _each(self, number: int) -> Iterator[tuple[Piece, Slot]]:
        self.ring.forget()
        for piece in self.pieces[number]:
            yield piece, self.ring.arrive(piece)

    def _piece(self, piece: Piece, whole: torch.Tensor, gradient: torch.Tensor) -> dict[str, Any]:
        """Updates a piece; returns the states of it that are numbers."""
        number = piece.parameter
        slot = self.ring.arrive(piece)
        part = whole[piece.begin : piece.end]
        part.grad = gradient[piece.begin : piece.end]
        shadow = self.shadows[self.groups[number]]
        keys = self.keys.get(number, ()) if piece in self.ring.stored else ()
        given = {
            key: _copied(self.scalars[number][key]) for key in keys if key in self.scalars[number]
        }
        for place, key in enumerate(key for key in keys if key not in given):
            given[key] = slot.state(piece, place, part.dtype)
        if keys:
            shadow.state[part] = {key: given[key] for key in keys}
        shadow.param_groups[0]["params"] = [part]
        self.step(shadow)
        shadow.param_groups[0]["params"] = []
        states = shadow.state.pop(part, {})
        shadow.state.clear()
        tensors = {key: value for key, value in states.items() if _is_state(key, value, part)}
        self._check(number, tensors)
        for place, (key, value) in enumerate(tensors.items()):
            if value is not given.get(key):
                slot.state(piece, place, part.dtype).copy_(value)
        if piece.last and states:
            self.keys[number] = tuple(states)
        if states:
            self.ring.leave(piece, slot)
        else:
            self.ring.free.append(slot)
        return {key: value for key, value in states.items() if key not in tensors}

    def _keep(self, number: int, scalars: dict[str, Any]) -> None:
        """Keeps the states that are numbers, in the tensors that they have."""
        known = self.scalars.setdefault(number, scalars)
        for key, value in scalars.items():
            if isinstance(value, torch.Tensor) and key in known:
                known[key].copy_(value)
            else:
                known[key] = value

    def _tensors(self, number: int) -> list[str]:
        return [key for key in self.keys[number] if key not in self.scalars[number]]

    def _check(self, number: int, tensors: dict[str, torch.Tensor]) -> None:
        parameter, room = self.parameters[number], self.pieces[number][0].states
        if len(tensors) > room:
            raise RuntimeError(
                f"a parameter of shape {tuple(parameter.shape)} has the states "
                f"{', '.join(tensors)}, and there is room for {room}: give the optimiser its "
                f"settings before its states leave"
            )
        for key, value in tensors.items():
            if value.dtype != parameter.dtype:
                raise RuntimeError(
                    f"the state {key} is of {value.dtype}, its parameter of {parameter.dtype}"
                )


def _is_state(key: str, value: Any, parameter: torch.Tensor) -> bool:
    tensor = isinstance(value, torch.Tensor) and key != "step"
    return tensor and value.shape == parameter.shape


def _moved(tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    return tensor.stride() != parameter.stride() or tensor.device != parameter.device


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _shadow(kind: type[torch.optim.Optimizer], group: dict[str, Any]) -> torch.optim.Optimizer:
    """An optimiser of the kind with the settings of a group and no parameter."""
    taken = inspect.signature(kind.__init__).parameters
    settings = {name: value for name, value in group.items() if name in taken and name != "params"}
    some = group["params"][0]
    made = kind([torch.empty(0, dtype=some.dtype, device=some.device)], **settings)
    made.param_groups[0]["params"] = []
    return made


def _plain_step(kind: type[torch.optim.Optimizer]) -> Callable[[torch.optim.Optimizer], Any]:
    """The step of an optimiser without the hooks that run once for a step of all parameters."""
    step: Any = kind.step
    while hasattr(step, "hooked"):
        step = step.__wrapped__
    return step
