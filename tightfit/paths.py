"""Where tightfit is installed, and where it keeps what it finds out."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

HOUSE = Path(__file__).resolve().parents[1]
"""The folder that tightfit's packages are in."""


def require_own(*names: str) -> None:
    """Raises ImportError where one of tightfit's packages is hidden by another of its name."""
    for name in names:
        found = find_spec(name)
        places = [] if found is None else found.submodule_search_locations or [found.origin or ""]
        folders = [Path(place).resolve() for place in places]
        if not folders:
            raise ImportError(f"tightfit's package {name!r} is not in {HOUSE}: install it anew")
        if HOUSE / name not in folders and _is_remains(folders[0]):
            raise ImportError(f"{folders[0]} is left of an earlier installation: remove it")
        if HOUSE / name not in folders:
            raise ImportError(
                f"{folders[0]} hides tightfit's own package {name!r}: rename it, or start Python "
                "where it is not on the path"
            )


def _is_remains(folder: Path) -> bool:
    """Whether a folder holds only caches, as an uninstalled package leaves them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return bool(files) and all("__pycache__" in path.parts for path in files)


def default_store() -> Path:
    """The folder for what is measured and solved, below the user's cache folder."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "tightfit"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "tightfit" / "Cache"
    given = os.environ.get("XDG_CACHE_HOME", "")
    folder = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return folder / "tightfit"
