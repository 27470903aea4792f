"""Plans a pipeline of a chain that is in a file, over the devices of a machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tightfit.util.command_line import LineageEntry
from tightfit.util.errors import ConfigError
from tightfit.util.progress import StageProgress
from tightfit.util.solver_engines import HIGHS_ENGINE, SolverEngine

if TYPE_CHECKING:
    from tightfit.schemas.pipeline_plan import PipelinePlan
    from tightfit.stages.combine.pipeline.plan import PipelineSettings

PATTERN, PLAN, SEQUENCE = "pattern.arrow", "plan.json", "sequence.arrow"
MAX_WEIGHT_COPIES = 1000


@dataclass(frozen=True)
class PipelineTask:
    """The chain, the description of the machine, the name of the allocator, the folder to write
    into, and the settings, None for their defaults: the seconds that a batch may take (`period`),
    how many times a device stores its parameters (`weight_copies`), whether there are `buffers` on
    both sides of a cut, how stages recompute (`stage_recompute`, with the `options` of blocks for
    rockmate), that every (k+1)-th batch is left out (`k`), the `solver` of integer programs, and
    the batches between two flushes (`microbatches`)."""

    stage: ClassVar[str] = "chain"
    chain: Path
    machine: Path
    strategy: str
    out: Path
    period: float | None = None
    weight_copies: int | None = None
    buffers: bool | None = None
    stage_recompute: str | None = None
    options: Path | None = None
    k: int | None = None
    solver: SolverEngine | None = None
    microbatches: int | None = None

    def run(self, progress: StageProgress) -> PipelinePlan:
        """Writes plan.json, pattern.arrow and sequence.arrow, which have no rows where nothing fits
        or no stage recomputes; returns the plan.

        Raises ConfigError or ArtifactError when a setting or a file is not what it should be.
        """
        from tightfit.schemas import store
        from tightfit.schemas.chain import CHAIN, read_chain
        from tightfit.schemas.machine import read_machine
        from tightfit.schemas.pipeline_devices import check_uniform_devices
        from tightfit.schemas.pipeline_pattern import NO_PATTERN, write_pipeline_pattern
        from tightfit.schemas.pipeline_plan import write_pipeline_plan
        from tightfit.schemas.sequence import write_sequence
        from tightfit.stages.combine.pipeline.allocator import load_allocator
        from tightfit.stages.combine.pipeline.plan import plan_pipeline

        if (self.options is not None) != (self.stage_recompute == "rockmate"):
            raise ConfigError("--options and --stage-recompute rockmate are given together")
        chosen = load_allocator(self.strategy)
        settings = self.settings()
        if settings.k is not None and not chosen.about.turns:
            raise ConfigError(f"--strategy {self.strategy} takes no --k")
        if self.solver is not None and not chosen.about.solves:
            raise ConfigError(
                f"--strategy {self.strategy} takes no --solver: it solves no integer program"
            )
        if settings.inside and not chosen.about.inside:
            raise ConfigError(f"--strategy {self.strategy} takes no --stage-recompute")
        path = self.chain
        chain, machine = read_chain(path), read_machine(self.machine)
        fleet = check_uniform_devices(machine, self.machine, chosen.about.contiguous)
        plan, pattern, sequence = plan_pipeline(chain, fleet, machine.name, chosen, settings)
        digest = store.read(path, CHAIN).digest
        write_pipeline_pattern(self.out / PATTERN, pattern or NO_PATTERN, digest)
        write_sequence(self.out / SEQUENCE, sequence, digest)
        write_pipeline_plan(self.out / PLAN, plan)
        return plan

    def settings(self) -> PipelineSettings:
        """The settings of the planner; raises ConfigError where one is out of range, and
        ArtifactError where options cannot be read."""
        from tightfit.schemas.block_options import read_block_options
        from tightfit.schemas.pipeline import MAX_MICROBATCHES
        from tightfit.stages.combine.pipeline.plan import PipelineSettings

        copies = 3 if self.weight_copies is None else self.weight_copies
        if not 0 <= copies <= MAX_WEIGHT_COPIES:
            raise ConfigError(f"--weight-copies {copies}: expected 0 to {MAX_WEIGHT_COPIES}")
        if self.k is not None and not 1 <= self.k <= 1000:
            raise ConfigError(f"--k {self.k}: expected 1 to 1000")
        period = self.period
        if period is not None and not (math.isfinite(period) and period > 0):
            raise ConfigError(f"--period {period}: expected a number of seconds above 0")
        inside = self.stage_recompute or ""
        blocks = None if self.options is None else read_block_options(self.options)
        engine = self.solver or HIGHS_ENGINE
        if self.microbatches is not None and not 1 <= self.microbatches <= MAX_MICROBATCHES:
            raise ConfigError(
                f"--microbatches {self.microbatches}: expected 1 to {MAX_MICROBATCHES}"
            )
        return PipelineSettings(
            *(period, copies, bool(self.buffers), self.k, inside, blocks, engine),
            self.microbatches,
        )

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        settings = {
            name: getattr(self, name)
            for name in (
                "strategy",
                "period",
                "weight_copies",
                "buffers",
                "stage_recompute",
                "k",
                "solver",
                "microbatches",
            )
        }
        outputs = [self.out / name for name in (PATTERN, SEQUENCE, PLAN)]
        read = [self.chain, self.machine, *([self.options] if self.options else [])]
        return [LineageEntry(outputs, read, settings)]
