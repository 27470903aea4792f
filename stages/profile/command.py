"""`profile`: writes the costs of a graph's distinct ops."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tightfit.schemas.costs import Costs, write_costs
from tightfit.schemas.graph.offloadable_parameters import MIN_OFFLOAD_BYTES, offloadable_parameters
from tightfit.schemas.graph.training_graph import Graph, read_graph
from tightfit.schemas.machine import resolve_machine_file
from tightfit.schemas.optimizer_plan import (
    OFFLOADED_PARAMETERS,
    ON_DEVICE,
    PARAMETER_PLACES,
    small_parameters_error,
)
from tightfit.stages.torch_utils.operators_option import add_operators_argument, operators_setting
from tightfit.util.command_line import LineageEntry, parse_count, parse_settings
from tightfit.util.errors import ConfigError

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
"""The optimizers of `torch.optim` whose updates are measured; "momentum" is SGD with momentum."""
SOURCE_OPTIONS = {"machine": "roofline", "costs": "file"}
"""Options that one source of costs takes, which would otherwise say nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument("--graph", required=True, help="graph.arrow of the model")
    parser.add_argument("--out", required=True, help="costs.arrow to write")
    parser.add_argument("--library", help="store whose library of measured costs is used and kept")
    parser.add_argument("--device", default="cpu", help="the device to measure on (default: cpu)")
    parser.add_argument(
        "--threads", type=parse_count, help="threads of the CPU (default: PyTorch's)"
    )
    parser.add_argument("--remeasure", action="store_true", help="measure what is known too")
    parser.add_argument(
        "--source",
        choices=("measured", "roofline", "file"),
        default="measured",
        help="where costs come from (default: measured)",
    )
    parser.add_argument(
        "--machine", help="the described device, by name (h100) or JSON file, for roofline"
    )
    parser.add_argument("--costs", help="costs.arrow to take costs from, for file")
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help="measure its updates of the graph's parameters, too, for `optimizer-offload`",
    )
    parser.add_argument(
        "--optimizer-settings",
        type=parse_settings,
        default={},
        help='JSON object of its settings, as torch.optim takes them: {"weight_decay": 0.1}',
    )
    parser.add_argument(
        "--parameters",
        choices=PARAMETER_PLACES,
        default=ON_DEVICE,
        help="where parameters wait, by the plan that --optimizer is for: with offload a graph "
        "without one that is large enough is refused before anything is measured",
    )
    parser.add_argument("--updates", help="updates.json to write (default: beside --out)")
    parser.add_argument(
        "--link",
        help="machine.json to write: this machine with the link of the device to its offload "
        "target, which is measured once and kept in --library",
    )
    parser.add_argument(
        "--disk",
        help="a folder of the disk, for --link and for updates beside it (default: that of "
        "TIGHTFIT_DISK)",
    )
    parser.add_argument(
        "--second-disk",
        help="a folder of another disk, for --link: a second offload tier behind the slow one",
    )
    parser.add_argument("--factory", help="the model's factory, where the graph has a loss")
    parser.add_argument("--arguments", default="{}", help="JSON object of the factory's arguments")
    parser.add_argument("--search-path", action="append", default=[], help="where factories are")
    add_operators_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Runs the stage; raises ConfigError where an option lacks or is for another source."""
    for name, source in SOURCE_OPTIONS.items():
        if getattr(options, name) is not None and options.source != source:
            raise ConfigError(
                f"--{name}: is for --source {source}, and costs of --source {options.source} do "
                "without it"
            )
    graph = read_graph(options.graph)
    offloaded = options.parameters == OFFLOADED_PARAMETERS
    if offloaded and not offloadable_parameters(graph, MIN_OFFLOAD_BYTES, moves=True):
        raise small_parameters_error(options.graph, MIN_OFFLOAD_BYTES)
    if options.source == "roofline":
        from tightfit.stages.profile.roofline import roofline

        _require_option(options, "machine")
        costs = roofline(graph, _machine_path(options))
    elif options.source == "file":
        from tightfit.stages.profile.cost_library import costs_from_file

        costs = costs_from_file(graph, _require_option(options, "costs"))
    else:
        from tightfit.stages.torch_utils.custom_operators import register_operators

        with register_operators(options.operators, options.search_path):
            costs = _measure_costs(graph, options)
    write_costs(options.out, costs)
    if options.second_disk and options.link is None:
        raise ConfigError("--second-disk: is for --link, which says how fast it is")
    if options.link is not None:
        _measure_link(options)
    if options.optimizer is not None:
        _measure_updates(graph, options)


def _measure_link(options: argparse.Namespace) -> None:
    """Writes the description of this machine with the link to the offload target of the device."""
    from tightfit.stages.profile.link_cache import (
        cached_link,
        cached_second_tier_link,
        write_machine,
    )
    from tightfit.stages.torch_utils.devices import require_device

    if options.source == "roofline":
        raise ConfigError("--link: is measured, and a described device has links of its own")
    if options.library is None:
        raise ConfigError("--library is needed for --link")
    require_device(options.device)
    link = cached_link(options.library, options.device, options.disk, options.remeasure)
    far = None
    if options.second_disk:
        far = cached_second_tier_link(
            options.library, options.device, options.disk, options.second_disk, options.remeasure
        )
    write_machine(Path(options.link), options.device, link, far)


def _measure_updates(graph: Graph, options: argparse.Namespace) -> None:
    """Writes what the updates of a graph's parameters take on the device and beside its slow
    memory; raises ConfigError where that has no room for one."""
    import torch

    from tightfit.schemas.optimizer_plan import write_optimizer_costs
    from tightfit.stages.profile.optimizer_updates import measure_graph_updates
    from tightfit.stages.torch_utils.devices import parse_device, require_device

    require_device(options.device)
    device = parse_device(options.device)
    if options.source == "roofline" or device.type != graph.device:
        raise ConfigError(
            f"--optimizer: updates are measured on the device of the graph, which is {graph.device}"
        )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        found = measure_graph_updates(
            graph, options.optimizer, device, options.disk, options.optimizer_settings
        )
    except RuntimeError as error:
        raise ConfigError(f"--disk: {error}") from error
    write_optimizer_costs(_updates_path(options), found)


def _updates_path(options: argparse.Namespace) -> Path:
    return Path(options.updates or Path(options.out).with_name("updates.json"))


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what. The library is a setting: it holds what was known, not for whom."""
    machine = [_machine_path(options)] if options.machine else []
    read = [options.graph, *machine, *filter(None, [options.costs])]
    settings = {"source": options.source, "device": options.device, "remeasure": options.remeasure}
    settings |= operators_setting(options.operators) | {
        name: getattr(options, name)
        for name in ("library", "threads", "factory")
        if getattr(options, name) is not None
    }
    if options.factory:
        settings["arguments"] = json.loads(options.arguments)
    outputs = [options.out]
    if options.optimizer is not None:
        outputs.append(str(_updates_path(options)))
        settings["optimizer"] = options.optimizer
        more = options.optimizer_settings
        settings |= {"optimizer_settings": more} if more else {}
    if options.link is not None:
        outputs.append(options.link)
    if options.second_disk is not None:
        settings["second_disk"] = options.second_disk
    if options.disk is not None and (options.link, options.optimizer) != (None, None):
        settings["disk"] = options.disk
    return [LineageEntry(outputs, read, settings, options.factory or "", options.search_path)]


