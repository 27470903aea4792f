"""Updates parameters in the offload target that they live in, in a stream beside the device.

A gradient is sent there as soon as it is whole. Where that is a disk, parts of parameter, gradient
and states pass through a few buffers, the workspace, which are taken once; the thread that computes
has its temporaries beside these. A processor beside its host's memory computes where they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .parameter_pieces import ParameterPiece, byte_view
from .parameter_store import ParameterStore
from .piecewise_optimizer import PiecewiseOptimizer, make_shadow_optimizer
from .target import TargetAccess, TargetSlice, TargetWork, TransferHandle

CHUNK_BYTES = 1 << 18
"""Bytes of a parameter that are updated together there."""


@dataclass(frozen=True)
class UpdateChunk:
    """Elements of a parameter that are updated together, as a piece of their own: `own` bytes, of
    which the first is the byte `begin` of the parameter. Its states are at the places `states`."""

    piece: ParameterPiece
    begin: int
    own: int
    states: tuple[int, ...]


def split_into_chunks(
    pieces: Sequence[ParameterPiece], itemsize: int, most: int
) -> list[UpdateChunk]:
    """The parts, of `most` bytes where that can be, of some pieces of a parameter."""
    found = []
    step = max(most // itemsize // 64, 1) * 64
    for piece in pieces:
        for begin in range(piece.begin, max(piece.end, piece.begin + 1), step):
            end = min(begin + step, piece.end)
            offset = piece.place + (begin - piece.begin) * itemsize
            places = tuple(offset + number * piece.stride for number in range(piece.states))
            own = replace(piece, begin=begin, end=end, last=piece.last and end == piece.end)
            found.append(UpdateChunk(own, begin * itemsize, (end - begin) * itemsize, places))
    return found


def _flushes_denormals() -> bool:
    """Whether the thread takes what is smaller than the least normal number for zero, which
    `torch.set_flush_denormal` says of each thread."""
    least = sys.float_info.min
    return least / 2 == 0


def _set_flush_denormal(flushes: bool) -> None:
    """The thread does as another one, which asked `_flushes_denormals`."""
    if _flushes_denormals() is not flushes:
        torch.set_flush_denormal(flushes)


class UpdateWorkspace:
    """What updates the parameters of some `numbers` part by part, as `updates` have them, where
    their `states` lie in a memory, or pass through buffers there. Offsets are those of the whole
    memory."""

    def __init__(
        self,
        updates: PiecewiseOptimizer,
        numbers: Sequence[int],
        states: TargetSlice,
        sums: bool,
        most: int,
    ) -> None:
        self.updates = updates
        self.states = states
        self.parts = {
            piece: split_into_chunks([piece], updates.layouts[number].dtype.itemsize, most)
            for number in numbers
            for piece in updates.pieces[number]
        }
        every = [part for parts in self.parts.values() for part in parts]
        largest = max((part.own for part in every), default=0)
        count = 2 + sums + max((part.piece.states for part in every), default=0)
        self.own, self.gradient, *more = (
            torch.empty(largest, dtype=torch.uint8) for _ in range(count)
        )
        self.sum = more.pop() if sums else torch.empty(0, dtype=torch.uint8)
        self.passing = more
        self.bytes = count * largest
        some = torch.empty(0, dtype=updates.parameters[0].dtype)
        self.shadow_optimizers = [
            make_shadow_optimizer(updates.kind, shadow.param_groups[0], some)
            for shadow in updates.shadow_optimizers
        ]

    def update(
        self,
        number: int,
        settings: dict[str, Any],
        parameter: int,
        gradient: int | None,
        earlier: int | None,
    ) -> TargetWork:
        """The work that updates a parameter by its gradient, by the sum of earlier ones, or both,
        with the settings of its group."""
        updates = self.updates
        stored = any(piece in updates.ring.stored for piece in updates.pieces[number])
        place, flushes = updates.groups[number], _flushes_denormals()

        def work(reach: TargetAccess) -> None:
            _set_flush_denormal(flushes)
            self.shadow_optimizers[place].param_groups[0].update(settings)
            scalars: dict[str, Any] = {}
            with torch.no_grad():
                for piece in updates.pieces[number]:
                    given = (parameter, gradient, earlier)
                    scalars = self._piece(reach, piece, given, stored)
            updates.keep(number, scalars)

        return work

    def add(self, number: int, gradient: int, earlier: int, first: bool) -> TargetWork:
        """The work that adds the gradient of a microbatch to the sum of earlier ones, of which it
        may be the `first`."""
        flushes = _flushes_denormals()

        def work(reach: TargetAccess) -> None:
            _set_flush_denormal(flushes)
            with torch.no_grad():
                for piece in self.updates.pieces[number]:
                    for part in self.parts[piece]:
                        whole = self._whole(reach, part, gradient, None if first else earlier)
                        reach.write(whole, earlier + part.begin)

        return work

    def _piece(
        self,
        reach: TargetAccess,
        piece: ParameterPiece,
        given: tuple[int, int | None, int | None],
        stored: bool,
    ) -> dict[str, Any]:
        """Updates a piece of the parameter at a place by what is given beside it; returns the
        states of it that are numbers. Those of a second offload tier come into a buffer and go
        back."""
        far, (parameter, gradient, earlier) = self.updates.far, given
        hold = far.arrive(piece, stored) if far is not None and far.has(piece) else None
        begin = self.states.at(0) if hold is None else hold.area.begin - piece.place
        scalars: dict[str, Any] = {}
        kept = False
        for part in self.parts[piece]:
            whole = self._whole(reach, part, gradient, earlier)
            scalars, kept = self._part(reach, part, parameter, whole, stored, begin)
        if far is not None and hold is not None:
            far.leave(piece, hold, kept)
        return scalars

    def _whole(
        self, reach: TargetAccess, part: UpdateChunk, gradient: int | None, earlier: int | None
    ) -> torch.Tensor:
        """The bytes of a part of a gradient, with what was added up before it."""
        added = None
        if gradient is not None:
            added = reach.read(self.gradient[: part.own], gradient + part.begin)
        if earlier is None:
            assert added is not None
            return added
        found = reach.read(self.sum[: part.own], earlier + part.begin)
        if added is not None:
            dtype = self._dtype(part)
            found.view(dtype).add_(added.view(dtype))
        return found

    def _part(
        self,
        reach: TargetAccess,
        part: UpdateChunk,
        parameter: int,
        gradient: torch.Tensor,
        stored: bool,
        states: int,
    ) -> tuple[dict[str, Any], bool]:
        """Updates a part, whose states are as far as `states` from their place among all; returns
        those of it that are numbers, and whether there are any."""
        updates, dtype = self.updates, self._dtype(part)
        place = parameter + part.begin
        own = reach.read(self.own[: part.own], place)
        at = [states + offset for offset in part.states]
        buffers = [buffer[: part.own] for buffer in self.passing[: len(at)]]
        passing = [reach.read(*each) for each in zip(buffers, at, strict=True)]
        typed = own.view(dtype)
        typed.grad = gradient.view(dtype)
        tensors = [state.view(dtype) for state in passing]
        given = updates.given(part.piece.parameter, tensors) if stored else {}
        shadow = self.shadow_optimizers[updates.groups[part.piece.parameter]]
        scalars, kept = updates.stepped(part.piece, typed, given, shadow, tensors)
        reach.write(own, place)
        for state, offset in zip(passing, at, strict=True):
            if kept:
                reach.write(state, offset)
        return scalars, kept

    def _dtype(self, part: UpdateChunk) -> torch.dtype:
        return self.updates.layouts[part.piece.parameter].dtype


class HostUpdater:
    """The updates of those parameters of a `store` (by their numbers there) that a plan updates in
    its memory, where their `states` are. Gradients of microbatches add up in `sums`, where there is
    room for them. A run of the program hands each gradient over, sends it, frees it, updates by it
    and waits for that, in this order; each is left out where no gradient has come.
    """

    def __init__(
        self,
        store: ParameterStore,
        updates: PiecewiseOptimizer,
        numbers: Sequence[int],
        states: TargetSlice,
        sums: TargetSlice,
    ) -> None:
        self.parameter_store = store
        self.updates = updates
        own = {id(parameter): n for n, parameter in enumerate(updates.parameters)}
        self.numbers = {n: own[id(store.parameters[n])] for n in numbers}
        self.store_numbers = {number: n for n, number in self.numbers.items()}
        self.sums = sums
        own_numbers = list(self.numbers.values())
        self.workspace = UpdateWorkspace(updates, own_numbers, states, bool(sums.size), CHUNK_BYTES)
        self.gradients: dict[int, torch.Tensor] = {}
        self.settings: dict[int, dict[str, Any]] = {}
        self.places: dict[int, int] = {}
        self.sent: dict[int, TransferHandle] = {}
        self.moving: dict[int, TransferHandle] = {}
        self.summed: set[int] = set()
        """Those of which the gradients of earlier microbatches have added up."""

    @property
    def adds(self) -> bool:
        """Whether gradients of microbatches can add up here."""
        return bool(self.sums.size)

    def takes(self, number: int) -> bool:
        """Whether the gradient of a parameter, by its number in the optimizer, is handed over to
        the run that goes on."""
        visit = self.parameter_store.step_context
        return number in self.store_numbers and visit is not None and visit() is not None

    def adding(self, number: int) -> bool:
        """Whether it is added to the sum of earlier microbatches there."""
        visit = self.parameter_store.step_context
        run = None if visit is None else visit()
        return number in self.store_numbers and run is not None and bool(run.accumulates)

    def hand(self, number: int, gradient: torch.Tensor, settings: dict[str, Any]) -> None:
        """Takes a gradient that is whole, with the settings to update by."""
        n = self.store_numbers[number]
        self.gradients[n] = gradient
        self.settings[n] = settings

    # ---- what a run does, in the order of its program

    def send(self, n: int, place: int) -> None:
        """A gradient begins to leave for a place among the copies of a step."""
        if n in self.gradients:
            whole = byte_view(self.gradients[n])
            self.moving[n] = self.sent[n] = self.parameter_store.copies.write(whole, place)
            self.places[n] = place

    def wait(self, n: int) -> None:
        """What is done next finds a gradient sent, or what is done with it through."""
        if n in self.moving:
            self.parameter_store.copies.wait(self.moving[n])
            del self.moving[n]

    def free(self, n: int) -> None:
        """The bytes that a gradient has on the device are free."""
        self.gradients.pop(n, None)

    def optimize(self, n: int, taking: Callable[[int], dict[str, Any]]) -> None:
        """A parameter begins to be updated; `taking` tells the settings for one of which nothing
        has come but the sum of earlier microbatches."""
        place, number = self.places.pop(n, None), self.numbers[n]
        if place is None and n not in self.summed:
            return
        store, updates = self.parameter_store, self.updates
        settings = taking(number) if place is None else self.settings.pop(n)
        pieces = [piece for piece in updates.pieces[number] if piece.size]
        earlier = [updates.ring.stored[p] for p in pieces if p in updates.ring.stored]
        earlier += [tickets.pop(n) for tickets in (store.moving, self.sent) if n in tickets]
        work = self.workspace.update(
            number,
            settings,
            store.memory.at(store.places[n]),
            None if place is None else store.copies.at(place),
            self.sums.at(store.places[n]) if n in self.summed else None,
        )
        ticket = store.memory.beside(work, *earlier)
        self.summed.discard(n)
        updates.ring.stored.update(dict.fromkeys(pieces, ticket))
        store.updated(n, ticket)
        self.moving[n] = ticket

    def accumulate(self, n: int) -> None:
        """A gradient begins to be added to the sum of earlier ones."""
        place = self.places.pop(n, None)
        if place is None:
            return
        self.settings.pop(n)
        earlier, first = self.sums.at(self.parameter_store.places[n]), n not in self.summed
        work = self.workspace.add(
            self.numbers[n], self.parameter_store.copies.at(place), earlier, first
        )
        self.moving[n] = self.parameter_store.memory.beside(work, self.sent.pop(n))
        self.summed.add(n)

    # ---- between runs

    def settle(self) -> None:
        """All is through that a run has begun. A gradient that it did not come to is that of its
        parameter again."""
        for n in list(self.moving):
            self.wait(n)
        for n, place in self.places.items():
            if n not in self.gradients:
                self.gradients[n] = self._sent(n, place)
        for n in list(self.gradients):
            self.parameter_store.give(n, self.gradients.pop(n))
            self.parameter_store.discard_update(self.numbers[n])
        self.places.clear()
        self.sent.clear()
        self.settings.clear()

    def _sent(self, n: int, place: int) -> torch.Tensor:
        """A gradient that was sent, on the device again."""
        made = self.parameter_store.layouts[n].empty()
        copies = self.parameter_store.copies
        copies.wait(copies.read(byte_view(made), place))
        return made

    def check_gradient(self, n: int) -> None:
        """Raises RuntimeError where what a parameter's gradient would be adds up here."""
        if n in self.summed:
            raise RuntimeError(
                f"the gradient of {self.parameter_store.paths[n]} adds up in an offload target: "
                "run the last "
                f"backward of the step, or drop it by optimizer.zero_grad()"
            )

    def forget(self) -> None:
        """What microbatches have added up is no more."""
        self.summed.clear()
