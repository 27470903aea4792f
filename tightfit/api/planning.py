"""The whole path in one call: a model in, a module that fits the budget out.

The stages are those of the workflow; what a store has of measured ops and blocks is not made again.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.api.backward_optimizer import (
    in_backward,
    measure_optimizer,
    resident_parameter_numbers,
)
from tightfit.api.dynamic_shapes import check_dynamic_shapes, with_dynamic_shapes
from tightfit.api.input_specialization import (
    InputSpecialization,
    budget_text,
    sample_shapes,
    specialize_masks,
)
from tightfit.api.kernel_choice import KernelChoice, SpecializedPlan, plan_specializations
from tightfit.api.multi_shape_module import MultiShapePlans
from tightfit.api.parameter_offload import plan_with_offloaded_parameters
from tightfit.api.plan_arguments import (
    FULL_CHECK,
    PlanningRequest,
    Sample,
    absolute_path,
    check_check_level,
    check_cuda_graphs,
    check_fused_kernels,
    check_gradients,
    check_loss_room,
    check_offload,
    check_optimizer,
    check_settings,
    collect_samples,
    group_samples,
    mismatch_action,
    store_path,
)
from tightfit.api.plan_options import (
    DEFAULT_GRADIENTS,
    DEFAULT_OFFLOAD,
    DEFAULT_SOLVER,
    REPLAN,
    CheckLevel,
    CompilerFallback,
    FusedKernelOptions,
    GradientOptions,
    OffloadOptions,
    OnMismatch,
    OptionalPath,
    ParameterOffloadOptions,
    ReplanOptions,
    SolverOptions,
    check_folder,
)
from tightfit.api.plan_result import ChosenPlan, FrontierEntry
from tightfit.api.progress_bar import FUSED_STAGE_LABELS, STAGE_LABELS, ProgressReporter
from tightfit.api.replanner import Replanner
from tightfit.api.stage_runner import PLANNING_LOCK, StageRunner
from tightfit.api.verification import (
    LoadPlanned,
    check_captured,
    check_plan,
    check_sizes,
    check_updates,
)
from tightfit.util.allocators import release_free_memory
from tightfit.util.budget import DEFAULT_BUDGET, NO_BUDGET
from tightfit.util.child_process import ChildProcess
from tightfit.util.errors import ConfigError
from tightfit.util.strategies import baseline_names
from tightfit.util.torch_version import warn_of_untested_version

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def plan(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    samples: Sequence[Sample] | None = None,
    dynamic_shapes: Mapping[str, Any] | Sequence[Any] | None = None,
    plans: int = 1,
    budget: str | int | FrontierEntry = DEFAULT_BUDGET,
    strategy: str = "auto",
    loss: Callable[[Any], Tensor] | None = None,
    loss_room: int | str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    device: str | torch.device | None = None,
    store: Path | str | None = None,
    operators: Iterable[str] = (),
    check: CheckLevel = True,
    progress: bool = True,
    on_mismatch: OnMismatch | ReplanOptions = "error",
    assume_all_ones_masks: bool | None = None,
    cuda_graphs: bool = False,
    solver: SolverOptions = DEFAULT_SOLVER,
    offload: OffloadOptions | ParameterOffloadOptions = DEFAULT_OFFLOAD,
    gradients: GradientOptions = DEFAULT_GRADIENTS,
    fused_kernels: FusedKernelOptions | None = None,
) -> tuple[nn.Module, ChosenPlan]:
    """Plans the training step `model(*args, **kwargs)` under a memory budget.

    Args:
        model: Module to plan, on the device that it is trained on.
        args: Positional arguments of one call, with the shapes of training.
        kwargs: Keyword arguments of that call.
        samples: Further calls, (args, kwargs) each. Those of other shapes get a plan each within
            the bytes of one budget (a share is that of the largest), over the same parameters; the
            module chooses at each call.
        dynamic_shapes: Sizes of inputs that differ from call to call, as torch.export takes them:
            {"input_ids": {0: Dim("batch", max=8), 1: Dim("tokens", max=1024)}} with
            torch.export.Dim. One plan is made at the largest sizes, which are those of the sample
            where a Dim has no max, and the peak of no call is above that. A smallest size is at
            least 2. It excludes an optimizer, fused_kernels, cuda_graphs and several shapes.
        plans: With 2, calls of up to half of the range of one of these dimensions have a second
            plan within the same bytes, if it takes less time.
        budget: Size ("8GiB"), number of bytes, share ("50%" of what can be saved), "min" for the
            smallest that is known to work, or an entry of another plan's `frontier`. On a GPU it
            bounds reserved memory, on the CPU requested bytes. A baseline takes none.
        strategy: Name of the planner; "auto" takes the best of several.
        loss: Function from the model's output to a scalar, if that is planned, too.
        loss_room: Bytes left to a loss that is not planned: a size ("64MB") or a number, 0 for
            none. By default what cross entropy takes beside outputs of that size and dtype and
            their gradients (`mse_loss` takes less), none where an output is a scalar.
        optimizer: Optimizer of the model's parameters. The plan's `optimizer` takes its place: it
            updates each parameter in the backward, and its states are in the host's memory (on the
            CPU, on disk). A budget in bytes counts the step with all updates, and the plan's
            `optimizer_step` has the prediction.
        device: Device of the step; that of the model's parameters by default.
        store: Folder for measurements and plans; `tightfit` in the user's cache folder by default.
        operators: Namespaces of custom operators that the model calls ("mylib" for
            torch.ops.mylib). They need a fake kernel and a derivative.
        check: If True, compares the planned module with the model, bit by bit, in two steps of
            both, which take the memory of the model's own step. "full" compares the samples
            themselves, and in more ways, in up to ten steps.
        progress: Whether standard error shows the progress.
        on_mismatch: What a call of other shapes does: raise PlanMismatch ("error"), run the
            original model ("original"), copy inputs of other strides ("copy"; see `load`), or plan
            that call within the same budget and keep its plan ("replan"), as does `ReplanOptions`,
            which says how many calls are planned. "replan" is not for an `optimizer` or
            `cuda_graphs`.
        assume_all_ones_masks: Where the forward goes a shorter way for a mask of all ones, there is
            by default a plan for such masks and one for others (with an `optimizer` or
            `cuda_graphs`, the one for the sample's masks). True plans for the samples' masks alone
            and refuses others; False makes one plan for any mask, which may differ from the model
            in last bits where a mask is all ones.
        cuda_graphs: Whether the module launches its step as CUDA graphs, on a GPU and for samples
            of one shape; see `load`.
        solver: How plans are searched for.
        offload: Where tensors wait that are sent out of the device's memory. With
            `ParameterOffloadOptions` parameters are, too.
        gradients: Whether gradients stay on the device, in a plan with an `optimizer`.
        fused_kernels: If given, groups of small operators run as single compiled kernels. `check`
            holds the step to the bits of the keep-all step with these kernels, and to a few times
            eager's distance from float64. Where eager's kernels take less time in the same bytes,
            the plan is one of these and says so.

    Returns:
        The module that takes the place of `model`, with its parameters, and the plan.

    Raises:
        ConfigError: The budget is too small, or an option is none, or two exclude each other.
        ModelError: The model cannot be captured, or the planned module differs from it.

    Ctrl-C while plans are searched for gives the best plan so far, if one fits. Threads plan one
    after the other; no other thread may run a model meanwhile.

    Example:
        >>> module, plan = tightfit.plan(model, (x,), budget="8GiB", loss=lambda out: out.mean())
        >>> print(plan.summary())
        >>> module(x).mean().backward()
    """
    import torch

    warn_of_untested_version(torch.__version__)
    store = store_path(store)
    device = None if device is None else str(device)
    check_settings(strategy, store, solver, offload, on_mismatch, assume_all_ones_masks)
    check_check_level(check)
    room = check_loss_room(loss_room, loss)
    action, replans = mismatch_action(on_mismatch, optimizer, cuda_graphs)
    check_offload(offload, strategy, optimizer, action, cuda_graphs, fused_kernels)
    check_gradients(gradients, offload, optimizer)
    others = {"optimizer": optimizer, "fused_kernels": fused_kernels, "cuda_graphs": cuda_graphs}
    check_dynamic_shapes(dynamic_shapes, plans, strategy, others)
    if strategy in baseline_names() and budget not in (DEFAULT_BUDGET, NO_BUDGET):
        raise ConfigError(f"budget: {strategy} is a baseline, which keeps to none: leave it out")
    written = NO_BUDGET if strategy in baseline_names() else budget_text(budget)
    telling = ProgressReporter(
        progress, stages=STAGE_LABELS if fused_kernels is None else FUSED_STAGE_LABELS
    )
    with _planning_context(telling, bool(check), operators), ChildProcess() as child:
        ones = assume_all_ones_masks
        both = ones is None and optimizer is None and not cuda_graphs
        own = (model, collect_samples(args, kwargs, samples), loss, device, ones)
        given, device = group_samples(*own, apart=ones is not None or both)
        if dynamic_shapes is not None:
            given = with_dynamic_shapes(given, dynamic_shapes, plans)
        check_optimizer(optimizer, model)
        check_cuda_graphs(cuda_graphs, device, len(given))
        check_fused_kernels(fused_kernels, optimizer, device)
        machine = None if isinstance(offload, ParameterOffloadOptions) else offload.machine
        runner = StageRunner(
            store,
            *(device, strategy, solver, telling),
            None if machine is None else Path(machine),
            fused_kernels,
            full_check=check == FULL_CHECK,
            loss_room=room,
            child=child,
        ).linked(offload.path)
        again = partial(
            plan,
            dynamic_shapes=dynamic_shapes,
            plans=plans,
            strategy=strategy,
            loss=loss,
            loss_room=loss_room,
            device=device,
            store=store,
            operators=operators,
            check=check,
            progress=progress,
            assume_all_ones_masks=assume_all_ones_masks,
            solver=solver,
            offload=offload,
            fused_kernels=fused_kernels,
        )
        about = (again, written, absolute_path(offload.path), telling)
        replanner = None if replans is None else partial(Replanner.of, replans, *about)
        switches = (action, bool(check), cuda_graphs, replanner)
        request = PlanningRequest(runner, given, written, *switches)
        if optimizer is None:
            return _plan_without_optimizer(request, offload.path, both)
        if isinstance(offload, ParameterOffloadOptions):
            return plan_with_offloaded_parameters(request, optimizer, offload, gradients)
        return _plan_with_optimizer(request, optimizer, offload.path, gradients)


@contextlib.contextmanager
def _planning_context(
    telling: ProgressReporter, check: bool, operators: Iterable[str]
) -> Iterator[None]:
    """Within it a model is planned as it is trained, by one thread at a time, which tells how far
    it is, with or without a check; it may call operators of some namespaces."""
    import torch

    from tightfit.stages.torch_utils.custom_operators import allow_operators

    with (
        PLANNING_LOCK,
        telling.show_stages(*([] if check else ["check"])),
        suppress_warnings(),
        torch.inference_mode(False),
        torch.enable_grad(),
        allow_operators(operators),
        _shorten_interruption(),
    ):
        try:
            yield
        finally:
            release_free_memory()


@contextlib.contextmanager
def _shorten_interruption() -> Iterator[None]:
    """An interruption within it says what it is, without all that was running then."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("tightfit.plan was interrupted before it had a plan") from None


def _plan_with_optimizer(
    request: PlanningRequest,
    optimizer: torch.optim.Optimizer,
    folder: OptionalPath,
    gradients: GradientOptions,
) -> tuple[nn.Module, ChosenPlan]:
    """The plan of one shape with an optimizer that steps in its backward; its states are in a
    folder."""
    from tightfit.api.pickling import package_loader

    runner, given, written = request.runner, request.samples, request.budget
    if len(given) > 1:
        raise ConfigError("plan: optimizer: is for samples of one shape")
    graph = runner.trace(given[0])
    if request.check:
        check_captured(runner, given[0], graph)
    variant = InputSpecialization.of(runner, given[0], written, graph)
    updating = measure_optimizer(runner, variant.graph, variant.built.model, optimizer, folder)
    updating = replace(updating, gradients=gradients)
    one, step = KernelChoice(runner, variant, written).plan_with_optimizer(updating)
    made = one.plan
    resident = resident_parameter_numbers(one.variant, step, optimizer)
    stepping = partial(
        in_backward, offload_path=folder, resident=resident, keep_gradients=gradients.keep
    )
    load_one = package_loader(made.package, disk=absolute_path(folder))
    if request.check:
        made = check_plan(one.runner, one.variant, made, load_one)
        check_updates(one.runner, one.variant, load_one, optimizer, stepping)
    made = replace(made, optimizer_step=step, optimizer=stepping(optimizer))
    return load_one(given[0].model, request.on_mismatch), made


def _plan_without_optimizer(
    request: PlanningRequest, folder: OptionalPath, split_masks: bool
) -> tuple[nn.Module, ChosenPlan]:
    """The plans of all shapes, and of either kind of masks where these are to be split."""
    from tightfit.api.pickling import package_loader
    from tightfit.schemas.graph.training_graph import read_graph
    from tightfit.stages.torch_utils.step_loss import outputs_without_gradient

    runner, written = request.runner, request.budget
    given = (
        specialize_masks(runner, request.samples)
        if split_masks
        else [(built, runner.trace(built)) for built in request.samples]
    )
    if request.check:
        for built, graph in given:
            check_captured(runner, built, graph)
    variants = [InputSpecialization.of(runner, built, written, graph) for built, graph in given]
    made = plan_specializations(runner, variants, written)
    loader = partial(package_loader, disk=absolute_path(folder))
    loads = [loader(one.plan.package, cuda_graphs=request.cuda_graphs) for one in made]
    if request.check:
        made = [_check_specialized(*each, loader) for each in zip(made, loads, strict=True)]
    first, *others = [one.plan for one in made]
    unused = outputs_without_gradient(read_graph(given[0][1]))
    first = replace(first, other_shapes=tuple(others), outputs_without_gradient=unused)
    model = given[0][0].model
    replanner = None if request.replan is None else request.replan(first)
    if len(loads) == 1 and replanner is None:
        return loads[0](model, request.on_mismatch), first
    shapes = [sample_shapes(variant.built) for variant in variants]
    return MultiShapePlans(loads, shapes, request.on_mismatch, replanner).join(model), first


def _check_specialized(
    one: SpecializedPlan, load_one: LoadPlanned, loader: Callable[..., LoadPlanned]
) -> SpecializedPlan:
    """A plan that was compared with its model, and with it the one of eager's kernels that its
    package has, too."""
    made = check_plan(one.runner, one.variant, one.plan, load_one)
    made = check_sizes(one.runner, one.variant, made, load_one)
    if one.eager_fallback is not None:
        other = one.eager_fallback
        eager = loader(one.plan.package, part="eager")
        made = replace(
            made, eager_fallback=check_plan(other.runner, other.variant, other.plan, eager)
        )
    return replace(one, plan=made)


@contextlib.contextmanager
def suppress_warnings() -> Iterator[None]:
    """Within it PyTorch does not warn of what planning does to it."""
    with warnings.catch_warnings():
        for name in ("torch", "tightfit", "tightfit_module_[0-9a-f_]+"):
            warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
        yield


def load(
    package: Path | str | Sequence[Path | str],
    model: nn.Module,
    on_mismatch: OnMismatch = "error",
    cuda_graphs: bool = False,
    libraries: bool = False,
    without_compiler: CompilerFallback = "error",
    offload_path: Path | str | None = None,
) -> nn.Module:
    """Loads the module that takes the place of `model` from a generated package.

    Args:
        package: Folder of the package, or several, which were planned for calls of other shapes:
            each call runs the plan that was made for it.
        model: The model that was planned, or one of the same code and shapes.
        on_mismatch: What a call that differs from the plans does: raise PlanMismatch ("error"), run
            the original model ("original"), or run the plan on copies of inputs that have other
            strides than the sample's ("copy"), for which the model itself may give other last bits.
        cuda_graphs: Whether a step on a GPU is launched as CUDA graphs, one for the forward and one
            for each part of the backward that gives gradients. The first step runs as plain calls,
            the second is captured. They take the bytes of inputs, outputs and outputs' gradients
            once more than the plan. Outputs are copies; gradients of parameters stay where the
            graphs leave them until they are cleared. A forward whose predecessor can still go
            backward runs as plain calls.
        libraries: Whether the compiled libraries in the package run in place of groups compiled
            here, if they were compiled for this build of PyTorch, processor and number of threads.
            They are native code: load them only from packages that you trust.
        without_compiler: What happens if a group of fused kernels cannot be compiled: loading
            fails ("error"), or the package's plan of eager's kernels runs with a warning ("eager").
        offload_path: Folder of the file in which tensors wait, for a plan on the CPU that sends
            some; by default that of the environment variable TIGHTFIT_DISK, or of temporary files.

    Returns:
        The planned module, with the parameters of `model`.

    Raises:
        ArtifactError: A folder has no package, or one for another model, or one that cannot be
            CUDA graphs: made for the CPU, or drawing random numbers in a recomputation.
        ConfigError: No package is given, or several with `cuda_graphs`.

    Example:
        >>> module, plan = tightfit.plan(model, (x,), budget="8GiB")
        >>> module = tightfit.load(plan.package, model)
    """
    from tightfit.api.pickling import package_loader, package_shapes

    check_folder("load", offload_path, "offload_path")
    if on_mismatch == REPLAN:
        raise ConfigError(
            'load: on_mismatch="replan" needs the options of the plan: call tightfit.plan with the '
            "same store, which takes from it all that is known"
        )
    load_one = partial(
        package_loader,
        libraries=libraries,
        without_compiler=without_compiler,
        disk=absolute_path(offload_path),
    )
    folders = [package] if isinstance(package, str | Path) else list(package)
    if not folders:
        raise ConfigError("load is given no package")
    if len(folders) == 1:
        return load_one(folders[0], cuda_graphs=cuda_graphs)(model, on_mismatch)
    if cuda_graphs:
        raise ConfigError("load: cuda_graphs is for one package, of which the graphs keep memory")
    loads = [load_one(folder) for folder in folders]
    return MultiShapePlans(loads, [package_shapes(folder) for folder in folders], on_mismatch).join(
        model
    )
