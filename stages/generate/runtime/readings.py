"""What generated packages have as `readings.py`: `stages.device.readings`, under the same name."""

from stages.device.readings import (
    ABSENT,
    STATES,
    VIEWS,
    agree,
    bound_to,
    class_of,
    encode,
    is_array,
    same_plain,
    say,
    slots_of,
    type_of,
    underlying,
)

__all__ = [
    "ABSENT",
    "STATES",
    "VIEWS",
    "agree",
    "bound_to",
    "class_of",
    "encode",
    "is_array",
    "same_plain",
    "say",
    "slots_of",
    "type_of",
    "underlying",
]