def _machine_path(options: argparse.Namespace) -> Path:
    """The description that --machine names; raises ConfigError where it names a device that is
    here."""
    path = resolve_machine_file(options.machine)
    if path is None:
        raise ConfigError(f"--machine {options.machine}: is measured, and not described")
    return path


def _measure_costs(graph: Graph, options: argparse.Namespace) -> Costs:
    import torch

    from tightfit.stages.profile.cost_library import open_cost_library
    from tightfit.stages.profile.loss import build_loss
    from tightfit.stages.profile.profile import profile
    from tightfit.stages.torch_utils.devices import (
        describe_device,
        enter_device,
        parse_device,
        require_device,
    )
    from tightfit.stages.torch_utils.graph_check import check_graph_program
    from tightfit.stages.torch_utils.model_factory import build_from_factory

    library = Path(_require_option(options, "library"))
    require_device(options.device)
    if torch.device(options.device).type != graph.device:
        raise ConfigError(f"--device {options.device}: the graph was traced for {graph.device}")
    check_graph_program(graph, options.graph)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    loss = None
    if graph.has_loss:
        try:
            arguments = json.loads(options.arguments)
        except ValueError as error:
            raise ConfigError(f"--arguments: is not JSON ({error})") from error
        spec = options.factory
        if spec is None:
            raise ConfigError(
                f"--factory is needed to measure {graph.model}: its step has a loss, which is run"
            )
        device = parse_device(options.device)
        with enter_device(device):
            loss = build_loss(
                graph,
                lambda fake: build_from_factory(
                    spec, arguments, fake, options.search_path, options.device
                ),
                device,
            )
    report = _print_progress if sys.stderr.isatty() else None
    with open_cost_library(library, describe_device(options.device)) as opened:
        return profile(graph, loss, opened, options.remeasure, report, options.device)


def _print_progress(done: int, total: int, target: str) -> None:
    end = "\n" if done + 1 == total else ""
    print(f"\r\x1b[Kmeasuring {done + 1}/{total} {target}", end=end, file=sys.stderr, flush=True)


def _require_option(options: argparse.Namespace, name: str) -> str:
    value = getattr(options, name)
    if value is None:
        raise ConfigError(f"--{name} is needed for --source {options.source}")
    return value
