"""Plans the training step of a transformers Trainer."""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator, Mapping, Sized
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from tightfit.api.plan_options import REPLAN, GradientOptions
from tightfit.api.planning import plan
from tightfit.integrations.padded_batches import PaddedBatches, find_padded_batches
from tightfit.util.errors import ConfigError, ModelError
from tightfit.util.strategies import STRATEGIES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tightfit.api.plan_arguments import Sample
    from tightfit.api.plan_result import ChosenPlan


class _ModelCalled(BaseException):
    """The model was called: nothing more is to be run."""


def plan_trainer(trainer: Any, *, batches: int | None = None, **options: Any) -> ChosenPlan:
    """Plans the training step of a `transformers.Trainer` and lets it train the planned module.

    Call it before `trainer.train()`, which then takes the same batches and random numbers as
    without it. The trainer saves checkpoints of the model that it was given. A dataset that is a
    stream loses the batches that planning takes.

    Args:
        trainer: The trainer, with its model and data. Batches are those of its data collator, under
            its autocast.
        batches: Number of first batches to take samples from; each of their shapes is planned, and
            that of the last batch of an epoch if it has fewer rows. By default one plan takes all
            batches if the collator pads rows of several lengths (see `dynamic_shapes` of
            `tightfit.plan`), unless the `optimizer`, `fused_kernels` or `cuda_graphs` exclude it;
            otherwise the first batch is the sample.
        **options: Options of `tightfit.plan`. With `dynamic_shapes` one plan takes all sizes within
            limits, that of a smaller last batch, too. The `optimizer` may be
            `trainer.create_optimizer()`; the plan's optimizer then becomes that of the trainer.
            Unless said otherwise, gradients stay until its `step()` if the trainer clips them
            (`max_grad_norm`, 1.0 by default), scales them or accumulates them, and a budget in
            bytes counts them.

    Returns:
        The plan.

    Raises:
        ConfigError: An argument of the trainer does not go with a plan, such as
            `gradient_checkpointing=True`, or what `tightfit.plan` raises it for.
        ModelError: The trainer is no `transformers.Trainer`, has no data, or its model cannot be
            planned.

    Example:
        >>> trainer = transformers.Trainer(model, arguments, train_dataset=dataset)
        >>> plan = tightfit.integrations.plan_trainer(trainer, budget="8GiB")
        >>> trainer.train()
    """
    _check(trainer, batches)
    with _preserve_state(trainer):
        data = trainer.get_train_dataloader()
        if "loss" not in options and takes_model_loss(trainer):
            options["loss"] = model_output_loss
        if options.get("optimizer") is not None:
            several = trainer.args.gradient_accumulation_steps > 1
            keep = several or _changes_gradients(trainer)
            options.setdefault("gradients", GradientOptions(accumulate=several, keep=keep))
        padded = None if batches or not _takes_sizes(options) else _find_padding(trainer, data)
        found = None if padded is None else _plan_padded(trainer, padded, options)
        if found is None:
            samples = _samples(trainer, data, batches or 1)
            if options.get("dynamic_shapes") is None:
                samples += _last_samples(trainer, data, options)
            with trainer.accelerator.autocast():
                found = plan(trainer.model, samples=samples, **options)
    fitted, made = found
    trainer.model = trainer.model_wrapped = fitted
    if made.optimizer is not None:
        trainer.optimizer = made.optimizer
        if trainer.lr_scheduler is not None:
            trainer.lr_scheduler.optimizer = made.optimizer
    return made


def _changes_gradients(trainer: Any) -> bool:
    """Whether a trainer clips or scales gradients between a backward and the optimizer's step."""
    clips = bool(trainer.args.max_grad_norm and trainer.args.max_grad_norm > 0)
    return clips or trainer.accelerator.scaler is not None


def model_output_loss(output: Any) -> Tensor:
    """The loss in a model's output, as transformers' Trainer takes it: a `loss` for `plan`.

    Args:
        output: The output of a transformers model that was called with labels.

    Returns:
        The loss, a tensor with one element.

    Example:
        >>> inputs = {"input_ids": tokens, "labels": tokens}
        >>> tightfit.plan(model, (), inputs, loss=tightfit.integrations.model_output_loss)
    """
    loss: Tensor = output["loss"] if isinstance(output, dict) else output[0]
    return loss


