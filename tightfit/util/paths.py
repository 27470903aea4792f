"""Where tightfit is installed, and where it keeps what it finds out."""

from __future__ import annotations

import os
import sys
from pathlib import Path

INSTALL_ROOT = Path(__file__).resolve().parents[2]
"""The folder that the package tightfit is in: a checkout, or that of an installation."""


def default_store_path() -> Path:
    """The folder for what is measured and solved, below the user's cache folder."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tightfit"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "tightfit" / "Cache"
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return folder / "tightfit"
