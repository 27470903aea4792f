"""What is known of the strategies before they run. Rooms and the configuration learn it here."""

from __future__ import annotations

from dataclasses import dataclass

SLOTS = 500
"""Into how many parts the dynamic programs of strategies cut a budget."""
HIERARCHY = {"nodes": 12, "clusters": 6, "top": 12}
"""The limits of a hierarchy that strategies plan with, as `partition` takes them: its integer
programs are solved in seconds."""


@dataclass(frozen=True)
class About:
    """What is known of a strategy before it runs.

    `summary` is a line for people. A `baseline` takes no budget and is not polished. One that is
    kept `apart` is no part of `auto`: once polished its plans are seldom better. One that is
    `solved` takes the options that integer programs found, and hangs on how these ended. One that
    takes `clusters` is given a hierarchy of them (`HIERARCHY` says how large). One that plans
    `chains` takes chains that come as files, and one that plans `joins` several that end in one
    loss. One with `links` takes the link to another memory, to which plans may send what waits; one
    that `sends` takes options of blocks that were made for that link, too.
    `optimal_in` names the class that its sequences are optimal in, "" for none.
    """

    name: str
    summary: str
    baseline: bool = False
    apart: bool = False
    solved: bool = False
    clusters: bool = False
    chains: bool = False
    joins: bool = False
    links: bool = False
    sends: bool = False
    optimal_in: str = ""


UNPLANNED = "unplanned"
_BASELINES = [
    About(UNPLANNED, "the step as PyTorch runs it", baseline=True),
    About(
        "checkpoint",
        "every block is computed again, as `torch.utils.checkpoint` on each would",
        baseline=True,
    ),
]
_BUDGETED = [
    About(
        "rotor",
        "each block keeps everything or nothing; a dynamic program chooses over the sequence of "
        "blocks",
        chains=True,
        joins=True,
        optimal_in=f"persistent sequences of the chain at {SLOTS} slots",
    ),
    About(
        "rockmate",
        "each block runs by one of many options (what to keep, what to compute again), found by "
        "integer programming; a dynamic program chooses among them over the sequence of blocks",
        solved=True,
        chains=True,
        joins=True,
        optimal_in=f"persistent sequences of the blocks' options at {SLOTS} slots",
    ),
    About(
        "frees",
        "the fastest sequence of a chain of few blocks that keep everything or nothing, where "
        "anything stored may be freed at any time",
        chains=True,
    ),
    About(
        "floating",
        "the fastest sequence of a chain of up to 23 blocks that keep everything or nothing, where "
        "what was stored last may be replaced by what comes after it, to compare `frees` with",
        apart=True,
        chains=True,
    ),
    About(
        "join",
        "branches of a model that meet in the loss, as the towers of a siamese net, planned "
        "together, each of their blocks with two options",
    ),
    About(
        "checkmate",
        "one integer program over all ops of a small step, up to 120, in captured order, to "
        "compare others with",
        apart=True,
    ),
    About(
        "tw_remat",
        "a heuristic for any graph: a tree decomposition of the step says what is kept while its "
        "parts run",
        apart=True,
    ),
    About(
        "hiremate",
        "each cluster of a hierarchy runs by one of many options; an integer program chooses among "
        "them, from the lowest clusters up, for graphs that are no sequence",
        apart=True,
        clusters=True,
    ),
    About(
        "offload",
        "the plans of `auto`, and what waits sent to the host's memory or a disk and brought back "
        "where that is faster than to run it again; the link is measured, or that of a `machine`",
        apart=True,
        solved=True,
        links=True,
    ),
    About(
        "offmate",
        "each block runs by one of many options, of which some of what they keep is sent and "
        "brought back; an integer program chooses among them and how much goes over the link, to "
        "compare `offload` with",
        apart=True,
        solved=True,
        links=True,
        sends=True,
    ),
]

TRIED_BY_AUTO = [about.name for about in _BUDGETED if not about.apart]
"""The strategies whose plans are those of `auto`."""


def _auto() -> About:
    *most, last = (f"`{name}`" for name in TRIED_BY_AUTO)
    summary = f"the plans of {', '.join(most)} and {last} together, which one search starts from"
    return About(
        "auto", summary, solved=any(about.solved for about in _BUDGETED if not about.apart)
    )


STRATEGIES: dict[str, About] = {about.name: about for about in (*_BASELINES, _auto(), *_BUDGETED)}
"""All by name, baselines first: NAME is `STRATEGY` of `stages/combine/strategies/NAME.py`."""


def baselines() -> list[str]:
    """The strategies that take no budget."""
    return [name for name, about in STRATEGIES.items() if about.baseline]
