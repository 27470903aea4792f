"""The place of a planner within `torch.compile`.

AOTAutograd's own partitioner (`min_cut_rematerialization_partition`) runs as it is; the function
that it asks which values to save, `choose_saved_values_set`, is replaced by one that asks the
planner of the context, if there is one. Inductor takes the partitioner as
`torch._inductor.config.custom_partitioner_fn`, whose uuid is part of its cache keys; other backends
of AOTAutograd (`aot_eager_decomp_partition`) call it by themselves.

Inductor fuses operators that read the same value into one kernel, also where others run between
them: what the later one reads and makes then lives from the earlier one on. Within a budget it does
so only where this spares as many bytes of reads.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from torch import fx
from torch._functorch import partitioners
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from tightfit.stages.compile.budget_planner import BudgetPlanner
from tightfit.util.errors import ConfigError

_planner: ContextVar[BudgetPlanner | None] = ContextVar("compile_budget", default=None)
_fuses: ContextVar[bool] = ContextVar("compile_budget_fuses", default=False)


class BudgetPartitioner(CustomPartitionerFn):
    """Inductor's partitioner within a budget.

    Args:
        planner: What chooses the saved values.
    """

    def __init__(self, planner: BudgetPlanner) -> None:
        self.planner = planner

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Partitions a joint graph."""
        token = _fuses.set(True)
        try:
            return partitioners.min_cut_rematerialization_partition(gm, joint_inputs, **kwargs)
        finally:
            _fuses.reset(token)

    def uuid(self) -> str:
        """Code, ask and plans, which inductor puts into the keys of its caches."""
        return self.planner.digest()


class FusionWithinBudget:
    """What inductor asks before it fuses two operators that do not read each other."""

    def can_fuse_horizontal(
        self, scheduler: Any, node1: Any, node2: Any, shared_data_score: int
    ) -> bool:
        """Whether they may be one kernel, which spares `shared_data_score` bytes of reads."""
        usual: bool = super().can_fuse_horizontal(  # type: ignore[misc]
            scheduler, node1, node2, shared_data_score
        )
        first, last = sorted((node1, node2), key=lambda node: node.min_order)
        if not usual or last.min_order <= first.max_order + 1:
            return usual
        moved = sum(each.numbytes_hint() for each in last.read_writes.reads_and_writes())
        return shared_data_score >= moved - shared_data_score


def _limit_fusion() -> contextlib.AbstractContextManager[None]:
    """Lets inductor ask `FusionWithinBudget` beside the choices that are set."""
    virtualized = import_module("torch._inductor.virtualized").V
    choices = copy.copy(virtualized.choices)
    usual = type(choices)
    choices.__class__ = type(usual.__name__, (FusionWithinBudget, usual), {})
    limit: contextlib.AbstractContextManager[None] = virtualized.set_choices_handler(choices)
    return limit


def _ask_planner(original: Callable[..., list[fx.Node]]) -> Callable[..., list[fx.Node]]:
    def choose_saved_values_set(
        joint_graph: fx.Graph, node_info: Any, memory_budget: float = 1
    ) -> list[fx.Node]:
        planner = _planner.get()
        usual = original(joint_graph, node_info, 1 if planner else memory_budget)
        if planner is None:
            return usual
        return planner.choose(joint_graph, node_info, usual, _fuses.get())

    choose_saved_values_set.of_tightfit = True  # type: ignore[attr-defined]
    return choose_saved_values_set


def start_planning(planner: BudgetPlanner | None) -> Callable[[], None]:
    """Lets a planner, or none, choose what `torch.compile` saves from now on in this thread; the
    function that is returned ends it.

    Raises ConfigError if another partitioner is set.
    """
    inductor = import_module("torch._inductor.config")
    autograd = import_module("torch._functorch.config")
    theirs = inductor.custom_partitioner_fn
    if planner and not (theirs is None or isinstance(theirs, BudgetPartitioner)):
        raise ConfigError(
            "compile_budget: torch._inductor.config.custom_partitioner_fn is set to "
            f"{type(theirs).__name__}, which would choose what is saved: set it to None"
        )
    if not hasattr(partitioners.choose_saved_values_set, "of_tightfit"):
        partitioners.choose_saved_values_set = _ask_planner(partitioners.choose_saved_values_set)
    ends = contextlib.ExitStack()
    ends.callback(_planner.set, _planner.get())
    _planner.set(planner)
    own = {"custom_partitioner_fn": BudgetPartitioner(planner) if planner else None}
    ends.enter_context(inductor.patch(**own))
    if planner:
        ends.enter_context(_limit_fusion())
    # A hit of AOTAutograd's cache would pass the planner by, which then knows less of the step.
    ends.enter_context(autograd.patch(enable_autograd_cache=planner is None))
    return ends.close
