"""Parameters that live in an offload target and come to the device for as long as a step uses them.

What a step does with them follows from its program. Between steps those are on the device that the
plan leaves there. The parameters stay the objects that they were; their values are to be had within
`gathered` alone (`stages.runtime.offload.placeholder_parameter`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from .parameter_pieces import byte_view
from .placeholder_parameter import (
    MemoryLayout,
    check_offloadable,
    make_placeholder_class,
    prevent_swapping,
)
from .target import TargetSlice, TransferHandle, target_error

if TYPE_CHECKING:
    from .host_update import HostUpdater

_TARGET_FAILED = (
    "the memory that parameters live in has failed, and some of them may be lost: make model and "
    "optimizer anew, and load a state_dict() that was saved"
)


class ParameterStore:
    """Where the `parameters` of a model are, named by their `paths`: in `memory`, of which they
    take all bytes, and those of the numbers `there` on the `device`, too.

    Raises RuntimeError, in one sentence, where another tensor shares the bytes of a parameter, and
    where the memory fails.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        paths: Sequence[str],
        there: Collection[int],
        memory: TargetSlice,
        copies: TargetSlice,
        device: torch.device,
    ) -> None:
        check_offloadable(parameters, paths)
        self.parameters = list(parameters)
        self.paths = list(paths)
        self.there = sorted(there)
        self.memory = memory
        self.copies = copies
        """The memory that a step sends other storages to."""
        self.device = device
        """The device that they come to."""
        self.layouts = [MemoryLayout.of(parameter) for parameter in parameters]
        self.places = cumulative_offsets([layout.bytes for layout in self.layouts])
        self.numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        self.blanks = [layout.blank() for layout in self.layouts]
        self.complex_placeholders = {
            number: layout.stand_in()
            for number, layout in enumerate(self.layouts)
            if layout.dtype.is_complex
        }
        """What takes the place of blanks within a step, where autograd asks for that."""
        self.values = {number: parameter.data for number, parameter in enumerate(parameters)}
        """Those that are on the device, as plain tensors, but for what `gathered` shows."""
        self.swap_blockers = prevent_swapping(self.parameters)
        self.changed: set[int] = set()
        self.outdated: set[int] = set()
        """Those that are on the device as they were before they were updated in the memory."""
        self.host_updater: HostUpdater | None = None
        """What updates some of them there."""
        self.moving: dict[int, TransferHandle] = {}
        self.step_context: weakref.ref[Any] | None = None
        self.stepping: weakref.ref[Any] | None = None
        """The optimizer that updates them in the backward, where there is one."""
        self.open = 0
        self.closed = False
        self.in_state_dict = False
        self.setting_gradient = False
        self.kind = make_placeholder_class(self)
        try:
            for number in range(len(self.parameters)):
                self.offload(number)
                self.wait(number)
                if number not in self.there:
                    self.free(number)
                self._hide(number)
        except BaseException:
            # One whose transfer failed is still on the device.
            self.moving.clear()
            self._show_all()
            raise

    # ---- what a class of parameters asks (`placeholder_parameter.ParameterOwner`)

    def number(self, parameter: torch.Tensor) -> int:
        """See `ParameterOwner.number`."""
        return self.numbers[id(parameter)]

    def layout(self, number: int) -> MemoryLayout:
        """See `ParameterOwner.layout`."""
        return self.layouts[number]

    def refusal(self, number: int) -> str:
        """See `ParameterOwner.refusal`."""
        if not self.memory.healthy:
            lost = target_error(self.memory, _TARGET_FAILED)
            return f"the values of {self.paths[number]} are not to be had: {lost}"
        if self.optimizer_is_gone:
            return (
                f"the values of {self.paths[number]} are in an offload target, and the optimizer "
                "of "
                "the plan, which brings them back, is gone: the planned module's state_dict() has "
                "copies; keep that optimizer as long as its parameters, or close() it first"
            )
        return (
            f"the values of {self.paths[number]} are in an offload target: use them within "
            f"optimizer.gathered(), which takes the bytes of all parameters, or train by the "
            f"planned module"
        )

    @property
    def optimizer_is_gone(self) -> bool:
        """Whether the optimizer that updates them is gone."""
        return self.stepping is not None and self.optimizer is None

    @property
    def optimizer(self) -> Any:
        """The optimizer that updates them in the backward, None where there is none."""
        return None if self.stepping is None else self.stepping()

    def check_gradient(self, number: int, sets: bool) -> None:
        """See `ParameterOwner.check_gradient`."""
        if (
            self.host_updater is not None
            and self.step_context is None
            and not self.setting_gradient
        ):
            self.host_updater.check_gradient(number)
        if self.optimizer is not None and not self.setting_gradient:
            self.optimizer.check_gradient(self.parameters[number], sets)

    def give(self, number: int, gradient: torch.Tensor) -> None:
        """A parameter has a gradient, beside what adds up in the memory."""
        self.setting_gradient = True
        self.parameters[number].grad = gradient
        self.setting_gradient = False

    def answer_in_state_dict(self, name: str, args: Sequence[Any]) -> Any:
        """See `ParameterOwner.served`."""
        if self.in_state_dict and name == "detach" and len(args) == 1:
            return self.read(self.number(args[0]))
        if self.in_state_dict and name == "copy_" and len(args) == 2:
            return self.write(self.number(args[0]), args[1])
        return NotImplemented

    @contextlib.contextmanager
    def states(self) -> Iterator[None]:
        """Within it a module's `state_dict` and `load_state_dict` read and write the memory: what
        they read are copies."""
        if not self.left:
            self.check()
        before, self.in_state_dict = self.in_state_dict, True
        try:
            yield
        finally:
            self.in_state_dict = before

    # ---- what a step does, in the order of its program

    def enter(self, visit: Any) -> None:
        """A step begins: exactly those are on the device that the plan leaves there."""
        self.check()
        if self.open:
            raise RuntimeError(
                "a planned step begins within gathered(), where all parameters are on the device: "
                "leave it, or run the original model there"
            )
        if self.optimizer_is_gone:
            raise RuntimeError(
                "the optimizer of the plan is gone, and nothing would update the parameters: keep "
                "the one that was made with the module"
            )
        self.settle()
        self.step_context = weakref.ref(visit)
        for number, stand_in in self.complex_placeholders.items():
            self._put(number, stand_in)

    def prefetch(self, number: int) -> torch.Tensor:
        """A parameter's bytes are taken, and it begins to come."""
        layout = self.layouts[number]
        whole = torch.empty(layout.bytes, dtype=torch.uint8, device=layout.device)
        earlier = [self.moving[number]] if number in self.moving else []
        self.moving[number] = self.memory.read(whole, self.places[number], *earlier)
        self.values[number] = layout.view(whole)
        return self.values[number]

    def wait(self, number: int) -> None:
        """What is done next finds the transfer of a parameter through."""
        self.memory.wait(self.moving[number])
        del self.moving[number]

    def offload(self, number: int) -> None:
        """A parameter begins to be sent back."""
        self.moving[number] = self.memory.write(byte_view(self.values[number]), self.places[number])
        self.changed.discard(number)

    def free(self, number: int) -> None:
        """A parameter's bytes of the device are free."""
        self.values.pop(number, None)
        self.outdated.discard(number)

    def updated(self, number: int, ticket: TransferHandle) -> None:
        """A parameter begins to be updated in the memory."""
        self.moving[number] = ticket
        if number in self.values:
            self.outdated.add(number)

    def discard_update(self, number: int) -> None:
        """A gradient that the optimizer has taken, by the parameter's number there, is not used."""
        if self.optimizer is not None:
            self.optimizer.discard_update(number)

    def leave(self) -> None:
        """A step has done all that it does with parameters."""
        self.step_context = None
        for number in self.complex_placeholders:
            self._put(number, self.blanks[number])

    def tensor(self, number: int) -> torch.Tensor:
        """A parameter that is on the device, as a plain tensor of the same bytes."""
        return self.parameters[number].data if self.open else self.values[number]

    # ---- between steps

    @contextlib.contextmanager
    def modify_parameter(self, number: int) -> Iterator[torch.Tensor]:
        """A parameter on the device, as a tensor to be changed; where it was not there, it is sent
        back at the end."""
        self.check()
        was_there = bool(self.open) or number in self.values
        if not was_there:
            self.prefetch(number)
        if number in self.moving:
            self.wait(number)
        self.changed.add(number)
        yield self.tensor(number)
        if not was_there:
            self.offload(number)
            self.wait(number)
            self.free(number)

    def settle(self) -> None:
        """All transfers are through, what was changed is sent back, and exactly those are on the
        device that the plan leaves there."""
        if self.step_context is not None:
            self.leave()
        if self.host_updater is not None:
            self.host_updater.settle()
        for number in list(self.moving):
            self.wait(number)
        for number in sorted(self.changed):
            self.offload(number)
            self.wait(number)
        for number in sorted(self.values.keys() - set(self.there) | self.outdated):
            self.free(number)
        self._bring(self.there)

    def read(self, number: int) -> torch.Tensor:
        """A copy of a parameter, as a plain tensor."""
        self.check()
        made = self.layouts[number].empty()
        if number in self.changed:
            return made.copy_(self.tensor(number))
        earlier = [self.moving[number]] if number in self.moving else []
        self.memory.wait(self.memory.read(byte_view(made), self.places[number], *earlier))
        return made

    def write(self, number: int, values: torch.Tensor) -> torch.Tensor:
        """Gives a parameter other values; returns it."""
        with torch.no_grad(), self.modify_parameter(number) as own:
            own.copy_(values)
        if number in self.changed and not self.open:
            self.offload(number)
            self.wait(number)
        return self.parameters[number]

    @contextlib.contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it all parameters are on the device, to be read, changed, and used by the model
        itself; at its end they are sent back as they are then."""
        if not self.open and not self.left:
            self.check()
            self.settle()
            self._show_all()
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1
            if not self.open and not self.closed:
                self._away_again()

    def close(self) -> None:
        """Brings all parameters back to the device, for good. Where the memory has failed they are
        lost, and stay without values; raises RuntimeError where it fails now."""
        if not self.closed and not self.open and self.memory.healthy:
            try:
                self.settle()
                self._show_all()
            finally:
                self.closed = not self.memory.healthy
        self.closed = True
        self.swap_blockers.clear()

    @property
    def left(self) -> bool:
        """Whether all parameters have come back from the memory, for good."""
        return self.closed and self.memory.healthy

    def check(self) -> None:
        """Raises RuntimeError where the memory has failed, or the parameters have left it."""
        if not self.memory.healthy:
            raise target_error(self.memory, _TARGET_FAILED)
        if self.closed:
            raise RuntimeError(
                "the optimizer was closed, and the parameters no longer live in an offload target: "
                "load the plan anew"
            )

    def _away_again(self) -> None:
        """The end of `gathered`."""
        odd = []
        for number, parameter in enumerate(self.parameters):
            # A backward of what was computed here would read what is then in their place.
            torch.autograd.graph.increment_version(parameter)
            if MemoryLayout.of(parameter) == self.layouts[number]:
                self.values[number] = parameter.data
                self.changed.add(number)
            else:
                odd.append(self.paths[number])
                self.changed.discard(number)
            self._hide(number)
        self.settle()
        if odd:
            raise RuntimeError(
                f"{odd[0]} was given another shape, dtype, device or layout within gathered(), and "
                f"is what it was before: make the plan anew with it"
            )

    def _bring(self, numbers: Iterable[int]) -> None:
        """Some parameters are on the device, one after the other where they are not yet."""
        for number in numbers:
            if number not in self.values:
                self.prefetch(number)
            if number in self.moving:
                self.wait(number)

    def _show_all(self) -> None:
        """All parameters have their values, which are brought where they are away."""
        self._bring(range(len(self.parameters)))
        for number, parameter in enumerate(self.parameters):
            parameter.__class__ = torch.nn.Parameter
            parameter.data = self.values.pop(number)
            if self.optimizer is not None:
                self.optimizer.guard(parameter)

    def _hide(self, number: int) -> None:
        """A parameter has no values any more. The dtype of its gradients, which is else that of the
        values, is named first."""
        parameter = self.parameters[number]
        parameter.grad_dtype, parameter.__class__ = parameter.grad_dtype, self.kind
        self._put(number, self.blanks[number])

    def _put(self, number: int, values: torch.Tensor) -> None:
        with torch._C.DisableTorchFunctionSubclass():
            self.parameters[number].data = values


def cumulative_offsets(sizes: Sequence[int]) -> list[int]:
    """Where each of some sizes begins, one after the other."""
    return [sum(sizes[:number]) for number in range(len(sizes))]
