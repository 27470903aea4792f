"""The whole path in one call: a model in, a module that fits the budget out.

The stages are those of the workflow: ops measured and blocks solved in a store are not done again
here.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tightfit.api.backward_optimizer import (
    GradientSettings,
    in_backward,
    measure_optimizer,
    resident_parameter_numbers,
)
from tightfit.api.input_specialization import (
    InputSpecialization,
    budget_text,
    sample_shapes,
    specialize_masks,
)
from tightfit.api.kernel_choice import KernelChoice, plan_specializations
from tightfit.api.multi_shape_module import MultiShapePlans
from tightfit.api.parameter_offload import (
    MicrobatchCounts,
    ParameterPlacement,
    check_parameter_offload,
    plan_with_offloaded_parameters,
)
from tightfit.api.plan_arguments import (
    FULL_CHECK,
    Sample,
    absolute_path,
    check_check_level,
    check_cuda_graphs,
    check_disk,
    check_folder,
    check_gradients,
    check_kernels,
    check_optimizer,
    check_package_contents,
    check_settings,
    collect_samples,
    group_samples,
    parse_offload_locations,
    store_path,
)
from tightfit.api.plan_result import ChosenPlan, FrontierEntry
from tightfit.api.progress_bar import FUSED_STAGE_LABELS, STAGE_LABELS, ProgressReporter
from tightfit.api.stage_runner import FUSED_KERNELS, PLANNING_LOCK, StageRunner
from tightfit.api.verification import check_captured, check_plan, check_updates
from tightfit.util.budget import DEFAULT_BUDGET, NO_BUDGET
from tightfit.util.errors import ConfigError
from tightfit.util.solver_engines import BlockSolver
from tightfit.util.strategies import baseline_names

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from tightfit.stages.torch_utils.model_factory import BuiltModel

OnMismatch = Literal["error", "original", "copy"]
KernelOption = Literal["eager", "fused"]
CompilerFallback = Literal["error", "eager"]
CheckLevel = bool | Literal["full"]


def plan(
    model: nn.Module,
    args: tuple[Any, ...] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    samples: Sequence[Sample] | None = None,
    budget: str | int | FrontierEntry = DEFAULT_BUDGET,
    strategy: str = "auto",
    loss: Callable[[Any], Tensor] | None = None,
    store: Path | str | None = None,
    device: str | torch.device | None = None,
    operators: Iterable[str] = (),
    engine: BlockSolver = "none",
    peaks: int = 4,
    saves: int = 6,
    jobs: int | None = None,
    otherwise: OnMismatch = "error",
    check: CheckLevel = True,
    progress: bool = True,
    cuda_graphs: bool = False,
    ones: bool | None = None,
    machine: Path | str | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    disk: Path | str | None = None,
    parameters: ParameterPlacement = "device",
    microbatches: MicrobatchCounts = 1,
    accumulating: bool = False,
    keep_gradients: bool = False,
    kernels: KernelOption = "eager",
    with_eager: bool = False,
    with_libraries: bool = False,
    far_disk: Path | str | None = None,
    room: int | str | None = None,
) -> tuple[nn.Module, ChosenPlan]:
    """Plans the training step `model(*args, **kwargs)` under a budget.

    Returns the module that takes the place of `model`, with its parameters, and the plan. `budget`
    is a size ("8GiB"), a share ("50%") or bytes, as in the configuration, "min" for the smallest
    known to work, or a choice of the frontier of such a plan; a baseline takes none. `samples` are
    further calls, (args, kwargs) each. Those of other shapes get a plan each within the bytes of
    one budget (a share is that of the largest), over the same parameters. The call chooses; the
    plan that is returned is the first of its `plans`. `loss` is a function from the model's output
    to a scalar, where it shall be planned too. `device` is that of the model's parameters unless
    given. `operators` are the namespaces of operators beside PyTorch's own ("mylib" of
    torch.ops.mylib) that the model may call; they need a fake kernel and a derivative. What was
    found out is kept in `store`, unless given the folder `tightfit` in the user's cache folder.
    `engine`, `peaks` and `saves` are the solver's settings, `jobs` the number of blocks solved at a
    time. `otherwise` says what a call of other shapes does: raise, or run the original model;
    "copy" is for inputs that lie otherwise in memory, see `load`. With `check` the planned module
    is compared with the original on other contents of the sample's shapes, in two steps of both,
    which take the memory that the original takes; check="full" compares on the samples themselves
    and in further ways, in up to ten steps of both. With `progress` standard error tells what is
    being done. With `cuda_graphs`, on a GPU and for samples of one shape, the module launches its
    step as CUDA graphs; see `load`. Where the forward looks whether a mask is all ones, to go a
    shorter way, there is a plan for masks of ones and one for others, each within the budget, and
    each call runs the one for its masks; with an `optimizer` or `cuda_graphs` it is the one for the
    sample's masks alone. With `ones` True there are only the plans that the samples ask for, and
    other masks are refused; with False only that for any mask, which may differ from eager in last
    bits where a mask is all ones. `machine` is the description (.json) of a machine with a link to
    another memory, for strategies that send there what waits; without one that of this machine is
    measured once, on the CPU to the folder `disk`. With an `optimizer` the plan's `optimizer`
    takes its place: it updates each parameter in the backward, its states are on the disk, in a
    file of the folder `disk` (on a GPU in the host's memory), a budget in bytes counts the whole
    step with all updates, and the plan's `whole` says what is predicted of it; on the CPU `check`
    compares two steps, too, "full" three. With `parameters` "away" those of 1 MiB and more live
    there, too, and come to the device for as long as a step uses them: their values are to be had
    within `made.optimizer.gathered()`, see docs/whole.md; of several `microbatches`, each of the
    sample's shape, all but the last run within `made.optimizer.accumulating()`, and their gradients
    add up there, too; of samples of several shapes with a number each the fastest is taken. Of
    that memory a plan takes `room` at most ("20GB", unless given the free bytes of the disk); what
    optimizer states have no room there are in a third one, a file of the folder `far_disk` of
    another disk, as few as have to, and their parameters are updated beside the second one. With
    `accumulating` a budget in bytes counts the gradients of several microbatches, too, which add up
    on the device. With `keep_gradients` the plan's optimizer updates in its `step()`, and gradients
    are there until then, to be clipped by their norm, scaled or read; a budget in bytes counts
    them. With `kernels` "fused" groups of small ops run as single compiled kernels, see
    docs/fused.md: `check` holds the step to the bits of these kernels unplanned, and to a few times
    eager's distance from float64; where eager's kernels take less time in the same bytes, or fused
    ones do not fit, the plan is one of eager's and says so. `with_eager` plans eager's kernels for
    the same bytes, too, puts that plan into the package beside one of fused ones, for where there
    is no compiler, and tells it as the plan's `beside`; `with_libraries` compiles libraries of the
    groups that go along. `load` says how they are asked for. An interruption while the frontier is
    made gives the best plan so far, where one fits. Threads that plan do so one after the other; no
    other is to run a model meanwhile. Raises ConfigError when the budget is no size or too small,
    ModelError when the model cannot be captured or the planned module does not do what the original
    does.
    """
    store = store_path(store)
    device = None if device is None else str(device)
    check_settings(strategy, store, engine, peaks, saves, jobs, otherwise, ones, machine)
    check_check_level(check)
    check_kernels(kernels)
    check_disk(disk, strategy, optimizer)
    if strategy in baseline_names() and budget not in (DEFAULT_BUDGET, NO_BUDGET):
        raise ConfigError(f"budget: {strategy} is a baseline, which keeps to none: leave it out")
    written = NO_BUDGET if strategy in baseline_names() else budget_text(budget)
    telling = ProgressReporter(
        progress, stages=FUSED_STAGE_LABELS if kernels == FUSED_KERNELS else STAGE_LABELS
    )
    with _planning_context(telling, bool(check), operators):
        both = ones is None and optimizer is None and not cuda_graphs
        own = (model, collect_samples(args, kwargs, samples), loss, device, ones)
        given, device = group_samples(*own, apart=ones is not None or both)
        check_optimizer(optimizer, model)
        check_cuda_graphs(cuda_graphs, device, len(given))
        check_package_contents(kernels, with_eager, with_libraries, optimizer, device)
        solver = (engine, str(peaks), str(saves))
        linked = None if machine is None else Path(machine)
        route = StageRunner(store, device, strategy, solver, jobs, telling, linked, kernels).linked(
            disk
        )
        full = check == FULL_CHECK
        route = replace(
            route, with_eager=with_eager, with_libraries=with_libraries, full_check=full
        )
        check_gradients(accumulating, keep_gradients, optimizer, microbatches)
        gradients = GradientSettings(accumulating, keep_gradients)
        shapes = len(given)
        check_parameter_offload(
            parameters, optimizer, route, otherwise, cuda_graphs, shapes, microbatches
        )
        on = device.partition(":")[0]
        memories = parse_offload_locations(
            disk, far_disk, room, parameters, accumulating or keep_gradients, on
        )
        if optimizer is None:
            kinds = (
                specialize_masks(route, given)
                if both
                else [(one, route.trace(one)) for one in given]
            )
            return _plan_without_optimizer(
                route, kinds, written, otherwise, bool(check), cuda_graphs, disk
            )
        if parameters == "away":
            away = (bool(check), optimizer, memories, microbatches, gradients)
            return plan_with_offloaded_parameters(route, given, written, otherwise, *away)
        more = (bool(check), optimizer, disk, gradients)
        return _plan_with_optimizer(route, given, written, otherwise, *more)


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
    ):
        yield


def _plan_with_optimizer(
    route: StageRunner,
    given: Sequence[BuiltModel],
    written: str,
    otherwise: OnMismatch,
    check: bool,
    optimizer: torch.optim.Optimizer,
    disk: Path | str | None,
    gradients: GradientSettings,
) -> tuple[nn.Module, ChosenPlan]:
    """The plan of one shape with an optimizer that steps in its backward."""
    from tightfit.api.pickling import package_loader

    if len(given) > 1:
        raise ConfigError("plan: optimizer: is for samples of one shape")
    graph = route.trace(given[0])
    if check:
        check_captured(route, given[0], graph)
    variant = InputSpecialization.of(route, given[0], written, graph)
    updating = measure_optimizer(route, variant.graph, variant.built.model, optimizer, disk)
    updating = replace(updating, gradients=gradients)
    one, whole = KernelChoice(route, variant, written).plan_with_optimizer(updating)
    made = one.plan
    resident = resident_parameter_numbers(one.variant, whole, optimizer)
    stepping = partial(in_backward, disk=disk, resident=resident, keep_gradients=gradients.keep)
    load_one = package_loader(made.module, disk=absolute_path(disk))
    if check:
        check_plan(one.route, one.variant, made, load_one)
        check_updates(one.route, one.variant, load_one, optimizer, stepping)
    object.__setattr__(made, "whole", whole)
    object.__setattr__(made, "optimizer", stepping(optimizer))
    return load_one(given[0].model, otherwise), made


def _plan_without_optimizer(
    route: StageRunner,
    given: Sequence[tuple[BuiltModel, Path]],
    written: str,
    otherwise: OnMismatch,
    check: bool,
    cuda_graphs: bool,
    disk: Path | str | None,
) -> tuple[nn.Module, ChosenPlan]:
    from tightfit.api.pickling import package_loader

    if check:
        for built, graph in given:
            check_captured(route, built, graph)
    variants = [InputSpecialization.of(route, built, written, graph) for built, graph in given]
    made = plan_specializations(route, variants, written)
    plans = [one.plan for one in made]
    folder = absolute_path(disk)
    loads = [package_loader(each.module, cuda_graphs=cuda_graphs, disk=folder) for each in plans]
    model = given[0][0].model
    for one, load_one in zip(made, loads, strict=True):
        if check:
            check_plan(one.route, one.variant, one.plan, load_one)
            if one.beside is not None:
                own = package_loader(one.plan.module, part="eager", disk=folder)
                check_plan(one.beside.route, one.beside.variant, one.beside.plan, own)
    object.__setattr__(plans[0], "plans", tuple(plans))
    if len(variants) == 1:
        return loads[0](model, otherwise), plans[0]
    shapes = [sample_shapes(variant.built) for variant in variants]
    return MultiShapePlans(loads, shapes, otherwise).join(model), plans[0]


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
    otherwise: OnMismatch = "error",
    cuda_graphs: bool = False,
    libraries: bool = False,
    without_compiler: CompilerFallback = "error",
    disk: Path | str | None = None,
) -> nn.Module:
    """The module that takes the place of `model`, by the generated package in a folder, or by those
    in several, which were planned for calls of other shapes: each call runs the plan that was made
    for it.

    `otherwise` says what a call that differs from the plans does: raise PlanMismatch ("error"), run
    the original model ("original"), or, where its inputs only lie otherwise in memory than the
    sample's, run the plan on copies ("copy"), for which the model itself may give other last bits.

    With `cuda_graphs` a step on a GPU is launched as CUDA graphs, one for the forward and one for
    each part of the backward that hands gradients over, in a pool of memory of the plan's size. The
    first step runs as plain calls, the second is captured. The guards are looked at before each
    replay, outputs are copies, gradients of parameters lie where the graphs leave them until
    somebody clears them; those that are still accumulated at the next forward are copied. Beside
    the plan's bytes it takes those of inputs, outputs and outputs' gradients once more. A forward
    whose predecessor can still go backward runs as plain calls.

    Groups of a package with fused kernels are compiled here, as far as inductor's folder lacks
    them; standard error tells how far it is. With `libraries` the compiled libraries that the
    package carries run in their place, where they were compiled for this build of PyTorch, this
    processor and this number of threads, and groups are compiled elsewhere. A library is native
    code: ask for it where you trust the package. Where a group cannot be compiled, loading fails
    or, with without_compiler="eager", a warning says why and the plan of eager's kernels beside it
    runs, with eager's bits and its own peak. Packages without groups need none of this.

    Where a plan for the CPU sends tensors to a disk, they wait in a file of the folder `disk`,
    unless given in that which TIGHTFIT_DISK names, or that of temporary files.

    Raises ArtifactError where a folder holds no package, or one for another model, or one that
    cannot be CUDA graphs: made for the CPU, or one that draws random numbers once more; ConfigError
    where no package is given, or several for CUDA graphs.
    """
    from tightfit.api.pickling import package_loader, package_shapes

    load_one = partial(package_loader, libraries=libraries, without_compiler=without_compiler)
    check_folder("load", disk)
    load_one = partial(load_one, disk=absolute_path(disk))
    folders = [package] if isinstance(package, str | Path) else list(package)
    if not folders:
        raise ConfigError("load is given no package")
    if len(folders) == 1:
        return load_one(folders[0], cuda_graphs=cuda_graphs)(model, otherwise)
    if cuda_graphs:
        raise ConfigError("load: cuda_graphs is for one package, of which the graphs keep memory")
    loads = [load_one(folder) for folder in folders]
    return MultiShapePlans(loads, [package_shapes(folder) for folder in folders], otherwise).join(
        model
    )
