"""Checks that a graph is the program it says it is, without running anything."""

from __future__ import annotations

import logging
import math
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from tightfit.schemas.graph.fused_groups import in_place_output, is_fused_group
from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import (
    BASELINE_KINDS,
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    GraphValue,
    Op,
)
from tightfit.stages.runtime.operators import RNN_BACKWARD, RNN_LAYER, RNN_WORKSPACE
from tightfit.stages.torch_utils.fake_kernel_fixes import SEED_OUTPUTS, norm_output_dtypes
from tightfit.stages.torch_utils.fused_group_operators import register_groups
from tightfit.stages.torch_utils.operators import (
    WRITE_TARGET,
    decode_argument,
    draws_random_numbers,
    resolve,
    writes_running_statistics,
)
from tightfit.util.errors import ArtifactError

_MAX_BYTES = 2**60
"""Bytes that no tensor has; PyTorch's own arithmetic overflows not far above."""


def check_graph_program(graph: Graph, where: str) -> None:
    """Calls every op on tensors without memory and compares what comes back with the graph.

    Raises ArtifactError, naming `where` and the op, when an operator is unknown or refuses its
    arguments, when a result has another shape, dtype or storage than the graph says, or when a
    value does not fit into its storage. Sizes can be trusted afterwards.
    """
    _ProgramCheck(graph, where).run()


class _ProgramCheck:
    def __init__(self, graph: Graph, where: str) -> None:
        self.graph = graph
        self.where = where
        self.mode = FakeTensorMode()
        self.tensors: dict[int, torch.Tensor] = {}

    def run(self) -> None:
        register_groups(self.graph)
        for value in self.graph.values:
            self.extent(value)
        logger = logging.getLogger("torch._subclasses.fake_tensor")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # it prints a traceback of what is refused here in words
        try:
            self.program()
        finally:
            logger.setLevel(level)

    def program(self) -> None:
        with self.mode, torch.no_grad():
            for value in self.graph.values:
                if value.kind in (*BASELINE_KINDS, "tangent"):
                    self.tensors[value.id] = self.tensor(value)
            for op in self.graph.all_ops:
                if op.target != LOSS_TARGET:
                    self.op(op)

    def fail(self, what: str) -> ArtifactError:
        return ArtifactError(f"{self.where}: {what}")

    def extent(self, value: GraphValue) -> None:
        """A value lies within its storage."""
        if 0 in value.shape:
            return
        if math.prod(value.shape) * 16 >= _MAX_BYTES:
            raise self.fail(f"value {value.id} is larger than any memory")
        last = value.offset + sum(
            (size - 1) * stride for size, stride in zip(value.shape, value.strides, strict=True)
        )
        size = (last + 1) * getattr(torch, value.dtype).itemsize
        if size >= _MAX_BYTES:
            raise self.fail(f"value {value.id} is larger than any memory")
        known = value.kind == "intermediate" and not value.device
        if size > self.graph.storages[value.storage] and known:
            raise self.fail(f"value {value.id} does not fit into its storage")

    def tensor(self, value: GraphValue) -> torch.Tensor:
        return torch.empty_strided(
            value.shape,
            value.strides,
            dtype=getattr(torch, value.dtype),
            device=value.device or self.graph.device,
        )

    def op(self, op: Op) -> None:
        what = f"op {op.id} ({op.target})"
        if bool(op.writes) != (op.target == WRITE_TARGET):
            raise self.fail(f"{what} writes what it does not say")
        encoded, kwargs = decode_arguments(op.arguments)
        if op.writes and encoded[:1] != [{"value": op.writes[0]}]:
            raise self.fail(f"{what} writes what it does not say")
        if is_fused_group(op.target) and None in (
            in_place_output(self.graph, op, v) for v in op.in_place
        ):
            raise self.fail(f"{what} overwrites what its outputs cannot take the place of")
        sizes = {value: _size(self.tensors[value]) for value in op.inputs}
        try:
            overload = resolve(op.target)
            args = decode_argument(encoded, self.tensors)
            named = {name: decode_argument(item, self.tensors) for name, item in kwargs.items()}
            mutates = overload._schema.is_mutable and not op.writes
            if (
                mutates
                or writes_running_statistics(overload, args, named)
                or named.get("pin_memory")
            ):
                raise ArtifactError("it has effects beside its results")
            if op.random != draws_random_numbers(overload, args):
                raise ArtifactError("whether it draws random numbers is not what the graph says")
            results = overload(*args, **named)
        except ArtifactError as error:
            raise self.fail(f"{what}: {error}") from error
        except Exception as error:  # whatever an operator makes of doctored arguments
            first = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise self.fail(f"{what} refuses its arguments: {first}") from error
        if any(_size(self.tensors[value]) != size for value, size in sizes.items()):
            raise self.fail(f"{what} reaches beyond the memory of what it reads")
        if not op.writes:
            tensors = pytree.tree_leaves(results)
            if op.target == RNN_LAYER and len(op.outputs) == len(tensors):
                tensors[RNN_WORKSPACE] = self.workspace(op, what)
            elif op.target == RNN_BACKWARD:
                tensors = [torch.empty_like(result) for result in tensors]
            for number, dtype in norm_output_dtypes(overload._schema.name, args).items():
                tensors[number] = torch.empty_like(tensors[number], dtype=dtype)
            for number in SEED_OUTPUTS.get(overload._schema.name, ()):
                if number < len(op.outputs) and op.outputs[number] != NO_VALUE:
                    tensors[number] = self.seed(self.graph.values[op.outputs[number]], what)
            self.results(op, what, tensors)

    def workspace(self, op: Op, what: str) -> torch.Tensor:
        """The workspace that the graph says: a fake layer makes none."""
        number = op.outputs[RNN_WORKSPACE]
        if number == NO_VALUE or len(self.graph.values[number].shape) != 1:
            raise self.fail(f"{what} makes no workspace")
        return self.tensor(self.graph.values[number])

    def seed(self, value: GraphValue, what: str) -> torch.Tensor:
        """A seed as the graph says it: where it lies is known to the kernel alone."""
        if value.dtype not in ("int64", "uint64") or math.prod(value.shape) > 2:
            raise self.fail(f"{what} makes no seed of shape {value.shape} and {value.dtype}")
        return self.tensor(value)

    def results(self, op: Op, what: str, results: list[Any]) -> None:
        if len(results) != len(op.outputs):
            raise self.fail(f"{what} makes {len(results)} results instead of {len(op.outputs)}")
        read = {_storage(self.tensors[value]): value for value in op.inputs}
        for output, result in zip(op.outputs, results, strict=True):
            if output == NO_VALUE:
                continue
            value = self.graph.values[output]
            if not isinstance(result, torch.Tensor) or (
                list(result.shape) != value.shape or str(result.dtype) != f"torch.{value.dtype}"
            ):
                raise self.fail(f"{what} does not make a {value.dtype} tensor {value.shape}")
            viewed = read.get(_storage(result))
            storages = {self.graph.values[value].storage for value in op.inputs}
            if viewed is None and value.storage in storages:
                raise self.fail(f"{what} makes a new tensor, which the graph calls a view")
            if viewed is not None and self.graph.values[viewed].storage != value.storage:
                raise self.fail(f"{what} makes a view, which the graph calls a new tensor")
            kind = value.device or self.graph.device
            if result.device.type != kind:
                raise self.fail(f"{what} makes no tensor on {kind}")
            fresh = viewed is None and list(result.stride()) != value.strides
            self.tensors[output] = self.tensor(value) if fresh else result


def _size(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
