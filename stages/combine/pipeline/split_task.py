"""Divides a model that is in files over the ranks of a pipeline."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress

if TYPE_CHECKING:
    from tightfit.schemas.pipeline import PipelineSchedule
    from tightfit.stages.combine.pipeline.split import PlannedPipeline, SplitPipeline

PLAN, PATTERN, SEQUENCE = "plan.json", "pattern.arrow", "sequence.arrow"


@dataclass(frozen=True)
class SplitTask:
    """A model's graph, costs and blocks, the folder of its pipeline's `plan`, and the folder to
    write into. A plan with rockmate inside has the `options` of the blocks; `microbatches` is the
    number of calls of the model in a step."""

    stage: ClassVar[str] = "pipeline"
    graph: Path
    costs: Path
    blocks: Path
    plan: Path
    out: Path
    options: Path | None = None
    microbatches: int = 4

    def run(self, progress: StageProgress) -> PipelineSchedule:
        """Writes pipeline.json, and for each stage a folder with its graph and its schedule, files
        that would not change left as they are; returns the pipeline, one without ranks where the
        plan is infeasible.

        Raises ConfigError or ArtifactError where a setting or a file is not what it should be,
        ModelError where the step cannot be divided, ScheduleError where a rank has too little
        memory.
        """
        from tightfit.schemas.lineage import remove_with_lineage
        from tightfit.schemas.pipeline import MAX_MICROBATCHES, PIPELINE_FILE, write_pipeline

        if not 1 <= self.microbatches <= MAX_MICROBATCHES:
            raise ConfigError(
                f"--microbatches {self.microbatches}: expected 1 to {MAX_MICROBATCHES}"
            )
        planned = self._read_plan()
        found = self._infeasible_pipeline() if planned is None else self._split(planned)
        remove_with_lineage(self.out / PIPELINE_FILE)
        pipeline = self._write_stages(found)
        write_pipeline(self.out / PIPELINE_FILE, pipeline)
        if not self._runs_here(pipeline):
            remove_with_lineage(self.out.parent / "measurement.json")
        return pipeline

    def _runs_here(self, pipeline: PipelineSchedule) -> bool:
        """Whether this pipeline may be measured: else a measurement is of an earlier one."""
        from tightfit.schemas.costs import read_profile_device

        cpus = all(name.partition(":")[0] == "cpu" for name in pipeline.devices)
        return pipeline.feasible and cpus and not read_profile_device(self.costs).described

    def _read_plan(self) -> PlannedPipeline | None:
        """What was planned, None where the plan is infeasible."""
        from tightfit.schemas.block_options import read_block_options
        from tightfit.schemas.pipeline_pattern import read_pipeline_pattern
        from tightfit.schemas.pipeline_plan import read_pipeline_plan
        from tightfit.schemas.sequence import read_sequence
        from tightfit.stages.combine.pipeline.split import PlannedPipeline

        plan = read_pipeline_plan(self.plan / PLAN)
        if (self.options is not None) != (plan.stage_recompute == "rockmate"):
            raise ConfigError(
                "--options is given where the plan has rockmate inside, and only there"
            )
        if plan.status == "infeasible":
            return None
        return PlannedPipeline(
            plan,
            read_pipeline_pattern(self.plan / PATTERN),
            read_sequence(self.plan / SEQUENCE) if plan.stage_recompute else (),
            None if self.options is None else read_block_options(self.options),
        )

    def _split(self, planned: PlannedPipeline) -> SplitPipeline:
        from tightfit.schemas.blocks import read_blocks
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.training_graph import GRAPH, read_graph
        from tightfit.schemas.store import read
        from tightfit.stages.combine.pipeline.split import split_pipeline

        return split_pipeline(
            read_graph(self.graph),
            read(self.graph, GRAPH).digest,
            read_costs(self.costs),
            read_blocks(self.blocks),
            planned,
            self.microbatches,
        )

    def _infeasible_pipeline(self) -> SplitPipeline:
        from tightfit.schemas.graph.training_graph import GRAPH, read_graph
        from tightfit.schemas.store import read
        from tightfit.stages.combine.pipeline.split import infeasible_pipeline

        graph = read_graph(self.graph)
        return infeasible_pipeline(graph, read(self.graph, GRAPH).digest, self.microbatches)

    def _write_stages(self, found: SplitPipeline) -> PipelineSchedule:
        """Writes the stages, removes those of a former pipeline with more of them, and returns the
        pipeline, which names what was written."""
        from tightfit.schemas.graph.training_graph import write_graph
        from tightfit.schemas.pipeline import stage_folder
        from tightfit.schemas.schedule import write_schedule

        stages = []
        for stage, graph, steps in zip(
            found.pipeline.stages, found.graphs, found.schedules, strict=True
        ):
            folder = self.out / stage_folder(stage.stage)
            digest = write_graph(folder / "graph.arrow", graph)
            written = write_schedule(folder / "schedule.arrow", steps, digest)
            stages.append(replace(stage, schedule=written))
        for number in count(len(stages) + 1):
            if not (folder := self.out / stage_folder(number)).is_dir():
                break
            shutil.rmtree(folder)
        return replace(found.pipeline, stages=stages)

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline, stage_files

        files = stage_files(self.out, read_pipeline(self.out / PIPELINE_FILE))
        planned = [self.plan / name for name in (PLAN, PATTERN, SEQUENCE)]
        read = [self.graph, self.costs, self.blocks]
        read += [path for path in planned if path.exists()]
        read += [self.options] if self.options else []
        settings = {"microbatches": self.microbatches}
        return [LineageEntry([self.out / PIPELINE_FILE, *files], read, settings)]
