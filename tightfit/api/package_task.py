"""Writes the generated package of a plan, or of a pipeline."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

from tightfit.util.command_line import LineageEntry
from tightfit.util.progress import StageProgress


@dataclass(frozen=True)
class PackageTask:
    """Files of one plan, and of that of eager's kernels beside it, or of a pipeline, and the
    folder to write. The fields have the names that the stage `generate` reads."""

    stage: ClassVar[str] = "generate"
    graph: list[Path]
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

    def run(self, progress: StageProgress) -> None:
        """Writes the package; what the stage prints is not shown."""
        from tightfit.stages.generate import command

        with contextlib.redirect_stdout(io.StringIO()):
            command.run(cast(Any, self))

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        from tightfit.stages.generate import command

        return command.lineage_entries(cast(Any, self))
