"""Makes modules for the budgets of a case from its frontier, and measures them beside the peers:
peaks and bits in one process, times of each in processes of its own."""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
from torch import nn

from tests.benchmarks.alternating_runs import Result, contest
from tests.benchmarks.baselines import Contestant, peers
from tests.benchmarks.cases import CASES, Case
from tests.benchmarks.own_process import run_in_own_process
from tightfit.schemas.costs import Costs, read_costs
from tightfit.schemas.frontier import Frontier, ParetoPoint, read_frontier
from tightfit.schemas.graph.training_graph import Graph, read_graph
from tightfit.stages.combine.lowering.schedule import ScheduleLowering
from tightfit.stages.combine.memory_budget import baseline_bytes
from tightfit.stages.combine.select_plan import select_plan
from tightfit.stages.generate.package import write_package
from tightfit.stages.simulate.planning_graph import build_planning_graph
from tightfit.stages.simulate.simulate import simulate
from tightfit.stages.torch_utils.model_factory import build_from_factory
from tightfit.stages.validate.training_step import StepRunner, clear_gradients

WARM_STEPS, TIMED_STEPS = 2, 5
"""Steps of a process whose contestant is timed."""


def measure_case(case: Case, folder: Path, rounds: int) -> list[Result]:
    """Eager, the peers, keep-all as generated, and a plan for every limit and every peer's peak.
    Each is timed in as many processes of its own as `rounds` ask for."""
    torch.manual_seed(0)
    built = build_from_factory(case.factory, case.arguments)
    graph = read_graph(folder / "graph.arrow")
    stepper = StepRunner.of(graph, built)
    rivals = peers(built.model, case.compiler_budgets)
    rival_results = contest(rivals, stepper, built.samples[0], rounds=2)
    maker = _Maker(graph, folder, built.model)
    wanted = [(maker.within(limit * 1e6), f"in {limit} MB") for limit in case.limits]
    wanted += [
        (maker.within(result.peak), f"at the peak of {result.name}") for result in rival_results[1:]
    ]
    accumulating = rival_results[1].accumulating_peak
    wanted += [(maker.accumulating(accumulating), "at the accumulating peak of checkpoint")]
    named: list[tuple[ParetoPoint, list[str]]] = []
    for point, name in wanted:
        same = [names for known, names in named if known == point]
        if same:
            same[0].append(name)
        else:
            named.append((point, [name]))
    planned = [maker.at(point, f"plan {', '.join(names)}") for point, names in named]

    def timed_apart(contestant: Contestant) -> float:
        words = ["--case", case.name, "--folder", str(folder), "--contestant", contestant.name]
        return run_in_own_process("planned_modules", *words, "--package", contestant.package)

    contestants = [*rivals, maker.keep_all(), *planned]
    processes = max(rounds // TIMED_STEPS, 2)
    return contest(contestants, stepper, built.samples[0], processes, timed_apart=timed_apart)


def time_contestant(case: Case, folder: Path, name: str, package: str) -> float:
    """The median seconds of a step of a peer of that name, or of the plan in a package: of the
    processor where there is one thread."""
    torch.manual_seed(0)
    built = build_from_factory(case.factory, case.arguments)
    stepper = StepRunner.of(read_graph(folder / "graph.arrow"), built)
    if package:
        contestant = Contestant(name, _package(Path(package)).load(built.model))
    else:
        rivals = peers(built.model, case.compiler_budgets)
        [contestant] = [each for each in rivals if each.name == name]
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds = []
    for _ in range(WARM_STEPS + TIMED_STEPS):
        clear_gradients(contestant.module, built.samples[0])
        start = clock()
        with contestant.setting():
            held = stepper.run(contestant.module, built.samples[0])
        seconds.append(clock() - start)
        del held
    return statistics.median(seconds[WARM_STEPS:])


class _Maker:
    def __init__(self, graph: Graph, folder: Path, model: nn.Module) -> None:
        self.graph = graph
        self.costs: Costs = read_costs(folder / "costs.arrow")
        self.frontier: Frontier = read_frontier(folder / "frontier.arrow")
        self.problem = build_planning_graph(graph, self.costs)
        self.opener = ScheduleLowering(graph, self.problem)
        self.folder = folder
        self.model = model

    def within(self, limit: float) -> ParetoPoint:
        """What is chosen where a step may take a peak in bytes."""
        budget = f"{int(limit) + baseline_bytes(self.graph).bytes_before_step}B"
        _, point, _ = select_plan(self.graph, self.costs, self.problem, self.frontier, budget)
        if point is None:
            raise SystemExit(f"nothing fits {limit:,.0f} bytes")
        return point

    def accumulating(self, limit: int) -> ParetoPoint:
        """The fastest point of the frontier whose peak with gradients already there is within the
        limit."""
        for point in self.frontier.points:
            steps = self.opener.opened(point)
            if simulate(self.graph, self.costs, steps, accumulate=True).peak <= limit:
                return point
        raise SystemExit(f"nothing fits {limit:,} bytes with gradients there")

    def at(self, point: ParetoPoint, name: str) -> Contestant:
        """The plan of a point."""
        return self._made(point.executions, point.in_place, point.in_place_threshold, name)

    def keep_all(self) -> Contestant:
        """The captured step as generated, recomputing nothing, no op in place."""
        executions = [node.op for node in self.problem.nodes]
        return self._made(executions, False, 0, "generated, everything kept")

    def _made(self, executions: Sequence[int], in_place: bool, room: int, name: str) -> Contestant:
        steps = self.opener.schedule(executions, in_place, room)
        played = simulate(self.graph, self.costs, steps)
        directory = self.folder / "modules" / f"peak_{played.peak}_{in_place}"
        facts = {
            "strategy": self.frontier.strategy, "budget": name, "budget_bytes": played.peak,
            "status": "feasible", "message": name, "peak": played.peak, "time": played.seconds,
        }  # fmt: skip
        write_package(directory, self.graph, played.steps, facts)
        module = _package(directory).load(copy.deepcopy(self.model))
        return Contestant(name, module, None, played.peak, played.seconds, str(directory))


def _package(directory: Path) -> ModuleType:
    name = f"bench_{directory.parent.parent.name.replace('-', '_')}_{directory.name}"
    spec = importlib.util.spec_from_file_location(
        name, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    return package


def main() -> None:
    """Prints the seconds of a step of one contestant."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", required=True, choices=[case.name for case in CASES])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--contestant", required=True)
    parser.add_argument("--package", default="")
    options = parser.parse_args()
    [case] = [case for case in CASES if case.name == options.case]
    taken = time_contestant(case, options.folder, options.contestant, options.package)
    print(json.dumps(taken))


if __name__ == "__main__":
    main()
