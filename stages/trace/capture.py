"""Captures a model's joint forward and backward with PyTorch's AOTAutograd.

The only module that touches the private capture API (torch 2.11 to 2.13); what it gives is a
`Capture` in plain FX terms. The forward really runs, on tensors without memory, and autograd runs
its backward, so that what Python does in either is captured.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.function import FunctionCtx

from tightfit.stages.runtime.pytree import argument_name
from tightfit.stages.runtime.pytree_classes import register_key_value_caches
from tightfit.stages.runtime.side_effects import SideEffect
from tightfit.stages.torch_utils.model_factory import BuiltModel, all_tensors
from tightfit.stages.trace.call_recorder import first_divergence
from tightfit.stages.trace.capture_errors import (
    NO_DERIVATIVE_WARNING,
    capture_failure_reason,
    check_backward_randomness,
    check_derivatives,
    check_model,
    check_placeholder,
    check_shared_memory,
    check_tensor_queries,
    fake_constants_message,
    is_data_dependent,
    parameter_write_error,
    tensor_constant,
)
from tightfit.stages.trace.capture_patches import (
    PythonBackwardDetector,
    all_ones_hint,
    disable_associative_scans,
    disable_python_decompositions,
    has_independent_gradient,
    patch_attribute,
    patch_is_compiling,
    patch_is_tracing,
    patch_packed_sequence_masks,
)
from tightfit.stages.trace.captured_gradients import annotate_backward, partial_gradients
from tightfit.stages.trace.code_inspection import error_location, node_source_line
from tightfit.stages.trace.effect_errors import checkpointed_effect_error, repeated_effect_error
from tightfit.stages.trace.error_checks import check_errors_in_operators
from tightfit.stages.trace.forward import CapturedLeaf, FakeConstantError, FunctionalForward
from tightfit.stages.trace.guards.guard_recorder import GuardRecorder, record_guards
from tightfit.stages.trace.guards.guard_source import preserve_scalar_tensors
from tightfit.stages.trace.norm_layouts import use_real_norm_layouts
from tightfit.stages.trace.saved_writes import find_saved_writes
from tightfit.stages.trace.unused_args import unused_leaves
from tightfit.util.errors import ModelError

aten = torch.ops.aten

_SCRIPT_RUNS = 4
"""Captures after which TorchScript's functions run as in all later steps."""


@dataclass(frozen=True)
class Capture:
    """The joint graph and what its placeholders and results mean.

    `parameters`, `buffers` map placeholders to names, `inputs` to the number of the leaf of
    (args, kwargs), `tangents` to the number of the output. `outputs` are the distinct output
    tensors; `writes` maps a buffer's name to its new value; `gradients` maps a parameter's name or
    the number of an input leaf to what autograd adds up to its gradient, in that order.
    `constants` holds the tensors that are no parameters, buffers or inputs. `watched` is what the
    forward read beside tensors (`stages.trace.guards.guard_recorder`), `assigned` the buffers that
    it puts another tensor in the place of. `plain_backward` says that no Python ran in the
    backward, `checkpointed` that the forward checkpoints parts of itself, `causes` why a step
    without these may be another one, `ungraded` where they give no gradients, `asks_layout` that it
    asks how a tensor lies in memory, `all_arrive` that Python in the backward needs all of its
    gradients. `alike` has for each leaf the first that is the same object, where the forward asks
    for that, `asked` what else it asks of inputs (True) and of the model's own tensors, with where.
    `unread` are plain leaves of (args, kwargs) that it does not look at. `ones` are leaves that it
    rests on being ones, `masks` those that it looked at without resting on that, `wished` the ones
    of these that are ones in the samples. With `side_effects` the outputs are those of a pair: what
    the model returns, and what it stores. `saved_writes` are the written buffers that the backward
    reads; `backward_writes` says that it writes some."""

    graph: fx.GraphModule
    parameters: dict[fx.Node, str]
    buffers: dict[fx.Node, str]
    inputs: dict[fx.Node, int]
    tangents: dict[fx.Node, int]
    outputs: list[fx.Node]
    writes: dict[str, fx.Node]
    gradients: dict[str | int, list[fx.Node]]
    constants: dict[fx.Node, torch.Tensor]
    leaves: list[CapturedLeaf]
    output_tree: str
    watched: dict[str, Any] = field(default_factory=dict)
    assigned: list[str] = field(default_factory=list)
    plain_backward: bool = False
    all_arrive: bool = False
    checkpointed: bool = False
    causes: list[str] = field(default_factory=list)
    ungraded: list[str] = field(default_factory=list)
    asks_layout: bool = True
    alike: dict[int, int] = field(default_factory=dict)
    asked: dict[tuple[str, bool], str] = field(default_factory=dict)
    unread: list[int] = field(default_factory=list)
    ones: list[int] = field(default_factory=list)
    masks: list[int] = field(default_factory=list)
    wished: list[int] = field(default_factory=list)
    side_effects: list[SideEffect] = field(default_factory=list)
    saved_writes: list[str] = field(default_factory=list)
    backward_writes: bool = False


