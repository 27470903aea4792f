"""`fit`: tells on which described cards the training step of a model fits, without a GPU."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tightfit.schemas.machine import machine_names, resolve_machine_file
from tightfit.util.command_line import parse_count, parse_json_object
from tightfit.util.errors import ConfigError

if TYPE_CHECKING:
    from tightfit.api.fit import CardProblem
    from tightfit.api.fit_graphs import FitModel

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
DEFAULT_TOKENS = 4096
MAX_WORKERS = 4
FITS_NOWHERE = 3
"""The exit code if the step fits on no card; 1 is that of wrong options and models."""
"""Processes at most, unless an option says more: each takes memory of its own."""
PCI_EXPRESS_4_BANDWIDTH = 31.5e9
"""Bytes a second of 16 lanes in each direction: 16 GT/s with 128 of 130 bits (PCI-SIG, *PCI Express
Base Specification 4.0*)."""
DDR4_BANDWIDTH = 51.2e9
"""Bytes a second of two channels of DDR4-3200 (JEDEC, *JESD79-4*)."""
_TRANSFORMERS = "transformers:"
_MAX_CONFIG_BYTES = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", help="transformers:KIND, such as transformers:llama")
    model.add_argument("--factory", help="package.module:function, as everywhere in tightfit")
    parser.add_argument("--config", type=Path, help="the model's config.json, for --model")
    parser.add_argument(
        "--arguments", default="{}", help="the factory's keyword arguments, a JSON object"
    )
    parser.add_argument(
        "--search-path", action="append", default=[], help="a directory with the factory's package"
    )
    parser.add_argument("--batch", type=parse_count, default=1, help="samples of a step (1)")
    parser.add_argument(
        "--tokens", type=parse_count, help=f"tokens of a sample ({DEFAULT_TOKENS} for --model)"
    )
    parser.add_argument("--dtype", default="", help="of parameters (default: the configuration's)")
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="(default: adamw)")
    known = ",".join(machine_names())
    parser.add_argument(
        "--devices",
        default=known,
        help=f"described cards, by names or JSON files, with commas ({known})",
    )
    parser.add_argument(
        "--host-memory", default="128GB", help="of the computer, for offload (default: 128GB)"
    )
    parser.add_argument(
        "--link-bandwidth",
        type=float,
        default=PCI_EXPRESS_4_BANDWIDTH,
        help="bytes a second between card and host, each way (PCI Express 4.0: 31.5e9)",
    )
    parser.add_argument("--html", type=Path, help="write a page with the frontier of each card")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--jobs", type=parse_count, help="processes that work at a time")


def run(options: argparse.Namespace) -> int:
    """Prints the table, or JSON, and writes the page. Raises ConfigError or ModelError for wrong
    options and models. Returns 3 if the step fits on no card in any way."""
    from tightfit.api.fit import fit_model
    from tightfit.schemas.store import write_bytes
    from tightfit.stages.report.fit_page import build_fit_page, format_fit

    cards = _read_cards(options)
    source = _read_source(options)
    workers = options.jobs or min(os.cpu_count() or 1, MAX_WORKERS)
    fit = fit_model(
        source, options.batch, options.tokens, options.optimizer, cards, workers, _print_progress
    )
    _print_progress("")
    if options.html is not None:
        from tightfit.stages.report.render import render_fit

        write_bytes(options.html, render_fit(build_fit_page(fit)).encode())
    print(json.dumps(fit.document(), indent=2) if options.json else format_fit(fit))
    fits = any(way.fits for card in fit.cards for way in card.ways)
    if not fits:
        least = min(card.least_offload_bytes for card in fit.cards)
        sentence = f"fits on none of these cards: no plan takes less than {least:,} bytes of one"
        print(f"tightfit fit: {fit.model} {sentence}", file=sys.stderr)
    return 0 if fits else FITS_NOWHERE


def _print_progress(doing: str) -> None:
    """Says what is done, on a line that the next one replaces."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{doing}", end=" ..." if doing else "", file=sys.stderr, flush=True)


def _read_cards(options: argparse.Namespace) -> list[CardProblem]:
    from tightfit.api.fit import CardProblem, HostComputer
    from tightfit.util.budget import parse_budget

    memory = parse_budget(options.host_memory, "--host-memory", "a size such as 128GB").size
    if memory is None:
        raise ConfigError(f"--host-memory: {options.host_memory!r} is a share, expected a size")
    if not options.link_bandwidth > 0:
        raise ConfigError(f"--link-bandwidth: {options.link_bandwidth:g}, expected more than 0")
    host = HostComputer(memory, options.link_bandwidth, DDR4_BANDWIDTH)
    found = []
    for name in dict.fromkeys(filter(None, options.devices.split(","))):
        path = None
        if name.endswith(".json") or name in machine_names():
            path = resolve_machine_file(name)
        if path is None:
            known = ", ".join(machine_names())
            raise ConfigError(
                f"--devices: there is no described card {name!r}, use {known}, or the path of a "
                "description (.json)"
            )
        found.append(CardProblem(path.stem, path, host))
    if not found:
        raise ConfigError("--devices: names no card")
    return found


def _read_source(options: argparse.Namespace) -> FitModel:
    """The model that options name."""
    from tightfit.api.fit_graphs import ConfiguredModel, FactoryModel

    if options.factory is None:
        if not options.model.startswith(_TRANSFORMERS):
            raise ConfigError(
                f"--model: {options.model!r} was found, expected transformers:KIND, such as "
                "transformers:llama; use --factory for other models"
            )
        if options.config is None:
            raise ConfigError("--config is needed for --model: the config.json of the model")
        options.tokens = options.tokens or DEFAULT_TOKENS
        config = _read_model_config(options.config)
        return ConfiguredModel(options.model, config, options.tokens, options.dtype)
    if options.config is not None or options.dtype:
        raise ConfigError("--config and --dtype are for --model, a factory takes --arguments")
    given = parse_json_object(options.arguments, "--arguments")
    if isinstance(given.get("batch"), int):
        options.batch = given["batch"]
    path = tuple(map(Path, options.search_path))
    return FactoryModel(options.factory, given, path, options.tokens)


def _read_model_config(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            written = file.read(_MAX_CONFIG_BYTES)
    except OSError as error:
        raise ConfigError(f"--config {path}: cannot be read ({error.strerror})") from error
    return parse_json_object(written, f"--config {path}")
