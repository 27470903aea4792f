"""Chooses the saved values of the graphs of a step within a budget in bytes."""

from __future__ import annotations

import functools
import hashlib
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import fx

from tightfit.schemas.graph.training_graph import LOSS_SCALAR_BYTES
from tightfit.stages.compile.joint_graph import JointNodes
from tightfit.stages.compile.node_costs import hinted_bytes, size_hint
from tightfit.stages.compile.saved_set_search import SavedSet, search_saved_sets, simulate_set

_LABEL_BYTES = 8
_MIN_LOSS_ITEM_BYTES = 4


@dataclass(frozen=True)
class PartitionedGraph:
    """What was decided for one graph that `torch.compile` made.

    Attributes:
        name: The compiled frame and the number of its compilation, such as "0/0".
        peak: Predicted bytes at most while the graph runs: parameters and inputs, activations,
            gradients, what its caller holds, and what the other graphs of the step hold then.
        saved_bytes: Bytes at the end of its forward: saved values and outputs.
        slowdown: Estimated time of forward and backward relative to that without a budget.
        fits: Whether the peak is within the budget.
        nodes: Nodes of its joint graph of forward and backward.
        search_seconds: CPU seconds that the choice took.
    """

    name: str
    peak: int
    saved_bytes: int
    slowdown: float
    fits: bool
    nodes: int
    search_seconds: float


@dataclass(frozen=True)
class _StepPart:
    """What the other graphs of a step count of a graph."""

    name: str
    input_bytes: int
    end_bytes: int
    backward_peak: int
    gradient_bytes: int
    output_sizes: Counter[int]

    @property
    def bytes_for_later(self) -> int:
        """What it holds while later graphs run."""
        return self.input_bytes + self.end_bytes

    @property
    def bytes_for_earlier(self) -> int:
        """What it holds while the backward of an earlier graph runs."""
        return self.gradient_bytes + self.output_sizes.total()


@dataclass
class BudgetPlanner:
    """Chooses saved values within a budget, graph by graph in the order of their compilation.

    Args:
        budget: Bytes of the whole step.
        reserve: Bytes for what runs between the forward and the backward of a graph; None for those
            of a usual loss of its outputs.
    """

    budget: int
    reserve: int | None = None
    graphs: dict[str, PartitionedGraph] = field(default_factory=dict)
    _parts: dict[int, _StepPart] = field(default_factory=dict)
    _plans: dict[str, str] = field(default_factory=dict)
    _peak_limits: dict[str, tuple[int, int]] = field(default_factory=dict)

    def peak_limit(self, is_backward: bool) -> int | None:
        """Bytes that the forward or backward of the graph that is compiled may take beside
        parameters and what its caller holds; None if it saves what it would without a budget."""
        limits = self._peak_limits.get(_compiled_frame()[1])
        return limits[is_backward] if limits else None

    def note_excess(self, excess: int) -> None:
        """Notes what the kernels of the graph that is compiled take beyond its `peak_limit`, and
        warns of it."""
        name = _compiled_frame()[1]
        graph = self.graphs[name]
        peak = max(self.budget, graph.peak) + excess
        self.graphs[name] = replace(graph, peak=peak, fits=False)
        self._warn(
            f"inductor's kernels of graph {name} take {peak:,} bytes by its own estimate",
            f"lower the budget by {peak - self.budget:,} bytes",
        )

    def digest(self) -> str:
        """The digest of code, ask and plans so far."""
        asked = [code_digest(), str(self.budget), str(self.reserve)]
        plans = [f"{name}={plan}" for name, plan in sorted(self._plans.items())]
        return hashlib.sha256("\n".join([*asked, *plans]).encode()).hexdigest()

    def choose(
        self, graph: fx.Graph, node_info: Any, usual: list[fx.Node], fuses: bool
    ) -> list[fx.Node]:
        """The nodes to save of a joint graph, of which the compiler would save the `usual`.

        Args:
            graph: The joint graph.
            node_info: What AOTAutograd's partitioner knows of its nodes (`NodeInfo`).
            usual: What `choose_saved_values_set` gives without a budget.
            fuses: Whether the backend fuses pointwise operators.

        Returns:
            The `usual` nodes if their peak is within the budget, else those of the fastest set that
            is; those of the smallest known, with a warning, if none is.
        """
        started = time.thread_time()
        frame, name = _compiled_frame()
        nodes = JointNodes(graph, node_info, fuses)
        beside = LOSS_SCALAR_BYTES + sum(nodes.input_bytes.values())
        beside += self._held_by_earlier(frame, nodes)
        between = _loss_bytes(nodes) if self.reserve is None else self.reserve
        first = simulate_set(nodes.arrays, nodes.mask_of(usual), between)
        chosen, answer = first, usual
        if first.peak + beside > self.budget:
            usual_set = nodes.with_readers(first.saved)
            frontier = search_saved_sets(nodes.arrays, nodes.candidates, usual_set, between)
            fits = [each for each in frontier if each.peak + beside <= self.budget]
            chosen = fits[-1] if fits else frontier[0]
            answer = _saved_nodes(nodes, node_info, chosen)
            room = max(self.budget - beside, chosen.peak)
            forward, backward = nodes.bytes_beside_kernels(chosen.saved)
            self._peak_limits[name] = (room - forward, room - backward)
        known = frame in self._parts
        self._parts[frame] = _part_of(name, nodes, chosen, beside)
        names = ",".join(node.name for node in answer)
        self._plans[name] = hashlib.sha256(names.encode()).hexdigest()
        slowdown = chosen.seconds / max(first.seconds, 1e-12)
        took = time.thread_time() - started
        self._note(name, chosen, beside, slowdown, nodes=len(nodes.nodes), seconds=took)
        if not known:
            self._note_earlier(frame, name)
        return answer

    def _held_by_earlier(self, frame: int, nodes: JointNodes) -> int:
        """Bytes that earlier graphs of the step hold while a graph runs, without those of its
        inputs that are their outputs."""
        held = 0
        inputs = Counter(
            size for node, size in nodes.input_bytes.items() if node not in nodes.parameters
        )
        for other, part in self._parts.items():
            if other < frame:
                passed = part.output_sizes & inputs
                inputs -= passed
                held += part.bytes_for_later - sum(size * n for size, n in passed.items())
        return held

    def _note(
        self, name: str, chosen: SavedSet, beside: int, slowdown: float, nodes: int, seconds: float
    ) -> None:
        """Notes what was decided for a graph, and warns if it takes more than the budget."""
        peak = chosen.peak + beside
        fits = peak <= self.budget
        self.graphs[name] = PartitionedGraph(
            name, peak, chosen.end_bytes, slowdown, fits, nodes, seconds
        )
        if not fits:
            self._warn(
                f"the smallest partition found for graph {name} takes {peak:,} bytes, {beside:,} "
                "of them inputs, parameters and what earlier graphs hold",
                "it is compiled with these",
            )

    def _note_earlier(self, frame: int, name: str) -> None:
        """Adds to the peaks of earlier graphs what a graph holds while their backwards run."""
        later = self._parts[frame].bytes_for_earlier
        for before in [each for each in self._parts if each < frame]:
            part = self._parts[before]
            grown = replace(part, backward_peak=part.backward_peak + later)
            self._parts[before] = grown
            graph = self.graphs[part.name]
            peak = max(graph.peak, grown.backward_peak)
            self.graphs[part.name] = replace(graph, peak=peak, fits=peak <= self.budget)
            if graph.fits and peak > self.budget:
                self._warn(
                    f"the backward of graph {part.name} takes {peak:,} bytes with the outputs and "
                    f"gradients of graph {name}",
                    "lower the budget by the difference, or mend the graph break between them",
                )

    def _warn(self, fact: str, remedy: str) -> None:
        warnings.warn(
            f"compile_budget: {fact}, which is more than the budget of {self.budget:,} bytes: "
            f"{remedy}",
            stacklevel=2,
        )


