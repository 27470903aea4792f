"""What a planned step does with parameters that live in an offload target, in its program's
order."""

from __future__ import annotations

import contextlib
import weakref

import torch

from .host_update import HostUpdater
from .parameter_store import ParameterStore

_INTERRUPTED = (
    "another forward, or the use of parameters within gathered(), came between a forward and the "
    "end of its backward, for which parameters come from an offload target: let each forward have "
    "its backward before anything else"
)


class StepContext:
    """One run of a step with the store of its parameters, which are named by numbers; one run at a
    time. A run that ends early leaves all as it was between steps, with the updates so far."""

    __slots__ = ("__weakref__", "accumulates", "copies", "ended", "store")

    def __init__(self, store: ParameterStore, accumulates: bool = False) -> None:
        self.store = store
        self.accumulates = accumulates
        """Whether gradients are added up, as those of all microbatches but the last one are."""
        self.copies = store.copies
        store.enter(self)
        assert store.step_context is not None
        self.ended = weakref.finalize(
            self, _settle_ended_run, weakref.ref(store), store.step_context
        )
        self.ended.atexit = False

    def resident(self, number: int) -> torch.Tensor:
        """A parameter that is on the device when the step begins."""
        return self._current_store().tensor(number)

    def prefetch(self, number: int) -> torch.Tensor:
        """A parameter whose bytes are taken, and which begins to come."""
        return self._current_store().prefetch(number)

    def wait(self, number: int) -> None:
        """The run goes on when the transfer of a parameter is through."""
        self._current_store().wait(number)

    def offload(self, number: int) -> None:
        """A parameter begins to be sent back."""
        self._current_store().offload(number)

    def free(self, number: int) -> None:
        """A parameter's bytes of the device are free."""
        self._current_store().free(number)

    def send_gradient(self, number: int, place: int) -> None:
        """A gradient that is whole begins to leave for a place among what the step sends."""
        self._host_updater().send(number, place)

    def wait_for_gradient(self, number: int) -> None:
        """The run goes on when a gradient is sent, or what is done with it there is through."""
        self._host_updater().wait(number)

    def free_gradient(self, number: int) -> None:
        """The bytes that a gradient has on the device are free."""
        self._host_updater().free(number)

    def optimize(self, number: int) -> None:
        """A parameter begins to be updated where it lives."""
        updater = self._host_updater()
        if self.store.optimizer is not None:
            updater.optimize(number, self.store.optimizer.group_to_update)

    def accumulate(self, number: int) -> None:
        """A gradient begins to be added to those of earlier microbatches."""
        self._host_updater().accumulate(number)

    def begin_backward(self) -> None:
        """The backward begins; raises RuntimeError where it cannot, before anything is updated."""
        store = self._current_store()
        store.check()
        optimizer, updater = store.optimizer, store.host_updater
        if updater is None or not updater.adds or optimizer is None:
            return
        if optimizer.adding != self.accumulates:
            raise RuntimeError(
                "the forward of a microbatch and its backward belong within the same "
                "optimizer.accumulating(), those of the last one outside of it"
            )

    def end_step(self) -> None:
        """The step has done all that it does with parameters."""
        self._current_store().leave()
        self.ended.detach()

    def _host_updater(self) -> HostUpdater:
        updater = self._current_store().host_updater
        assert updater is not None
        return updater

    def _current_store(self) -> ParameterStore:
        current = self.store.step_context
        if current is None or current() is not self:
            raise RuntimeError(_INTERRUPTED)
        return self.store


def _settle_ended_run(store: weakref.ref[ParameterStore], visit: weakref.ref[StepContext]) -> None:
    """A run ended early; a memory that fails now is told when it is next used."""
    own = store()
    if own is not None and own.step_context is visit and own.memory.healthy:
        with contextlib.suppress(RuntimeError):
            own.settle()
