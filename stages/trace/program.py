"""The trace while it is being worked on: calls and variables that can be changed and moved."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from tightfit.schemas.graph.training_graph import ValueKind
from tightfit.stages.torch_utils.custom_operators import is_allowed_namespace
from tightfit.stages.trace.capture import Capture
from tightfit.stages.trace.code_inspection import node_module_path, node_source_line
from tightfit.stages.trace.forward import FakeConstantError
from tightfit.util.errors import ModelError

aten = torch.ops.aten

_PASS_THROUGH = (
    aten.detach.default,
    aten.alias.default,
    aten.lift.default,
    aten.lift_fresh.default,
    aten.lift_fresh_copy.default,
)
_NO_EFFECT = ("_assert", "sym_constrain", "_functional_assert", "_functional_sym_constrain")


@dataclass(eq=False)
class Variable:
    """One tensor of the program; `fake` has its shape, strides, dtype, device and storage.

    `on_host` says of a constant that the model has it on the CPU, and the plan elsewhere."""

    kind: ValueKind
    fake: torch.Tensor
    path: str = ""
    aliases: list[str] = field(default_factory=list)
    data: bytes = b""
    on_host: bool = False


@dataclass(eq=False)
class OperatorCall:
    """One operator call; `args` and `kwargs` hold Variables, `outputs` one entry a tensor slot."""

    target: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: list[Variable | None]
    module: str = ""
    source: str = ""
    writes: list[Variable] = field(default_factory=list)
    _inputs: list[Variable] | None = field(default=None, repr=False)

    def inputs(self) -> list[Variable]:
        """The distinct variables it reads, in the order of its arguments."""
        if self._inputs is None:
            leaves = pytree.tree_leaves((self.args, self.kwargs))
            self._inputs = list(dict.fromkeys(x for x in leaves if isinstance(x, Variable)))
        return self._inputs

    def made(self) -> list[Variable]:
        """The outputs of an op without the absent ones."""
        return [output for output in self.outputs if output is not None]

    def forget_inputs(self) -> None:
        """To be called when `args` or `kwargs` were set anew."""
        self._inputs = None

    def replace(self, old: Variable, new: Variable) -> None:
        """Lets it read another variable instead of one."""
        if old in self.inputs():
            self.args, self.kwargs = pytree.tree_map(
                lambda leaf: new if leaf is old else leaf, (self.args, self.kwargs)
            )
            self._inputs = None


@dataclass
class CapturedProgram:
    """A trained step in the making.

    `inputs` are by the number of their leaf in (args, kwargs); `tangents` by the number of the
    output; `writes` pairs a buffer with its new value; `gradients` maps a parameter or input to
    what autograd adds up to its gradient, in that order. `forward` counts the calls before the loss
    once they are ordered.
    """

    fixed: list[Variable]
    inputs: dict[int, Variable]
    tangents: dict[int, Variable]
    calls: list[OperatorCall]
    outputs: list[Variable]
    writes: list[tuple[Variable, Variable]]
    gradients: dict[Variable, list[Variable]]
    forward: int = 0

    def gradient_values(self) -> list[Variable]:
        """All that is handed to autograd."""
        return [part for parts in self.gradients.values() for part in parts]

    def readers(self) -> dict[Variable, list[OperatorCall]]:
        """For each variable that is read, the calls that read it, in order."""
        readers: dict[Variable, list[OperatorCall]] = {}
        for call in self.calls:
            for variable in call.inputs():
                readers.setdefault(variable, []).append(call)
        return readers


def _operator(node: fx.Node) -> torch._ops.OpOverload:
    """What a node calls; raises ModelError where that is nothing that a graph may call."""
    target, where = node.target, node_source_line(node.meta) or "the model"
    if not isinstance(target, torch._ops.OpOverload):
        raise ModelError(f"{where}: {target} cannot be planned, it is no operator")
    if not is_allowed_namespace(target.namespace):
        raise ModelError(
            f"{where}: the operator {target} is none of PyTorch's own: it is planned where its "
            f"namespace is named as one of `operators`, as by operators=[{target.namespace!r}]"
        )
    return target


def build_program(capture: Capture, names: dict[str, list[str]]) -> CapturedProgram:
    """Lowers a capture: getitems folded, no-ops dropped, tied parameters made one.

    `names` maps each name of a parameter or buffer to all names of the same tensor, first the one
    it is known by.
    """
    return _Lowering(capture, names).run()


class _Lowering:
    def __init__(self, capture: Capture, names: dict[str, list[str]]) -> None:
        self.capture = capture
        self.names = names
        self.environment: dict[fx.Node, Any] = {}
        self.fixed: dict[str, Variable] = {}
        self.constants: dict[int, Variable] = {}
        self.program = CapturedProgram([], {}, {}, [], [], [], {})

    def run(self) -> CapturedProgram:
        for node in self.capture.graph.graph.nodes:
            if node.op == "placeholder":
                self.environment[node] = self.placeholder(node)
            elif node.op == "call_function":
                self.environment[node] = self.call(node)
            elif node.op == "get_attr":
                self.environment[node] = self.constant(node)
        self.program.outputs = [self.output(node) for node in self.capture.outputs]
        for name, node in self.capture.writes.items():
            self.program.writes.append((self.fixed[self.names[name][0]], self.environment[node]))
        parts: dict[Variable, list[fx.Node]] = {}
        for key, nodes in self.capture.gradients.items():
            owner = (
                self.program.inputs[key] if isinstance(key, int) else self.fixed[self.names[key][0]]
            )
            parts.setdefault(owner, []).extend(nodes)
        for owner, nodes in parts.items():
            # Gradients of the names of one tied parameter arrive as they are made.
            self.program.gradients[owner] = [self.environment[node] for node in sorted(nodes)]
        return self.program

    def constant(self, node: fx.Node) -> Variable:
        """A tensor that is no parameter, buffer or input, the same for all its places."""
        tensor = self.capture.constants[node]
        if not isinstance(tensor, torch.Tensor):
            raise ModelError(
                f"the forward uses a {type(tensor).__name__} that is no tensor, as a random "
                "generator of its own, which a plan cannot keep"
            )
        if tensor.requires_grad:
            raise ModelError(
                "the model reads a trained tensor that is none of its parameters, as where layers "
                "are kept in a plain list: register it (nn.Parameter, nn.ModuleList)"
            )
        known = self.constants.get(id(tensor))
        if known is None:
            with node.meta["val"].fake_mode if "val" in node.meta else self.mode():
                fake = torch.empty_strided(
                    tensor.shape,
                    torch.empty(tensor.shape, device="meta").stride(),
                    dtype=tensor.dtype,
                    device=tensor.device,
                )
            data = _tensor_bytes(str(node.target), tensor)
            known = self.constants[id(tensor)] = Variable("constant", fake, data=data)
            self.program.fixed.append(known)
        return known

    def mode(self) -> Any:
        """The mode that the capture's tensors belong to."""
        for node in self.capture.graph.graph.nodes:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                return value.fake_mode  # type: ignore[attr-defined]
        raise ModelError("the model has neither parameters nor tensors among its inputs")

    def placeholder(self, node: fx.Node) -> Any:
        capture = self.capture
        fake: Any = node.meta.get("val")
        if node in capture.inputs:
            if not isinstance(fake, torch.Tensor):
                return fake
            variable = Variable("input", fake)
            self.program.inputs[capture.inputs[node]] = variable
            return variable
        if node in capture.tangents:
            variable = Variable("tangent", fake)
            self.program.tangents[capture.tangents[node]] = variable
            return variable
        name = capture.parameters.get(node) or capture.buffers[node]
        path, *aliases = self.names[name]
        if path not in self.fixed:
            kind: ValueKind = "parameter" if node in capture.parameters else "buffer"
            self.fixed[path] = Variable(kind, fake, path, aliases)
            self.program.fixed.append(self.fixed[path])
        return self.fixed[path]

    def call(self, node: fx.Node) -> Any:
        if isinstance(size := node.meta.get("val"), int | float):
            return size
        args: Any
        kwargs: Any
        args, kwargs = fx.node.map_aggregate(
            (node.args, node.kwargs),
            lambda leaf: self.environment[leaf] if isinstance(leaf, fx.Node) else leaf,
        )
        if node.target is operator.getitem:
            return args[0][args[1]]
        target = _operator(node)
        if target in _PASS_THROUGH:
            return args[0]
        if target is aten.copy.default and _is_plain_copy(*args[:2]):
            return args[1]
        if target._opname.startswith(_NO_EFFECT):
            return None
        results = node.meta["val"]
        outputs: list[Variable | None] = []

        def output(leaf: Any) -> Any:
            if isinstance(leaf, torch.Tensor):
                outputs.append(Variable("intermediate", leaf))
                return outputs[-1]
            outputs.append(None)
            return leaf

        made = fx.node.map_aggregate(results, output)
        for index, wanted in enumerate(_output_mask(target, args)):
            if not wanted:
                outputs[index] = None
        self.program.calls.append(
            OperatorCall(
                target,
                args,
                kwargs,
                outputs,
                node_module_path(node.meta),
                node_source_line(node.meta),
            )
        )
        return made

    def output(self, node: fx.Node) -> Variable:
        """The output under the clone that the capture was given to keep outputs apart."""
        made = self.environment[node]
        if made.kind == "buffer":
            return made
        for index, call in enumerate(self.program.calls):
            if made in call.outputs:
                assert call.target is aten.clone.default, call.target
                del self.program.calls[index]
                return call.args[0]
        raise AssertionError(f"the output {node} is made by no call")


def _is_plain_copy(old: Variable, new: Any) -> bool:
    """True when writing `new` over `old` gives a tensor that is as good as `new`."""
    if not isinstance(new, Variable):
        return False
    one, other = old.fake, new.fake
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    whole = one.numel() * one.element_size() == one.untyped_storage().nbytes()
    return one.stride() == other.stride() or not whole


def _output_mask(target: torch._ops.OpOverload, args: Any) -> list[bool]:
    """Which results a backward operator was asked for; the others are absent when really run."""
    for argument, given in zip(target._schema.arguments, args, strict=False):
        if argument.name == "output_mask":
            return list(given)
    return []


def _tensor_bytes(name: str, tensor: torch.Tensor) -> bytes:
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(tensor, FakeTensor):
        raise FakeConstantError(f"the tensor {name!r} of the model has no data under fake tensors")
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
