"""`validate`: runs a planned module against the original model and writes what it measured."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.schemas import store
from tightfit.schemas.dynamic_plan import parse_dynamic_plan
from tightfit.schemas.graph.training_graph import Graph, has_fused_kernels, read_graph
from tightfit.schemas.measurement import write_measurement, write_memory_timeline
from tightfit.schemas.package_manifest import check_package_sources, module_digest
from tightfit.schemas.plan import plan_digest
from tightfit.stages.torch_utils.operators_option import add_operators_argument, operators_setting
from tightfit.util.budget import NO_BUDGET
from tightfit.util.command_line import LineageEntry, parse_count, parse_settings
from tightfit.util.errors import ConfigError
from tightfit.util.progress import ProgressCallback

if TYPE_CHECKING:
    from tightfit.schemas.pipeline import PipelineSchedule
    from tightfit.schemas.pipeline_measurement import PipelineMeasurement
    from tightfit.schemas.pipeline_plan import PipelinePlan
    from tightfit.stages.torch_utils.model_factory import BuiltModel
    from tightfit.stages.validate.measure import OriginalMeasurement
    from tightfit.stages.validate.step_timer import RemoteStepTimer
    from tightfit.stages.validate.validate import Validation


def add_model_arguments(parser: argparse.ArgumentParser, runs: int, timed: str) -> None:
    """Adds their options; `runs` is how often it is timed by default, `timed` what is."""
    parser.add_argument("--factory", required=True, help="the model's factory, module:function")
    parser.add_argument("--arguments", default="{}", help="JSON object of the factory's arguments")
    parser.add_argument("--search-path", action="append", default=[], help="where factories are")
    add_operators_argument(parser)
    parser.add_argument("--device", default="cpu", help="the device to run on (default: cpu)")
    parser.add_argument(
        "--threads", type=parse_count, help="threads of the CPU (default: PyTorch's)"
    )
    parser.add_argument("--pairs", type=int, default=runs, help=f"{timed} (default: {runs})")


def parse_factory_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """The factory's arguments; raises ConfigError where they are not JSON."""
    try:
        arguments: dict[str, Any] = json.loads(options.arguments)
    except ValueError as error:
        raise ConfigError(f"--arguments: is not JSON ({error})") from error
    return arguments


def memory_line_path(options: argparse.Namespace) -> Path:
    """The file of memory lines that is to be written."""
    return Path(options.timeline or Path(options.out).with_name("memory_timeline.arrow"))


def lineage_settings(options: argparse.Namespace) -> dict[str, Any]:
    """The options by name, for the record of what was made of what."""
    return {
        "factory": options.factory,
        "arguments": parse_factory_arguments(options),
        "device": options.device,
        "pairs": options.pairs,
        **operators_setting(options.operators),
        **({} if options.threads is None else {"threads": options.threads}),
    }