def capture(
    built: BuiltModel,
    wanted: Callable[[Capture], set[int]] | None = None,
    attempts: int = _SCRIPT_RUNS,
    profiled: bool = True,
    expected: set[int] | None = None,
) -> Capture:
    """Captures the joint graph of the first sample; the model is not run.

    `wanted` chooses, from a first capture, the outputs that receive gradients; without it all that
    can receive one do. A capture for the outputs that are `expected` stands if it chooses these. If
    the forward calls functions of TorchScript, whose first runs are other ones, there are several
    `attempts`. `profiled` as in `record_guards`. Raises ModelError, with the source line where it
    is known, when the model cannot be captured.
    """
    check_model(built.label, built.model)
    with _translate_errors(built), record_guards(built.model, built.label, profiled) as watcher:
        forward, result = _capture_first_pass(built, watcher, expected)
        first_run = forward.runs[0]
        if watcher.changed:
            _run_repeatedly(built, watcher)
        if watcher.effects.effects:
            own = (watcher.running, forward)
            forward = FunctionalForward(built, expected, *own, stored=watcher.effects.take_stored)
            result = replace(_capture(built, forward), side_effects=watcher.effects.described())
            if result.checkpointed:
                raise checkpointed_effect_error(built.label, result.side_effects[0].label)
            if changed := watcher.effects.changed_in_backward():
                raise repeated_effect_error(built.label, changed)
        if wanted is not None:
            chosen = wanted(result)
            if chosen != set(result.tangents.values()):
                forward = FunctionalForward(built, chosen, watcher.running, forward)
                result = replace(_capture(built, forward), side_effects=result.side_effects)
    watcher.refuse(built.label)
    try:
        forward.check_runs()
    except ModelError:
        if attempts > 1 and watcher.calls_script_functions():
            return capture(built, wanted, attempts - 1, profiled, expected)
        raise
    watcher.check_cached_constants(built.label, result.constants.values())
    check_tensor_queries(built, watcher.asked)
    unread = unused_leaves(built, first_run, _fake_execution)
    found: dict[str, Any] = {
        "watched": {**watcher.description(), "buffer_values": forward.buffer_values()},
        "asked": watcher.asked.facts,
        "unread": unread,
    }
    return replace(result, **found)


def _capture_first_pass(
    built: BuiltModel, watcher: GuardRecorder, expected: set[int] | None
) -> tuple[FunctionalForward, Capture]:
    """A first capture. The inputs are tied as in the sample where the forward asks which tensors
    are one object, and otherwise apart."""
    asked = watcher.asked
    forward = FunctionalForward(built, expected, watcher.running, asked=asked)
    tied = forward.alike != forward.untied_order
    try:
        result = _capture(built, forward)
    except Exception:
        if not (tied and asked.identity):
            raise
    if tied and asked.identity:
        forward = FunctionalForward(built, expected, watcher.running, asked=asked, tied=True)
        result = _capture(built, forward)
    return forward, result


def _capture(built: BuiltModel, forward: FunctionalForward) -> Capture:
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    register_key_value_caches()
    python = PythonBackwardDetector()
    with (
        _release_rng_references(),
        contextlib.ExitStack() as stack,
        _fake_execution(built, forward) as mode,
        python.detect_python(),
    ):
        tensors = tuple(forward.tensors(mode))
        joint = aot_export_joint_with_descriptors(stack, forward.as_module(), tensors)
    described = _describe(built, joint.graph_module, forward)
    parts = [part for gradient in described.gradients.values() for part in gradient]
    return replace(
        described,
        plain_backward=not python.found,
        backward_writes=forward.state.writes,
        all_arrive=python.several
        or forward.checks_none_gradients
        or forward.asked.maker
        or (
            python.found
            and has_independent_gradient(
                joint.graph_module, described.outputs, described.tangents, parts
            )
        ),
        checkpointed=forward.checkpoints.any,
        causes=[*forward.checkpoints.causes],
        ungraded=[*forward.checkpoints.ungraded],
        asks_layout=forward.follower.asks_layout,
        ones=sorted(forward.follower.known.relied_inputs),
        masks=sorted(forward.follower.known.asked),
        wished=sorted(forward.follower.known.asked & forward.follower.known.ones),
        alike={forward.places[i]: forward.places[k] for i, k in enumerate(forward.order)}
        if forward.asked.identity
        else {},
    )


