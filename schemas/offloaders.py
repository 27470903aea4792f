"""What is known of the strategies that need a link to the host, as `schemas/strategies.py` for
those that need none. Such a strategy plans a chain that comes as a file with a machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OffloaderAbout:
    """What is known of an offloader before it runs: its name, a line for people, and whether its
    plans may compute again (`recomputes`)."""

    name: str
    summary: str
    recomputes: bool = False


_ALL = [
    OffloaderAbout(
        "offload_greedy",
        "runs nothing again; the first activations leave, as many as have to",
    ),
    OffloaderAbout(
        "offload_dynprog",
        "runs nothing again; which activations leave is decided by a dynamic program",
    ),
    OffloaderAbout(
        "pofo",
        "what to keep, what to run again and what leaves, decided together; never slower than "
        "`rotor`",
        recomputes=True,
    ),
    OffloaderAbout(
        "autocapper",
        "plans of `rotor` for more memory than there is, of which the first activations leave",
        recomputes=True,
    ),
    OffloaderAbout(
        "opportunist",
        "what keeps the link busy leaves, and the rest runs again",
        recomputes=True,
    ),
]

OFFLOADERS: dict[str, OffloaderAbout] = {about.name: about for about in _ALL}
"""All by name: NAME is `PLANNER` of `stages/combine/offload/planners/NAME.py`."""
