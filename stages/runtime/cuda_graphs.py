"""Runs a step as CUDA graphs: one launch for its forward, and one for each slice of its backward.

`torch.cuda.graph` captures once what is launched. The graph is replayed from then on, in the order
of its capture and with one private pool of memory, which therefore has the size of the plan. What a
plan takes ahead of its steps is taken in that pool. `torch.cuda.make_graphed_callables` captures,
too, but runs three steps more to warm up, which write buffers and draw random numbers. It hands all
gradients over at once, holds on to the parameters that it has seen, and lets a gradient that was
accumulated lie where the next run writes. Here the guards of a planned module are looked at before
each replay, gradients are handed over slice by slice, and what is about to be written over while
somebody still has it is told.

The step says how it is run: it is a generator that yields what leaves it (see `chain`), and so is
what stands in for it here. The first run is one of plain calls, in which libraries make what may
not be made during a capture. A capture runs nothing, so that each part is replayed after it.

Inputs are copied into static tensors, and the gradients of outputs. Outputs and the gradients of
inputs are copies, as eager users expect. The gradient of a parameter is handed over where the
graphs leave it, and the next run writes there: gradients that are still accumulated by then are
copied first, so that they may add up over several steps.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Generator, Sequence
from typing import Any

import torch

from .autograd_chain import StepProgram
from .interface import Interface
from .output_gradients import MissingGradient, OutputGradient
from .preallocation import Preallocation
from .strides import has_layout

GraphRun = Generator[list[Any], list[OutputGradient], None]


def cuda_graph_obstacle(step: StepProgram, interface: Interface) -> str:
    """Why a step cannot be run as CUDA graphs; "" where it can."""
    if interface.device != "cuda":
        return f"CUDA graphs need a GPU, and the plan was made for {interface.device}"
    if interface.sizes is not None:
        return "the plan is for calls of several sizes, and a CUDA graph is for one"
    if "use_random_state" in getattr(step, "__globals__", {}):
        return (
            "the plan draws random numbers once more where it recomputes, from a state that a CUDA "
            "graph cannot set"
        )
    if "StepTransfers" in getattr(step, "__globals__", {}):
        return "the plan sends tensors to the host, in streams that a CUDA graph does not have"
    if interface.assigned_buffers:
        path = interface.tensors[interface.assigned_buffers[0]].path
        return f"the model puts another tensor in the place of {path} at each call"
    if interface.aliased:
        return "an output shares memory with another output, an input or a parameter"
    return ""


class CudaGraphStep:
    """Stands in for a step: called with its tensors, it gives a run of it.

    One run at a time is one of graphs. While it can still go backward, further ones are of plain
    calls, as is the first of all.
    """

    def __init__(self, step: StepProgram, interface: Interface, arena: int = 0) -> None:
        self.step = step
        self.arena = arena
        self.inputs = [at for at, t in enumerate(interface.tensors) if t.kind == "input"]
        self.fixed = [at for at, t in enumerate(interface.tensors) if t.kind != "input"]
        self.slices = interface.backward_segments
        self.warm = False
        self.captured: CapturedGraphs | None = None
        self._running = threading.Lock()

    def __call__(self, *tensors: torch.Tensor) -> GraphRun:
        """A run of the step."""
        plain = not self.warm or torch.cuda.is_current_stream_capturing()
        if plain or not self._running.acquire(blocking=False):
            yield from self._plain(tensors)
            return
        try:
            yield from self._replayed(tensors)
        finally:
            if self.captured is not None and self.captured.begun and not self.captured.whole:
                self.captured = None
            self._running.release()

    def _plain(self, tensors: Sequence[torch.Tensor]) -> GraphRun:
        """A run of plain calls; after a whole one libraries have made what they need."""
        run = self.step(*tensors)
        yielded = run.send(None)  # type: ignore[arg-type]
        for _ in self.slices:
            message = yield yielded
            yielded = run.send(message)
        self.warm = True
        yield yielded

    def _replayed(self, tensors: Sequence[torch.Tensor]) -> GraphRun:
        """A run of graphs, which are captured where they are not there."""
        captured = self._of(tensors)
        captured.release_gradients(tensors)
        captured.enter([tensors[at] for at in self.inputs])
        captured.play(0, tensors)
        message = yield [_strided_copy(output) for output in captured.outputs]
        if self._places(tensors) != captured.places:
            raise RuntimeError(
                "a parameter or buffer was moved to offload target between the forward and the "
                "backward, where a CUDA graph does not find it: move it after the backward"
            )
        captured.take(message)
        for stop in range(1, len(self.slices) + 1):
            captured.play(stop, tensors)
            yield captured.handed(stop)

    def _of(self, tensors: Sequence[torch.Tensor]) -> CapturedGraphs:
        """The graphs for parameters, buffers and constants where they lie now."""
        places = self._places(tensors)
        if self.captured is None or self.captured.places != places:
            self.captured = None
            self.captured = CapturedGraphs(self, tensors, places)
        return self.captured

    def _places(self, tensors: Sequence[torch.Tensor]) -> list[int]:
        return [tensors[at].data_ptr() for at in self.fixed]


class CapturedGraphs:
    """The CUDA graphs of a step, with the tensors that they read and write.

    `graphs` are those of the forward and of the slices, as far as they are captured, and `written`
    the positions of the tensors that each of them writes in place. `lent` are the storages of the
    gradients that are handed over where they lie, with how often the graphs' own tensors hold them.
    """

    def __init__(
        self, owner: CudaGraphStep, tensors: Sequence[torch.Tensor], places: list[int]
    ) -> None:
        self.owner, self.places = owner, places
        self.device = tensors[0].device
        self.stream = torch.cuda.Stream(self.device)
        self.pool = torch.cuda.graph_pool_handle()
        self.last: Any = None
        self.inputs = [_empty_with_strides(tensors[at]) for at in owner.inputs]
        self.given = list(tensors)
        for at, static in zip(owner.inputs, self.inputs, strict=True):
            self.given[at] = static
        self.program: Any = owner.step(*self.given)
        self.graphs: list[Any] = []
        self.written: list[list[int]] = []
        self.outputs: list[torch.Tensor] = []
        self.tangents: list[OutputGradient] | None = None
        self.gradients: list[list[OutputGradient | None]] = []
        self.lent_gradients: list[tuple[torch.UntypedStorage, int]] = []

    @property
    def begun(self) -> bool:
        """Whether a part of the backward is captured."""
        return len(self.graphs) > 1

    @property
    def whole(self) -> bool:
        """Whether all parts are captured."""
        return len(self.graphs) == len(self.owner.slices) + 1

    def release_gradients(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lets gradients that are still accumulated lie elsewhere, before anything is written
        over. Raises RuntimeError where somebody else has one of them."""
        places = {storage.data_ptr() for storage, _ in self.lent_gradients}
        for at in {at for positions in self.owner.slices for at in positions}:
            gradient = tensors[at].grad if tensors[at].is_leaf else None
            if gradient is not None and gradient.untyped_storage().data_ptr() in places:
                tensors[at].grad = _strided_copy(gradient)
            del gradient
        for storage, own in self.lent_gradients:
            if torch._C._storage_Use_Count(storage._cdata) > own:
                raise RuntimeError(
                    "a gradient of an earlier step is still held, where the CUDA graphs are about "
                    "to write: keep a clone of it, or load the plan without cuda_graphs"
                )

    def enter(self, inputs: Sequence[torch.Tensor]) -> None:
        """Takes the inputs of a call, after whatever the last run has still to do."""
        now = torch.cuda.current_stream(self.device)
        if self.last is not None and now != self.last:
            now.wait_stream(self.last)
        self.last = now
        for static, tensor in zip(self.inputs, inputs, strict=True):
            _copy_memory(static, tensor)

    def take(self, message: list[OutputGradient]) -> None:
        """Takes the gradients of the outputs, and empties the list that they come in."""
        if self.tangents is None:
            self.tangents = [
                tangent if isinstance(tangent, MissingGradient) else _empty_with_strides(tangent)
                for tangent in message
            ]
        for number, (static, tangent) in enumerate(zip(self.tangents, message, strict=True)):
            _check_same_gradient(number, static, tangent)
            if isinstance(static, torch.Tensor) and isinstance(tangent, torch.Tensor):
                _copy_memory(static, tangent)
        message.clear()

    def play(self, stop: int, tensors: Sequence[torch.Tensor]) -> None:
        """Replays a part, captured first where it is not yet."""
        if stop == len(self.graphs):
            self._capture(stop)
        self.graphs[stop].replay()
        changed = [tensors[at] for at in self.written[stop]]
        if changed:
            torch.autograd.graph.increment_version(changed)

    def handed(self, stop: int) -> list[OutputGradient | None]:
        """The gradients of a slice, as they are handed to autograd: those of inputs are copies."""
        handed: list[OutputGradient | None] = []
        found = zip(self.owner.slices[stop - 1], self.gradients[stop - 1], strict=True)
        for at, gradient in found:
            if isinstance(gradient, torch.Tensor):
                copied = at in self.owner.inputs
                handed.append(_strided_copy(gradient) if copied else gradient.detach())
            else:
                handed.append(gradient)
        return handed

    def _capture(self, stop: int) -> None:
        """Captures a part: what it yields lies at the same place after each replay."""
        versions = [tensor._version for tensor in self.given]
        sent = list(self.tangents) if stop == 1 and self.tangents is not None else None
        try:
            made, yielded = self._capturing(sent)
        except torch.OutOfMemoryError:
            self.owner.captured = None
            raise
        except RuntimeError as error:
            self.owner.captured = None
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RuntimeError(
                f"the step cannot be captured as CUDA graphs ({reason}): load the plan without "
                "cuda_graphs"
            ) from error
        leaving = [one.detach() if isinstance(one, torch.Tensor) else one for one in yielded]
        yielded.clear()
        if stop == 0:
            self.outputs = leaving
        else:
            self.gradients.append(leaving)
        self.graphs.append(made)
        now = [tensor._version for tensor in self.given]
        self.written.append([at for at in self.owner.fixed if now[at] != versions[at]])
        if self.whole:
            self.program.close()
            self.program, self.given = None, []
            self.lent_gradients = self._lent()

    def _capturing(self, sent: Any) -> tuple[Any, list[Any]]:
        """A graph of what the program does up to its next stop, and what it yields there."""
        graph = torch.cuda.CUDAGraph()
        capturing = torch.cuda.graph(
            graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"
        )
        # Where the end of a capture fails, torch.cuda.graph leaves its stream the current one.
        with torch.cuda.stream(torch.cuda.current_stream(self.device)), capturing:
            if not self.graphs:
                Preallocation(self.owner.arena).take(self.device)
            yielded = self.program.send(sent)
        return graph, yielded

    def _lent(self) -> list[tuple[torch.UntypedStorage, int]]:
        """See `lent`. The storage that is kept here is one holder more."""
        gradients = [gradient for part in self.gradients for gradient in part]
        own = [*self.inputs, *self.outputs, *(self.tangents or []), *gradients]
        places = [t.untyped_storage().data_ptr() for t in own if isinstance(t, torch.Tensor)]
        holders = Counter(places)
        lent = {
            gradient.untyped_storage().data_ptr(): gradient.untyped_storage()
            for positions, part in zip(self.owner.slices, self.gradients, strict=True)
            for at, gradient in zip(positions, part, strict=True)
            if isinstance(gradient, torch.Tensor) and at not in self.owner.inputs
        }
        return [
            (storage, holders[place] + 1) for place, storage in lent.items() if storage.nbytes()
        ]


