"""Measures one op: memory and time of the call that the generated program will make."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from tightfit.schemas.costs import (
    PREEMPTION_THRESHOLD,
    RANDOM_STATE_TARGET,
    RECOMPUTE_VARIANT,
    OpAllocations,
    OpCost,
    op_cost_key,
)
from tightfit.schemas.graph.fused_groups import is_fused_group
from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.recompute_variants import find_recompute_values
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.profile.cost_library import RANDOM_STATE_KEY
from tightfit.stages.profile.operands import (
    OP_ERRORS,
    fill_operand,
    operand_attempts,
    operand_fill,
    storage_extent,
)
from tightfit.stages.runtime.call_context import default_torch_state
from tightfit.stages.runtime.operators import recompute_batch_norm
from tightfit.stages.torch_utils.fused_group_operators import in_place_group_kernel
from tightfit.stages.torch_utils.memory_meter import CallTiming, measure_call_memory, time_calls
from tightfit.stages.torch_utils.operators import (
    decode_argument,
    in_place_calls,
    in_place_position,
    resolve,
    training_operator,
)
from tightfit.util.allocators import MAPPED_BLOCK_BYTES, HeapPages
from tightfit.util.errors import ModelError

MAX_FLUSH_BYTES = 32 << 20
"""The most bytes to touch: where caches are huge, sweeping costs more than it tells."""


def make_cache_flush(device: torch.device, room: int) -> Callable[[], None] | None:
    """What overwrites half of the last-level cache, with at most `room` bytes of memory.

    None where there is no room.
    """
    size = min(cache_bytes(device) // 2, MAX_FLUSH_BYTES, room)
    if size < 8:
        return None
    buffer = torch.zeros(size // 8, dtype=torch.int64, device=device)

    def sweep() -> None:
        buffer.neg_()

    return sweep


def cache_bytes(device: torch.device) -> int:
    """The size of the last-level cache; 32 MiB where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).L2_cache_size)
    for name in ("SC_LEVEL4_CACHE_SIZE", "SC_LEVEL3_CACHE_SIZE", "SC_LEVEL2_CACHE_SIZE"):
        if name in os.sysconf_names and os.sysconf(name) > 0:
            return os.sysconf(name)
    return 32 << 20


HEAP_SLACK_BYTES = 64 << 10
"""Bytes of the heap beyond those of an op's blocks, for their alignment."""
MIN_HEAP_BYTES = 64 << 10
"""Calls that take less of the heap find it in memory."""

HOST_TRIAL_BYTES = 64 << 20
"""Ops of a GPU that take no more than this are tried on the CPU first."""

TIMING_SECONDS = 0.05
"""Time spent on the repeated calls of one op, more where they differ much."""


def measure_op(
    graph: Graph, op: Op, wanted: set[int], device: torch.device, limit: int = 0
) -> list[OpCost]:
    """The costs of an op's forms: `wanted` holds NONE for the ordinary form, REPEATED for that of a
    repeated run, and values of `op.in_place`. Memory up to `limit` bytes may be used to keep the
    caches as a step has them. Raises ModelError when the op fails."""
    overload = resolve(op.target)
    with _translated_op_errors(graph, op), default_torch_state():
        run = _find_accepted_run(graph, op, overload, device, limit)
        return [
            run.cost(value)
            for value in (NO_VALUE, RECOMPUTE_VARIANT, *op.in_place)
            if value in wanted
        ]


def variant_calls(
    graph: Graph, op: Op, wanted: set[int], device: torch.device, limit: int = 0
) -> Iterator[tuple[int, Callable[[], Any]]]:
    """Calls of an op's forms, each run once before, for those that are `wanted` as `measure_op` has
    them. Raises ModelError when the op fails."""
    with _translated_op_errors(graph, op), default_torch_state():
        run = _find_accepted_run(graph, op, resolve(op.target), device, limit)
        for value in (NO_VALUE, RECOMPUTE_VARIANT, *op.in_place):
            if value in wanted:
                call = run.call(value)
                run.lasting(call)
                yield value, call