def _check(trainer: Any, batches: int | None) -> None:
    for name in ("train_dataset", "compute_loss", "get_batch_samples", "model_wrapped"):
        if not hasattr(trainer, name):
            kind = type(trainer).__name__
            raise ModelError(f"plan_trainer is given a {kind} instead of a transformers.Trainer")
    counted = isinstance(batches, int) and not isinstance(batches, bool) and batches > 0
    if batches is not None and not counted:
        raise ConfigError(f"plan_trainer: batches is {batches!r}, expected a number of at least 1")
    check_trainer_arguments(trainer.args)
    if trainer.args.gradient_checkpointing:
        raise ConfigError(
            "the trainer has gradient_checkpointing=True, in whose place a plan comes: leave it out"
        )
    if getattr(trainer, "model_init", None) is not None:
        raise ConfigError("the trainer has model_init, which makes another model: give it a model")


def check_trainer_arguments(arguments: Any) -> None:
    """Raises ConfigError for arguments of a trainer that do not go with a plan."""
    if arguments.torch_compile:
        raise ConfigError(
            "the trainer has torch_compile=True, which cannot go through a plan: leave it out, or "
            "keep it and call train() within tightfit.compile_budget in place of a plan"
        )
    if getattr(arguments, "fsdp", None) or getattr(arguments, "deepspeed", None):
        raise ConfigError(
            "the trainer shards its model (fsdp or deepspeed), and a plan is for whole parameters: "
            "leave that out"
        )
    if arguments.n_gpu > 1:
        raise ConfigError(
            f"the trainer uses DataParallel on {arguments.n_gpu} GPUs, which copies the model in "
            "each step: show it one GPU, or start it with torchrun"
        )


def takes_model_loss(trainer: Any) -> bool:
    """Whether the loss is that in the model's output, so that nothing else receives gradients."""
    from transformers import Trainer

    own = vars(trainer).get("compute_loss", type(trainer).compute_loss)
    plain = own is Trainer.compute_loss
    return plain and trainer.label_smoother is None and trainer.compute_loss_func is None


def _samples(trainer: Any, loader: Any, batches: int) -> list[Sample]:
    """The calls of the model in the first batches: it is not run."""
    steps = trainer.args.gradient_accumulation_steps
    data = iter(loader)
    found: list[Sample] = []
    while len(found) < batches:
        together, items = trainer.get_batch_samples(data, steps, trainer.args.device)
        if not together:
            break
        found += [
            _capture_call(trainer, batch, items) for batch in together[: batches - len(found)]
        ]
    if not found:
        raise ModelError("the trainer's data has no batch to plan with")
    return found


def _takes_sizes(options: Mapping[str, Any]) -> bool:
    """Whether one plan for all sizes goes with the options of a plan."""
    excluded = ("optimizer", "fused_kernels", "cuda_graphs", "dynamic_shapes")
    strategy = STRATEGIES.get(options.get("strategy", "auto"))
    return strategy is not None and not strategy.links and not any(map(options.get, excluded))


def _find_padding(trainer: Any, loader: Any) -> PaddedBatches | None:
    """The sizes of all batches, if the collator pads."""
    count, size = _batch_sizes(trainer, loader)
    last = count % size if count > size else 0
    column = getattr(trainer.model, "main_input_name", "input_ids")
    rows = trainer.args.per_device_train_batch_size
    return find_padded_batches(loader, column, rows, last, partial(_capture_collated, trainer))


def _plan_padded(
    trainer: Any, padded: PaddedBatches, options: Mapping[str, Any]
) -> tuple[nn.Module, ChosenPlan] | None:
    """One plan for all sizes of batches; None, with a warning, for a model that has none."""
    sizes = {"on_mismatch": REPLAN, **options, "dynamic_shapes": padded.dynamic_shapes}
    try:
        with trainer.accelerator.autocast():
            return plan(trainer.model, samples=[padded.sample], **sizes)
    except ModelError as error:
        warnings.warn(
            f"tightfit: batches of several lengths have a plan for each that is planned, and other "
            f"lengths raise PlanMismatch, since one plan cannot take all: {error}; "
            "batches=8 plans the shapes of eight batches",
            stacklevel=3,
        )
        return None


