"""What the commands that run a model take: its factory, the device, and how often it is timed."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.schemas.digits import count
from tightfit.schemas.errors import ConfigError
from tightfit.schemas.graph import Graph
from tightfit.stages.device.operators_option import add_operators_argument, operators_settings

if TYPE_CHECKING:
    from tightfit.stages.device.factory import Built


def add_model_arguments(parser: argparse.ArgumentParser, runs: int, timed: str) -> None:
    """Adds their options; `runs` is how often it is timed by default, `timed` what is."""
    parser.add_argument("--factory", required=True, help="the model's factory, module:function")
    parser.add_argument("--arguments", default="{}", help="JSON object of the factory's arguments")
    parser.add_argument("--search-path", action="append", default=[], help="where factories are")
    add_operators_argument(parser)
    parser.add_argument("--device", default="cpu", help="the device to run on (default: cpu)")
    parser.add_argument("--threads", type=count, help="threads of the CPU (default: PyTorch's)")
    parser.add_argument("--pairs", type=int, default=runs, help=f"{timed} (default: {runs})")


def arguments_of(options: argparse.Namespace) -> dict[str, Any]:
    """The factory's arguments; raises ConfigError where they are not JSON."""
    try:
        arguments: dict[str, Any] = json.loads(options.arguments)
    except ValueError as error:
        raise ConfigError(f"--arguments: is not JSON ({error})") from error
    return arguments


def line_of(options: argparse.Namespace) -> Path:
    """The file of memory lines that is to be written."""
    return Path(options.line or Path(options.out).with_name("line.arrow"))


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """The options by name, for the record of what was made of what."""
    return {
        "factory": options.factory,
        "arguments": arguments_of(options),
        "device": options.device,
        "pairs": options.pairs,
        **operators_settings(options),
        **({} if options.threads is None else {"threads": options.threads}),
    }


@contextlib.contextmanager
def building(options: argparse.Namespace, graph: Graph) -> Iterator[Built]:
    """Within it the model is there, with its operators registered and the threads that were asked
    for. Raises ConfigError where the graph is of another kind of device."""
    import torch

    from tightfit.stages.device.devices import require_device
    from tightfit.stages.device.factory import build
    from tightfit.stages.device.foreign import registered
    from tightfit.stages.validate.comparison import SEED

    require_device(options.device)
    if torch.device(options.device).type != graph.device:
        raise ConfigError(f"--device {options.device}: the graph was traced for {graph.device}")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    arguments = arguments_of(options)
    torch.manual_seed(SEED)
    with registered(options.operators, options.search_path):
        place = {"search_path": options.search_path, "device": options.device}
        yield build(options.factory, arguments, **place)