@contextlib.contextmanager
def _translated_op_errors(graph: Graph, op: Op) -> Iterator[None]:
    try:
        yield
    except OP_ERRORS as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(
            f"op {op.id} ({op.target}) of {graph.model} cannot be run: {reason}"
        ) from error


def _find_accepted_run(
    graph: Graph, op: Op, overload: OpOverload, device: torch.device, limit: int
) -> _OpRun:
    """The op with the first operands that it takes; raises the first refusal where it takes none.

    An op of a GPU is tried on the CPU first: there an operand outside its domain is an error like
    any other, on a GPU it ends the process's use of it.
    """
    refusal: BaseException | None = None
    small = op_footprint(graph, op) <= HOST_TRIAL_BYTES
    for on_host in (True, False) if device.type == "cuda" and small else (False,):
        for number, attempt in enumerate(operand_attempts(graph, op, overload, device, limit)):
            try:
                run = _OpRun(graph, op, overload, attempt(), device, limit, plain=number == 0)
                (run.on_host() if on_host else run).regular_call()()
            except torch.OutOfMemoryError:
                raise
            except OP_ERRORS as error:
                refusal = refusal or error
            else:
                return run
    assert refusal is not None
    raise refusal


def op_footprint(graph: Graph, op: Op) -> int:
    """Bytes of an op's operands, each in a storage of its own, and of the storages it makes."""
    read = {graph.values[value].storage for value in op.inputs}
    made = {graph.values[value].storage for value in op.outputs if value != NO_VALUE} - read
    operands = sum(
        storage_extent(graph.values[value]) * getattr(torch, graph.values[value].dtype).itemsize
        for value in op.inputs
    )
    return operands + sum(graph.storages[storage] for storage in made)


def measure_random_state(device: torch.device) -> OpCost:
    """The row of the random state: the bytes of one, the seconds of a save and a restore."""
    with default_torch_state():
        if device.type == "cuda":
            size, timing = 0, time_calls(device, lambda: _renew_cuda_state(device))
        else:
            usage, state = measure_call_memory(device, torch.get_rng_state)
            size = usage.net
            del state
            timing = time_calls(device, lambda: torch.set_rng_state(torch.get_rng_state()))
    return OpCost(
        RANDOM_STATE_KEY, RANDOM_STATE_TARGET, NO_VALUE, timing.median, timing.spread, size, size
    )


def _renew_cuda_state(device: torch.device) -> None:
    torch.cuda.set_rng_state(torch.cuda.get_rng_state(device), device)