def _capture_collated(trainer: Any, batch: Any) -> Sample:
    """The call of the model for one batch that was collated."""
    together, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
    return _capture_call(trainer, together[0], items)


def _last_samples(trainer: Any, loader: Any, options: dict[str, Any]) -> list[Sample]:
    """The call of the model in the last batch of an epoch, where that is trained and has fewer rows
    than the others. Raises ConfigError where it could not be planned, too."""
    count, size = _batch_sizes(trainer, loader)
    left = count % size
    steps = trainer.args.max_steps * trainer.args.gradient_accumulation_steps
    if not left or count < size or 0 < steps <= count // size:
        return []
    if options.get("optimizer") is not None or options.get("cuda_graphs"):
        raise ConfigError(
            f"the last batch of an epoch has {left} rows and the others have {size}, and a plan "
            "with an optimizer or as CUDA graphs is for one shape: set dataloader_drop_last=True"
        )
    rows = loader.collate_fn([loader.dataset[index] for index in range(left)])
    return [_capture_collated(trainer, rows)]


def _batch_sizes(trainer: Any, loader: Any) -> tuple[int, int]:
    """The rows of the data set and of a batch; equal where a last batch is not smaller, or nobody
    can tell."""
    sampler = getattr(loader, "batch_sampler", None)
    size, drops = getattr(sampler, "batch_size", None), getattr(sampler, "drop_last", True)
    rows = getattr(loader, "dataset", None)
    if drops or not size or trainer.accelerator.num_processes > 1 or not isinstance(rows, Sized):
        return 1, 1
    return len(rows), size


def _capture_call(trainer: Any, batch: Any, items: Any) -> Sample:
    seen: list[Sample] = []

    def look(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append((args, kwargs))
        raise _ModelCalled

    model = trainer.model
    model.train()
    hook = model.register_forward_pre_hook(look, prepend=True, with_kwargs=True)
    try:
        inputs = trainer._prepare_inputs(batch)
        with contextlib.suppress(_ModelCalled), trainer.compute_loss_context_manager():
            trainer.compute_loss(model, inputs, num_items_in_batch=items)
    finally:
        hook.remove()
    if not seen:
        raise ModelError("the trainer's compute_loss does not call its model")
    return seen[0]


@contextlib.contextmanager
def _preserve_state(trainer: Any) -> Iterator[None]:
    """Afterwards random numbers, and what the trainer knows of its data, are as they were: also
    attributes and generators of its dataset and its collator, of which some have their own."""
    from tightfit.stages.torch_utils.devices import preserve_all_random_states

    loaders = getattr(trainer.accelerator, "_dataloaders", [])
    kept = list(loaders)
    owners = [trainer.train_dataset, trainer.data_collator]
    with contextlib.ExitStack() as stack:
        stack.enter_context(preserve_all_random_states())
        for owner in owners:
            if hasattr(owner, "__dict__") and not isinstance(owner, FunctionType):
                stack.enter_context(_preserve_attributes(owner))
        try:
            yield
        finally:
            loaders[:] = kept


@contextlib.contextmanager
def _preserve_attributes(owner: Any) -> Iterator[None]:
    """Afterwards an object has the attributes that it had, and generators of random numbers among
    them the states that they had."""
    import numpy as np
    import torch

    attributes = vars(owner).copy()
    restores = list[Callable[[], object]]()
    for value in attributes.values():
        if isinstance(value, torch.Generator):
            restores.append(partial(value.set_state, value.get_state()))
        elif isinstance(value, random.Random):
            restores.append(partial(value.setstate, value.getstate()))
        elif isinstance(value, np.random.Generator):
            numbers = value.bit_generator
            restores.append(partial(setattr, numbers, "state", numbers.state))
    try:
        yield
    finally:
        vars(owner).clear()
        vars(owner).update(attributes)
        for restore in restores:
            restore()
