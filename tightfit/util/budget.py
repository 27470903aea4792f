"""Memory budgets as people write them: "8GiB", "145MB", "50%" or a number of bytes.

A size is the whole step's peak on the device: parameters, gradients, inputs, outputs, activations
and temporaries. A percentage is `fixed + p (keep-all peak - fixed)`, with `fixed` the parameters,
their gradients, the inputs and the outputs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from tightfit.util.errors import ConfigError

BYTE_UNITS = {
    "": 1,
    "B": 1,
    "kB": 10**3,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
"""Bytes of each unit that a size may be written in."""

MAX_BUDGET_BYTES = 1 << 62
"""Bytes that no budget has."""

MAX_BUDGET_CHARACTERS = 60
"""Characters that no budget has more than."""

NO_BUDGET = "none"
"""What stands for a budget where a strategy takes none, in options and folder names."""

MIN_BUDGET = "min"
"""What stands for the smallest budget that is known to work."""

DEFAULT_BUDGET = "50%"
"""What a call asks for where no budget is named."""

FRONTIER_BUDGETS = 48
"""How many budgets a frontier is made for at most: the plan for one that is asked is searched for
by itself."""
COARSE_FRONTIER_BUDGETS = 12
"""How many where it is just shown."""
USUAL_LOSS_ROOM = "usual"
"""What stands for the bytes that the usual losses take."""

EXPECTED_LOSS_ROOM = f"a size such as '64MB', 0 for none, or '{USUAL_LOSS_ROOM}'"

EXPECTED_BUDGET = (
    "a size such as '8GiB' or '145MB', a percentage such as '50%', or a number of bytes"
)


@dataclass(frozen=True)
class Budget:
    """A parsed budget: `size` in bytes, or the `share` (0 to 1) of what is not fixed; neither for
    the smallest that is known to work."""

    text: str
    size: int | None = None
    share: Fraction | None = None

    def total(self, fixed: int, keep_all: int) -> int:
        """The whole step's allowance in bytes; `keep_all` is its peak with nothing recomputed."""
        if self.size is not None:
            return self.size
        assert self.share is not None
        return fixed + int(self.share * (keep_all - fixed))

    @property
    def is_min(self) -> bool:
        """Whether it is the smallest budget that is known to work."""
        return self.text == MIN_BUDGET

    @property
    def directory(self) -> str:
        """The budget as a folder's name, safe in paths and links: "50%" becomes "50pct"."""
        if self.share is not None:
            return self.text.replace("%", "pct")
        return f"{self.text}B" if self.text.isdigit() else self.text


def parse_plan_budget(written: str | int, key: str = "budget") -> Budget:
    """As `parse_budget`, or "min": the smallest budget that a plan is known for. Raises ConfigError
    also for so few bytes that a unit must have been forgotten."""
    if written == MIN_BUDGET:
        return Budget(MIN_BUDGET)
    found = parse_budget(written, key, f"{EXPECTED_BUDGET}, or '{MIN_BUDGET}'")
    require_unit(found, key)
    return found


def require_unit(budget: Budget, key: str) -> None:
    """Raises ConfigError, naming `key`, for a number without a unit that would be a percentage: no
    step takes so few bytes."""
    size = budget.size
    if size is not None and budget.text.isdigit() and size <= 100:
        raise ConfigError(f"{key}: {size} is {size} bytes, write '{size}%' or '{size}MB'")


def parse_budget(
    written: str | int, key: str = "budget", expected: str = EXPECTED_BUDGET
) -> Budget:
    """A budget from what the user wrote, also as messages write sizes ("12,368,390 bytes"); `key`
    is where, and `expected` what could be there, for the message.

    Raises ConfigError when it is no size, not positive, or a percentage above 100.
    """
    if isinstance(written, bool) or not isinstance(written, str | int):
        raise ConfigError(f"{key}: {written!r} is no size, expected {expected}")
    text = _remove_separators(re.sub(r"\s+", "", str(written)))
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(%|[A-Za-z]*)", text)
    if match is None or len(text) > MAX_BUDGET_CHARACTERS:
        told = (
            repr(written)
            if len(text) <= MAX_BUDGET_CHARACTERS
            else f"{text[:MAX_BUDGET_CHARACTERS]}..."
        )
        raise ConfigError(f"{key}: {told} is no size, expected {expected}")
    number, unit = Fraction(match[1]), match[2]
    if unit != "%" and unit not in BYTE_UNITS:
        raise ConfigError(
            f"{key}: {written!r} has the unknown unit {unit!r}, expected one of "
            f"{', '.join(filter(None, BYTE_UNITS))} or %"
        )
    if number == 0:
        why = "has no room for an activation" if unit == "%" else "is nothing"
        raise ConfigError(f"{key}: {written!r} {why}, expected more than 0")
    if unit == "%":
        if number > 100:
            raise ConfigError(f"{key}: {written!r} is above 100%, expected at most 100%")
        return Budget(text, share=number / 100)
    size = number * BYTE_UNITS[unit]
    if size.denominator != 1 and not unit.strip("B"):
        raise ConfigError(f"{key}: {written!r} is no whole number of bytes")
    if size >= MAX_BUDGET_BYTES:
        raise ConfigError(f"{key}: {written!r} is more than any device has")
    return Budget(text, size=int(size))


def _remove_separators(text: str) -> str:
    """A size without separators of thousands and the word for bytes."""
    number = re.fullmatch(r"([0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(bytes?|[.%A-Za-z0-9]*)", text)
    if number is None:
        return text
    return number[1].replace(",", "") + re.sub(r"^bytes?$", "", number[2])


def parse_loss_room(written: str | int | None, key: str = "loss_room") -> int | None:
    """The bytes that a plan leaves to a loss outside of it, from what the user wrote; None for
    those that the usual losses take ("usual", or None).

    Raises ConfigError, naming `key`, for what is no size.
    """
    if written is None or written == USUAL_LOSS_ROOM:
        return None
    if not isinstance(written, bool) and str(written).strip() == "0":
        return 0
    size = parse_budget(written, key, EXPECTED_LOSS_ROOM).size
    if size is None:
        raise ConfigError(f"{key}: {written!r} is a share, expected {EXPECTED_LOSS_ROOM}")
    return size