@dataclass
class _OpRun:
    """Runs the forms of one op on operands that stay the same, or are filled again; with `plain`
    they are the ordinary fills."""

    graph: Graph
    op: Op
    overload: OpOverload
    operands: dict[int, Tensor]
    device: torch.device
    limit: int
    plain: bool = True

    def cost(self, in_place: int) -> OpCost:
        """Runs a form once to warm up, once for its memory, and often for its time."""
        call = self.call(in_place)
        lasting = self.lasting(call)
        usage, result = measure_call_memory(self.device, call)
        del result
        allocated = sum(tensor.untyped_storage().nbytes() for tensor in self.operands.values())
        sweep = make_cache_flush(self.device, self.limit - allocated - usage.peak)
        renew = None if in_place in (NO_VALUE, RECOMPUTE_VARIANT) else self.make_refill(in_place)

        heap = HeapPages(self.heap_bytes(usage.peak))

        def before() -> None:
            heap.touch()
            if renew is not None:
                renew()
            if sweep is not None:
                sweep()

        repeatable = renew is None
        timing = time_calls(self.device, call, before, limit=TIMING_SECONDS, repeatable=repeatable)
        cost = make_cost(self.graph, self.op, in_place, timing, usage.peak, usage.net)
        if self.device.type != "cuda":
            return cost
        return replace(cost, allocations=OpAllocations(usage.moves, lasting))

    def heap_bytes(self, peak: int) -> int:
        """Bytes of the heap that a call takes which has a peak: none on a GPU, and none of results
        that get pages of their own."""
        made = {self.graph.values[value].storage for value in self.op.outputs if value != NO_VALUE}
        sizes = [self.graph.storages[storage] for storage in made]
        below = peak - sum(size for size in sizes if size >= MAPPED_BLOCK_BYTES)
        if self.device.type != "cpu" or below < MIN_HEAP_BYTES:
            return 0
        return below + HEAP_SLACK_BYTES

    def lasting(self, call: Callable[[], Any]) -> list[int]:
        """Runs a call that warms up; returns the bytes, each, that libraries keep of it on CUDA."""
        if self.device.type != "cuda":
            call()
            return []
        torch._C._cuda_clearCublasWorkspaces()

        def dropped() -> None:
            call()

        usage, _ = measure_call_memory(self.device, dropped)
        return list(OpAllocations(usage.moves, []).staying().values())

    def call(self, in_place: int) -> Callable[[], Any]:
        """The call of a form."""
        if in_place == NO_VALUE:
            return self.regular_call()
        return self.repeated() if in_place == RECOMPUTE_VARIANT else self.in_place_call(in_place)

    def repeated(self) -> Callable[[], Any]:
        """The form in which the op runs again; what its first run leaves is made by running it."""
        form = find_recompute_values(self.graph, self.op)
        if form is None:
            raise ValueError("it runs again as it did first")
        made = dict(zip(self.op.outputs, self.regular_call()(), strict=True))
        known = {**made, **self.operands}
        operands = [known[value] for value in form.reads]
        del made, known
        return lambda: recompute_batch_norm(*operands)

    def regular_call(self) -> Callable[[], Any]:
        """The op itself."""
        run = training_operator(self.op.target)
        args, kwargs = self.decoded()
        return lambda: run(*args, **kwargs)

    def in_place_call(self, value: int) -> Callable[[], Any]:
        """The in-place form that overwrites a value."""
        if is_fused_group(self.op.target):
            kernel = in_place_group_kernel(self.graph, self.op, value, self.device)
            given, _ = self.decoded()
            return lambda: kernel(given)
        position = self.position(value)
        steps = [
            (resolve(step.target), step.args, step.kwargs)
            for step in in_place_calls(self.op.target, position, *self.decoded())
        ]

        def call() -> Any:
            for overload, args, kwargs in steps:
                overload(*args, **kwargs)

        return call

    def position(self, value: int) -> int:
        """Where among the arguments the value stands that an in-place form overwrites."""
        args, _ = decode_arguments(self.op.arguments)
        position = in_place_position(args, value, self.op.target, self.graph.device)
        if position is None:
            raise ValueError(f"it cannot overwrite value {value}")
        return position

    def make_refill(self, value: int) -> Callable[[], None]:
        """What gives an overwritten operand new contents."""
        operand = self.operands[value]
        if not self.plain:
            kept = operand.clone()
            return lambda: _restore(operand, kept)
        fill = operand_fill(self.graph, self.op, self.overload, value)
        return lambda: fill_operand(self.operands[value], self.graph.values[value], fill)

    def on_host(self) -> _OpRun:
        """The same op with its operands on the CPU."""
        return replace(self, operands={key: value.cpu() for key, value in self.operands.items()})

    def decoded(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of the call, with the operands in place of the values."""
        args, kwargs = decode_arguments(self.op.arguments)
        decoded = {
            name: decode_argument(argument, self.operands) for name, argument in kwargs.items()
        }
        return [decode_argument(argument, self.operands) for argument in args], decoded


def _restore(operand: Tensor, kept: Tensor) -> None:
    operand.copy_(kept)


def make_cost(
    graph: Graph, op: Op, in_place: int, timing: CallTiming, peak: int, net: int
) -> OpCost:
    """The row of one form of an op."""
    position = in_place if in_place in (NO_VALUE, RECOMPUTE_VARIANT) else op.inputs.index(in_place)
    seconds = timing.median if math.isfinite(timing.median) else 0.0
    key = op_cost_key(graph, op, in_place)
    lost = timing.lost if timing.lost >= PREEMPTION_THRESHOLD else 0.0
    sizes = (max(peak, net, 0), max(net, 0))
    return OpCost(key, op.target, position, seconds, timing.spread, *sizes, lost=lost)
