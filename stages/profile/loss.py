"""Measures the loss: from the model's outputs to their tangents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from tightfit.schemas.costs import OpAllocations, OpCost, op_cost_key
from tightfit.schemas.graph.training_graph import LOSS_TARGET, NO_VALUE, Graph
from tightfit.stages.profile.code_fingerprint import fingerprint_function
from tightfit.stages.profile.measure import make_cost
from tightfit.stages.profile.operands import fill_normal, make_tensor
from tightfit.stages.runtime.call_context import default_torch_state
from tightfit.stages.runtime.loss_outputs import LossOutputs
from tightfit.stages.runtime.pytree import read_tree
from tightfit.stages.torch_utils.devices import parse_device
from tightfit.stages.torch_utils.memory_meter import CallTiming, memory_session, time_calls
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.torch_utils.step_loss import step_loss
from tightfit.util.errors import ModelError


@contextmanager
def enter_training_state(graph: Graph) -> Iterator[None]:
    """The caller's state as it is in a training step of the graph: gradients on, autocast as it
    was when the graph was traced."""
    autocast = json.loads(graph.guards).get("autocast", {"enabled": False})
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if autocast["enabled"]:
            dtype = getattr(torch, autocast["dtype"])
            stack.enter_context(torch.autocast(graph.device, dtype=dtype))
        else:
            stack.enter_context(torch.autocast(graph.device, enabled=False))
        yield


LossCallable = Callable[[Any], Tensor]

ZERO_TIMING = CallTiming(0.0, 0.0, 0.0, 0)


def measure_loss(
    graph: Graph,
    loss: LossCallable,
    known: OpCost | None = None,
    device: torch.device | None = None,
    timed: bool = True,
) -> OpCost:
    """The cost of a loss and its backward on random outputs of the model, on `device` (the current
    one of the graph's kind unless given).

    `net` is what is allocated when the last tangent arrives: the tangents, and the loss and its
    own gradient, which the caller and autograd hold to the end of the step. On CUDA `allocations`
    are those up to that moment. The memory is measured each time; where it is that of `known`, what
    a loss of the same code cost, that is the cost. Unless `timed` its seconds are 0. Raises
    ModelError when the loss fails.
    """
    with enter_training_state(graph):
        return _measure_loss(graph, loss, known, device or parse_device(graph.device), timed)


def _measure_loss(
    graph: Graph, loss: LossCallable, known: OpCost | None, device: torch.device, timed: bool
) -> OpCost:
    op = next(op for op in graph.ops if op.target == LOSS_TARGET)
    run = _LossRun(graph, loss, device)
    try:
        run.call()
        on_cuda = device.type == "cuda"
        lasting = run.lasting() if on_cuda else ([], [])
        run.prepare()  # PyTorch warns where what was there before a session ends within it
        with memory_session(device, lines=on_cuda) as running:
            run.prepare(lambda: running.mark("tangents"))
            running.mark("start")
            result = run.step()
            running.mark("end")
        to_tangents, whole = running.usage("start", "tangents"), running.usage("start", "end")
        del result
        asked = OpAllocations(to_tangents.moves, *lasting) if on_cuda else None
        anew = make_cost(graph, op, NO_VALUE, ZERO_TIMING, whole.peak, to_tangents.net)
        if known is not None and (known.peak, known.net) == (anew.peak, anew.net):
            return replace(known, key=anew.key, allocations=asked)
        if not timed:
            return replace(anew, allocations=asked)
        timing = time_calls(device, run.step, run.prepare, limit=0.3)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelError(f"the loss of {graph.model} cannot be run: {reason}") from error
    cost = make_cost(graph, op, NO_VALUE, timing, whole.peak, to_tangents.net)
    return replace(cost, allocations=asked)


def loss_library_key(graph: Graph, loss: LossCallable) -> str | None:
    """The key under which a library keeps the cost of a loss: that of the op, with the loss's
    code. None where the code cannot be told, so that the cost is not to be kept."""
    code = fingerprint_function(loss)
    if code is None:
        return None
    op = next(op for op in graph.ops if op.target == LOSS_TARGET)
    return hashlib.sha256(f"{op_cost_key(graph, op)} {code}".encode()).hexdigest()


def build_loss(
    graph: Graph, build: Callable[[bool], BuiltModel], device: torch.device
) -> LossCallable | None:
    """The loss of a factory, built without memory (`build(True)`) where that loss can be run.

    A loss that keeps tensors of its own, such as labels, needs the real ones (`build(False)`).
    """
    light = step_loss(graph, build(True))
    if light is not None:
        try:
            if not isinstance(_LossRun(graph, light, device).call(), FakeTensor):
                return light
        except Exception:  # what is wrong with a loss is told when the real one is measured
            return step_loss(graph, build(False))
    return step_loss(graph, build(False))


class _LossRun:
    """Runs the loss on tensors that stand for the model's outputs."""

    def __init__(self, graph: Graph, loss: LossCallable, device: torch.device) -> None:
        self.loss, self.device = loss, device
        self.leaves: list[Any] = []
        self.differentiable: dict[int, Tensor] = {}
        made: dict[int, Tensor] = {}
        for output in graph.outputs:
            if output.value == NO_VALUE:
                self.leaves.append(json.loads(output.constant))
                continue
            if output.value not in made:
                with default_torch_state():
                    tensor = make_tensor(graph.values[output.value], fill_normal, device)
                made[output.value] = tensor
                if output.tangent != NO_VALUE:
                    self.differentiable[id(tensor)] = tensor.requires_grad_()
            self.leaves.append(made[output.value])
        self.tree = read_tree(graph.output_tree)
        self.tangents: list[Tensor | None] = []
        self.output: Any = None

    def prepare(self, arrived: Callable[[], None] | None = None) -> None:
        """Drops the tangents, and makes the outputs anew; `arrived` is called when all tangents
        have come again."""
        found: list[Tensor | None] = []
        self.tangents = found

        def taken(*tangents: Tensor | None) -> None:
            found.extend(tangents)
            if arrived is not None:
                arrived()

        outputs = LossOutputs.apply(taken, *self.differentiable.values())
        given = dict(zip(self.differentiable, outputs, strict=True))
        self.output = self.tree.unflatten([given.get(id(leaf), leaf) for leaf in self.leaves])

    def step(self) -> Tensor:
        """The loss and its backward; the caller holds the loss, this object the tangents."""
        value = self.loss(self.output)
        value.backward()
        return value

    def call(self) -> Tensor:
        """One step, to warm up; gives the loss."""
        self.prepare()
        return self.step()

    def lasting(self) -> tuple[list[int], list[int]]:
        """The bytes, each, that libraries keep of the loss on CUDA, and those of its backward,
        which runs in autograd's thread."""
        torch._C._cuda_clearCublasWorkspaces()
        self.prepare()
        with memory_session(self.device, lines=True) as running:
            running.mark("start")
            value = self.loss(self.output)
            running.mark("made")
            value.backward()
            del value
            self.prepare()
            running.mark("end")
        taken = sum(move > 0 for move in running.usage("start", "made").moves)
        kept = OpAllocations(running.usage("start", "end").moves, []).staying()
        forward = [size for number, size in kept.items() if number <= taken]
        return forward, [size for number, size in kept.items() if number > taken]