@contextlib.contextmanager
def _release_rng_references() -> Iterator[None]:
    """Afterwards PyTorch's record of random numbers holds nothing of the capture: by it weak
    references to the model's tensors stay, which nobody can then swap for others."""
    from torch._decomp.decompositions_for_rng import PhiloxStateTracker

    try:
        yield
    finally:
        PhiloxStateTracker.reset()


def _run_repeatedly(built: BuiltModel, watcher: GuardRecorder) -> None:
    """Runs the forward twice, the second time with all that the first one made, and a third time to
    see whether it reads what it changes each time."""
    forward = FunctionalForward(built, None, watcher.running, every=True)
    with (
        preserve_scalar_tensors(built.model),
        contextlib.suppress(Exception),
        _fake_execution(built, forward) as mode,
        watcher.leaving(forward.follower.known),
    ):
        forward.run(*forward.tensors(mode))
        forward.run(*forward.tensors(mode))
        if first_divergence(*forward.runs) is not None:
            return
        watcher.settle()

        def run_alike() -> bool:
            forward.run(*forward.tensors(mode))
            return first_divergence(*forward.runs[1:]) is None

        if watcher.effects.effects:
            watcher.effects.probe(run_alike)


@contextlib.contextmanager
def _fake_execution(built: BuiltModel, forward: FunctionalForward) -> Iterator[FakeTensorMode]:
    """Within it the forward runs on tensors without memory, as it is captured."""
    mode: Any = built.fake_mode or FakeTensorMode(allow_non_fake_inputs=True)
    sizes: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if built.symbolic:
        from tightfit.stages.trace import symbolic_sizes

        assert built.dynamic is not None
        mode = symbolic_sizes.symbolic_fake_mode(built.dynamic)
        sizes = symbolic_sizes.symbolic_execution(mode)
    with (
        mode,
        sizes,
        use_real_norm_layouts(mode),
        torch.enable_grad(),
        disable_python_decompositions(_is_on_gpu(built), built.symbolic),
        forward.checkpoints.disable_checkpointing(),
        forward.random.follow_states(),
        patch_packed_sequence_masks(forward.follower.known.counts_up),
        patch_is_tracing(forward.follower.known.can_answer),
        patch_is_compiling(),
        disable_associative_scans(),
        check_errors_in_operators(),
        torch.compiler.set_stance("fail_on_recompile"),
        patch_attribute(torch.autograd, "grad", forward.watched),
        patch_attribute(FunctionalTensor, "tolist", forward.follower.known.wrap_tolist),
        patch_attribute(
            torch.autograd.profiler.record_function, "__enter__", _skip_profiler_region
        ),
        patch_attribute(torch.autograd.profiler.record_function, "__exit__", _skip_profiler_region),
        patch_attribute(FunctionCtx, "set_materialize_grads", forward.record_materialize_grads),
    ):
        yield mode


def _is_on_gpu(built: BuiltModel) -> bool:
    """Whether a tensor of the model or of its samples is on a GPU."""
    return any(tensor.device.type == "cuda" for tensor in all_tensors(built))


def _skip_profiler_region(original: Callable[..., Any]) -> Callable[..., Any]:
    """In place of the parts of a profiler's region, which computes nothing."""
    return lambda region, *_: region if original.__name__ == "__enter__" else None


