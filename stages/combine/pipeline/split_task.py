"""Divides a model that is in files over the ranks of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress

if TYPE_CHECKING:
    from tightfit.schemas.pipeline import PipelineSchedule

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
        """Writes pipeline.json, and for each stage a folder with its graph and its schedule;
        returns the pipeline.

        Raises ConfigError or ArtifactError where a setting or a file is not what it should be,
        ModelError where the step cannot be divided, ScheduleError where a rank has too little
        memory.
        """
        from tightfit.schemas.block_options import read_block_options
        from tightfit.schemas.blocks import read_blocks
        from tightfit.schemas.costs import read_costs
        from tightfit.schemas.graph.training_graph import GRAPH, read_graph, write_graph
        from tightfit.schemas.lineage import remove_with_lineage
        from tightfit.schemas.pipeline import (
            MAX_MICROBATCHES,
            PIPELINE_FILE,
            stage_folder,
            write_pipeline,
        )
        from tightfit.schemas.pipeline_pattern import read_pipeline_pattern
        from tightfit.schemas.pipeline_plan import read_pipeline_plan
        from tightfit.schemas.schedule import write_schedule
        from tightfit.schemas.sequence import read_sequence
        from tightfit.schemas.store import read
        from tightfit.stages.combine.pipeline.split import PlannedPipeline, split_pipeline

        if not 1 <= self.microbatches <= MAX_MICROBATCHES:
            raise ConfigError(
                f"--microbatches {self.microbatches}: expected 1 to {MAX_MICROBATCHES}"
            )
        plan = read_pipeline_plan(self.plan / PLAN)
        if plan.status == "infeasible":
            raise ConfigError(f"there is no pipeline to split: {plan.message}")
        if (self.options is not None) != (plan.stage_recompute == "rockmate"):
            raise ConfigError(
                "--options is given where the plan has rockmate inside, and only there"
            )
        planned = PlannedPipeline(
            plan,
            read_pipeline_pattern(self.plan / PATTERN),
            read_sequence(self.plan / SEQUENCE) if plan.stage_recompute else (),
            None if self.options is None else read_block_options(self.options),
        )
        found = split_pipeline(
            read_graph(self.graph),
            read(self.graph, GRAPH).digest,
            read_costs(self.costs),
            read_blocks(self.blocks),
            planned,
            self.microbatches,
        )
        remove_with_lineage(self.out / PIPELINE_FILE)
        for number, (graph, steps) in enumerate(zip(found.graphs, found.schedules, strict=True), 1):
            folder = self.out / stage_folder(number)
            digest = write_graph(folder / "graph.arrow", graph)
            write_schedule(folder / "schedule.arrow", steps, digest)
        write_pipeline(self.out / PIPELINE_FILE, found.pipeline)
        return found.pipeline

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline, stage_folder

        pipeline = read_pipeline(self.out / PIPELINE_FILE)
        files = [
            self.out / stage_folder(stage.stage) / name
            for stage in pipeline.stages
            for name in ("graph.arrow", "schedule.arrow")
        ]
        planned = [self.plan / name for name in (PLAN, PATTERN, SEQUENCE)]
        read = [self.graph, self.costs, self.blocks]
        read += [path for path in planned if path.exists()]
        read += [self.options] if self.options else []
        settings = {"microbatches": self.microbatches}
        return [LineageEntry([self.out / PIPELINE_FILE, *files], read, settings)]
