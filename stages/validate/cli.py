"""`validate`: runs a planned module against the original model and writes what it measured."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.schemas import store
from tightfit.schemas.budget import NO_BUDGET
from tightfit.schemas.derived import Derived
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.graph import Graph, is_fused, read_graph
from tightfit.schemas.measurement import write_line, write_measurement
from tightfit.schemas.module import check_made_from, module_digest
from tightfit.schemas.plan import plan_digest
from tightfit.stages.validate.model_options import (
    add_model_arguments,
    arguments_of,
    building,
    line_of,
    settings_of,
)

if TYPE_CHECKING:
    from tightfit.stages.device.factory import Built
    from tightfit.stages.validate.reference import Original
    from tightfit.stages.validate.validate import Validation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    add_model_arguments(parser, 15, "timed pairs of steps, or with --reference timed steps")
    parser.add_argument(
        "--graph",
        type=Path,
        nargs="+",
        required=True,
        help="graph.arrow of the model; of several the one that the module was made from is taken, "
        "and that of a plan of eager's kernels beside",
    )
    parser.add_argument("--plan", required=True, help="plan.json of the planned module")
    parser.add_argument(
        "--pipeline", type=Path, help="the folder that `split` wrote, where the module is one"
    )
    parser.add_argument("--module", required=True, help="directory of the planned module")
    parser.add_argument(
        "--unplanned",
        help="directory of the module that runs fused kernels unplanned; not for eager's",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        help="reference.arrow of the model, with line.arrow beside it: the model's own step is not "
        "run again where the plan gives what it gave",
    )
    parser.add_argument(
        "--disk", help="the folder of a disk that a plan sends to (default: that of TIGHTFIT_DISK)"
    )
    parser.add_argument(
        "--far-disk", help="the folder of a third memory, where the plan has states in one"
    )
    parser.add_argument("--plan-seconds", type=float, help="how long planning took, to record")
    parser.add_argument(
        "--out", required=True, help="measurement.arrow to write, of a pipeline measurement.json"
    )
    parser.add_argument("--line", help="memory lines to write (default: line.arrow beside --out)")


def run(options: argparse.Namespace) -> int:
    """Runs the stage, prints the verdict, and returns the exit code: 1 for a plan that failed,
    unless many are validated at a time. Of a plan without a program (verdict "infeasible") nothing
    is built."""
    from tightfit.schemas.module import graph_of
    from tightfit.schemas.words import by_hand, tell
    from tightfit.stages.validate.foretold import base_of, read_foretold

    if options.pipeline is not None:
        _pipeline(options)
        return 0
    path = graph_of(options.module, options.graph)
    graph, plan = read_graph(path), read_foretold(options.plan)
    check_made_from(options.module, store.header(path).digest, plan_digest(options.plan))
    if options.pairs < 0:
        raise ConfigError(f"--pairs {options.pairs}: must be 0 or more")
    if any(map(is_fused, options.graph)) != (options.unplanned is not None):
        raise ConfigError(
            "--unplanned: is for graphs of fused kernels, and needed there (the module of the "
            "strategy unplanned)"
        )
    if plan.get("gpu") and graph.device == "cpu":
        raise ConfigError(
            f"{options.plan}: is a plan for a GPU by its description, which is not here: there is "
            "nothing to validate it on"
        )
    digest = module_digest(options.module)
    if plan.get("verdict") == "infeasible":
        write_line(line_of(options), [])
        found = base_of(graph, plan, options.plan_seconds)
    else:
        result = _validation(options, path, graph, plan)
        write_line(line_of(options), result.line)
        found = result.measurement
    write_measurement(options.out, found, digest)
    tell(found.verdict, found.sentence, options)
    return int(found.verdict == "failed" and by_hand(options))


def _validation(
    options: argparse.Namespace, path: Path, graph: Graph, plan: dict[str, Any]
) -> Validation:
    """What a module of the graph at `path` is found to do."""
    from tightfit.schemas.telling import Printing
    from tightfit.stages.validate.load import sending_to
    from tightfit.stages.validate.lodged import is_lodged, validate_lodged
    from tightfit.stages.validate.validate import validate

    _take_threads(options, plan)
    asked = "" if plan["budget"] == NO_BUDGET else f" {plan['budget']}"
    report = Printing(f"{graph.model}: running {plan['strategy']}{asked}", "steps at most")
    with building(options, graph) as built, sending_to(options.disk):
        if is_lodged(options.module):
            return validate_lodged(
                graph,
                built,
                plan,
                options.module,
                options.pairs,
                options.device,
                far_folder=options.far_disk,
                report=report,
            )
        result = validate(
            graph,
            built,
            plan,
            options.module,
            options.pairs,
            options.plan_seconds,
            options.device,
            options.unplanned if is_fused(path) else None,
            report,
            _original(options),
        )
        return _with_beside(options, built, result)


def _take_threads(options: argparse.Namespace, plan: Mapping[str, Any]) -> None:
    """Runs with the threads that a plan's bytes hold for. Raises ConfigError where others are asked
    for: some operators take other workspaces then."""
    threads = plan.get("threads")
    if options.threads not in (None, threads) and threads is not None:
        raise ConfigError(
            f"--threads {options.threads}: the costs of {options.plan} were measured with "
            f"{threads}, and its bytes hold for as many: leave --threads out, or plan again from "
            f"costs of `tightfit profile --threads {options.threads}`"
        )
    options.threads = threads if options.threads is None else options.threads


def _original(options: argparse.Namespace) -> Original | None:
    """What was measured of the model's own step, None where nothing is given, or where it was
    measured on another device, with another build of PyTorch or other threads. Raises ConfigError
    where it is another model's."""
    from tightfit.schemas.measurement import read_line
    from tightfit.schemas.reference import read_reference
    from tightfit.stages.validate.reference import Original

    if options.reference is None:
        return None
    reference = read_reference(options.reference)
    if reference.graph not in [store.header(path).digest for path in options.graph]:
        raise ConfigError(
            f"--reference {options.reference}: was measured of another graph than "
            f"{options.graph[0]}, measure it again with `tightfit reference`"
        )
    found = Original(reference, read_line(options.reference.with_name("line.arrow")))
    return found if found.holds_for(options.device) else None


