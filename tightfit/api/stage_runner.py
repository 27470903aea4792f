"""The way of a plan through the stages, in this process and on the store of the workflow."""

from __future__ import annotations

import hashlib
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tightfit.api.plan_options import DEFAULT_SOLVER, FusedKernelOptions, SolverOptions
from tightfit.api.progress_bar import ProgressReporter
from tightfit.api.verification_timer import VerificationTimer
from tightfit.schemas.lineage import is_up_to_date, write_lineage
from tightfit.schemas.plan import Plan, read_plan
from tightfit.schemas.store import file_digest, read_bytes, write_bytes
from tightfit.util.budget import NO_BUDGET, parse_budget
from tightfit.util.child_process import ChildProcess
from tightfit.util.code_fingerprint import stage_fingerprint
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ArtifactError, ConfigError, ModelError
from tightfit.util.progress import StageProgress
from tightfit.util.solver_engines import SolverEngine, step_engine
from tightfit.util.strategies import HIERARCHY_LIMITS, STRATEGIES

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.schemas.dynamic_plan import DynamicPlan
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.torch_utils.model_factory import BuiltModel

FUSE_STAGE = "fuse"
CHILD_STAGES = ("partition", "solve", "combine")
"""The stages that run in a child process while a plan is made: they take files and make files."""
FRONTIER_STAGES = ("partition", "solve", "combine")
"""The stages whose code decides a frontier."""

PLANNING_LOCK = threading.RLock()
"""Held by the thread that plans. A trace replaces functions of PyTorch, and a profile uses its
profiler: each is one for the whole process."""