def wait_passively() -> None:
    """Threads that wait for others sleep, unless PyTorch is loaded or the environment says
    otherwise: they would take processor time that is none of a step."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextlib.contextmanager
def prepare_model(options: argparse.Namespace, graph: Graph) -> Iterator[BuiltModel]:
    """Within it the model is there, with its operators registered and the threads that were asked
    for. Raises ConfigError where the graph is of another kind of device."""
    import torch

    from tightfit.stages.torch_utils.custom_operators import register_operators
    from tightfit.stages.torch_utils.devices import require_device
    from tightfit.stages.torch_utils.model_factory import build_from_factory
    from tightfit.stages.validate.comparison import SEED
    from tightfit.stages.validate.dynamic_sizes import with_graph_sizes

    require_device(options.device)
    if torch.device(options.device).type != graph.device:
        raise ConfigError(f"--device {options.device}: the graph was traced for {graph.device}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    arguments = parse_factory_arguments(options)
    torch.manual_seed(SEED)
    with register_operators(options.operators, options.search_path):
        place = {"search_path": options.search_path, "device": options.device}
        yield with_graph_sizes(build_from_factory(options.factory, arguments, **place), graph)


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
    parser.add_argument(
        "--sample-arguments",
        action="append",
        type=parse_settings,
        help="JSON object of further arguments of the factory, one for each --graph: taken are "
        "those of the graph that the module was made from",
    )
    parser.add_argument("--plan", required=True, help="plan.json of the planned module")
    parser.add_argument(
        "--pipeline", type=Path, help="the folder that `pipeline` wrote, where the module is one"
    )
    parser.add_argument("--module", required=True, help="directory of the planned module")
    parser.add_argument(
        "--keep-all",
        help="directory of the module that keeps everything with fused kernels; not for eager's",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        help="reference.arrow of the model, with memory_timeline.arrow beside it: the model's "
        "own step is not run again where the plan gives what it gave",
    )
    parser.add_argument(
        "--disk", help="the folder of a disk that a plan sends to (default: that of TIGHTFIT_DISK)"
    )
    parser.add_argument(
        "--second-disk",
        help="the folder of a second offload tier, where the plan has states in one",
    )
    parser.add_argument("--plan-seconds", type=float, help="how long planning took, to record")
    parser.add_argument(
        "--out", required=True, help="measurement.arrow to write, of a pipeline measurement.json"
    )
    parser.add_argument(
        "--timeline", help="memory lines to write (default: memory_timeline.arrow beside --out)"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the stage, prints what was measured in one line, and returns the exit code: 1 for a plan
    that failed, unless many are validated at a time. Of an infeasible plan nothing is built, and
    the line says so."""
    from tightfit.schemas.package_manifest import find_package_graph
    from tightfit.stages.validate.predictions import predicted_measurement, read_predictions
    from tightfit.stages.validate.result_line import describe_measurement
    from tightfit.util.command_line import is_standalone, print_status

    if options.pipeline is not None:
        return _run_pipeline(options)
    wait_passively()
    path = find_package_graph(options.module, options.graph)
    _take_sample_arguments(options, path)
    graph, plan = read_graph(path), read_predictions(options.plan)
    check_package_sources(options.module, store.read_header(path).digest, plan_digest(options.plan))
    if options.pairs < 0:
        raise ConfigError(f"--pairs {options.pairs}: must be 0 or more")
    if any(map(has_fused_kernels, options.graph)) != (options.keep_all is not None):
        raise ConfigError(
            "--keep-all: is for graphs of fused kernels, and needed there (the module of the "
            "strategy keep_all)"
        )
    if plan.get("gpu") and graph.device == "cpu":
        raise ConfigError(
            f"{options.plan}: is a plan for a GPU by its description, which is not here: there is "
            "nothing to validate it on"
        )
    digest = module_digest(options.module)
    if plan.get("status") == "infeasible":
        write_memory_timeline(memory_line_path(options), [])
        found = predicted_measurement(graph, plan, options.plan_seconds)
    else:
        result = _run_validation(options, path, graph, plan)
        write_memory_timeline(memory_line_path(options), result.line)
        found = result.measurement
    write_measurement(options.out, found, digest)
    said = describe_measurement(found, str(plan.get("message", "")))
    print_status(found.status, said, options)
    return int(found.status == "failed" and is_standalone(options))


def _take_sample_arguments(options: argparse.Namespace, path: Path) -> None:
    """Adds the further arguments of the graph at `path` to those of the factory, once. Raises
    ConfigError where there are not as many as graphs."""
    if options.sample_arguments is None:
        return
    if len(options.sample_arguments) != len(options.graph):
        raise ConfigError(
            f"there are {len(options.graph)} --graph and {len(options.sample_arguments)} "
            "--sample-arguments, expected as many"
        )
    own = options.sample_arguments[options.graph.index(path)]
    options.arguments = json.dumps({**parse_factory_arguments(options), **own})
    options.sample_arguments = None


