"""Captures a model's joint forward and backward with PyTorch's export and AOTAutograd.

The only module that touches the private capture API (torch 2.11 to 2.13); what it gives is a
`Capture` in plain FX terms.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from schemas.errors import ModelError
from stages.device.factory import Built
from stages.trace.as_eager import unnoticed, whole_operators
from stages.trace.source import location_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Leaf:
    """One leaf of the model's output: a tensor, numbered as in `Capture.outputs`, or a constant."""

    tensor: int | None
    constant: Any = None


@dataclass(frozen=True)
class Capture:
    """The joint graph and what its placeholders and results mean.

    `parameters`, `buffers` map placeholders to names, `inputs` to the number of the leaf of
    (args, kwargs), `tangents` to the number of the output. `outputs` are the distinct output
    tensors; `writes` maps a buffer's name to its new value; `gradients` maps a parameter's name or
    the number of an input leaf to its gradient. `constants` holds the tensors that the model made
    itself, by the name of their "buffer".
    """

    graph: fx.GraphModule
    parameters: dict[fx.Node, str]
    buffers: dict[fx.Node, str]
    inputs: dict[fx.Node, int]
    tangents: dict[fx.Node, int]
    outputs: list[fx.Node]
    writes: dict[str, fx.Node]
    gradients: dict[str | int, fx.Node]
    constants: dict[str, torch.Tensor]
    leaves: list[Leaf]
    output_tree: pytree.TreeSpec


def capture(built: Built, wanted: Callable[[Capture], set[int]] | None = None) -> Capture:
    """Captures the joint graph of the first sample; the model is not run.

    `wanted` chooses, from a first capture, the outputs that receive gradients; without it all that
    can receive one do. Raises ModelError, with the source line where it is known, when the model
    cannot be captured.
    """
    with _errors(built):
        result = _capture(built)
        if wanted is not None:
            chosen = wanted(result)
            if chosen != set(result.tangents.values()):
                result = _capture(built, chosen)
        return result


def _capture(built: Built, chosen: set[int] | None = None) -> Capture:
    return _joint(built, *_export(built, chosen))


def _export(
    built: Built, chosen: set[int] | None = None
) -> tuple[fx.GraphModule, list[Leaf], pytree.TreeSpec]:
    args, kwargs = built.samples[0]
    _register_outputs()
    with built.fake_mode or contextlib.nullcontext(), unnoticed():
        program = torch.export.export(built.model, args, kwargs, strict=False)
        module = program.module(check_guards=False)
    assert isinstance(module, fx.GraphModule)
    leaves, tree = _separate_outputs(module, chosen)
    return module, leaves, tree


def _register_outputs() -> None:
    """Lets PyTorch take apart the key and value cache that transformers' models return."""
    if "transformers" in sys.modules:
        from transformers.integrations import executorch

        executorch.register_dynamic_cache_export_support()


def _separate_outputs(
    module: fx.GraphModule, chosen: set[int] | None
) -> tuple[list[Leaf], pytree.TreeSpec]:
    """Makes each distinct output a clone of its own, so that none is an alias of another tensor
    and each has one tangent; those that are not chosen are detached first."""
    _keep_old_buffers(module)
    output = module.graph.output_node()
    numbers: dict[fx.Node, int] = {}
    leaves = []
    for leaf in output.args[0]:  # type: ignore[union-attr]
        if isinstance(leaf, fx.Node):
            leaves.append(Leaf(numbers.setdefault(leaf, len(numbers))))
        else:
            leaves.append(Leaf(None, leaf))
    clones = []
    with module.graph.inserting_before(output):
        for node, number in numbers.items():
            if chosen is not None and number not in chosen:
                node = module.graph.call_function(aten.detach.default, (node,))
            clones.append(module.graph.call_function(aten.clone.default, (node,)))
    output.args = (tuple(clones),)
    codegen: Any = module.graph._codegen
    info = codegen.pytree_info
    codegen.pytree_info = info._replace(out_spec=pytree.tree_structure([0] * len(clones)))
    module.recompile()
    return leaves, info.out_spec


def _keep_old_buffers(module: fx.GraphModule) -> None:
    """Lets the readers of a buffer that the forward assigns anew read a clone of the old one,
    since the export turns the assignment into a write."""
    for node in module.graph.find_nodes(op="call_function", target=aten.copy_.default):
        buffer = node.args[0]
        if isinstance(buffer, fx.Node) and buffer.op == "get_attr":
            with module.graph.inserting_after(buffer):
                old = module.graph.call_function(aten.clone.default, (buffer,))
            buffer.replace_all_uses_with(old, lambda user: user not in (old, node))  # noqa: B023


