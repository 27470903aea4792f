"""From a model and its sample inputs to the graph of its training step."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from tightfit.schemas.graph.loss_room import with_loss_room
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.runtime.side_effects import SideEffects, loss_with_side_effects
from tightfit.stages.torch_utils.devices import device_of_tensors, enter_device, parse_device
from tightfit.stages.torch_utils.model_factory import BuiltModel, all_tensors
from tightfit.stages.trace.activation_checkpoints import missing_gradient_message
from tightfit.stages.trace.canonicalize.channels_last import (
    ChannelsLastPropagator,
    can_use_channels_last,
)
from tightfit.stages.trace.canonicalize.eager_kernels import (
    match_eager_dropout,
    use_cudnn_batch_norm,
)
from tightfit.stages.trace.canonicalize.extremum_gradients import match_eager_extremum_gradients
from tightfit.stages.trace.canonicalize.gradients import insert_gradient_copies
from tightfit.stages.trace.canonicalize.layout import (
    PROBE_BYTES,
    LayoutPropagator,
    MendedCalls,
    fake_mode_of,
    propagate_layouts,
)
from tightfit.stages.trace.canonicalize.op_order import order_calls, place_buffer_writes
from tightfit.stages.trace.capture import Capture, capture
from tightfit.stages.trace.emit import Emitter, encode_constant
from tightfit.stages.trace.loss_gradients import output_gradients, outputs_with_seed_gradient
from tightfit.stages.trace.number_operands import check_number_operands
from tightfit.stages.trace.program import build_program
from tightfit.stages.trace.size_propagation import hint_tensors
from tightfit.util.errors import ModelError


def trace(
    built: BuiltModel,
    name: str,
    device: str = "cpu",
    channels_last: bool = False,
    loss_room: int | None = 0,
    probe_bytes: int = PROBE_BYTES,
    profiled: bool = True,
) -> Graph:
    """The training step of the first sample, for the kind of device that model and sample are on.

    `name` is the model's label, `device` where they are. With `channels_last` convolutions run on
    such tensors, which gives other bits. `loss_room` are the bytes left to a loss that is not
    traced, None for what the usual ones take. No operator is run but those of at most
    `probe_bytes`, to learn how their results lie in memory, and weights made under a fake mode are
    never allocated. The guards of a trace that is not `profiled` do not have all that the forward
    reads: it is for what nobody runs. Raises ModelError when the model cannot be captured.
    """
    kind = parse_device(device).type
    with enter_device(device_of_tensors(all_tensors(built), kind)):
        mended = MendedCalls(probe_bytes=probe_bytes)
        graph = capture_step(built, kind, profiled).graph(built, name, channels_last, mended)
    return graph if built.loss is not None else with_loss_room(graph, loss_room)


@dataclass(frozen=True)
class CapturedStep:
    """A capture of a model for a kind of device, with the `guards` of a graph and the autocast that
    was on around it."""

    captured: Capture
    guards: dict[str, object]
    ambient: torch.autocast

    def graph(
        self,
        built: BuiltModel,
        name: str,
        channels_last: bool,
        mended: MendedCalls | None = None,
    ) -> Graph:
        """The graph of the step, under a name; `built` is the model that was captured, with a
        sample of the sizes that the captured tensors have. `mended` has what was found about
        layouts at other sizes."""
        with torch.autocast(self.ambient.device, enabled=False):
            of_step = _with_step_loss(built, self.captured)
            own = (self.captured, name, self.ambient, self.guards, channels_last)
            return _build_graph(of_step, *own, mended)


def _outputs_with_gradient(built: BuiltModel, first: Capture) -> set[int]:
    """The numbers of the outputs that receive a gradient from the loss."""
    outputs = [node.meta["val"] for node in first.outputs]
    if built.symbolic:
        outputs = hint_tensors(outputs)
    of_step = _with_step_loss(built, first)
    grown = output_gradients(of_step, outputs, first.leaves, first.output_tree)
    return {number for number, gradient in enumerate(grown) if gradient is not None}


def _expected_outputs(built: BuiltModel) -> set[int] | None:
    """The outputs of a symbolic capture that are likely to receive a gradient: those of a capture
    without symbols, which takes a fraction of the time. None where there is none."""
    with contextlib.suppress(ModelError):
        plain = replace(built, symbolic=False)
        return _outputs_with_gradient(plain, capture(plain, profiled=False))
    return None


def capture_step(built: BuiltModel, kind: str, profiled: bool = True) -> CapturedStep:
    """Captures the step of a model on a kind of device."""
    wanted = None if built.loss is None else partial(_outputs_with_gradient, built)
    guards = _guards(built.model, kind)
    expected = _expected_outputs(built) if built.symbolic and wanted is not None else None
    captured = capture(built, wanted, profiled=profiled, expected=expected)
    check_number_operands(built, captured.graph, captured.inputs)
    ambient = torch.autocast(
        kind, torch.get_autocast_dtype(kind), enabled=torch.is_autocast_enabled(kind)
    )
    guards |= {
        "no_python_backward": captured.plain_backward,
        "requires_all_output_gradients": captured.all_arrive,
        "guards": captured.watched,
        "assigned_buffers": captured.assigned,
        "saved_writes": captured.saved_writes,
        "backward_writes": captured.backward_writes,
        "multi_view_outputs": [i for i, leaf in enumerate(captured.leaves) if leaf.multiple],
        "checkpointed": captured.checkpointed,
        "checkpoint_mismatch_causes": captured.causes,
        "checkpoints_without_gradients": captured.ungraded,
        "queries_layout": captured.asks_layout,
        "same_object_inputs": [[leaf, first] for leaf, first in captured.alike.items()],
        "unused_inputs": captured.unread,
        "all_ones_inputs": captured.ones,
        "all_ones_samples": captured.wished,
        "other_masks": captured.masks,
        "not_all_ones_inputs": list(built.mixed),
        "tensor_queries": [[fact, of_input] for fact, of_input in captured.asked],
    }
    return CapturedStep(captured, guards, ambient)


def _with_step_loss(built: BuiltModel, captured: Capture) -> BuiltModel:
    """The same with the loss of what the step gives: with side effects, a pair."""
    if built.loss is None:
        return built
    effects = SideEffects(captured.side_effects)
    return replace(built, loss=loss_with_side_effects(built.loss, effects, built.model))


def _build_graph(
    built: BuiltModel,
    captured: Capture,
    name: str,
    ambient: torch.autocast,
    guards: dict[str, object],
    channels_last: bool,
    mended: MendedCalls | None,
) -> Graph:
    """The graph of a capture, laid out and with its writes and gradients in their places; the loss
    runs under the `ambient` autocast, as the model did."""
    loss, kind = built.loss, ambient.device
    for leaf in captured.leaves:
        if leaf.tensor is None:
            encode_constant(leaf.constant, f"{built.label}: the model's output")
    if not captured.tangents:
        raise ModelError(
            f"{built.label}: no output of the model depends on what requires a gradient"
            + "".join(f"; {missing_gradient_message(place)}" for place in captured.ungraded)
        )
    program = build_program(captured, _tensor_names(built.model))
    if kind == "cpu":
        match_eager_dropout(program)
        match_eager_extremum_gradients(program)
    use_cudnn_batch_norm(program)
    order_calls(program)

    def tangents(outputs: list[torch.Tensor]) -> list[torch.Tensor | None]:
        if loss is None:
            return [torch.ones_like(output) for output in outputs]
        with ambient:
            return output_gradients(built, outputs, captured.leaves, captured.output_tree)

    layout = LayoutPropagator(fake_mode_of(program), mended)
    propagate_layouts(program, tangents, layout)
    if channels_last and can_use_channels_last(program):
        propagate_layouts(program, tangents, ChannelsLastPropagator(program))
    place_buffer_writes(program)
    insert_gradient_copies(program)
    held: set[int] = set()
    if loss is not None:
        fakes = [output.fake for output in program.outputs]
        with ambient:
            held = outputs_with_seed_gradient(built, fakes, captured.leaves, captured.output_tree)
    return Emitter(program, kind, held).graph(
        captured.leaves,
        built.samples[0],
        {name for name, weight in built.model.named_parameters() if weight.requires_grad},
        model=name,
        has_loss=loss is not None,
        output_tree=captured.output_tree,
        guards=json.dumps(guards),
    )


def _tensor_names(model: nn.Module) -> dict[str, list[str]]:
    """All names of the tensor that each name of a parameter or buffer stands for."""
    groups: dict[int, list[str]] = {}
    for name, tensor in (
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ):
        groups.setdefault(id(tensor), []).append(name)
    return {name: names for names in groups.values() for name in names}


def _guards(model: nn.Module, device: str) -> dict[str, object]:
    return {
        "eval_modules": [path for path, module in model.named_modules() if not module.training],
        "autocast": {
            "enabled": torch.is_autocast_enabled(device),
            "dtype": str(torch.get_autocast_dtype(device)).removeprefix("torch."),
            "cache": torch.is_autocast_cache_enabled(),
        },
    }