def _run_validation(
    options: argparse.Namespace, path: Path, graph: Graph, plan: dict[str, Any]
) -> Validation:
    """What a module of the graph at `path` is found to do."""
    from tightfit.stages.validate.load import use_disk_folder
    from tightfit.stages.validate.offloaded_parameters import (
        has_offloaded_parameters,
        validate_offloaded_step,
    )
    from tightfit.stages.validate.validate import validate
    from tightfit.util.progress import ProgressPrinter

    _set_plan_threads(options, plan)
    asked = "" if plan["budget"] == NO_BUDGET else f" {plan['budget']}"
    printer = ProgressPrinter(f"{graph.model}: running {plan['strategy']}{asked}", "steps at most")
    with (
        _start_original_timer(options, graph) as timer,
        prepare_model(options, graph) as built,
        use_disk_folder(options.disk),
    ):
        if has_offloaded_parameters(options.module):
            return validate_offloaded_step(
                graph,
                built,
                plan,
                options.module,
                options.pairs,
                options.device,
                second_disk=options.second_disk,
                report=printer.report,
            )
        result = validate(
            graph,
            built,
            plan,
            options.module,
            options.pairs,
            options.plan_seconds,
            options.device,
            options.keep_all if has_fused_kernels(path) else None,
            printer.report,
            _load_original(options, timer),
        )
        result = _add_sizes(options, graph, built, plan, result, printer.report)
        return _add_eager_fallback(options, built, result)


def _set_plan_threads(options: argparse.Namespace, plan: Mapping[str, Any]) -> None:
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


@contextlib.contextmanager
def _start_original_timer(
    options: argparse.Namespace, graph: Graph
) -> Iterator[RemoteStepTimer | None]:
    """Within it a process of its own can time steps of the model beside those of a plan, on the CPU
    and where its own step was measured before. It is forked from one whose threads have not begun,
    and has no model until it is asked for a step."""
    from tightfit.stages.validate.step_timer import RemoteStepTimer, StepTimer
    from tightfit.stages.validate.training_step import StepRunner, detach_sample
    from tightfit.util.child_process import can_fork

    if options.reference is None or not options.pairs or graph.device != "cpu" or not can_fork():
        yield None
        return
    prepared = contextlib.ExitStack()

    def make() -> StepTimer:
        built = prepared.enter_context(prepare_model(options, graph))
        sample = detach_sample(built.samples[0])
        return StepTimer(built.model, StepRunner.of(graph, built), sample, options.device)

    with contextlib.closing(RemoteStepTimer(make)) as timer:
        yield timer


def _load_original(
    options: argparse.Namespace, timer: RemoteStepTimer | None
) -> OriginalMeasurement | None:
    """What was measured of the model's own step, with what times it again, None where nothing is
    given, or where it was measured on another device, with another build of PyTorch or other
    threads. Raises ConfigError where it is another model's."""
    from tightfit.schemas.measurement import read_memory_timeline
    from tightfit.schemas.reference import read_reference
    from tightfit.stages.validate.measure import OriginalMeasurement

    if options.reference is None:
        return None
    reference = read_reference(options.reference)
    if reference.graph not in [store.read_header(path).digest for path in options.graph]:
        raise ConfigError(
            f"--reference {options.reference}: was measured of another graph than "
            f"{options.graph[0]}, measure it again with `tightfit reference`"
        )
    found = OriginalMeasurement(
        reference,
        read_memory_timeline(options.reference.with_name("memory_timeline.arrow")),
        timer,
    )
    return found if found.matches_device(options.device) else None


def _add_sizes(
    options: argparse.Namespace,
    graph: Graph,
    built: BuiltModel,
    plan: Mapping[str, Any],
    result: Validation,
    report: ProgressCallback,
) -> Validation:
    """The result with what is found at other sizes of a graph with dynamic shapes."""
    from tightfit.schemas.measurement import FAILED_STATUS
    from tightfit.stages.validate.dynamic_sizes import add_size_measurements
    from tightfit.stages.validate.load import load_planned_module

    if graph.dynamic is None or result.measurement.status == FAILED_STATUS:
        return result
    given = plan.get("dynamic")
    predicted = None if given is None else parse_dynamic_plan(given, str(options.plan))
    planned = load_planned_module(options.module, built.model)
    own = (result.measurement, graph, built, planned, predicted, report)
    return replace(result, measurement=add_size_measurements(*own))


