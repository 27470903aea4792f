"""What generated packages have as `readings.py`: `stages.device.readings`, under the same name."""

from stages.device.readings import (
    ABSENT,
    STATES,
    agree,
    check_form,
    encode,
    same_plain,
    say,
    type_of,
    underlying,
)

__all__ = [
    "ABSENT",
    "STATES",
    "agree",
    "check_form",
    "encode",
    "same_plain",
    "say",
    "type_of",
    "underlying",
]
