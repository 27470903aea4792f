"""What a planned step does with parameters that live in another memory, in its program's order."""

from __future__ import annotations

import contextlib
import weakref

import torch

from .host_update import HostUpdater
from .parameter_store import ParameterStore

_INTERRUPTED = (
    "another forward, or the use of parameters within gathered(), came between a forward and the "
    "end of its backward, for which parameters come from another memory: let each forward have its "
    "backward before anything else"
)


class StepContext:
    """One run of a step at the home of its parameters, which are named by numbers; one run at a
    time. A run that ends early leaves all as it was between steps, with the updates so far."""

    __slots__ = ("__weakref__", "adding", "copies", "ended", "home")

    def __init__(self, home: ParameterStore, adding: bool = False) -> None:
        self.home = home
        self.adding = adding
        """Whether gradients are added up, as those of all microbatches but the last one are."""
        self.copies = home.copies
        home.enter(self)
        assert home.visit is not None
        self.ended = weakref.finalize(self, _settle_ended_run, weakref.ref(home), home.visit)
        self.ended.atexit = False

    def there(self, number: int) -> torch.Tensor:
        """A parameter that is on the device when the step begins."""
        return self._home().tensor(number)

    def prefetch(self, number: int) -> torch.Tensor:
        """A parameter whose bytes are taken, and which begins to come."""
        return self._home().prefetch(number)

    def wait(self, number: int) -> None:
        """The run goes on when the transfer of a parameter is through."""
        self._home().wait(number)

    def offload(self, number: int) -> None:
        """A parameter begins to be sent back."""
        self._home().offload(number)

    def free(self, number: int) -> None:
        """A parameter's bytes of the device are free."""
        self._home().free(number)

    def send_gradient(self, number: int, place: int) -> None:
        """A gradient that is whole begins to leave for a place among what the step sends."""
        self._lane().send(number, place)

    def wait_for_gradient(self, number: int) -> None:
        """The run goes on when a gradient is sent, or what is done with it there is through."""
        self._lane().wait(number)

    def free_gradient(self, number: int) -> None:
        """The bytes that a gradient has on the device are free."""
        self._lane().free(number)

    def optimize(self, number: int) -> None:
        """A parameter begins to be updated where it lives."""
        lane = self._lane()
        if self.home.optimizer is not None:
            lane.optimize(number, self.home.optimizer.group_to_update)

    def accumulate(self, number: int) -> None:
        """A gradient begins to be added to those of earlier microbatches."""
        self._lane().accumulate(number)

    def go_on(self) -> None:
        """The backward begins; raises RuntimeError where it cannot, before anything is updated."""
        home = self._home()
        home.check()
        optimizer, lane = home.optimizer, home.lane
        if lane is None or not lane.adds or optimizer is None:
            return
        if optimizer.adding != self.adding:
            raise RuntimeError(
                "the forward of a microbatch and its backward belong within the same "
                "optimizer.accumulating(), those of the last one outside of it"
            )

    def leave(self) -> None:
        """The step has done all that it does with parameters."""
        self._home().leave()
        self.ended.detach()

    def _lane(self) -> HostUpdater:
        lane = self._home().lane
        assert lane is not None
        return lane

    def _home(self) -> ParameterStore:
        visit = self.home.visit
        if visit is None or visit() is not self:
            raise RuntimeError(_INTERRUPTED)
        return self.home


def _settle_ended_run(home: weakref.ref[ParameterStore], visit: weakref.ref[StepContext]) -> None:
    """A run ended early; a memory that fails now is told when it is next used."""
    own = home()
    if own is not None and own.visit is visit and own.memory.healthy:
        with contextlib.suppress(RuntimeError):
            own.settle()
