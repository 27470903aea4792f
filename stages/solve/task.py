"""Finds the options of the blocks that are in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tightfit.util.command_line import LineageEntry
from tightfit.util.progress import StageProgress
from tightfit.util.solver_engines import BlockSolver

if TYPE_CHECKING:
    from tightfit.schemas.block_options import BlockOption
    from tightfit.schemas.link import HostLink


@dataclass(frozen=True)
class SolvedBlocks:
    """How many distinct blocks of a model were solved, and how many were in the store."""

    model: str
    solved: int
    stored: int


@dataclass(frozen=True)
class SolveTask:
    """The file of the blocks, the store of solved blocks, and the file of options to write.

    Each block is solved by an `engine` for numbers of limits on its peak (`peak_levels`) and on
    what it saves (`save_levels`), at most `jobs` at a time. With the description of a `machine`
    some of what options keep may leave over its link.
    """

    stage: ClassVar[str] = "solve"
    blocks: Path
    store: Path
    engine: BlockSolver
    peak_levels: int
    save_levels: int
    jobs: int
    out: Path
    machine: Path | None = None

    def run(self, progress: StageProgress) -> SolvedBlocks:
        """Solves the distinct blocks that the store lacks and writes the options of all. Each that
        is solved is reported, with the number of its options."""
        from tightfit.schemas.block_options import write_block_options
        from tightfit.schemas.blocks import read_blocks
        from tightfit.stages.solve.option_store import count_clock_limited, solve_blocks
        from tightfit.stages.solve.search import OptionGrid

        blocks, link = read_blocks(self.blocks), self._link()
        labels, problems = blocks.labels, blocks.problems
        grid = OptionGrid(peaks=self.peak_levels, saves=self.save_levels)
        solved: list[str] = []

        def tell(digest: str, found: list[BlockOption], here: bool) -> None:
            if here:
                solved.append(digest)
                proven = sum(option.status == "optimal" for option in found)
                said = f"{labels[digest]}: {len(found)} options, {proven} optimal"
                progress.report(len(solved), len(problems), said)

        found = solve_blocks(problems, self.store, self.engine, grid, self.jobs, tell, link)
        metadata = {
            "engine": self.engine,
            "grid": f"{grid.peaks}x{grid.saves}",
            "clock": str(count_clock_limited(self._stored_paths())),
            **({"link": link.speed} if link else {}),
        }
        write_block_options(self.out, found, metadata)
        return SolvedBlocks(blocks.model, len(solved), len(problems) - len(solved))

    def lineage_entries(self) -> list[LineageEntry]:
        """What `run` made of what: the blocks, and the options of each distinct one in the
        store."""
        settings = {
            "solver": self.engine,
            "peaks": self.peak_levels,
            "saves": self.save_levels,
        }
        machine = [] if self.machine is None else [self.machine]
        read = [self.blocks, *self._stored_paths(), *machine]
        return [LineageEntry([self.out], read, settings)]

    def _link(self) -> HostLink | None:
        """The link that options are made for."""
        from tightfit.schemas.link import read_host_link
        from tightfit.schemas.machine import read_machine

        if self.machine is None:
            return None
        return read_host_link(read_machine(self.machine), self.machine)

    def _stored_paths(self) -> list[Path]:
        from tightfit.schemas.blocks import read_blocks
        from tightfit.stages.solve.option_store import option_store_path
        from tightfit.stages.solve.search import OptionGrid

        grid = OptionGrid(peaks=self.peak_levels, saves=self.save_levels)
        digests, link = sorted(read_blocks(self.blocks).problems), self._link()
        return [
            option_store_path(self.store, digest, self.engine, grid, link) for digest in digests
        ]