@functools.cache
def code_digest() -> str:
    """The digest of the code that plans."""
    texts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()


def _compiled_frame() -> tuple[int, str]:
    """The number of the frame that is compiled, and its name with that of the compilation."""
    found = torch._guards.CompileContext.current_compile_id()
    if found is None or found.frame_id is None:
        return 0, "0/0"
    return found.frame_id, f"{found.frame_id}/{found.frame_compile_id}"


def _loss_bytes(nodes: JointNodes) -> int:
    """What cross entropy takes of the outputs beside them, with their gradients: log-softmax, its
    gradient and theirs (see `tightfit.schemas.graph.loss_room`); 0 if all outputs are scalars,
    which are the loss itself."""
    values = [node.meta["val"] for node in nodes.tangents]
    shapes = [[size_hint(size) for size in value.shape] for value in values]
    counts = [int(np.prod(shape)) for shape in shapes]
    if all(count == 1 for count in counts):
        return 0
    kept = [
        count * max(value.dtype.itemsize, _MIN_LOSS_ITEM_BYTES)
        for count, value in zip(counts, values, strict=True)
    ]
    labels = _LABEL_BYTES * sum(int(np.prod(shape[:-1])) for shape in shapes)
    return sum(kept) + 2 * max(kept) + labels


def _saved_nodes(nodes: JointNodes, node_info: Any, chosen: SavedSet) -> list[fx.Node]:
    """What `choose_saved_values_set` returns for a set: inputs and saved values."""
    values = [nodes.nodes[at] for at in np.flatnonzero(chosen.saved)]
    return list(dict.fromkeys([*node_info.inputs, *values]))


def _part_of(name: str, nodes: JointNodes, chosen: SavedSet, beside: int) -> _StepPart:
    """What a graph is to the others of its step, with the bytes that there are beside it."""
    outputs = {node: hinted_bytes(node.meta["val"]) for node in nodes.tensor_outputs}
    return _StepPart(
        name,
        sum(nodes.input_bytes.values()),
        chosen.end_bytes,
        chosen.backward_peak + beside,
        nodes.gradient_bytes,
        Counter(outputs.values()),
    )
