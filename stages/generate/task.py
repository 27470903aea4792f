"""Writes the generated package of a plan, or of a pipeline, whose files are named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tightfit.stages.torch_utils.operators_option import operators_setting
from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ArtifactError, ConfigError, ModelError
from tightfit.util.progress import StageProgress

if TYPE_CHECKING:
    from tightfit.stages.generate.optimizer_step import MicrobatchSchedule
    from tightfit.stages.generate.package import PlannedGraph


@dataclass(frozen=True)
class PackageTask:
    """The files of one plan, and the folder to write: of several `graphs` the one that the
    `schedule` is of is taken. In the place of a schedule `pipeline` is the folder of what its ranks
    run. The plan of eager's kernels may go along, as may the schedule of each `microbatch` that is
    not the last one, and compiled `libraries` of the groups."""

    stage: ClassVar[str] = "generate"
    graphs: Sequence[Path]
    plan: Path
    out: Path
    schedule: Path | None = None
    pipeline: Path | None = None
    eager_graph: Path | None = None
    eager_schedule: Path | None = None
    eager_plan: Path | None = None
    microbatch: Path | None = None
    libraries: bool = False
    backend: str = "aten"
    operators: Sequence[str] = ()
    search_path: Sequence[str] = ()

    def run(self, progress: StageProgress) -> str:
        """Writes the package; where the plan is infeasible, one whose `load` says so. Returns what
        that says, "" for a package with a step.

        Raises ModelError where libraries of its groups cannot be compiled, ConfigError or
        ArtifactError where the files are not of one plan.
        """
        from tightfit.stages.generate.package import add_lineage_file, write_directory
        from tightfit.stages.torch_utils.custom_operators import register_operators

        if (self.schedule is None) == (self.pipeline is None):
            raise ConfigError("generate takes either a --schedule or a --pipeline")
        if self.pipeline is not None and len(self.graphs) > 1:
            raise ConfigError("generate takes one --graph with --pipeline")
        message = ""
        with register_operators(self.operators, self.search_path):
            if self.pipeline is not None:
                files, sources = self._pipeline_files(self.pipeline)
            else:
                assert self.schedule is not None
                files, sources, message = self._plan_files(self.schedule, progress)
        write_directory(self.out, add_lineage_file(files, *sources))
        return message

    def _plan_files(
        self, schedule: Path, progress: StageProgress
    ) -> tuple[dict[str, bytes], tuple[str, str, str], str]:
        """The files of the package of one plan, the digests of what it is made of, and the message
        of an infeasible plan."""
        from tightfit.schemas.graph.training_graph import GRAPH
        from tightfit.schemas.plan import plan_digest
        from tightfit.schemas.schedule import SCHEDULE, find_schedule_graph
        from tightfit.schemas.store import read
        from tightfit.stages.generate.backends import find_backend
        from tightfit.stages.generate.package import build_package, infeasible_package
        from tightfit.stages.runtime.kernels.compile import CompilerError, KernelError

        write = find_backend(self.backend)
        graph = find_schedule_graph(schedule, self.graphs)
        planned, message = _read_plan(graph, schedule, self.plan), ""
        if planned.plan["status"] == "infeasible":
            message = str(planned.plan["message"])
            files = infeasible_package(planned.plan)
        else:
            try:
                files = build_package(
                    planned.graph,
                    planned.steps,
                    planned.plan,
                    write,
                    planned.updates,
                    self._read_eager_plan() or _read_small_plan(planned, schedule),
                    progress.report if self.libraries else None,
                    _read_microbatch_schedule(self._microbatch_path, graph),
                )
            except (CompilerError, KernelError) as error:
                raise ModelError(str(error)) from error
        digests = read(graph, GRAPH).digest, read(schedule, SCHEDULE).digest
        return files, (*digests, plan_digest(self.plan)), message

    @property
    def _microbatch_path(self) -> Path | None:
        """The schedule of the microbatches that are not the last one: the one that is named, or
        that beside the schedule of a step of several, None where there is none."""
        from tightfit.schemas.optimizer_plan import MICROBATCH_SCHEDULE
        from tightfit.schemas.schedule import schedule_optimizer_plan

        if self.microbatch is not None or self.schedule is None:
            return self.microbatch
        updates = schedule_optimizer_plan(self.schedule)
        near = self.schedule.with_name(MICROBATCH_SCHEDULE)
        several = updates is not None and updates.microbatches > 1
        return near if several and near.exists() else None

    def _read_eager_plan(self) -> PlannedGraph | None:
        """The plan of eager's kernels to put beside, None where none is asked for."""
        given = (self.eager_graph, self.eager_schedule, self.eager_plan)
        named = [path for path in given if path is not None]
        if not named:
            return None
        if len(named) < len(given):
            raise ConfigError(
                "generate takes --eager-graph, --eager-schedule and --eager-plan together"
            )
        beside = _read_plan(*named)
        if beside.plan["status"] == "infeasible":
            raise ConfigError(f"beside, with eager's kernels: {beside.plan['message']}")
        return beside

    def _pipeline_files(self, folder: Path) -> tuple[dict[str, bytes], tuple[str, str, str]]:
        """The files of the package of a pipeline, and the digests of what it is made of."""
        from tightfit.schemas.graph.training_graph import GRAPH, read_graph
        from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline, stage_folder
        from tightfit.schemas.pipeline_plan import read_pipeline_plan
        from tightfit.schemas.plan import plan_digest
        from tightfit.schemas.schedule import SCHEDULE, read_schedule
        from tightfit.schemas.store import read
        from tightfit.stages.generate.pipeline import build_pipeline_package

        pipeline, plan = read_pipeline(folder / PIPELINE_FILE), read_pipeline_plan(self.plan)
        [graph] = self.graphs
        traced = read(graph, GRAPH)
        if pipeline.graph != traced.digest:
            raise ArtifactError(f"{folder}: is the pipeline of another graph")
        stages = []
        for stage in pipeline.stages:
            place = folder / stage_folder(stage.stage)
            own = read(place / "graph.arrow", GRAPH)
            steps = read(place / "schedule.arrow", SCHEDULE)
            if steps.metadata.get("graph") != own.digest:
                raise ArtifactError(f"{place}: the schedule is one of another graph")
            if steps.digest != stage.schedule:
                raise ArtifactError(f"{place}: the schedule is one of another {PIPELINE_FILE}")
            stages.append(
                (read_graph(place / "graph.arrow"), read_schedule(place / "schedule.arrow"))
            )
        facts = {name: getattr(plan, name) for name in ("strategy", "machine", "message")}
        files = build_pipeline_package(read_graph(graph), pipeline, stages, facts)
        return files, (traced.digest, _pipeline_digest(folder), plan_digest(self.plan))

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        libraries = {"libraries": "compiled"} if self.libraries else {}
        settings = {"backend": self.backend, **libraries, **operators_setting(self.operators)}
        if self.pipeline is not None:
            from tightfit.schemas.pipeline import PIPELINE_FILE

            made_of = [self.graphs[0], self.pipeline / PIPELINE_FILE]
        else:
            from tightfit.schemas.schedule import find_schedule_graph

            assert self.schedule is not None
            made_of = [find_schedule_graph(self.schedule, self.graphs), self.schedule]
        more = (self.eager_graph, self.eager_schedule, self.eager_plan, self._microbatch_path)
        made_of += [self.plan, *(path for path in more if path is not None)]
        return [LineageEntry([self.out], made_of, settings)]


