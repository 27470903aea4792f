"""Makes the frontier of a strategy and writes it into a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from tightfit.schemas.frontier import Frontier
from tightfit.stages.combine.frontier_files import FrontierFiles
from tightfit.util.budget import FRONTIER_BUDGETS
from tightfit.util.command_line import LineageEntry
from tightfit.util.progress import StageProgress


@dataclass(frozen=True)
class FrontierTask:
    """What a frontier is made of, the name of the strategy, and the file to write. Without
    `local_search` it has the strategy's own plans alone, else plans for at most so many `budgets`,
    which up to `workers` threads refine at a time."""

    stage: ClassVar[str] = "combine"
    files: FrontierFiles
    strategy: str
    out: Path
    local_search: bool = True
    workers: int = 1
    budgets: int = FRONTIER_BUDGETS

    def run(self, progress: StageProgress) -> Frontier:
        """Writes the frontier and returns it. Raises ConfigError where the strategy cannot plan the
        model."""
        from tightfit.schemas.frontier import write_frontier

        found = self.files.frontier(
            self.strategy, progress, not self.local_search, self.workers, self.budgets
        )
        write_frontier(self.out, found)
        return found

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what."""
        files = self.files
        read = [files.graph, files.costs, files.blocks, files.options]
        read += [path for path in (files.hierarchy, files.machine) if path is not None]
        settings: dict[str, Any] = {"strategy": self.strategy, "solver": files.engine}
        settings |= {"slots": files.slots}
        settings |= {"local_search": False} if not self.local_search else {"budgets": self.budgets}
        return [LineageEntry([self.out], read, settings)]
