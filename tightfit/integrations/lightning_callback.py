"""A callback that plans the model of a Lightning Trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tightfit.integrations.first_call import (
    FirstCallPlan,
    check_first_call_options,
    warn_of_missing_plan,
)
from tightfit.util.budget import DEFAULT_BUDGET
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from lightning.pytorch import Callback, LightningModule, Trainer

    from tightfit.api.plan_result import ChosenPlan
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:
        from pytorch_lightning import Callback


class LightningFit(Callback):
    """Has a Lightning Trainer train a model within a memory budget.

    The model is planned in its first training call, under the trainer's precision, with that call
    as the sample. Calls of other shapes are planned when they come, within the same budget, unless
    `dynamic_shapes` are given.

    Args:
        budget: Budget as `tightfit.plan` takes it, such as "20GiB" or "50%".
        module: Name of the submodule of the LightningModule to plan, such as "model". By default it
            is the LightningModule if that has a `forward`, else its only submodule with parameters.
        **options: Further options of `tightfit.plan` except samples and `optimizer`.

    Raises:
        ConfigError: There is no such submodule, or several could be meant, or an option is not for
            such a plan.

    Example:
        >>> fit = tightfit.integrations.LightningFit(budget="20GiB")
        >>> lightning.Trainer(callbacks=[fit], max_epochs=1).fit(module, data)
        >>> print(fit.plan.summary())
    """

    def __init__(
        self, budget: str | int = DEFAULT_BUDGET, module: str = "", **options: Any
    ) -> None:
        check_first_call_options("LightningFit", options)
        self.module = module
        self._first = FirstCallPlan({"budget": budget, **options})
        self._model: Any = None

    @property
    def plan(self) -> ChosenPlan | None:
        """The plan, None before the first training call."""
        return self._first.plan

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Has the model plan its first training call."""
        if stage != "fit":
            return
        strategy = type(trainer.strategy).__name__
        if "FSDP" in strategy or "DeepSpeed" in strategy or "ModelParallel" in strategy:
            raise ConfigError(
                f"LightningFit: the trainer's {strategy} shards the model, and a plan is for whole "
                "parameters: take strategy='ddp', or tightfit.checkpoint_policy"
            )
        model = self._find_model(pl_module)
        if model is not self._model:
            self._first.install(model)
            self._model = model

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Warns if nothing was planned."""
        if self.plan is None:
            warn_of_missing_plan("LightningFit", 'module="name"')

    def _find_model(self, owner: LightningModule) -> Any:
        children = {
            name: child
            for name, child in owner.named_children()
            if next(child.parameters(), None) is not None
        }
        if self.module:
            try:
                return owner.get_submodule(self.module)
            except AttributeError:
                raise ConfigError(
                    f"LightningFit: module: {type(owner).__name__} has no submodule "
                    f"{self.module!r}, but {', '.join(children) or 'none with parameters'}"
                ) from None
        # Lightning comes as two packages with a class of this name each.
        bare: Any = next(kind for kind in type(owner).__mro__ if kind.__name__ == "LightningModule")
        if type(owner).forward is not bare.forward:
            return owner
        if len(children) != 1:
            raise ConfigError(
                f"LightningFit: {type(owner).__name__} has no forward, and "
                f"{len(children)} submodules with parameters ({', '.join(children) or 'none'}): "
                "name the one that its training_step calls, with a LightningFit for each, as in "
                f'module="{next(iter(children), "model")}"'
            )
        return next(iter(children.values()))
