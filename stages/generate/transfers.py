"""What a program does for transfers. No backend writes it yet: a schedule with some is refused.

What has to be written for each action, in the order of the schedule, so that requested bytes follow
the order of issue (`schemas.actions`):

- `Offload(value)`: the bytes of the value's storage go into a buffer of the other memory, by the
  stream of the lane `DEVICE/to-MEMORY`, which first waits for what was issued on the compute stream
  so far. The name of the value stays.
- `Wait(value)`: the compute stream waits for the last transfer of the storage.
- `Free(value)`: as without transfers, all names of the storage end. A `Wait` stands before it.
- `Prefetch(value)`: an empty tensor like the value (shape, strides, offset, in a storage of as many
  bytes) is made on the compute stream and takes the value's name; the stream of the lane
  `DEVICE/from-MEMORY` waits for that and fills it. Views of it are computed again by the steps that
  follow. A `Wait` stands before what reads it.
- `FreeCopy(value)`: the buffer is free for others. A `Wait` stands before it.

`live` of a step counts the memory that the step names: that of the device, but for `Offload` and
`FreeCopy`, which name the other one.
"""

from __future__ import annotations

from collections.abc import Sequence

from schemas.actions import Linked
from schemas.errors import ScheduleError
from schemas.schedule import Step


def refuse_transfers(steps: Sequence[Step]) -> None:
    """Raises ScheduleError where a schedule sends something to another memory."""
    for index, step in enumerate(steps):
        if isinstance(step.action, Linked):
            raise ScheduleError(
                f"step {index} of the schedule is {step.action}: no module is written yet that "
                "sends to another memory"
            )
