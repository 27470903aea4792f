"""Solves the distinct blocks of a chain in parallel, each once for everybody who shares the store.

Each block is solved in a process of its own that loads no PyTorch and is told what to do as JSON;
a caller's `__main__` is never loaded again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType

from tightfit.schemas.block_options import (
    BlockOption,
    clock_limited_solves,
    read_block_options,
    write_block_options,
)
from tightfit.schemas.blocks import planning_graph_to_row
from tightfit.schemas.graph.planning_graph import PlanningGraph
from tightfit.schemas.link import HostLink
from tightfit.stages.solve.search import OptionGrid, search_block
from tightfit.util.code_fingerprint import stage_code
from tightfit.util.errors import ArtifactError, TightfitError
from tightfit.util.paths import INSTALL_ROOT
from tightfit.util.solver_engines import BlockSolver

REVISION = 4
"""Goes up whenever the same block, grid and engine would get other options than before."""


def option_store_path(
    store: Path, digest: str, engine: BlockSolver, grid: OptionGrid, link: HostLink | None = None
) -> Path:
    """Where the store keeps the options of a block: STORE/options/<digest>-<grid>-<engine>, and the
    key of the link where they were made for one."""
    density = f"{grid.peaks}x{grid.saves}"
    usual = OptionGrid(peaks=grid.peaks, saves=grid.saves)
    efforts = [value for name, value in asdict(grid).items() if name not in ("peaks", "saves")]
    effort = "" if grid == usual else "-" + "-".join(f"{effort:g}" for effort in efforts)
    made_for = f"-{_link_key(link)}" if link else ""
    return store / "options" / f"{digest}-{density}{effort}-{engine}-{REVISION}{made_for}.arrow"


def _link_key(link: HostLink) -> str:
    return hashlib.sha256(link.speed.encode()).hexdigest()[:12]


def solver_provenance() -> dict[str, str]:
    """What a solved block says of what solved it: the fingerprint of the code, and versions."""
    code, versions = stage_code("solve")
    return {"code": code, "versions": json.dumps(versions)}


def count_clock_limited(paths: Iterable[Path]) -> int:
    """How many solves the clock ended, of blocks whose options are kept at these paths."""
    return sum(map(clock_limited_solves, paths))


def solve_blocks(
    distinct: Mapping[str, PlanningGraph],
    store: Path,
    engine: BlockSolver,
    grid: OptionGrid,
    jobs: int,
    done: Callable[[str, list[BlockOption], bool], None] = lambda digest, options, solved: None,
    link: HostLink | None = None,
) -> list[BlockOption]:
    """The options of all blocks, for a link where there is one, ordered by digest, solving those
    that the store lacks.

    At most `jobs` blocks are solved at a time, largest first. `done` is called with a block's
    digest and options as each becomes known, and whether it was solved here or taken from the
    store. Raises TightfitError when a solve fails. An interruption ends the solves under way,
    and no other begins.
    """
    options: dict[str, list[BlockOption]] = {}
    missing = []
    for digest in distinct:
        path = option_store_path(store, digest, engine, grid, link)
        if path.exists():
            options[digest] = _read_stored_options(path, digest)
            done(digest, options[digest], False)
        else:
            missing.append(digest)
    made_by = solver_provenance() if missing else {}
    workers = _Workers(store, engine, grid, made_by, link)
    missing.sort(key=lambda digest: (-len(distinct[digest].nodes), digest))
    with ThreadPoolExecutor(max_workers=max(jobs, 1)) as pool:
        solving = {
            pool.submit(workers.solve, digest, distinct[digest]): digest for digest in missing
        }
        try:
            for finished in as_completed(solving):
                digest = solving[finished]
                options[digest] = finished.result()
                done(digest, options[digest], True)
        except KeyboardInterrupt:
            pool.shutdown(wait=False, cancel_futures=True)
            workers.stop()
            raise
    return [option for digest in sorted(options) for option in options[digest]]


def solve_into_store(
    digest: str,
    problem: PlanningGraph,
    store: Path,
    engine: BlockSolver,
    grid: OptionGrid,
    made_by: Mapping[str, str] = MappingProxyType({}),
    link: HostLink | None = None,
) -> list[BlockOption]:
    """Solves a block here and puts its options into the store; `made_by` is from
    `solver_provenance`."""
    solved = search_block(digest, problem, engine, grid, link)
    metadata = {"engine": engine, "clock": str(solved.clock), **made_by}
    write_block_options(
        option_store_path(store, digest, engine, grid, link), solved.options, metadata
    )
    return solved.options


def _read_stored_options(path: Path, digest: str) -> list[BlockOption]:
    options = read_block_options(path)
    if set(options) != {digest}:
        raise ArtifactError(f"{path}: holds the options of another block")
    return options[digest]


@dataclass
class _Workers:
    """Processes that solve blocks, with an engine over a grid, for a store, perhaps for a link."""

    store: Path
    engine: BlockSolver
    grid: OptionGrid
    made_by: Mapping[str, str]
    link: HostLink | None = None
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    stopped: bool = False

    def solve(self, digest: str, problem: PlanningGraph) -> list[BlockOption]:
        """The options of a block, solved in a process; raises TightfitError where that fails."""
        task = {
            "digest": digest,
            "problem": planning_graph_to_row(problem),
            "store": str(self.store.absolute()),
            "engine": self.engine,
            "grid": asdict(self.grid),
            "made_by": dict(self.made_by),
            "parent": os.getpid(),
            "link": [self.link.bandwidth, self.link.latency] if self.link else None,
        }
        inherited = os.environ.get("PYTHONPATH")
        search_path = os.pathsep.join([str(INSTALL_ROOT), *([inherited] if inherited else [])])
        environment = {**os.environ, "PYTHONPATH": search_path}
        code, said = self.run(json.dumps(task), environment)
        if code != 0:
            last = (said.strip().splitlines() or [f"exit status {code}"])[-1]
            raise TightfitError(f"solving block {digest[:12]} failed: {last}")
        path = option_store_path(self.store, digest, self.engine, self.grid, self.link)
        return _read_stored_options(path, digest)

    def run(self, task: str, environment: Mapping[str, str]) -> tuple[int, str]:
        """The exit code of a worker and what it wrote to standard error."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tightfit.stages.solve.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.running.append(process)
        if self.stopped:
            process.terminate()
        _, said = process.communicate(task)
        self.running.remove(process)
        return process.returncode, said

    def stop(self) -> None:
        """Ends those that run, and those that begin from now on."""
        self.stopped = True
        for process in list(self.running):
            process.terminate()
