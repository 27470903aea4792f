"""Writes a finished program down as a `Graph`."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import torch

from tightfit.schemas.graph.op_arguments import encode_arguments, iterate_argument_values
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.schemas.graph.training_graph import (
    BASELINE_KINDS,
    NO_VALUE,
    Graph,
    GraphOutput,
    GraphValue,
    Op,
    OwnedGradient,
    Phase,
    create_loss_op,
)
from tightfit.stages.runtime.guards.encode import is_array
from tightfit.stages.runtime.pytree import argument_name, flatten, read_tree
from tightfit.stages.torch_utils.operators import (
    draws_random_numbers,
    encode_plain_argument,
    in_place_position,
)
from tightfit.stages.trace.canonicalize.layout import device_of_step, fills_storage, storage_key
from tightfit.stages.trace.canonicalize.op_order import ignores_running_stats
from tightfit.stages.trace.forward import CapturedLeaf
from tightfit.stages.trace.program import CapturedProgram, OperatorCall, Variable
from tightfit.util.errors import ModelError


class Emitter:
    """Numbers variables, storages and calls in their order."""

    def __init__(self, program: CapturedProgram, device: str, held: Collection[int] = ()) -> None:
        """`held` numbers the outputs whose tangent the caller of the loss holds."""
        self.held = held
        self.program = program
        self.device = device
        self.place = device_of_step(program, device)
        self.readers = program.readers()
        self.ids: dict[Variable, int] = {}
        self.values: list[GraphValue] = []
        self.storages: list[int] = []
        self.storage_ids: dict[Any, int] = {}
        self.ops: list[Op] = []
        self.fixed: set[int] = set()
        self.written_storages: set[int] = set()

    def graph(
        self, leaves: list[CapturedLeaf], sample: Any, trainable: set[str], **metadata: Any
    ) -> Graph:
        """The whole graph; `sample` is (args, kwargs), `leaves` are those of the output and
        `trainable` names the parameters that require a gradient, whether they get one or not."""
        flat, tree = flatten(sample)
        for variable in self.program.fixed:
            self.value(variable, variable.path in trainable)
        for index, variable in self.program.inputs.items():
            self.value(variable, flat[index].requires_grad)
        self.fixed = {value.storage for value in self.values if value.kind in BASELINE_KINDS}
        self.written_storages = {self.storage(buffer) for buffer, _ in self.program.writes}
        for call in self.program.calls[: self.program.forward]:
            self.op(call, "forward")
        self.loss()
        for call in self.program.calls[self.program.forward :]:
            self.op(call, "backward")
        inputs = [
            self.ids[self.program.inputs[index]] if index in self.program.inputs else NO_VALUE
            for index in range(len(flat))
        ]
        names = map(argument_name, read_tree(tree).paths("input"))
        constants = [
            "" if value != NO_VALUE else encode_constant(leaf, f"the model's input {name}")
            for value, leaf, name in zip(inputs, flat, names, strict=True)
        ]
        return Graph(
            device=self.device,
            torch=str(torch.__version__),
            ops=self.ops,
            values=self.values,
            storages=self.storages,
            inputs=inputs,
            input_constants=constants,
            outputs=[self.output(leaf) for leaf in leaves],
            gradients=[
                OwnedGradient(self.ids[owner], self.ids[gradient])
                for owner, gradients in self.program.gradients.items()
                for gradient in gradients
            ],
            input_tree=tree,
            **metadata,
        )

    def value(self, variable: Variable, requires_grad: bool = False) -> int:
        """The new id of a variable."""
        tensor = variable.fake
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPE_BYTES or tensor.layout != torch.strided:
            raise ModelError(f"the model has a {dtype} tensor of layout {tensor.layout}")
        elsewhere = self.elsewhere(variable)
        self.ids[variable] = len(self.values)
        self.values.append(
            GraphValue(
                id=len(self.values),
                kind=variable.kind,
                shape=list(tensor.shape),
                strides=list(tensor.stride()),
                offset=int(tensor.storage_offset()),
                dtype=dtype,
                storage=self.storage(variable),
                path=variable.path,
                aliases=variable.aliases,
                requires_grad=requires_grad,
                data=variable.data,
                device=elsewhere,
            )
        )
        return len(self.values) - 1

    def storage(self, variable: Variable) -> int:
        """The id of a variable's storage."""
        key = storage_key(variable.fake)
        if key not in self.storage_ids:
            self.storage_ids[key] = len(self.storages)
            size = int(variable.fake.untyped_storage().nbytes())
            self.storages.append(0 if self.elsewhere(variable) else size)
        return self.storage_ids[key]

    def elsewhere(self, variable: Variable) -> str:
        """The device of a variable that does not lie on that of the graph, else "". Raises
        ModelError where a plan cannot have it there."""
        device = variable.fake.device
        if device == self.place:
            return ""
        if device.type == "cpu" and variable.kind == "intermediate":
            return "cpu"
        raise ModelError(
            f"the model has a tensor on {device} and others on {self.place}; a plan is for one "
            f"device: move all parameters, buffers and inputs to {self.place}"
        )

    def op(self, call: OperatorCall, phase: Phase) -> None:
        """Adds a call."""
        args = [self.encode(argument, call) for argument in call.args]
        kwargs = {name: self.encode(argument, call) for name, argument in call.kwargs.items()}
        inputs = list(dict.fromkeys(iterate_argument_values([args, list(kwargs.values())])))
        _check_host_numbers(call)
        repeatable = not call.writes and self.is_repeatable(call)
        outputs = [NO_VALUE if output is None else self.value(output) for output in call.outputs]
        self.ops.append(
            Op(
                id=len(self.ops),
                target=str(call.target),
                phase=phase,
                arguments=encode_arguments(args, kwargs),
                inputs=inputs,
                outputs=outputs,
                writes=[self.ids[buffer] for buffer in call.writes],
                in_place=self.in_place(call, args, inputs, outputs),
                random=draws_random_numbers(call.target, call.args),
                repeatable=repeatable,
                module=call.module,
                source=call.source,
            )
        )

    def loss(self) -> None:
        """Adds the loss: it reads the outputs that receive gradients and makes their tangents."""
        inputs = [self.ids[self.program.outputs[number]] for number in self.program.tangents]
        outputs = [self.value(tangent) for tangent in self.program.tangents.values()]
        held = [place for place, number in enumerate(self.program.tangents) if number in self.held]
        arguments = encode_arguments(
            [{"value": value} for value in inputs], {"held": held} if held else {}
        )
        distinct = list(dict.fromkeys(inputs))
        self.ops.append(create_loss_op(len(self.ops), arguments, distinct, outputs))

    def output(self, leaf: CapturedLeaf) -> GraphOutput:
        """A leaf of the model's output."""
        if leaf.tensor is None:
            return GraphOutput(
                NO_VALUE, NO_VALUE, encode_constant(leaf.constant, "the model's output")
            )
        tangent = self.program.tangents.get(leaf.tensor)
        value = self.ids[self.program.outputs[leaf.tensor]]
        given = NO_VALUE if tangent is None else self.ids[tangent]
        return GraphOutput(value, given, "", leaf.requires_grad)

    def encode(self, argument: Any, call: OperatorCall) -> Any:
        """The JSON form of an argument."""
        if isinstance(argument, Variable):
            return {"value": self.ids[argument]}
        if isinstance(argument, list | tuple):
            return [self.encode(item, call) for item in argument]
        if isinstance(argument, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise ModelError(f"{call.source}: the shape of a tensor depends on data")
        try:
            return encode_plain_argument(argument)
        except TypeError:
            raise ModelError(
                f"{call.source}: {call.target} has an argument of type {type(argument).__name__}, "
                "which cannot be planned"
            ) from None

    def is_repeatable(self, call: OperatorCall) -> bool:
        """False when it reads what the step writes, and its results depend on that."""
        if ignores_running_stats(call):
            statistics = call.made()[3:] if len(call.outputs) == 5 else []
            return all(
                reader.writes or ignores_running_stats(reader)
                for variable in statistics
                for reader in self.readers.get(variable, [])
            )
        return not any(self.storage(read) in self.written_storages for read in call.inputs())

    def in_place(
        self, call: OperatorCall, args: list[Any], inputs: list[int], outputs: list[int]
    ) -> list[int]:
        """The inputs that the first output may overwrite, once they are dead."""
        if call.writes or not outputs or call.outputs[0] is None:
            return []
        result = call.outputs[0].fake
        if not fills_storage(result) or self.values[outputs[0]].storage in {
            self.values[value].storage for value in inputs
        }:
            return []
        return [
            self.ids[variable]
            for variable in call.inputs()
            if self.may_be_overwritten(variable, call)
            and _same_layout(variable.fake, result)
            and in_place_position(args, self.ids[variable], str(call.target), self.device)
            is not None
        ]

    def may_be_overwritten(self, variable: Variable, call: OperatorCall) -> bool:
        """True when the call sees the variable alone in a storage of the step's own."""
        storage = self.storage(variable)
        return (
            storage not in self.fixed
            and fills_storage(variable.fake)
            and not any(
                self.storage(other) == storage for other in call.inputs() if other is not variable
            )
        )


def _check_host_numbers(call: OperatorCall) -> None:
    """Raises ModelError where an operator of a GPU takes a number from a tensor on the CPU as it
    is. A plan keeps its constants on the GPU, where the number would be rounded first."""
    half = (torch.bfloat16, torch.float16)
    if not any(output.fake.dtype in half for output in call.made()):
        return
    for variable in call.inputs():
        like = variable.fake
        if variable.on_host and not like.dim() and like.dtype in (torch.float32, torch.float64):
            raise ModelError(
                f"{call.source}: {call.target} takes a number from a tensor on the CPU, which a "
                "plan would round: use a Python number, or make the tensor with the device and "
                "dtype of the others"
            )


def _same_layout(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.shape == other.shape
        and one.stride() == other.stride()
        and one.dtype == other.dtype
        and one.device == other.device
    )


def encode_constant(leaf: Any, what: str) -> str:
    """The JSON of a leaf that is no tensor; raises ModelError where it is not plain."""
    try:
        return json.dumps(encode_plain_argument(leaf))
    except TypeError:
        if is_array(leaf):
            raise ModelError(
                f"{what} is a NumPy array, which a plan would take for a constant: give it as a "
                "tensor, as by torch.from_numpy()"
            ) from None
        raise ModelError(
            f"{what} holds a {type(leaf).__name__}, which a plan cannot take apart: use tensors in "
            "tuples, lists, dictionaries, named tuples, dataclasses or objects with attributes"
        ) from None
