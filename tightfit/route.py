"""The way of a plan through the stages, in this process and on the store of the workflow."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import re
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from tightfit.progress import Progress
from tightfit.schemas.budget import NO_BUDGET, parse_budget
from tightfit.schemas.derived import Derived
from tightfit.schemas.engines import Engine, Solver, engine_of_steps
from tightfit.schemas.errors import ArtifactError, ConfigError, ModelError
from tightfit.schemas.fingerprint import stage_fingerprint
from tightfit.schemas.lineage import are_recorded, keep_records
from tightfit.schemas.plan import Plan, read_plan
from tightfit.schemas.store import file_digest, read_bytes, write_bytes
from tightfit.schemas.strategies import HIERARCHY, STRATEGIES

if TYPE_CHECKING:
    import torch
    from torch import nn

    from tightfit.schemas.graph import Graph
    from tightfit.stages.device.factory import Built

Parts = Callable[[str], "tuple[int, int] | None"]
"""Finds in a line how many parts are done, of how many."""
EAGER = "eager"
FUSED = "fused"
FUSE = "fuse"
MICROBATCH = "microbatch.arrow"
"""What `whole` writes beside the schedule where a step is several microbatches."""
PLANNING = ("partition", "solve", "combine")
"""The stages whose code decides a frontier."""

ALONE = threading.RLock()
"""Held by the thread that plans. A trace replaces functions of PyTorch, a profile uses its profiler
and a stage has what it prints read: each is one for the whole process."""


@dataclass(frozen=True)
class Route:
    """How to go: the store and the device, the strategy, the solver's engine and its numbers of
    peaks and saves, how many blocks are solved at a time, the description of a machine whose link
    the strategy may take, the kernels ("eager" or "fused"), and what travels with fused ones: a
    plan of eager's kernels (`with_eager`), compiled libraries (`with_libraries`). With `full_check`
    plans are compared with their originals in all ways to run them."""

    store: Path
    device: str
    strategy: str
    solver: tuple[Solver, str, str]
    jobs: int | None = None
    progress: Progress = field(default_factory=Progress)
    machine: Path | None = None
    kernels: str = EAGER
    with_eager: bool = False
    with_libraries: bool = False
    full_check: bool = False

    @property
    def engine(self) -> Engine:
        """The engine of the integer programs of whole steps."""
        return engine_of_steps(self.solver[0])

    @property
    def eager(self) -> Route:
        """The way to plans of eager's kernels."""
        return replace(self, kernels=EAGER, with_eager=False, with_libraries=False)

    def trace(self, built: Built) -> Path:
        """The path of the traced graph in the store."""
        return self.filed(self.traced(built))

    def traced(self, built: Built) -> Graph:
        """The traced graph."""
        from tightfit.stages.trace.trace import trace

        self.progress.stage("trace")
        last = self.kernels == FUSED
        return trace(built, type(built.model).__name__, self.device, channels_last=last)

    def filed(self, graph: Graph) -> Path:
        """The path of a graph in the store."""
        from tightfit.schemas.graph import write_graph

        path = _filed(self.store / "calls", "graph.arrow", lambda path: write_graph(path, graph))
        keep_records("trace", Derived([path], [], {"name": graph.model, "device": self.device}))
        return path

    def fuse(self, graph: Path) -> Path:
        """The path of the fused graph in the store: one for each build, number of threads and code
        of the stage."""
        import torch

        from tightfit.stages.device.kernels import build_key

        made_by = f"{build_key(torch.device(self.device))} {stage_fingerprint(FUSE)}"
        key = hashlib.sha256(made_by.encode()).hexdigest()[:16]
        path = graph.parent / f"fused-{key}" / "graph.arrow"
        if not path.exists():
            jobs = self.jobs or os.cpu_count() or 1
            words = ("--graph", graph, "--device", self.device, "--jobs", jobs, "--out", path)
            self.run(FUSE, *words, parts=_groups)
        return path

    def unplanned(self, graph: Path, costs: Path) -> Path:
        """The folder of the module that runs a graph as it was captured."""
        route = replace(self, strategy="unplanned", with_libraries=False)
        _, point = route.choose(graph, costs, route.frontier(graph, costs), NO_BUDGET)
        return route.module(graph, point)

    def profile(self, built: Built, graph: Path) -> Path:
        """The path of the costs in the store, below the graph's folder."""
        from tightfit.schemas.costs import write_costs
        from tightfit.schemas.graph import read_graph
        from tightfit.stages.device.identity import describe_device
        from tightfit.stages.profile.library import open_library
        from tightfit.stages.profile.profile import profile

        self.progress.stage("profile")
        with open_library(self.store, describe_device(self.device)) as library:
            costs = profile(
                read_graph(graph),
                built.loss,
                library,
                report=lambda done, total, _: self.progress.done(done, total),
                device=self.device,
            )
        path = _filed(graph.parent, "costs.arrow", lambda path: write_costs(path, costs))
        keep_records(
            "profile", Derived([path], [graph], {"source": "measured", "device": self.device})
        )
        return path

    def linked(self, disk: Path | str | None) -> Route:
        """The way with the link of the device to its slow memory, on the CPU the disk of a folder,
        where the strategy takes one and no machine was named: measured once for the store."""
        if not self.links or self.machine is not None:
            return self
        from tightfit.stages.profile.kept_links import kept_machine

        return replace(self, machine=kept_machine(self.store, self.device, disk))

    def place(self, costs: Path) -> Path:
        """The folder, below that of the costs, for what these settings and this code make."""
        code = [stage_fingerprint(stage) for stage in PLANNING]
        key = hashlib.sha256(" ".join([*self.solver, *code]).encode()).hexdigest()[:16]
        return costs.parent / key

    def frontier(self, graph: Path, costs: Path, given: bool = False) -> Path:
        """The path of the frontier below the folder of the costs, made unless it is there; with
        `given` one of the strategy's own plans will do, which takes much less time."""
        engine, peaks, saves = self.solver
        place = self.place(costs)
        blocks, whole = place / "blocks.arrow", self.folder(place) / "frontier.arrow"
        linked = ("--machine", self.machine) if self.links else ()
        options, sends = self.options(place), STRATEGIES[self.strategy].sends
        path = whole.parent / "given" / "frontier.arrow" if given else whole
        for known in (whole, path):
            if known.exists():
                return known
        files = ("--graph", graph, "--costs", costs)
        workers = self.jobs or os.cpu_count() or 1
        clusters = self._clusters(place)
        limits = [word for name, most in HIERARCHY.items() for word in (f"--{name}", most)]
        self.run("partition", *files, "--out", blocks, *clusters, *(limits if clusters else ()))
        grid = ("--engine", engine, "--peaks", peaks, "--saves", saves)
        solving = ("--blocks", blocks, "--store", self.store, *grid, "--jobs", workers)
        made_for = linked if sends else ()
        self.run(
            "solve", *solving, *made_for, "--out", options, parts=_blocks_of(_distinct(blocks))
        )
        made = ("--blocks", blocks, "--options", options, "--strategy", self.strategy)
        by = ("--engine", self.engine)
        more = ("--given",) if given else ("--workers", workers)
        asked = (*made, *by, *clusters, *linked, *more)
        self.run("combine", *files, *asked, "--out", path, parts=_budgets)
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
        sends = STRATEGIES[self.strategy].sends
        return (self.folder(place) if sends else place) / "options.arrow"

    def _clusters(self, place: Path) -> tuple[object, ...]:
        """The hierarchy as an option of a stage, where the strategy takes it."""
        taken = STRATEGIES[self.strategy].clusters
        return ("--hierarchy", place / "hierarchy.arrow") if taken else ()

    def choose(
        self, graph: Path, costs: Path, frontier: Path, budget: str, search: bool = True
    ) -> tuple[Plan, Path]:
        """The plan for a budget as written, and its folder; without a `search` it is one of the
        frontier's."""
        folder = budget if budget == NO_BUDGET else parse_budget(budget).directory
        point = frontier.parent / folder
        files = ("--graph", graph, "--costs", costs)
        asked = ("--budget", budget, "--engine", self.engine)
        words = (*files, *asked, *([] if search else ["--no-search"]))
        given = ("--frontier", frontier, *words, "--out", point)
        self.run("choose", *given, parts=_searches, reuse=True)
        return read_plan(point / "plan.json"), point

    def module(self, graph: Path, point: Path, beside: tuple[Path, Path] | None = None) -> Path:
        """The folder of the module of a plan, by the folder of the plan; graph and plan of eager's
        kernels may be `beside`."""
        words = _plan_of("", graph, point)
        name = "module"
        if beside is not None:
            words, name = words + _plan_of("eager-", *beside), f"{name}-eager"
        if (point / MICROBATCH).is_file():
            words = [*words, "--microbatch", point / MICROBATCH]
        if self.with_libraries:
            words, name = [*words, "--libraries"], f"{name}-libraries"
        self.run("generate", *words, "--out", point / name, parts=_libraries, reuse=True)
        return point / name

    def check(self, graph: Path, built: Built, planned: nn.Module) -> None:
        """Raises ModelError where the planned module does not do what the original does, in two
        steps of both or, with `full_check`, in all ways to run them."""
        from tightfit.schemas.graph import read_graph
        from tightfit.stages.validate.validate import check

        self.progress.stage("check")
        said = check(read_graph(graph), built, planned, self.progress.done, self.full_check)
        if said:
            raise ModelError(said)

    def check_sent(self, graph: Path, built: Built, planned: nn.Module, plan: Plan) -> str:
        """What a planned module sends to another memory, for people; "" for nothing. Raises
        ModelError where that is not what its plan says."""
        from tightfit.schemas.graph import read_graph
        from tightfit.stages.validate.sent import check_sent

        wrong, said = check_sent(read_graph(graph), built, planned, plan.transfers)
        if wrong:
            raise ModelError(f"The planned step is wrong: {wrong}.")
        return said

    def own_peak(self, graph: Path, built: Built) -> int | None:
        """The bytes of one step of the model as it is, above what is there before it, where it
        checkpoints itself and fits on the device."""
        from tightfit.schemas.graph import read_graph
        from tightfit.stages.validate.itself import checkpoints_itself
        from tightfit.stages.validate.validate import own_peak

        traced = read_graph(graph)
        return own_peak(traced, built) if checkpoints_itself(traced) else None

    def check_fused(
        self, graph: Path, built: Built, planned: nn.Module, unplanned: nn.Module
    ) -> str:
        """How far the planned module of fused kernels is from eager, for people; raises ModelError
        where that is too far, or it has other bits than the same kernels unplanned."""
        from tightfit.schemas.graph import read_graph
        from tightfit.stages.validate.fused import beside_eager
        from tightfit.stages.validate.validate import check_fused

        self.progress.stage("check")
        traced = read_graph(graph)
        done, full = self.progress.done, self.full_check
        said = check_fused(traced, built, planned, unplanned, done, full)
        if said:
            raise ModelError(said)
        return beside_eager(traced, built, planned)[1]

    def check_updates(
        self,
        graph: Path,
        built: Built,
        load: Callable[[nn.Module], nn.Module],
        original: Callable[[nn.Module], nn.Module] | None,
        optimizer: torch.optim.Optimizer,
        replace_optimizer: Callable[[torch.optim.Optimizer], torch.optim.Optimizer],
    ) -> None:
        """Raises ModelError where steps with the optimizer that `replace_optimizer` gives do not do
        what steps of the model, or of what `original` makes of it, with the given one do."""
        from tightfit.schemas.graph import read_graph
        from tightfit.stages.validate.updates import check_updates

        given = (optimizer, replace_optimizer, original, self.progress.done, self.full_check)
        said = check_updates(read_graph(graph), built, load, *given)
        if said:
            raise ModelError(said)

    def run(
        self,
        stage: str,
        *words: object,
        parts: Parts = lambda line: None,
        reuse: bool = False,
    ) -> None:
        """Runs a stage in this process as its command line would; its errors are raised.

        `parts` finds in the lines that it prints how much of it is done. With `reuse` nothing is
        run where the store has what the stage would write, made by this code of the same files with
        the same settings."""
        from tightfit.__main__ import STAGES, record

        self.progress.stage(stage)
        module = import_module(STAGES[stage][0])
        parser = argparse.ArgumentParser(prog=stage)
        module.add_arguments(parser)
        options = parser.parse_args([str(word) for word in words])
        room = STAGES[stage][0].split(".")[2]
        if reuse and all(are_recorded(room, made) for made in module.derived(options)):
            return
        with self.progress.reading(parts):
            module.run(options)
        record(stage, module.derived(options))


