"""Plans made anew for calls that no plan takes, as torch.compile compiles anew."""

from __future__ import annotations

import contextlib
import inspect
import pickle
import threading
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from tightfit.api.number_changes import NumberChanges, Refusal, replace_floats
from tightfit.api.plan_arguments import FULL_CHECK, Sample
from tightfit.api.plan_options import ReplanOptions
from tightfit.api.plan_result import ChosenPlan
from tightfit.api.progress_bar import ProgressReporter
from tightfit.api.stage_runner import PLANNING_LOCK
from tightfit.mismatch import PlanMismatch
from tightfit.util.budget import MIN_BUDGET
from tightfit.util.errors import ConfigError, ModelError

if TYPE_CHECKING:
    from torch import Tensor, nn

CHANGING_NUMBER = (
    "{} changes from call to call, cannot be an input of a plan{} and has no plan for each value: "
    "pass it as a tensor, or keep it in a buffer"
)


@dataclass
class Replanner:
    """Makes further plans within the budget of a first one, for calls that differ from it.

    A call that cannot be planned runs the original, and one warning for each reason says why.
    Copies of a module share it, as they share the plans.

    Args:
        options: How many plans are made at most.
        make_plan: `tightfit.plan` with the options of the first plan but the budget.
        budget: The budget of the first plan as it was written.
        budget_total: Its bytes of the whole step, None without a budget.
        original_total: Bytes of the original's step in the call that was planned first.
        planned_total: Bytes of the planned one.
        disk: Folder of tensors that wait on a disk, None for the default.
        progress: Is told why a plan is made.
        made: The plans that were made.
        tried: Number of calls for which a plan was tried.
        refused: Why the original runs, by the situations that have no plan.
        reported: The reasons that were told.
        numbers: The numbers of which plans were made for several values.
    """

    options: ReplanOptions
    make_plan: partial[tuple[nn.Module, ChosenPlan]]
    budget: str
    budget_total: int | None
    original_total: int
    planned_total: int
    disk: str | None
    progress: ProgressReporter
    made: list[ChosenPlan]
    tried: int = 0
    refused: dict[Hashable, str] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)
    numbers: NumberChanges = field(default_factory=NumberChanges)

    @classmethod
    def of(
        cls,
        options: ReplanOptions,
        make_plan: partial[tuple[nn.Module, ChosenPlan]],
        budget: str,
        disk: str | None,
        progress: ProgressReporter,
        first: ChosenPlan,
    ) -> Replanner:
        """A replanner for the module of a first plan."""
        totals = first.budget_total, first.keep_all_total, first.planned_total
        return cls(options, make_plan, budget, *totals, disk, progress, first.replans)

    def for_pickle(self) -> Replanner | None:
        """A replanner of the same options for a module in another process; None where these cannot
        be pickled, as a loss that is a lambda."""
        try:
            pickle.dumps(self.make_plan)
        except (pickle.PicklingError, AttributeError, TypeError):
            return None
        return replace(self, made=[])

    def plans_for(
        self,
        model: nn.Module,
        args: Any,
        kwargs: Any,
        situation: Hashable,
        refusals: Sequence[Refusal],
    ) -> tuple[Sequence[ChosenPlan], Sequence[str]]:
        """The plans of a call in a situation that no plan takes, as each has said: one or, where
        masks decide, several; none where the original is to run. With the names of the floats among
        its arguments that are inputs of these plans."""
        reason = self.refused.get(situation) or self.obstacle(args, kwargs)
        changing = "" if reason else self.numbers.next_change(refusals)
        inputs = self._input_names(model, args, kwargs, changing)
        if changing in self.numbers.inputs and changing not in inputs:
            changing = ""  # this call has another type in its place
        if changing and changing not in inputs:
            self.numbers.unplanned.setdefault(changing, CHANGING_NUMBER.format(changing, ""))
        reason = reason or self.numbers.unplanned.get(changing, "")
        if not reason and not PLANNING_LOCK.acquire(blocking=False):
            reason = "another thread is making a plan"
        if reason:
            self.report(reason)
            return (), ()
        clause = refusals[0].clause if refusals else "the model is another one"
        try:
            self.tried += 1
            self.progress.note(f"plan {self.tried} of {self.options.max_replans}: {clause}")
            made = self._plan_call(model, detach_inputs((args, kwargs)), inputs, changing)
        except Exception as error:  # a training run goes on with the original
            said = str(error).strip() or type(error).__name__
            reason = f"{clause}, and that cannot be planned: {said}"
            if changing:
                reason = CHANGING_NUMBER.format(changing, f" ({said})")
                self.numbers.unplanned[changing] = reason
            self.refuse(situation, reason)
            return (), ()
        finally:
            PLANNING_LOCK.release()
        self.numbers.add_input(changing)
        self.made.extend(made)
        return made, inputs

    def _input_names(
        self, model: nn.Module, args: Any, kwargs: Any, changing: str
    ) -> tuple[str, ...]:
        """The arguments of a call that are to be inputs of its plan, with one that is `changing`:
        floats, on the CPU, with eager's kernels."""
        asked = self.make_plan.keywords
        if asked["device"] != "cpu" or asked["fused_kernels"] is not None:
            return ()
        bound = inspect.signature(model.forward).bind(*args, **kwargs)
        bound.apply_defaults()
        names = dict.fromkeys((*self.numbers.inputs, changing))
        return tuple(name for name in names if type(bound.arguments.get(name)) is float)

    def refuse(self, situation: Hashable, reason: str) -> None:
        """Calls in a situation run the original from now on."""
        self.refused[situation] = reason
        self.report(reason)

    def obstacle(self, args: Any, kwargs: Any) -> str:
        """Why no plan can be made within a call, "" where it can."""
        import torch

        from tightfit.stages.runtime.call_context import check_call_context, check_tensor_types
        from tightfit.stages.torch_utils.model_factory import structure_leaves

        if self.tried >= self.options.max_replans:
            count = self.options.max_replans
            return f"max_replans={count} calls have been planned"
        if threading.current_thread() is not threading.main_thread():
            return "plans are made in the main thread alone, and the call is in another"
        if torch._C._current_graph_task_id() != -1:
            return "no plan can be made within a backward"
        leaves = structure_leaves((args, kwargs))
        try:
            check_call_context(True)
            check_tensor_types(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
        except PlanMismatch as error:
            return str(error)
        return ""

    def report(self, reason: str) -> None:
        """Warns, once for each reason, that the original runs, with what it takes."""
        if reason in self.reported:
            return
        self.reported.add(reason)
        warnings.warn(
            f"tightfit: the original model runs where no plan takes the call, since {reason}; in "
            f"the call that was planned first it takes {self.original_total:,} bytes, the plan "
            f"{self.planned_total:,}",
            stacklevel=2,
        )

    def _plan_call(
        self, model: nn.Module, sample: Sample, inputs: Sequence[str], changing: str
    ) -> tuple[ChosenPlan, ...]:
        """The plans of a call: in the bytes of the first plan or, if its budget was the smallest
        that works and that is too small here, in the smallest that works here. They have the
        dynamic shapes of the first, of the arguments that are there, where these have the call.
        Those with floats as `inputs` are compared with the model in all ways, for each known value
        of the one that is `changing`."""
        from tightfit.stages.torch_utils.number_inputs import NumberInput

        given: dict[str, Any] = {"samples": [sample]}
        if inputs:
            own = inspect.signature(model.forward), *sample
            known = sorted(self.numbers.values.get(changing, ()))
            others = [
                replace_floats(*own, {changing: partial(_constant_value, float(value))})
                for value in known
            ]
            convert = dict.fromkeys(inputs, NumberInput)
            given["samples"] = [
                replace_floats(own[0], *each, convert) for each in (sample, *others)
            ]
            given["check"] = FULL_CHECK
        shapes = self.make_plan.keywords["dynamic_shapes"]
        if shapes is not None and not inputs:
            if isinstance(shapes, Mapping):
                signature = inspect.signature(model.forward)
                given_now = signature.bind_partial(*sample[0], **sample[1]).arguments
                absent = {name for name in signature.parameters if given_now.get(name) is None}
                shapes = {name: axes for name, axes in shapes.items() if name not in absent}
            with contextlib.suppress(ConfigError, ModelError):
                return self._plan_within_budget(model, given | {"dynamic_shapes": shapes or None})
        return self._plan_within_budget(model, given | {"dynamic_shapes": None, "plans": 1})

    def _plan_within_budget(
        self, model: nn.Module, given: dict[str, Any]
    ) -> tuple[ChosenPlan, ...]:
        if self.budget_total is None:
            return self.make_plan(model, **given)[1].plans
        try:
            return self.make_plan(model, **given, budget=self.budget_total)[1].plans
        except ConfigError:
            if self.budget != MIN_BUDGET:
                raise
            return self.make_plan(model, **given, budget=MIN_BUDGET)[1].plans


def _constant_value(value: float, _: float) -> float:
    return value


def detach_inputs(value: Any) -> Any:
    """The same contents in tensors without history; what was one tensor in several places stays
    one."""
    import torch

    from tightfit.stages.torch_utils.model_factory import map_leaves

    known: dict[int, Tensor] = {}

    def renew(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.is_leaf:
            return leaf
        if id(leaf) not in known:
            known[id(leaf)] = leaf.detach().requires_grad_(leaf.requires_grad)
        return known[id(leaf)]

    return map_leaves(renew, value)
