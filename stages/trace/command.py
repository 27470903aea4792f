"""`tightfit trace`: a factory's model as a graph file."""

from __future__ import annotations

import argparse
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tightfit.schemas.config_dynamic import parse_axes
from tightfit.stages.torch_utils.operators_option import add_operators_argument, operators_setting
from tightfit.util.budget import USUAL_LOSS_ROOM, parse_loss_room
from tightfit.util.command_line import LineageEntry, parse_json_object, parse_settings

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph
    from tightfit.stages.torch_utils.model_factory import BuiltModel

CAPTURE_MODULES = (
    "torch._functorch.aot_autograd",
    "torch._decomp.decompositions_for_rng",
)
"""What a capture loads of PyTorch. What is traced depends on the modules that are loaded: `trace`
loads these first, whether its process is new or that of a job server."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the stage."""
    parser.add_argument("--factory", required=True, help="package.module:function")
    parser.add_argument("--arguments", default="{}", help="keyword arguments, a JSON object")
    parser.add_argument("--name", required=True, help="the model's label")
    parser.add_argument("--device", default="cpu", help="the device that will train it")
    parser.add_argument("--out", required=True, help="the graph file to write")
    parser.add_argument(
        "--search-path", action="append", default=[], help="a directory with the factory's package"
    )
    parser.add_argument(
        "--assume-all-ones-masks",
        action="store_true",
        help="rest on inputs that hold nothing but ones",
    )
    parser.add_argument(
        "--channels-last",
        action="store_true",
        help="convolutions on such tensors, for fused kernels",
    )
    parser.add_argument(
        "--loss-room",
        default="0",
        help="bytes that plans leave to a loss which the factory does not give: a size, or "
        f"{USUAL_LOSS_ROOM} for what the usual losses take (default: 0)",
    )
    parser.add_argument(
        "--dynamic-shapes",
        type=parse_settings,
        help="which axes of arguments differ from call to call, a JSON object such as "
        '{"input_ids": {"0": "batch", "1": "tokens"}}',
    )
    parser.add_argument(
        "--dimensions",
        type=parse_settings,
        default={},
        help='their ranges, a JSON object such as {"tokens": {"min": 16, "max": 1024}} (default: '
        "up to the size of the sample)",
    )
    parser.add_argument(
        "--plans",
        type=int,
        choices=(1, 2),
        default=1,
        help="how many plans these calls have at most: with 2 a second one for up to half of the "
        "range of one dimension (default: 1)",
    )
    add_operators_argument(parser)


def run(options: argparse.Namespace) -> None:
    """Builds the model without memory where it can be, captures it and writes the graph. Where it
    may rest on ones, the model is built with memory: inputs without have no contents. So it is
    where sizes are dynamic: a symbolic capture takes no tensors of another mode."""
    from tightfit.schemas.graph.training_graph import write_graph
    from tightfit.stages.torch_utils.custom_operators import register_operators
    from tightfit.stages.torch_utils.model_factory import build_from_factory
    from tightfit.stages.trace.program import FakeConstantError

    for module in CAPTURE_MODULES:
        import_module(module)
    arguments = parse_arguments(options.arguments)
    where = (options.search_path, options.device)
    with register_operators(options.operators, options.search_path):
        try:
            needs_memory = options.assume_all_ones_masks or options.dynamic_shapes is not None
            built = build_from_factory(options.factory, arguments, not needs_memory, *where)
            graph = _trace_built(built, options)
        except FakeConstantError:
            built = build_from_factory(options.factory, arguments, False, *where)
            graph = _trace_built(built, options)
    write_graph(options.out, graph)


def _trace_built(built: BuiltModel, options: argparse.Namespace) -> Graph:
    from tightfit.stages.trace.trace import trace

    given = replace(built, ones=options.assume_all_ones_masks)
    room = parse_loss_room(options.loss_room, "--loss-room")
    own = (options.name, options.device, options.channels_last, room)
    if options.dynamic_shapes is None:
        return trace(given, *own)
    from tightfit.stages.torch_utils.dynamic_axes import with_dynamic_axes
    from tightfit.stages.trace.dynamic_trace import trace_dynamic

    axes = parse_axes(options.dynamic_shapes)
    enlarged = with_dynamic_axes(given, axes, options.dimensions, "dynamic", options.plans)
    return trace_dynamic(enlarged, *own)


def lineage_entries(options: argparse.Namespace) -> list[LineageEntry]:
    """What `run` made of what."""
    settings = {
        "factory": options.factory,
        "arguments": parse_arguments(options.arguments),
        "name": options.name,
        "device": options.device,
        **({"assume_all_ones_masks": True} if options.assume_all_ones_masks else {}),
        **({"channels_last": True} if options.channels_last else {}),
        **({"loss_room": options.loss_room} if options.loss_room != "0" else {}),
        **(
            {"dynamic_shapes": options.dynamic_shapes, "dimensions": options.dimensions}
            if options.dynamic_shapes is not None
            else {}
        ),
        **({"plans": options.plans} if options.plans > 1 else {}),
        **operators_setting(options.operators),
    }
    return [LineageEntry([options.out], [], settings, options.factory, options.search_path)]


def parse_arguments(text: str) -> dict[str, Any]:
    """The factory's keyword arguments; raises ConfigError when the text is no JSON object."""
    return parse_json_object(text, "--arguments")