class StageTask(Protocol):
    """One run of a stage: its files and settings by name."""

    @property
    def stage(self) -> str:
        """The name of the stage."""

    def run(self, progress: StageProgress) -> object:
        """Writes the files of the task."""

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` makes of what."""


@dataclass(frozen=True)
class StageRunner:
    """Runs stages on a store for a device, with a strategy and the options of the solver.

    `machine` is the description of a machine whose link the strategy may take. With `full_check`
    plans are compared with their originals in all ways to run them. `loss_room` are the bytes that
    plans leave to a loss which is not planned, None for what the usual ones take. Stages that need
    no model run in the `child` process, and so do traces of models on the CPU."""

    store: Path
    device: str
    strategy: str
    solver: SolverOptions = DEFAULT_SOLVER
    progress: ProgressReporter = field(default_factory=ProgressReporter)
    machine: Path | None = None
    fused_kernels: FusedKernelOptions | None = None
    full_check: bool = False
    loss_room: int | None = 0
    child: ChildProcess | None = None

    @property
    def engine(self) -> SolverEngine:
        """The engine of the integer programs of whole steps."""
        return step_engine(self.solver.engine)

    @property
    def eager(self) -> StageRunner:
        """The runner of plans of eager's kernels."""
        return replace(self, fused_kernels=None)

    def without_libraries(self, strategy: str) -> StageRunner:
        """The runner of another strategy whose packages have no compiled libraries."""
        fused = self.fused_kernels and replace(self.fused_kernels, libraries=False)
        return replace(self, strategy=strategy, fused_kernels=fused)

    @property
    def adds_eager_fallback(self) -> bool:
        """Whether packages have a plan of eager's kernels, too."""
        return self.fused_kernels is not None and self.fused_kernels.eager_fallback

    @property
    def adds_libraries(self) -> bool:
        """Whether packages have the compiled libraries of fused kernels."""
        return self.fused_kernels is not None and self.fused_kernels.libraries

    def trace(self, built: BuiltModel) -> Path:
        """The path of the traced graph in the store."""
        return self.store_graph(self.trace_graph(built))

    def trace_graph(self, built: BuiltModel) -> Graph:
        """The traced graph."""
        trace: Callable[..., Graph]
        if built.dynamic is None:
            from tightfit.stages.trace.trace import trace
        else:
            from tightfit.stages.trace.dynamic_trace import trace_dynamic as trace

        self.progress.stage("trace")
        last = self.fused_kernels is not None
        name = type(built.model).__name__
        own = partial(trace, built, name, self.device, last, self.loss_room)
        return own() if self.child is None or self.device != "cpu" else self.child.call(own)

    def store_graph(self, graph: Graph) -> Path:
        """The path of a graph in the store."""
        from tightfit.schemas.graph.training_graph import write_graph

        path = _store_artifact(
            self.store / "calls", "graph.arrow", lambda path: write_graph(path, graph)
        )
        write_lineage(
            "trace", LineageEntry([path], [], {"name": graph.model, "device": self.device})
        )
        return path

    def fuse_graph(self, graph: Path) -> Path:
        """The path of the fused graph in the store: one for each build, number of threads and code
        of the stage."""
        import torch

        from tightfit.stages.fuse.task import FuseTask
        from tightfit.stages.runtime.kernels.compile import build_key

        made_by = f"{build_key(torch.device(self.device))} {stage_fingerprint(FUSE_STAGE)}"
        key = hashlib.sha256(made_by.encode()).hexdigest()[:16]
        path = graph.parent / f"fused-{key}" / "graph.arrow"
        if not path.exists():
            task = FuseTask(graph, self.device, self.solver.processes, path, _print_warning)
            self.run(task)
        return path

    def keep_all_package(self, graph: Path, costs: Path) -> Path:
        """The folder of the module that runs a graph as it was captured."""
        runner = self.without_libraries("keep_all")
        _, point = runner.choose(graph, costs, runner.frontier(graph, costs), NO_BUDGET)
        return runner.package(graph, point)

    def profile(self, built: BuiltModel, graph: Path) -> Path:
        """The path of the costs in the store, below the graph's folder."""
        from tightfit.schemas.costs import write_costs
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.profile.cost_library import open_cost_library
        from tightfit.stages.profile.profile import profile
        from tightfit.stages.torch_utils.devices import describe_device
        from tightfit.stages.torch_utils.step_loss import step_loss

        self.progress.stage("profile")
        traced = read_graph(graph)
        with open_cost_library(self.store, describe_device(self.device)) as library:
            costs = profile(
                traced,
                step_loss(traced, built),
                library,
                report=lambda done, total, _: self.progress.report(done, total),
                device=self.device,
            )
        path = _store_artifact(graph.parent, "costs.arrow", lambda path: write_costs(path, costs))
        write_lineage(
            "profile", LineageEntry([path], [graph], {"source": "measured", "device": self.device})
        )
        return path

    def linked(self, disk: Path | str | None) -> StageRunner:
        """The way with the link of the device to its offload target, on the CPU the disk of a
        folder, where the strategy takes one and no machine was named: measured once for the
        store."""
        if not self.links or self.machine is not None:
            return self
        from tightfit.stages.profile.link_cache import cached_machine

        return replace(self, machine=cached_machine(self.store, self.device, disk))

    def place(self, costs: Path) -> Path:
        """The folder, below that of the costs, for what these settings and this code make."""
        code = [stage_fingerprint(stage) for stage in FRONTIER_STAGES]
        grid = (self.solver.engine, str(self.solver.peak_levels), str(self.solver.save_levels))
        key = hashlib.sha256(" ".join([*grid, *code]).encode()).hexdigest()[:16]
        return costs.parent / key

    def frontier(self, graph: Path, costs: Path, given: bool = False) -> Path:
        """The path of the frontier below the folder of the costs, made unless it is there; with
        `given` one of the strategy's own plans will do, which takes much less time."""
        from tightfit.stages.combine.frontier_files import FrontierFiles
        from tightfit.stages.combine.frontier_task import FrontierTask
        from tightfit.stages.partition.task import PartitionTask
        from tightfit.stages.solve.task import SolveTask

        place, solver = self.place(costs), self.solver
        blocks, whole = place / "blocks.arrow", self.folder(place) / "frontier.arrow"
        options, strategy = self.options(place), STRATEGIES[self.strategy]
        path = whole.parent / "given" / "frontier.arrow" if given else whole
        for known in (whole, path):
            if known.exists():
                return known
        hierarchy = place / "hierarchy.arrow" if strategy.clusters else None
        machine = self.machine if strategy.links else None
        limits = HIERARCHY_LIMITS
        self.run(PartitionTask(graph, costs, blocks, hierarchy=hierarchy, limits=limits))
        levels, workers = (solver.peak_levels, solver.save_levels), solver.processes
        made_for = machine if strategy.uses_link_options else None
        self.run(SolveTask(blocks, self.store, solver.engine, *levels, workers, options, made_for))
        files = FrontierFiles(graph, costs, blocks, options, hierarchy, machine, self.engine)
        workers = 1 if given else workers
        self.run(FrontierTask(files, self.strategy, path, not given, workers))
        return path

    @property
    def links(self) -> bool:
        """Whether the strategy takes a link."""
        return STRATEGIES[self.strategy].links

    def folder(self, place: Path) -> Path:
        """The folder of the strategy's frontier: one for each machine whose link it takes."""
        folder = place / self.strategy
        if not self.links or self.machine is None:
            return folder
        return folder / file_digest(self.machine)[:16]

    def options(self, place: Path) -> Path:
        """The options of blocks: one file for each machine over whose link the strategy sends some
        of what they keep."""
        sends = STRATEGIES[self.strategy].uses_link_options
        return (self.folder(place) if sends else place) / "options.arrow"

    def choose(
        self, graph: Path, costs: Path, frontier: Path, budget: str, search: bool = True
    ) -> tuple[Plan, Path]:
        """The plan for a budget as written, and its folder; without a `search` it is one of the
        frontier's."""
        from tightfit.stages.combine.select_task import SelectionRequest, SelectionTask

        folder = budget if budget == NO_BUDGET else parse_budget(budget).directory
        point = frontier.parent / folder
        asked = SelectionRequest(graph, costs, frontier, budget, engine=self.engine, search=search)
        self.run(SelectionTask(asked, point), reuse=True)
        return read_plan(point / "plan.json"), point

    def package(self, graph: Path, point: Path, beside: tuple[Path, Path] | None = None) -> Path:
        """The folder of the package of a plan, by the folder of the plan; graph and plan of eager's
        kernels may be `beside`."""
        from tightfit.stages.generate.task import PackageTask

        name = "module"
        eager_graph, eager_plan = beside or (None, None)
        if beside is not None:
            name = f"{name}-eager"
        if self.adds_libraries:
            name = f"{name}-libraries"
        task = PackageTask(
            [graph],
            point / "plan.json",
            point / name,
            schedule=point / "schedule.arrow",
            eager_graph=eager_graph,
            eager_schedule=eager_plan and eager_plan / "schedule.arrow",
            eager_plan=eager_plan and eager_plan / "plan.json",
            libraries=self.adds_libraries,
        )
        self.run(task, reuse=True)
        return point / name

    def check(self, graph: Path, built: BuiltModel, planned: nn.Module) -> str:
        """How long the two steps of a check took beside those of the original, for people; "" with
        `full_check`, which has steps of many kinds, and for steps that are too short to tell.
        Raises ModelError where the planned module does not do what the original does, in two steps
        of both or, with `full_check`, in all ways to run them."""
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.validate.validate import check_planned_module

        self.progress.stage("check")
        timer = VerificationTimer(self.progress.report, self.device)
        said = check_planned_module(read_graph(graph), built, planned, timer, self.full_check)
        if said:
            raise ModelError(said)
        return "" if self.full_check else timer.describe_ratio()

    def check_sizes(
        self, graph: Path, built: BuiltModel, planned: nn.Module, predicted: DynamicPlan | None
    ) -> str:
        """The sizes other than the largest at which the planned module of a graph with dynamic
        shapes was compared, for people. Raises ModelError where it does not do what the original
        does there, or takes other bytes than predicted."""
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.validate.dynamic_sizes import compare_sizes

        self.progress.stage("check")
        own = (self.progress.report, self.full_check)
        found, said = compare_sizes(read_graph(graph), built, planned, predicted, *own)
        if said:
            raise ModelError(said)
        return " and ".join(f"({one.describe()})" for one in found)

    def check_transfers(
        self, graph: Path, built: BuiltModel, planned: nn.Module, plan: Plan
    ) -> str:
        """What a planned module sends to an offload target, for people; "" for nothing. Raises
        ModelError where that is not what its plan says."""
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.validate.transfer_check import check_transfers

        wrong, said = check_transfers(read_graph(graph), built, planned, plan.transfers)
        if wrong:
            raise ModelError(f"The planned step is wrong: {wrong}.")
        return said

    def self_checkpointing_peak(self, graph: Path, built: BuiltModel) -> int | None:
        """The bytes of one step of the model as it is, above what is there before it, where it
        checkpoints itself and fits on the device."""
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.validate.predictions import is_self_checkpointing
        from tightfit.stages.validate.validate import measure_original_peak

        traced = read_graph(graph)
        return measure_original_peak(traced, built) if is_self_checkpointing(traced) else None

    def check_fused(
        self, graph: Path, built: BuiltModel, planned: nn.Module, keep_all: nn.Module
    ) -> str:
        """How far the planned module of fused kernels is from eager, for people; raises ModelError
        where that is too far, or it has other bits than the keep-all step with the same kernels."""
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.validate.fused_kernels import compare_with_eager
        from tightfit.stages.validate.validate import check_fused_module

        self.progress.stage("check")
        traced = read_graph(graph)
        done, full = self.progress.report, self.full_check
        said = check_fused_module(traced, built, planned, keep_all, done, full)
        if said:
            raise ModelError(said)
        return compare_with_eager(traced, built, planned)[1]

    def check_updates(
        self,
        graph: Path,
        built: BuiltModel,
        load: Callable[[nn.Module], nn.Module],
        original: Callable[[nn.Module], nn.Module] | None,
        optimizer: torch.optim.Optimizer,
        replace_optimizer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer],
    ) -> None:
        """Raises ModelError where steps with the optimizer that `replace_optimizer` gives do not do
        what steps of the model, or of what `original` makes of it, with the given one do."""
        from tightfit.schemas.graph.training_graph import read_graph
        from tightfit.stages.validate.optimizer_steps import compare_optimizer_steps

        given = (optimizer, replace_optimizer, original, self.progress.report, self.full_check)
        said = compare_optimizer_steps(read_graph(graph), built, load, *given)
        if said:
            raise ModelError(said)

    def run(self, task: StageTask, reuse: bool = False) -> None:
        """Runs a task of a stage and records how its files were made. With `reuse` nothing is run
        where the store has what it would write, made by this code of the same files with the same
        settings."""
        self.progress.stage(task.stage)
        room = type(task).__module__.split(".")[2]
        if reuse and all(is_up_to_date(room, made) for made in task.lineage_entries()):
            return
        if self.child is not None and room in CHILD_STAGES:
            self.child.run(task, self.progress)
        else:
            task.run(self.progress)
        for entry in task.lineage_entries():
            write_lineage(room, entry)


def _print_warning(sentence: str) -> None:
    print(sentence, file=sys.stderr)


def _store_artifact(folder: Path, name: str, write: Callable[[Path], str]) -> Path:
    """Writes an artifact into a folder below `folder` that its digest names; returns its path."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / name
        digest = write(made)
        path = folder / digest[:32] / name
        if not _is_stored(path, made):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, made.read_bytes())
            except OSError as error:
                raise ConfigError(f"{path} cannot be written ({error.strerror})") from error
    return path


def _is_stored(path: Path, made: Path) -> bool:
    """Whether a file is as it was made, so that a store which is only read will do."""
    try:
        return read_bytes(path) == made.read_bytes()
    except ArtifactError:
        return False