def _joint(
    built: Built, module: fx.GraphModule, leaves: list[Leaf], tree: pytree.TreeSpec
) -> Capture:
    from torch._functorch.aot_autograd import aot_export_joint_with_descriptors

    constants = _constants_to_buffers(built.model, module)
    args, kwargs = built.samples[0]
    with (
        contextlib.ExitStack() as stack,
        built.fake_mode or contextlib.nullcontext(),
        whole_operators(),
    ):
        joint = aot_export_joint_with_descriptors(stack, module, args, kwargs)
        graph = joint.graph_module
    return _describe(built, graph, constants, leaves, tree)


def _describe(
    built: Built,
    graph: fx.GraphModule,
    constants: dict[str, torch.Tensor],
    leaves: list[Leaf],
    tree: pytree.TreeSpec,
) -> Capture:
    from torch._functorch._aot_autograd import descriptors as d

    result = Capture(graph, {}, {}, {}, {}, [], {}, {}, constants, leaves, tree)
    for node in graph.graph.find_nodes(op="placeholder"):
        desc = node.meta["desc"]
        if isinstance(desc, d.ParamAOTInput):
            result.parameters[node] = desc.target
        elif isinstance(desc, d.BufferAOTInput):
            result.buffers[node] = desc.target
        elif isinstance(desc, d.PlainAOTInput):
            result.inputs[node] = desc.idx
        elif isinstance(desc, d.TangentAOTInput) and isinstance(desc.output, d.PlainAOTOutput):
            result.tangents[node] = desc.output.idx
        else:
            raise ModelError(f"{built.label}: the capture has an unknown input {desc!r}")
    output = graph.graph.output_node()
    outputs: dict[int, fx.Node] = {}
    for node, desc in zip(output.args[0], output.meta["desc"], strict=True):  # type: ignore
        if not isinstance(node, fx.Node):
            continue
        if isinstance(desc, d.PlainAOTOutput):
            outputs[desc.idx] = node
        elif isinstance(desc, d.InputMutationAOTOutput):
            result.writes[_written_buffer(desc.mutated_input, d)] = node
        elif isinstance(desc, d.GradAOTOutput):
            if isinstance(desc.grad_of, d.ParamAOTInput):
                result.gradients[desc.grad_of.target] = node
            elif isinstance(desc.grad_of, d.PlainAOTInput):
                result.gradients[desc.grad_of.idx] = node
        else:
            raise ModelError(f"{built.label}: the capture has an unknown result {desc!r}")
    result.outputs.extend(outputs[number] for number in sorted(outputs))
    return result


def _written_buffer(desc: Any, d: Any) -> str:
    if isinstance(desc, d.BufferAOTInput):
        return desc.target
    if isinstance(desc, d.ParamAOTInput):
        raise ModelError(f"the model writes to its parameter {desc.target!r} during the forward")
    raise ModelError(f"the model changes its input {getattr(desc, 'idx', desc)} in place")


def _constants_to_buffers(model: nn.Module, module: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Registers tensors that are neither parameters nor buffers of the exported module as buffers,
    which the capture turns into inputs, and returns them."""
    own = {name for name, _ in model.named_buffers(remove_duplicate=False)}
    own |= {name for name, _ in model.named_parameters(remove_duplicate=False)}
    constants: dict[str, torch.Tensor] = {}
    for submodule in module.modules():
        for name, tensor in list(vars(submodule).items()):
            if isinstance(tensor, torch.Tensor):
                delattr(submodule, name)
                submodule.register_buffer(name, tensor)
    for name, tensor in module.named_buffers(remove_duplicate=False):
        if name not in own:
            constants[name] = tensor
    return constants


@contextlib.contextmanager
def _errors(built: Built) -> Iterator[None]:
    """Turns what the capture raises into one sentence, and keeps its logging off the terminal."""
    names = ("torch.export", "torch.fx", "torch._dynamo", "torch._subclasses")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except ModelError:
        raise
    except Exception as error:
        where = location_of(error)
        place = f" at {where}" if where else ""
        raise ModelError(
            f"{built.label}: the model cannot be captured{place}: {_reason(error)}"
        ) from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _reason(error: BaseException) -> str:
    text = str(error).strip()
    dependent = ("data-dependent", "DataDependent", "GuardOnDataDependent", "_local_scalar_dense")
    if any(word in text or word in type(error).__name__ for word in dependent):
        return "its control flow or a shape depends on the data of a tensor"
    first = text.splitlines()[0] if text else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__
