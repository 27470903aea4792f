"""Settings in a module of a package."""

from __future__ import annotations

from typing import ClassVar

FLAG = 2.0
TABLE = {"scale": 2.0}


class Config:
    """Settings on a class."""

    scale = 2.0
    shifts: ClassVar[list[float]] = [1.0]


class Sub:
    """Settings below a class."""

    class Below:
        scale = 2.0
