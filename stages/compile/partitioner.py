"""The place of a planner within `torch.compile`.

AOTAutograd's own partitioner (`min_cut_rematerialization_partition`) runs as it is; the function
that it asks which values to save, `choose_saved_values_set`, is replaced by one that asks the
planner of the context, if there is one. Inductor takes the partitioner as
`torch._inductor.config.custom_partitioner_fn`, whose uuid is part of its cache keys; other backends
of AOTAutograd (`aot_eager_decomp_partition`) call it by themselves.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from torch import fx
from torch._functorch import partitioners
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from tightfit.stages.compile.budget_planner import BudgetPlanner
from tightfit.stages.compile.fusion_limit import limit_fusion
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


def _peak_limit(is_backward: bool) -> int | None:
    """What the planner lets the graph take that is compiled."""
    planner = _planner.get()
    return planner.peak_limit(is_backward) if planner else None


def _note_excess(excess: int) -> None:
    """Tells the planner what the kernels of the graph that is compiled take beyond its limit."""
    if planner := _planner.get():
        planner.note_excess(excess)


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
    limit_fusion(_peak_limit, _note_excess)
    ends = contextlib.ExitStack()
    ends.callback(_planner.set, _planner.get())
    _planner.set(planner)
    own = {"custom_partitioner_fn": BudgetPartitioner(planner) if planner else None}
    ends.enter_context(inductor.patch(**own))
    # A hit of AOTAutograd's cache would pass the planner by, which then knows less of the step.
    ends.enter_context(autograd.patch(enable_autograd_cache=planner is None))
    return ends.close
