"""The uses by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.battery.use_context import Run


@dataclass(frozen=True)
class Use:
    """A way to use a module; `fast` ones are among the tests. Nothing is said of the numbers of a
    use that is not `promised`."""

    name: str
    theme: str
    run: Callable[[Run], None]
    fast: bool
    promised: bool = True


USES: dict[str, Use] = {}


def use(function: Callable[[Run], None]) -> Callable[[Run], None]:
    """Enters a use."""
    return _enter(function, False)


def fast(function: Callable[[Run], None]) -> Callable[[Run], None]:
    """Enters a use that is among the tests."""
    return _enter(function, True)


def beyond(function: Callable[[Run], None]) -> Callable[[Run], None]:
    """Enters a use that nobody can notice, so that nothing is promised of it."""
    return _enter(function, False, promised=False)


def _enter(
    function: Callable[[Run], None], fast: bool, promised: bool = True
) -> Callable[[Run], None]:
    name = function.__name__
    assert name not in USES, name
    USES[name] = Use(name, function.__module__.rpartition(".")[2], function, fast, promised)
    return function