def _describe(built: BuiltModel, graph: fx.GraphModule, forward: FunctionalForward) -> Capture:
    from torch._functorch._aot_autograd import descriptors as d

    leaves, tree = forward.leaves, forward.output_tree
    result = Capture(graph, {}, {}, {}, {}, [], {}, {}, _constants(built, graph), leaves, tree)
    for node in graph.graph.find_nodes(op="placeholder"):
        desc = node.meta["desc"]
        if isinstance(desc, d.ParamAOTInput):
            result.parameters[node] = desc.target
        elif isinstance(desc, d.BufferAOTInput):
            result.buffers[node] = desc.target
        elif isinstance(desc, d.PlainAOTInput):
            result.inputs[node] = forward.places[desc.idx]
        elif isinstance(desc, d.TangentAOTInput) and isinstance(desc.output, d.PlainAOTOutput):
            result.tangents[node] = desc.output.idx
        elif isinstance(desc, d.TangentAOTInput) and isinstance(
            getattr(desc.output, "mutated_input", None), d.ParamAOTInput
        ):
            name = desc.output.mutated_input.target  # type: ignore
            raise parameter_write_error(built.label, name, _write_line(graph, name))
        else:
            check_placeholder(built.label, graph, desc)
    output = graph.graph.output_node()
    outputs: dict[int, fx.Node] = {}
    for node, desc in zip(output.args[0], output.meta["desc"], strict=True):  # type: ignore
        if not isinstance(node, fx.Node):
            continue
        if isinstance(desc, d.PlainAOTOutput) and desc.idx >= forward.returned:
            result.writes[forward.assigned[desc.idx - forward.returned]] = node
        elif isinstance(desc, d.PlainAOTOutput):
            outputs[desc.idx] = node
        elif isinstance(desc, d.InputMutationAOTOutput):
            result.writes[_written_tensor(desc.mutated_input, d, forward, node)] = node
        elif isinstance(desc, d.GradAOTOutput):
            if isinstance(desc.grad_of, d.ParamAOTInput):
                result.gradients[desc.grad_of.target] = partial_gradients(node)
            elif isinstance(desc.grad_of, d.PlainAOTInput):
                result.gradients[forward.places[desc.grad_of.idx]] = partial_gradients(node)
        else:
            raise ModelError(f"{built.label}: the capture has an unknown result {desc!r}")
    result.assigned.extend(forward.assigned)
    in_place = {k: node for k, node in result.writes.items() if k not in forward.assigned}
    result.saved_writes.extend(find_saved_writes(graph, in_place, result.tangents))
    result.outputs.extend(outputs[number] for number in sorted(outputs))
    annotate_backward(graph)
    check_backward_randomness(built.label, graph, result.outputs, result.tangents)
    for path in forward.shown:
        if path in result.writes and path not in forward.assigned:
            raise ModelError(
                f"{built.label}: the model returns its buffer {path!r}, which it writes: a later "
                "forward would change what was returned; return a copy (clone())"
            )
    _check_constants(result, forward)
    return result


def _check_constants(result: Capture, forward: FunctionalForward) -> None:
    """Raises ModelError where a constant of the program is a buffer that the program writes."""
    for path, (module, name) in forward.buffers().items():
        buffer = module._buffers[name]
        if path not in result.writes or path in forward.assigned or buffer is None:
            continue
        storage = buffer.untyped_storage()._cdata
        if storage in [constant.untyped_storage()._cdata for constant in result.constants.values()]:
            raise ModelError(
                f"{forward.built.label}: the forward writes its buffer {path!r} and reads it from "
                "elsewhere, too, as from a plain attribute: read the buffer alone"
            )


def _write_line(graph: fx.GraphModule, name: str) -> str:
    """Where the forward writes a parameter."""
    output = graph.graph.output_node()
    pairs = zip(output.args[0], output.meta["desc"], strict=True)  # type: ignore[arg-type]
    for node, desc in pairs:
        target = getattr(getattr(desc, "mutated_input", None), "target", None)
        if target == name and isinstance(node, fx.Node):
            return node_source_line(node.meta)
    return ""


def _written_tensor(desc: Any, d: Any, forward: FunctionalForward, new: fx.Node) -> str:
    if isinstance(desc, d.BufferAOTInput):
        return desc.target
    if isinstance(desc, d.ParamAOTInput):
        if forward.model.get_parameter(desc.target).requires_grad:
            place = node_source_line(new.meta)
            raise parameter_write_error(forward.built.label, desc.target, place)
        return desc.target
    raise ModelError(
        f"{forward.built.label}: the model changes its input "
        f"{argument_name(forward.path(desc.idx))} in "
        "place, which a plan would not do: let it change a copy (clone())"
    )


def _constants(built: BuiltModel, graph: fx.GraphModule) -> dict[fx.Node, torch.Tensor]:
    constants = {
        node: tensor_constant(built.label, getattr(graph, str(node.target)))
        for node in graph.graph.find_nodes(op="get_attr")
    }
    check_shared_memory(built, constants.values())
    return constants


@contextlib.contextmanager
def _translate_errors(built: BuiltModel) -> Iterator[None]:
    """Turns what the capture raises into one sentence, and keeps its logging off the terminal."""
    names = ("export", "fx", "_dynamo", "_subclasses")
    loggers = [logging.getLogger(f"torch.{name}") for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("ignore")
            warnings.filterwarnings("always", message=NO_DERIVATIVE_WARNING)
            yield
        check_derivatives(built.label, [str(warning.message) for warning in said])
    except ModelError:
        raise
    except Exception as error:
        if "Unexpected fake buffer" in str(error):
            raise FakeConstantError(fake_constants_message(built)) from error
        fake = built.fake_mode and not built.assumed and [*built.model.buffers()]
        if fake and is_data_dependent(error):
            raise FakeConstantError("the forward asks for values, perhaps of buffers") from error
        place = f" at {where}" if (where := error_location(error)) else ""
        why = f"{capture_failure_reason(built.model, error)}{all_ones_hint(built, error)}"
        raise ModelError(f"{built.label}: the model cannot be captured{place}: {why}") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
