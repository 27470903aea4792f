"""What a command of the command line made of what, as its records will tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Derived:
    """Files or modules, the files they were made of, and the settings that the command was given.

    `settings` are plain values by name. `factory` and `search_path` name the model's source where
    the command ran it.
    """

    outputs: Sequence[Path | str]
    inputs: Sequence[Path | str] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    factory: str = ""
    search_path: Sequence[Path | str] = ()
