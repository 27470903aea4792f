"""`profile`: writes the costs of a graph's distinct ops."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tightfit.schemas.costs import Costs, write_costs
from tightfit.schemas.derived import Derived
from tightfit.schemas.digits import count
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.graph import Graph, read_graph
from tightfit.schemas.machine import machine_file
from tightfit.stages.device.operators_option import add_operators_argument, operators_settings

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
"""The optimisers of `torch.optim` whose updates are measured; "momentum" is SGD with momentum."""
TAKEN_BY = {"machine": "roofline", "costs": "file"}
"""Options that one source of costs takes, which would otherwise say nothing."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the stage."""
    parser.add_argument("--graph", required=True, help="graph.arrow of the model")
    parser.add_argument("--out", required=True, help="costs.arrow to write")
    parser.add_argument("--library", help="store whose library of measured costs is used and kept")
    parser.add_argument("--device", default="cpu", help="the device to measure on (default: cpu)")
    parser.add_argument("--threads", type=count, help="threads of the CPU (default: PyTorch's)")
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
        help="measure its updates of the graph's parameters, too, for `whole`",
    )
    parser.add_argument("--updates", help="updates.json to write (default: beside --out)")
    parser.add_argument(
        "--link",
        help="machine.json to write: this machine with the link of the device to its slow memory, "
        "which is measured once and kept in --library",
    )
    parser.add_argument(
        "--disk",
        help="a folder of the disk, for --link and for updates beside it (default: that of "
        "TIGHTFIT_DISK)",
    )
    parser.add_argument(
        "--far-disk",
        help="a folder of another disk, for --link: a third memory behind the slow one",
    )
    parser.add_argument("--factory", help="the model's factory, where the graph has a loss")
    parser.add_argument("--arguments", default="{}", help="JSON object of the factory's arguments")
    parser.add_argument("--search-path", action="append", default=[], help="where factories are")
    add_operators_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Runs the stage; raises ConfigError where an option lacks or is for another source."""
    for name, source in TAKEN_BY.items():
        if getattr(options, name) is not None and options.source != source:
            raise ConfigError(
                f"--{name}: is for --source {source}, and costs of --source {options.source} do "
                "without it"
            )
    graph = read_graph(options.graph)
    if options.source == "roofline":
        from tightfit.stages.profile.roofline import roofline

        _required(options, "machine")
        costs = roofline(graph, _machine(options))
    elif options.source == "file":
        from tightfit.stages.profile.forms import from_file

        costs = from_file(graph, _required(options, "costs"))
    else:
        from tightfit.stages.device.foreign import registered

        with registered(options.operators, options.search_path):
            costs = _measure(graph, options)
    write_costs(options.out, costs)
    if options.far_disk and options.link is None:
        raise ConfigError("--far-disk: is for --link, which says how fast it is")
    if options.link is not None:
        _measure_link(options)
    if options.optimizer is not None:
        _measure_updates(graph, options)


def _measure_link(options: argparse.Namespace) -> None:
    """Writes the description of this machine with the link to the slow memory of the device."""
    from tightfit.stages.device.devices import require_device
    from tightfit.stages.profile.kept_links import kept_far_link, kept_link, write_machine

    if options.source == "roofline":
        raise ConfigError("--link: is measured, and a described device has links of its own")
    if options.library is None:
        raise ConfigError("--library is needed for --link")
    require_device(options.device)
    link = kept_link(options.library, options.device, options.disk, options.remeasure)
    far = None
    if options.far_disk:
        far = kept_far_link(
            options.library, options.device, options.disk, options.far_disk, options.remeasure
        )
    write_machine(Path(options.link), options.device, link, far)


def _measure_updates(graph: Graph, options: argparse.Namespace) -> None:
    """Writes what the updates of a graph's parameters take on the device and beside its slow
    memory; raises ConfigError where that has no room for one."""
    import torch

    from tightfit.schemas.measured_updates import write_measured
    from tightfit.stages.device.devices import device_named, require_device
    from tightfit.stages.profile.updates import measured_of

    require_device(options.device)
    device = device_named(options.device)
    if options.source == "roofline" or device.type != graph.device:
        raise ConfigError(
            f"--optimizer: updates are measured on the device of the graph, which is {graph.device}"
        )
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    try:
        found = measured_of(graph, options.optimizer, device, options.disk)
    except RuntimeError as error:
        raise ConfigError(f"--disk: {error}") from error
    write_measured(_updates_path(options), found)


def _updates_path(options: argparse.Namespace) -> Path:
    return Path(options.updates or Path(options.out).with_name("updates.json"))


def derived(options: argparse.Namespace) -> list[Derived]:
    """What `run` made of what. The library is a setting: it holds what was known, not for whom."""
    machine = [_machine(options)] if options.machine else []
    read = [options.graph, *machine, *filter(None, [options.costs])]
    settings = {"source": options.source, "device": options.device, "remeasure": options.remeasure}
    settings |= operators_settings(options) | {
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
    if options.link is not None:
        outputs.append(options.link)
    if options.far_disk is not None:
        settings["far_disk"] = options.far_disk
    if options.disk is not None and (options.link, options.optimizer) != (None, None):
        settings["disk"] = options.disk
    return [Derived(outputs, read, settings, options.factory or "", options.search_path)]


def _machine(options: argparse.Namespace) -> Path:
    """The description that --machine names; raises ConfigError where it names a device that is
    here."""
    path = machine_file(options.machine)
    if path is None:
        raise ConfigError(f"--machine {options.machine}: is measured, and not described")
    return path


def _measure(graph: Graph, options: argparse.Namespace) -> Costs:
    import torch

    from tightfit.stages.device.check import check_program
    from tightfit.stages.device.devices import device_named, entered, require_device
    from tightfit.stages.device.factory import build
    from tightfit.stages.device.identity import describe_device
    from tightfit.stages.profile.library import open_library
    from tightfit.stages.profile.loss import working_loss
    from tightfit.stages.profile.profile import profile

    library = Path(_required(options, "library"))
    require_device(options.device)
    if torch.device(options.device).type != graph.device:
        raise ConfigError(f"--device {options.device}: the graph was traced for {graph.device}")
    check_program(graph, options.graph)
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
        device = device_named(options.device)
        with entered(device):
            loss = working_loss(
                graph,
                lambda fake: build(spec, arguments, fake, options.search_path, options.device),
                device,
            )
    report = _report if sys.stderr.isatty() else None
    with open_library(library, describe_device(options.device)) as opened:
        return profile(graph, loss, opened, options.remeasure, report, options.device)


def _report(done: int, total: int, target: str) -> None:
    end = "\n" if done + 1 == total else ""
    print(f"\r\x1b[Kmeasuring {done + 1}/{total} {target}", end=end, file=sys.stderr, flush=True)


def _required(options: argparse.Namespace, name: str) -> str:
    value = getattr(options, name)
    if value is None:
        raise ConfigError(f"--{name} is needed for --source {options.source}")
    return value
