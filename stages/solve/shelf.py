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

from tightfit.paths import ROOT
from tightfit.schemas.blocks import problem_row
from tightfit.schemas.engines import Solver
from tightfit.schemas.errors import ArtifactError, TightfitError
from tightfit.schemas.fingerprint import stage_code
from tightfit.schemas.link import HostLink
from tightfit.schemas.options import Option, clock_of, read_options, write_options
from tightfit.schemas.problem import Problem
from tightfit.stages.solve.search import Grid, search_block

REVISION = 4
"""Goes up whenever the same block, grid and engine would get other options than before."""


def shelf_path(
    store: Path, digest: str, engine: Solver, grid: Grid, link: HostLink | None = None
) -> Path:
    """Where the store keeps the options of a block: STORE/options/<digest>-<grid>-<engine>, and the
    key of the link where they were made for one."""
    density = f"{grid.peaks}x{grid.saves}"
    usual = Grid(peaks=grid.peaks, saves=grid.saves)
    efforts = [value for name, value in asdict(grid).items() if name not in ("peaks", "saves")]
    effort = "" if grid == usual else "-" + "-".join(f"{effort:g}" for effort in efforts)
    made_for = f"-{_key(link)}" if link else ""
    return store / "options" / f"{digest}-{density}{effort}-{engine}-{REVISION}{made_for}.arrow"


def _key(link: HostLink) -> str:
    return hashlib.sha256(link.speed.encode()).hexdigest()[:12]


def solved_with() -> dict[str, str]:
    """What a solved block says of what solved it: the fingerprint of the code, and versions."""
    code, versions = stage_code("solve")
    return {"code": code, "versions": json.dumps(versions)}


def clock_limited(paths: Iterable[Path]) -> int:
    """How many solves the clock ended, of blocks whose options are kept at these paths."""
    return sum(map(clock_of, paths))


def solve_all(
    distinct: Mapping[str, Problem],
    store: Path,
    engine: Solver,
    grid: Grid,
    jobs: int,
    done: Callable[[str, list[Option], bool], None] = lambda digest, options, solved: None,
    link: HostLink | None = None,
) -> list[Option]:
    """The options of all blocks, for a link where there is one, ordered by digest, solving those
    that the store lacks.

    At most `jobs` blocks are solved at a time, largest first. `done` is called with a block's
    digest and options as each becomes known, and whether it was solved here or taken from the
    store. Raises TightfitError when a solve fails. An interruption ends the solves under way,
    and no other begins.
    """
    options: dict[str, list[Option]] = {}
    missing = []
    for digest in distinct:
        path = shelf_path(store, digest, engine, grid, link)
        if path.exists():
            options[digest] = _shelved(path, digest)
            done(digest, options[digest], False)
        else:
            missing.append(digest)
    made_by = solved_with() if missing else {}
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


def solve_to_shelf(
    digest: str,
    problem: Problem,
    store: Path,
    engine: Solver,
    grid: Grid,
    made_by: Mapping[str, str] = MappingProxyType({}),
    link: HostLink | None = None,
) -> list[Option]:
    """Solves a block here and puts its options into the store; `made_by` is from `solved_with`."""
    solved = search_block(digest, problem, engine, grid, link)
    metadata = {"engine": engine, "clock": str(solved.clock), **made_by}
    write_options(shelf_path(store, digest, engine, grid, link), solved.options, metadata)
    return solved.options


def _shelved(path: Path, digest: str) -> list[Option]:
    options = read_options(path)
    if set(options) != {digest}:
        raise ArtifactError(f"{path}: holds the options of another block")
    return options[digest]


@dataclass
class _Workers:
    """Processes that solve blocks, with an engine over a grid, for a store, perhaps for a link."""

    store: Path
    engine: Solver
    grid: Grid
    made_by: Mapping[str, str]
    link: HostLink | None = None
    running: list[subprocess.Popen[str]] = field(default_factory=list)
    stopped: bool = False

    def solve(self, digest: str, problem: Problem) -> list[Option]:
        """The options of a block, solved in a process; raises TightfitError where that fails."""
        task = {
            "digest": digest,
            "problem": problem_row(problem),
            "store": str(self.store.absolute()),
            "engine": self.engine,
            "grid": asdict(self.grid),
            "made_by": dict(self.made_by),
            "parent": os.getpid(),
            "link": [self.link.bandwidth, self.link.latency] if self.link else None,
        }
        inherited = os.environ.get("PYTHONPATH")
        search_path = os.pathsep.join([str(ROOT), *([inherited] if inherited else [])])
        environment = {**os.environ, "PYTHONPATH": search_path}
        code, said = self.run(json.dumps(task), environment)
        if code != 0:
            last = (said.strip().splitlines() or [f"exit status {code}"])[-1]
            raise TightfitError(f"solving block {digest[:12]} failed: {last}")
        path = shelf_path(self.store, digest, self.engine, self.grid, self.link)
        return _shelved(path, digest)

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