def _check_same_gradient(number: int, static: OutputGradient, tangent: OutputGradient) -> None:
    """Raises RuntimeError where the gradient of an output is another kind of one than that with
    which the backward was captured."""
    if isinstance(static, MissingGradient) != isinstance(tangent, MissingGradient):
        there, then = ("none", "one") if isinstance(tangent, MissingGradient) else ("one", "none")
        raise RuntimeError(
            f"output {number} receives {there} where it received {then} when the CUDA graphs were "
            "captured: let all outputs take part in the loss each time, or load the plan without "
            "cuda_graphs"
        )
    if isinstance(static, MissingGradient) or isinstance(tangent, MissingGradient):
        return
    if not has_layout(tangent, static.stride()):
        raise RuntimeError(
            f"the gradient of output {number} has strides {tuple(tangent.stride())}, and had "
            f"{tuple(static.stride())} when the CUDA graphs were captured: load the plan without "
            "cuda_graphs"
        )


def _extent(tensor: torch.Tensor) -> int:
    """The elements from the first to the last that a tensor has, those between them included."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _flat_memory(tensor: torch.Tensor) -> torch.Tensor:
    """All that lies between the first element of a tensor and the last."""
    return tensor.as_strided((_extent(tensor),), (1,))


def _empty_with_strides(tensor: torch.Tensor) -> torch.Tensor:
    """A new tensor of the same shape and strides, whatever overlaps or is left out."""
    buffer = torch.empty(_extent(tensor), dtype=tensor.dtype, device=tensor.device)
    return buffer.as_strided(tensor.shape, tensor.stride())


def _copy_memory(static: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copies what lies in a tensor into one of the same strides."""
    _flat_memory(static).copy_(_flat_memory(tensor))


def _strided_copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides."""
    buffer = _empty_with_strides(tensor)
    _copy_memory(buffer, tensor)
    return buffer.detach()
