"""What may be chosen of a plan of a whole step, and what is next to a choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

ACTIVATION_SHARE_STEPS = (0.05, 0.025)
LINK_SHARES = (0.15, 0.3, 0.45, 0.6)
"""Parts of the link that activations may take."""
RESIDENT_SHARES = (0.0, 0.25, 0.5, 0.75)
LAST_USED_SHARES = (0.0, 0.4, 0.7, 1.0)
DEVICE_UPDATE_SHARES = (0.0, 0.25, 0.5, 1.0)
STAGING_BUFFERS = 4
"""Staging buffers: of one the states are updated, two come, and one goes back."""
BUFFER_COUNTS = (STAGING_BUFFERS, 16, 32, 64)
"""Numbers of staging buffers: with more of them states come while other things are computed."""

ActivationProblemKey = tuple[bool, bool]
"""Whether activations are planned `close`, and whether updates are the device's then."""


@dataclass(frozen=True)
class OffloadChoice:
    """Parts of the room that activations have, of the link that they take, of the room for
    parameters that are there when the step begins, and of the parameters updated on the device.
    Those that are there are the ones that are used first or, with `last`, some of this part of all
    that are used last, of which gradients are whole first. States of parameters updated on the
    device pass through so many staging `buffers`. In a `close` one activations share their
    part with what each op reads and each update takes
    (`stages.combine.optimizer_offload.min_memory`)."""

    activations: float
    linked: float = 0.0
    there: float = 0.0
    here: float = 0.0
    close: bool = False
    last: float = 0.0
    buffers: int = STAGING_BUFFERS

    @property
    def view(self) -> ActivationProblemKey:
        """The view that activations are planned by."""
        return self.close, self.close and self.here > 0


def vary_activations(choice: OffloadChoice) -> Iterator[OffloadChoice]:
    """Choices that differ in the bytes of activations."""
    for step in ACTIVATION_SHARE_STEPS:
        for other in (choice.activations - step, choice.activations + step):
            if 0 < other < 1:
                yield replace(choice, activations=round(other, 3))


def vary_placement(
    choice: OffloadChoice, several: bool, counts: Sequence[int], shares: Sequence[float]
) -> Iterator[OffloadChoice]:
    """Choices that differ in one thing but the bytes of activations, where there are several also
    in what is updated where; those of a part of the link also in that no parameter is there. The
    numbers of staging buffers are among the `counts`, the parts of the link among the `shares`."""
    for buffers in counts:
        yield replace(choice, buffers=buffers)
    for there in {
        *RESIDENT_SHARES,
        *(round(choice.there + step, 3) for step in (-0.1, -0.05, 0.05, 0.1)),
    }:
        if 0 <= there < 1:
            yield replace(choice, there=there)
    for last in LAST_USED_SHARES:
        for there in {choice.there, *RESIDENT_SHARES[1:]}:
            yield replace(choice, last=last, there=there)
    for here in DEVICE_UPDATE_SHARES if several else ():
        yield replace(choice, here=here)
    for linked in shares:
        yield replace(choice, linked=linked)
        if linked and choice.there:
            yield replace(choice, linked=linked, there=0.0)
