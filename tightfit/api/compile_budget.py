"""A budget in bytes for what `torch.compile` saves between forward and backward."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING

from tightfit.util.budget import parse_budget, parse_loss_room
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from tightfit.stages.compile.budget_planner import BudgetPlanner

_MECHANISM = {
    "torch._functorch.partitioners": (
        "choose_saved_values_set",
        "min_cut_rematerialization_partition",
        "reordering_to_mimic_autograd_engine",
    ),
    "torch._functorch.config": ("enable_autograd_cache",),
    "torch._inductor.custom_graph_pass": ("CustomPartitionerFn",),
    "torch._inductor.config": ("custom_partitioner_fn",),
}
"""What a release of PyTorch needs to have."""

_end_of_setting: ContextVar[Callable[[], None] | None] = ContextVar(
    "set_compile_budget", default=None
)
_in_context: ContextVar[bool] = ContextVar("compile_budget_in_context", default=False)


@contextlib.contextmanager
def compile_budget(
    budget: str | int, *, reserve: str | int | None = None
) -> Iterator[BudgetPlanner]:
    """Keeps the step of models that `torch.compile` compiles within some bytes.

    What is compiled inside of the context, which is when a compiled model is first called with some
    shapes, saves so few values for its backward that the peak of the step stays within the budget,
    and recomputes the others. Gradients are those of `torch.compile` without a budget; random
    numbers are drawn once. A graph that fits without a budget is compiled as without one. Models
    that were compiled before stay as they are.

    All graphs compiled in one context share its bytes as parts of one step, in the order of their
    compilation: each has what the earlier ones leave while they wait for their backward.

    Args:
        budget: The peak of the step: parameters, inputs, gradients, outputs and activations; a size
            such as "8GiB", or bytes. States of an optimizer are not in it.
        reserve: Bytes for what runs between the forward and the backward of a graph, with the
            gradients of its outputs; by default what cross entropy of its outputs takes, and
            nothing if all of them are scalars, as the loss is.

    Returns:
        A context manager. What it gives has `graphs`, by name, with predicted `peak`,
        `saved_bytes`, `slowdown` and `fits` of each.

    Raises:
        ConfigError: The budget is no size, another partitioner is set, or this release of PyTorch
            lacks what it needs.

    Warns:
        UserWarning: No partition within the budget was found; the smallest one is compiled, and the
            message has its bytes.

    Example:
        >>> compiled = torch.compile(model)
        >>> with tightfit.compile_budget("8GiB"):
        ...     loss_function(compiled(inputs), targets).backward()
    """
    planner = _make_planner(budget, reserve)
    end = _start_planner(planner)
    before = _in_context.get()
    _in_context.set(True)
    try:
        yield planner
    finally:
        _in_context.set(before)
        end()


def set_compile_budget(
    budget: str | int | None, *, reserve: str | int | None = None
) -> BudgetPlanner | None:
    """Sets the budget of `torch.compile` for all that this thread compiles from now on.

    Other threads have their own. A `compile_budget` context has precedence while it is open.

    Args:
        budget: As in `compile_budget`; None ends it.
        reserve: As in `compile_budget`.

    Returns:
        What `compile_budget` gives; None for None.

    Raises:
        ConfigError: As in `compile_budget`; or such a context is open in this thread.

    Example:
        >>> tightfit.set_compile_budget("8GiB")
        >>> model = torch.compile(model)
    """
    if _in_context.get():
        raise ConfigError(
            "set_compile_budget: a compile_budget context is open in this thread, whose budget "
            "holds until its end: call set_compile_budget outside of it"
        )
    planner = None if budget is None else _make_planner(budget, reserve)
    if (end := _end_of_setting.get()) is not None:
        _end_of_setting.set(None)
        end()
    _end_of_setting.set(None if planner is None else _start_planner(planner))
    return planner


def _make_planner(budget: str | int, reserve: str | int | None) -> BudgetPlanner:
    """The planner of a budget."""
    size = parse_budget(budget, expected="a size such as '8GiB' or a number of bytes").size
    if size is None:
        raise ConfigError(f"budget: {budget!r} is a share, expected a size such as '8GiB'")
    room = parse_loss_room(reserve, "reserve")
    _check_mechanism()
    from tightfit.stages.compile.budget_planner import BudgetPlanner

    return BudgetPlanner(size, room)


def _start_planner(planner: BudgetPlanner) -> Callable[[], None]:
    """Asks a planner from now on; what is returned ends that."""
    from tightfit.stages.compile.partitioner import start_planning

    return start_planning(planner)


def _check_mechanism() -> None:
    """Raises ConfigError if PyTorch lacks a part that the partitioner needs."""
    import torch

    for name, parts in _MECHANISM.items():
        try:
            module = import_module(name)
            missing = [part for part in parts if not hasattr(module, part)]
        except ImportError:
            missing = [name]
        if missing:
            raise ConfigError(
                f"compile_budget: PyTorch {torch.__version__} has no {name}.{missing[0]}, "
                "which 2.11 to 2.13 have; use torch.utils.checkpoint or tightfit.plan instead"
            )
