"""What generated packages have as `readings.py`: `stages.device.readings`, under the same name."""

from tightfit.stages.device.readings import (
    ABSENT,
    VIEWS,
    bound_to,
    class_of,
    encode,
    fields_of,
    held_by,
    installed_class,
    is_array,
    is_held_in_fields,
    slots_of,
    type_of,
    underlying,
)

__all__ = [
    "ABSENT",
    "VIEWS",
    "bound_to",
    "class_of",
    "encode",
    "fields_of",
    "held_by",
    "installed_class",
    "is_array",
    "is_held_in_fields",
    "slots_of",
    "type_of",
    "underlying",
]