def _with_beside(options: argparse.Namespace, built: Built, result: Validation) -> Validation:
    """The result with what is found of a plan of eager's kernels that the module carries."""
    from tightfit.schemas.measurement import FAILED
    from tightfit.stages.validate.beside import carries_eager, check_beside

    found = result.measurement
    if found.verdict == FAILED or not carries_eager(options.module):
        return result
    own = [path for path in options.graph if not is_fused(path)]
    if not own:
        raise ConfigError(
            f"{options.module}: carries a plan of eager's kernels, give its graph as --graph, too"
        )
    wrong, told = check_beside(read_graph(own[0]), built, options.module, options.device)
    if wrong:
        return replace(result, measurement=replace(found, verdict=FAILED, sentence=wrong))
    said = f"{found.sentence} {told}".strip()
    return replace(result, measurement=replace(found, sentence=said))


def _pipeline(options: argparse.Namespace) -> None:
    """Runs the ranks of a pipeline on this machine."""
    from tightfit.schemas.errors import ModelError
    from tightfit.schemas.graph import GRAPH
    from tightfit.schemas.pipeline import FILE, read_pipeline
    from tightfit.schemas.pipeline_measurement import FAILED, write_pipeline_measurement
    from tightfit.schemas.pipeline_plan import read_pipeline_plan
    from tightfit.schemas.telling import Printing
    from tightfit.stages.device.foreign import registered
    from tightfit.stages.validate.load import load_package
    from tightfit.stages.validate.pipeline import Source, validate_pipeline

    pipeline, plan = read_pipeline(options.pipeline / FILE), read_pipeline_plan(options.plan)
    if [store.read(path, GRAPH).digest for path in options.graph] != [pipeline.graph]:
        raise ConfigError(f"{options.pipeline}: is the pipeline of another graph")
    load_package(options.module)
    source = Source(options.factory, arguments_of(options), options.search_path)
    with registered(options.operators, options.search_path):
        report = Printing(f"{pipeline.model}: running its pipeline", "steps")
        measured = validate_pipeline(source, pipeline, plan, Path(options.module), report)
    write_pipeline_measurement(options.out, measured)
    print(measured.sentence)
    if measured.verdict == FAILED:
        raise ModelError(measured.sentence)


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what."""
    far = {} if options.far_disk is None else {"far_disk": options.far_disk}
    from tightfit.schemas.module import graph_of

    graph = options.graph[0]
    if options.pipeline is None:
        graph = graph_of(options.module, options.graph)
    read = [graph, options.plan, options.module]
    read += [options.unplanned] if options.unplanned is not None and is_fused(graph) else []
    read += [] if options.reference is None else [options.reference]
    if options.pipeline is not None:
        from tightfit.schemas.pipeline import FILE

        read.append(str(options.pipeline / FILE))
    outputs = [options.out, *([] if options.pipeline is not None else [line_of(options)])]
    settings = settings_of(options) | far
    return [Derived(outputs, read, settings, options.factory, options.search_path)]
