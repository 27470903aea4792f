"""Which releases of PyTorch were tested."""

from __future__ import annotations

import re
import warnings

FIRST_TESTED = (2, 11)
LAST_TESTED = (2, 13)

_warned: set[str] = set()


def release_of(version: str) -> tuple[int, ...]:
    """The major and minor number of a release, the last tested for what names none.

    Example:
        >>> release_of("2.12.1+cpu")
        (2, 12)
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else LAST_TESTED


def warn_of_untested_version(version: str) -> None:
    """Warns once, in a sentence, of a release of PyTorch that no test has run with.

    Args:
        version: `torch.__version__`.

    Example:
        >>> warn_of_untested_version("2.13.0+cpu")
    """
    if FIRST_TESTED <= release_of(version) <= LAST_TESTED or version in _warned:
        return
    _warned.add(version)
    tested = " to ".join(".".join(map(str, each)) for each in (FIRST_TESTED, LAST_TESTED))
    warnings.warn(
        f"tightfit was tested with PyTorch {tested}, and this is {version}: capturing a model may "
        "fail, and a plan is compared with the model before it is used",
        stacklevel=3,
    )
