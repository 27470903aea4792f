"""Which backwards have updated parameters, and whether they came to their ends: one that an error
has ended, such as one of a hook, has updated a part of them."""

from __future__ import annotations

import weakref

import torch

from .marks import said


class Backwards:
    """The backwards of a step, and by what one of them, or the step itself, has `ended` early."""

    def __init__(self) -> None:
        self.ended = ""
        self._place = "backward"
        self._open: set[int] = set()

    def begin(self) -> None:
        """A parameter is updated in the backward that runs."""
        task: int = torch._C._current_graph_task_id()
        if task < 0 or task in self._open:
            return
        self._open.add(task)
        own = weakref.ref(self)

        def end() -> None:
            found = own()
            if found is not None:
                found._open.discard(task)

        # Autograd calls it where a backward comes to its end, and not where an error ends it.
        torch.autograd.Variable._execution_engine.queue_callback(end)

    def fail(self, error: BaseException, place: str = "backward") -> None:
        """An error ends a place; the first one is told."""
        if not self.ended:
            self.ended, self._place = said(error), place

    @property
    def torn(self) -> bool:
        """Whether one has ended early, the one that runs aside."""
        return bool(self.ended or self._open - {torch._C._current_graph_task_id()})

    def sentence(self) -> str:
        """What is said of parameters a part of which is updated."""
        why = f"{self.ended}; this ended" if self.ended else "an error ended"
        return (
            f"{why} a {self._place} which had updated some of the parameters: go on from a saved "
            "state_dict(), with an optimizer made anew after optimizer.close()"
        )

    def clear(self) -> None:
        """The next ones begin."""
        self.ended, self._place = "", "backward"
        self._open.clear()
