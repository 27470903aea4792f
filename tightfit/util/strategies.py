"""What is known of the strategies before they run. Rooms and the configuration learn it here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

BUDGET_SLOTS = 500
"""Into how many parts the dynamic programs of strategies cut a budget."""
HIERARCHY_LIMITS = {"nodes": 12, "clusters": 6, "top": 12}
"""The limits of a hierarchy that strategies plan with, as `partition` takes them: its integer
programs are solved in seconds."""


@dataclass(frozen=True)
class StrategyInfo:
    """What is known, before it runs, of a strategy for a step, of a planner of chains with a link,
    or of an allocator of pipelines.

    `summary` is a line for people, and `optimal_in` names the class that its plans are optimal in,
    "" for none; those of an allocator where its bound is reached.

    A `baseline` takes no budget and has no local search. One that is kept `apart` is no part of
    `auto`: after local search its plans are seldom better. One with `uses_solved_options` takes the
    options that integer programs found, and hangs on how these ended. One that takes `clusters` is
    given a hierarchy of them (`HIERARCHY_LIMITS` says how large). One that plans `chains` takes
    chains that come as files, and one that `plans_joins` several that end in one loss; one that
    `rounds` sizes to parts of the memory takes how many of these there are. One with `links` takes
    the link to an offload target, to which plans may send what waits; one with `uses_link_options`
    takes options of blocks that were made for that link, too. Plans of one that `recomputes` may
    compute again.

    A `contiguous` allocator gives each device one stage, so that only neighbors need a link. One
    with `turns` makes k-periodic patterns and takes k. One that `flushes` makes patterns in which
    no batch is under way between two steps. One with `inside` can compute again inside of stages.
    One that `solves` integer programs takes the engine that does. A `blind` one looks at memory
    afterwards, so that it may find nothing where something fits.
    """

    name: str
    summary: str
    baseline: bool = False
    apart: bool = False
    uses_solved_options: bool = False
    clusters: bool = False
    chains: bool = False
    plans_joins: bool = False
    rounds: bool = False
    links: bool = False
    uses_link_options: bool = False
    recomputes: bool = False
    contiguous: bool = False
    turns: bool = False
    flushes: bool = False
    inside: bool = False
    solves: bool = False
    blind: bool = False
    optimal_in: str = ""

    def optimal_class(self, slots: int) -> str:
        """The class that its plans are optimal in where it cuts the memory into so many `slots`, ""
        for none."""
        rounded = self.rounds and self.optimal_in
        return f"{self.optimal_in} at {slots} slots" if rounded else self.optimal_in


def load_strategy_module(about: StrategyInfo, package: str) -> Any:
    """The `STRATEGY` of the file of a strategy in the package of its kind."""
    return import_module(f"{package}.{about.name}").STRATEGY


KEEP_ALL = "keep_all"
_BASELINES = [
    StrategyInfo(KEEP_ALL, "the step as PyTorch runs it", baseline=True),
    StrategyInfo(
        "checkpoint_all",
        "every block is computed again, as `torch.utils.checkpoint` on each would",
        baseline=True,
    ),
]
_BUDGETED = [
    StrategyInfo(
        "rotor",
        "each block keeps everything or nothing; a dynamic program chooses over the sequence of "
        "blocks",
        chains=True,
        plans_joins=True,
        rounds=True,
        optimal_in="persistent sequences of the chain",
    ),
    StrategyInfo(
        "rockmate",
        "each block runs by one of many options (what to keep, what to compute again), found by "
        "integer programming; a dynamic program chooses among them over the sequence of blocks",
        uses_solved_options=True,
        chains=True,
        plans_joins=True,
        rounds=True,
        optimal_in="persistent sequences of the blocks' options",
    ),
    StrategyInfo(
        "early_free",
        "the fastest sequence of a chain of few blocks that keep everything or nothing, where "
        "anything stored may be freed at any time",
        chains=True,
    ),
    StrategyInfo(
        "floating_persistence",
        "the fastest sequence of a chain of up to 79 blocks that keep everything or nothing, where "
        "what was stored last may be replaced by what comes after it, to compare `early_free` with",
        apart=True,
        chains=True,
        rounds=True,
    ),
    StrategyInfo(
        "sequential",
        "segments of equal length, of which all but the last run again as a whole; as many as fit "
        "the budget with the least time (Chen et al.), to compare others with",
        apart=True,
        chains=True,
    ),
    StrategyInfo(
        "revolve",
        "only inputs of blocks are stored, and each block runs again right before its backward; a "
        "dynamic program chooses over the sequence of blocks, to compare others with",
        apart=True,
        chains=True,
        rounds=True,
        optimal_in="sequences of the chain that store inputs alone",
    ),
    StrategyInfo(
        "join",
        "branches of a model that meet in the loss, as the towers of a siamese net, planned "
        "together, each of their blocks with two options",
        plans_joins=True,
        rounds=True,
    ),
    StrategyInfo(
        "checkmate",
        "one integer program over all ops of a small step, up to 120, in captured order, to "
        "compare others with",
        apart=True,
    ),
    StrategyInfo(
        "tw_remat",
        "a heuristic for any graph: a tree decomposition of the step says what is kept while its "
        "parts run",
        apart=True,
    ),
    StrategyInfo(
        "hiremate",
        "each cluster of a hierarchy runs by one of many options; an integer program chooses among "
        "them, from the lowest clusters up, for graphs that are no sequence",
        apart=True,
        clusters=True,
    ),
    StrategyInfo(
        "offload",
        "the plans of `auto`, and what waits sent to the host's memory or a disk and brought back "
        "where that is faster than to run it again; the link is measured, or that of a `machine`",
        apart=True,
        uses_solved_options=True,
        links=True,
    ),
    StrategyInfo(
        "offmate",
        "each block runs by one of many options, of which some of what they keep is sent and "
        "brought back; an integer program chooses among them and how much goes over the link, to "
        "compare `offload` with",
        apart=True,
        uses_solved_options=True,
        links=True,
        uses_link_options=True,
    ),
]

AUTO_STRATEGIES = [about.name for about in _BUDGETED if not about.apart]
"""The strategies whose plans are those of `auto`."""


def _auto_strategy() -> StrategyInfo:
    *most, last = (f"`{name}`" for name in AUTO_STRATEGIES)
    summary = f"the plans of {', '.join(most)} and {last} together, which one search starts from"
    return StrategyInfo(
        "auto",
        summary,
        uses_solved_options=any(
            about.uses_solved_options for about in _BUDGETED if not about.apart
        ),
    )


STRATEGIES: dict[str, StrategyInfo] = {
    about.name: about for about in (*_BASELINES, _auto_strategy(), *_BUDGETED)
}
"""All by name, baselines first: NAME is `STRATEGY` of `stages/combine/strategies/NAME.py`."""


def baseline_names() -> list[str]:
    """The strategies that take no budget."""
    return [name for name, about in STRATEGIES.items() if about.baseline]


_OFFLOADERS = [
    StrategyInfo(
        "offload_greedy",
        "runs nothing again; the first activations leave, as many as have to",
    ),
    StrategyInfo(
        "offload_dynprog",
        "runs nothing again; which activations leave is decided by a dynamic program",
    ),
    StrategyInfo(
        "pofo",
        "what to keep, what to run again and what leaves, decided together; never slower than "
        "`rotor`",
        recomputes=True,
    ),
    StrategyInfo(
        "autocapper",
        "plans of `rotor` for more memory than there is, of which the first activations leave",
        recomputes=True,
    ),
    StrategyInfo(
        "opportunist",
        "what keeps the link busy leaves, and the rest runs again",
        recomputes=True,
    ),
]

OFFLOADERS: dict[str, StrategyInfo] = {about.name: about for about in _OFFLOADERS}
"""All by name: NAME is `STRATEGY` of `stages/combine/chain_offload/planners/NAME.py`."""


_ALLOCATORS = [
    StrategyInfo(
        "pipedream",
        "contiguous, with the least period where memory does not count; memory is looked at "
        "afterwards (a baseline)",
        contiguous=True,
        blind=True,
        optimal_in="contiguous allocations",
    ),
    StrategyInfo(
        "gpipe",
        "contiguous, all batches of a flush forward and then all backward, with the least time for "
        "them at which they fit the memory (a baseline)",
        contiguous=True,
        flushes=True,
        optimal_in="contiguous allocations with all forwards of a flush ahead of its backwards",
    ),
    StrategyInfo(
        "one_f_one_b",
        "contiguous, with the least period at which 1F1B* fits the memory",
        contiguous=True,
        inside=True,
        optimal_in="contiguous allocations with 1-periodic patterns of whole stages",
    ),
    StrategyInfo(
        "k_periodic",
        "contiguous, with 1F1B* or that with every (k+1)-th batch left out where memory binds",
        contiguous=True,
        turns=True,
        inside=True,
        optimal_in="contiguous allocations",
    ),
    StrategyInfo(
        "pipeline_ilp",
        "any layers on any device, by integer programs for allocation and schedule; for short "
        "chains",
        solves=True,
        optimal_in="1-periodic patterns",
    ),
    StrategyInfo(
        "madpipe",
        "one stage a device but for a special one, by a dynamic program, with the schedule by an "
        "integer program; never slower than `one_f_one_b`, by the period or by a step of some "
        "microbatches",
        inside=True,
        solves=True,
        optimal_in="all allocations",
    ),
]

ALLOCATORS: dict[str, StrategyInfo] = {about.name: about for about in _ALLOCATORS}
"""All by name: NAME is `STRATEGY` of `stages/combine/pipeline/allocators/NAME.py`."""

CHAIN_STRATEGIES: dict[str, StrategyInfo] = {
    **{name: about for name, about in STRATEGIES.items() if about.chains or about.plans_joins},
    **OFFLOADERS,
    **ALLOCATORS,
}
"""What `chain` plans with, by name: chains and joins, chains with a link, pipelines."""
