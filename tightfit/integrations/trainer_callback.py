"""A callback that plans the model of a transformers Trainer."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback

from tightfit.integrations.first_call import (
    FirstCallPlan,
    check_first_call_options,
    warn_of_missing_plan,
)
from tightfit.integrations.trainer import (
    check_trainer_arguments,
    model_output_loss,
    takes_model_loss,
)
from tightfit.util.budget import DEFAULT_BUDGET
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

    from tightfit.api.plan_result import ChosenPlan


def log_probability_loss(output: Any) -> Tensor:
    """A loss in place of those of trl's trainers. Like these it gives a contiguous gradient to the
    log probabilities of trl's fused head of language models, and none to other outputs but the
    auxiliary loss of a router."""
    loss: Tensor = output.log_probs.square().sum()
    aux_loss = getattr(output, "aux_loss", None)
    return loss if aux_loss is None else loss + aux_loss


class Fit(TrainerCallback):
    """Has a transformers Trainer, or one of trl's, train its model within a memory budget.

    The model is planned in its first training step, with that step's batch as the sample. It stays
    the trainer's model: checkpoints, evaluation and metrics are as without a plan. Batches of other
    shapes are planned when they come, within the same budget, unless `dynamic_shapes` are given.
    The plan leaves out the checkpointing of `gradient_checkpointing=True`, the default of trl's
    trainers.

    Args:
        budget: Budget as `tightfit.plan` takes it, such as "20GiB" or "50%".
        **options: Further options of `tightfit.plan` except samples and `optimizer`. The `loss` is
            by default that in the model's output where the trainer takes that, and None for one
            with a `compute_loss` of its own or label smoothing, which may use all outputs.

    Raises:
        ConfigError: An argument of the trainer does not go with a plan, such as
            `torch_compile=True`, or an option is not for such a plan.

    Example:
        >>> fit = tightfit.integrations.Fit(budget="20GiB")
        >>> trainer = transformers.Trainer(model, arguments, train_dataset=data, callbacks=[fit])
        >>> trainer.train()
        >>> print(fit.plan.summary())
    """

    def __init__(self, budget: str | int = DEFAULT_BUDGET, **options: Any) -> None:
        check_first_call_options("Fit", options)
        self.options = {"budget": budget, **options}
        self._first: FirstCallPlan | None = None
        self._model: Any = None

    @property
    def plan(self) -> ChosenPlan | None:
        """The plan, None before the first training step."""
        return None if self._first is None else self._first.plan

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Tells what does not go with a plan when the trainer is made."""
        check_trainer_arguments(args)

    def on_train_begin(
        self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any
    ) -> None:
        """Has the trainer's model plan its first training step."""
        if model is not self._model:
            self._install(model)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Warns if nothing was planned."""
        if self.plan is None:
            warn_of_missing_plan("Fit", "tightfit.integrations.plan_at_first_call")

    def _install(self, model: Any) -> None:
        model_loss = takes_model_loss(_calling_trainer())

        def loss_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
            if kwargs.get("fused_lm_head"):
                return {"loss": log_probability_loss}
            has_loss = kwargs.get("labels") is not None and model_loss
            return {"loss": model_output_loss} if has_loss else {}

        first = FirstCallPlan(self.options, loss_of_call)
        first.install(model)
        self._first, self._model = first, model


def _calling_trainer() -> Trainer:
    """The trainer that calls its callbacks, to which it does not give itself."""
    frame = inspect.currentframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    raise ConfigError("Fit: no transformers Trainer calls it: give it to one as a callback")