def _read_plan(graph: Path, schedule: Path, plan: Path) -> PlannedGraph:
    """A plan of files; raises ArtifactError where they do not belong together."""
    from tightfit.schemas.graph.training_graph import GRAPH, read_graph
    from tightfit.schemas.plan import read_plan
    from tightfit.schemas.schedule import SCHEDULE, read_schedule, schedule_optimizer_plan
    from tightfit.schemas.store import read
    from tightfit.stages.generate.package import PlannedGraph

    if read(schedule, SCHEDULE).metadata.get("graph") not in (None, "", read(graph, GRAPH).digest):
        raise ArtifactError(f"{schedule}: is the schedule of another graph")
    updates = schedule_optimizer_plan(schedule)
    return PlannedGraph(
        read_graph(graph), read_schedule(schedule), asdict(read_plan(plan)), updates
    )


def _read_small_plan(planned: PlannedGraph, schedule: Path) -> PlannedGraph | None:
    """The second plan of a schedule's file, for small sizes of calls, None where there is none."""
    from tightfit.schemas.graph.dynamic_shapes import graph_within
    from tightfit.schemas.schedule import read_small_schedule
    from tightfit.stages.generate.package import PlannedGraph

    dynamic, steps = planned.graph.dynamic, read_small_schedule(schedule)
    if dynamic is None or not dynamic.small_sizes:
        if steps:
            raise ArtifactError(f"{schedule}: has a second plan, which {planned.graph.model} lacks")
        return None
    if not steps:
        return None
    return PlannedGraph(graph_within(planned.graph, dynamic.small_sizes), steps, planned.plan)


def _read_microbatch_schedule(path: Path | None, graph: Path) -> MicrobatchSchedule:
    """The schedule of the microbatches that are not the last one, None where none is given."""
    from tightfit.schemas.graph.training_graph import GRAPH
    from tightfit.schemas.schedule import SCHEDULE, read_schedule, schedule_optimizer_plan
    from tightfit.schemas.store import read

    if path is None:
        return None
    if read(path, SCHEDULE).metadata.get("graph") != read(graph, GRAPH).digest:
        raise ArtifactError(f"{path}: is the schedule of another graph")
    return read_schedule(path), schedule_optimizer_plan(path)


def _pipeline_digest(folder: Path) -> str:
    """The SHA-256 of what `pipeline` wrote."""
    import hashlib

    from tightfit.schemas.pipeline import PIPELINE_FILE
    from tightfit.schemas.store import read_bytes

    return hashlib.sha256(read_bytes(folder / PIPELINE_FILE)).hexdigest()