def _add_eager_fallback(
    options: argparse.Namespace, built: BuiltModel, result: Validation
) -> Validation:
    """The result with what is found of a plan of eager's kernels that the module carries."""
    from tightfit.schemas.measurement import FAILED_STATUS
    from tightfit.stages.validate.eager_fallback import check_eager_fallback, has_eager_fallback

    found = result.measurement
    if found.status == FAILED_STATUS or not has_eager_fallback(options.module):
        return result
    own = [path for path in options.graph if not has_fused_kernels(path)]
    if not own:
        raise ConfigError(
            f"{options.module}: carries a plan of eager's kernels, give its graph as --graph, too"
        )
    wrong, told = check_eager_fallback(read_graph(own[0]), built, options.module, options.device)
    if wrong:
        return replace(result, measurement=replace(found, status=FAILED_STATUS, message=wrong))
    said = f"{found.message} {told}".strip()
    return replace(result, measurement=replace(found, message=said))


def _run_pipeline(options: argparse.Namespace) -> int:
    """Runs the ranks of a pipeline on this machine, prints the status and returns the exit code;
    of an infeasible plan nothing is built."""
    from tightfit.schemas.graph.training_graph import GRAPH
    from tightfit.schemas.pipeline import PIPELINE_FILE, read_pipeline
    from tightfit.schemas.pipeline_measurement import FAILED_STATUS, write_pipeline_measurement
    from tightfit.schemas.pipeline_plan import read_pipeline_plan
    from tightfit.util.command_line import is_standalone, print_status

    pipeline, plan = (
        read_pipeline(options.pipeline / PIPELINE_FILE),
        read_pipeline_plan(options.plan),
    )
    [graph] = [store.read(path, GRAPH).digest for path in options.graph]
    if graph != pipeline.graph:
        raise ConfigError(f"{options.pipeline}: is the pipeline of another graph")
    check_package_sources(options.module, graph, plan_digest(options.plan))
    measured = _measure_pipeline(options, pipeline, plan)
    write_pipeline_measurement(options.out, measured)
    print_status(measured.status, measured.message, options)
    return int(measured.status == FAILED_STATUS and is_standalone(options))


def _measure_pipeline(
    options: argparse.Namespace, pipeline: PipelineSchedule, plan: PipelinePlan
) -> PipelineMeasurement:
    """What the ranks of a pipeline are found to do."""
    import torch

    from tightfit.stages.torch_utils.custom_operators import register_operators
    from tightfit.stages.validate.load import load_package
    from tightfit.stages.validate.pipeline import (
        ModelSource,
        infeasible_measurement,
        validate_pipeline,
    )
    from tightfit.util.progress import ProgressPrinter

    if not pipeline.feasible:
        return infeasible_measurement(pipeline, plan)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    load_package(options.module)
    source = ModelSource(options.factory, parse_factory_arguments(options), options.search_path)
    with register_operators(options.operators, options.search_path):
        printer = ProgressPrinter(f"{pipeline.model}: running its pipeline", "steps")
        return validate_pipeline(source, pipeline, plan, Path(options.module), printer.report)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    far = {} if options.second_disk is None else {"second_disk": options.second_disk}
    from tightfit.schemas.package_manifest import find_package_graph

    graph = options.graph[0]
    if options.pipeline is None:
        graph = find_package_graph(options.module, options.graph)
    read = [graph, options.plan, options.module]
    read += [options.keep_all] if options.keep_all is not None and has_fused_kernels(graph) else []
    read += [] if options.reference is None else [options.reference]
    if options.pipeline is not None:
        from tightfit.schemas.pipeline import PIPELINE_FILE

        read.append(str(options.pipeline / PIPELINE_FILE))
    outputs = [options.out, *([] if options.pipeline is not None else [memory_line_path(options)])]
    settings = lineage_settings(options) | far
    return [LineageEntry(outputs, read, settings, options.factory, options.search_path)]