def _plan_of(prefix: str, graph: Path, point: Path) -> list[object]:
    """A plan as options of a stage."""
    files = {"graph": graph, "schedule": point / "schedule.arrow", "plan": point / "plan.json"}
    return [word for name, path in files.items() for word in (f"--{prefix}{name}", path)]


def _blocks_of(total: int) -> Parts:
    """Each line of solve with options is a block."""
    solved = itertools.count(1)
    return lambda line: (next(solved), total) if " options, " in line else None


def _counted(pattern: str) -> Parts:
    """Lines with two numbers: how many, of how many."""

    def parts(line: str) -> tuple[int, int] | None:
        found = re.search(pattern, line)
        return None if found is None else (int(found[1]), int(found[2]))

    return parts


_groups = _counted(r" compiled (\d+) of (\d+) groups$")
_libraries = _counted(r"compiled (\d+) of (\d+) libraries$")
_budgets = _counted(r" at (\d+) of (\d+) budgets$")
_searches = _counted(r" at (\d+) of (\d+) searches at most$")


def _distinct(blocks: Path) -> int:
    from tightfit.schemas.blocks import read_blocks

    return len(read_blocks(blocks).problems)


def _filed(folder: Path, name: str, write: Callable[[Path], str]) -> Path:
    """Writes an artifact into a folder below `folder` that its digest names; returns its path."""
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / name
        digest = write(made)
        path = folder / digest[:32] / name
        if not _is_there(path, made):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                write_bytes(path, made.read_bytes())
            except OSError as error:
                raise ConfigError(f"{path} cannot be written ({error.strerror})") from error
    return path


def _is_there(path: Path, made: Path) -> bool:
    """Whether a file is as it was made, so that a store which is only read will do."""
    try:
        return read_bytes(path) == made.read_bytes()
    except ArtifactError:
        return False
