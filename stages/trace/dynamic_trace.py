"""The graph of a model whose inputs have sizes that differ from call to call.

The model is captured once with symbols for sizes, which gives the expressions that sizes can be and
the conditions that the forward looks at. Of the capture graphs are made at several sizes, by the
passes that all graphs go through. They have to be one program: each number in which they differ is
one of these expressions, or a sum of multiples.
"""

from __future__ import annotations

import contextlib
import gc
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tightfit.schemas.graph.dynamic_inputs import (
    DynamicDimension,
    DynamicInputs,
    describe_sizes,
)
from tightfit.schemas.graph.dynamic_shapes import (
    DynamicLayout,
    DynamicShapes,
    SizeSource,
    check_dynamic_shapes,
    find_small_sizes,
)
from tightfit.schemas.graph.loss_room import with_loss_room
from tightfit.schemas.graph.op_arguments import decode_arguments, encode_arguments
from tightfit.schemas.graph.size_expressions import Size, linear_size
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, GraphValue, Op
from tightfit.stages.torch_utils.devices import device_of_tensors, enter_device, parse_device
from tightfit.stages.torch_utils.model_factory import BuiltModel, all_tensors
from tightfit.stages.torch_utils.sample_sizes import resize_samples
from tightfit.stages.trace.canonicalize.layout import MendedCalls
from tightfit.stages.trace.size_fit import SizeFit, distinguishing_sizes
from tightfit.stages.trace.size_propagation import SizePropagator
from tightfit.stages.trace.symbolic_sizes import graph_expressions, number_texts
from tightfit.stages.trace.trace import capture_step
from tightfit.util.errors import ArtifactError, ModelError

_MAX_ODD_DISTANCE = 64
"""How far, at most, the sizes between lie from the smallest: large ones take long, since operators
are run to see how their results lie."""
_FRACTIONS = (0.37, 0.71)
"""Where, within each range, the sizes lie of which graphs are made beside the limits."""


def trace_dynamic(
    built: BuiltModel,
    name: str,
    device: str = "cpu",
    channels_last: bool = False,
    loss_room: int | None = 0,
) -> Graph:
    """The training step of a sample of the largest sizes, with what differs at others; see `trace`.

    Raises ModelError where the step is not one program at all sizes, with the name of the dimension
    or the line of the model where PyTorch tells it.
    """
    assert built.dynamic is not None
    points, kind = traced_sizes(built.dynamic), parse_device(device).type
    sample_sizes = points[-1]
    room = loss_room if built.loss is None else 0
    with enter_device(device_of_tensors(all_tensors(built), kind)):
        symbolic = replace(resize_samples(built, sample_sizes), symbolic=True)
        with _name_sizes(sample_sizes), _pause_garbage_collector():
            step = capture_step(symbolic, kind)
        expressions = graph_expressions(step.captured.graph, built.label, built.dynamic)
        numbers = number_texts(step.captured.graph)
        points += distinguishing_sizes(expressions, numbers, points, built.dynamic)
        propagator = SizePropagator(step.captured.graph)
        graphs: list[Graph] = []
        mended = MendedCalls()
        for sizes in points:
            at = replace(resize_samples(built, sizes), dynamic=None)
            with _name_sizes(sizes):
                propagator.run(sizes)
                graph = step.graph(at, name, channels_last, mended)
            mended.complete = True
            graphs.append(with_loss_room(graph, room))
    fit = SizeFit(expressions, points, numbers)
    graph = _Merger(built.label, built.dynamic, graphs, fit).graph()
    try:
        check_dynamic_shapes(graph, built.label)
    except ArtifactError as error:
        raise ModelError(f"{error}: leave a dimension out of dynamic_shapes") from error
    return graph


@contextlib.contextmanager
def _pause_garbage_collector() -> Iterator[None]:
    """Within it Python does not look for cycles among the many small objects that expressions of
    sizes are, which takes a seventh of a capture."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def _name_sizes(sizes: Mapping[str, int]) -> Iterator[None]:
    """Within it errors say at which sizes they are."""
    try:
        yield
    except ModelError as error:
        at = f"{describe_sizes(sizes)}{_remedy_clause(str(error))}"
        raise ModelError(f"{error} (with dynamic_shapes, at {at})") from error


def _remedy_clause(said: str) -> str:
    """What helps where PyTorch says that sizes do not go together, as a clause, "" for others."""
    found = re.search(r"\(([^()]+)\) must match the size of tensor b \(([^()]+)\)", said)
    if found is not None and any(map(str.isdigit, found.groups())):
        number, size = sorted(found.groups(), key=str.isdigit, reverse=True)
        return (
            f"; leave {size} out of dynamic_shapes, which the model fixes to be {number}, or give "
            "what has that size the same name"
        )
    if "must match" in said:
        return "; dimensions that have to be equal need one name"
    if "is invalid for input of size" in said:
        return (
            "; give what is divided as a multiple, such as 4*torch.export.Dim('name'), and leave a "
            "dimension that the model fixes out of dynamic_shapes"
        )
    return ""


def traced_sizes(dynamic: DynamicInputs) -> list[dict[str, int]]:
    """The sizes of which graphs are made: the largest first, the smallest, and odd ones between,
    which no two dimensions share."""
    found = [dynamic.largest, dynamic.smallest]
    for fraction in _FRACTIONS:
        sizes: dict[str, int] = {}
        for dimension in dynamic.dimensions:
            sizes[dimension.name] = _odd_size(dimension, fraction, set(sizes.values()))
        found.append(sizes)
    return [sizes for number, sizes in enumerate(found) if sizes not in found[:number]]


def _odd_size(dimension: DynamicDimension, fraction: float, taken: set[int]) -> int:
    """A size near a fraction of a range, odd and not taken if there is such."""
    smallest, largest = dimension.smallest, dimension.largest
    wanted = smallest + fraction * min(largest - smallest, _MAX_ODD_DISTANCE)
    sizes = range(smallest, largest + 1)
    near = sorted(sizes[:: max(len(sizes) // 4096, 1)], key=lambda size: abs(size - wanted))
    inner = [size for size in near if smallest < size < largest] or near
    odd = [size for size in inner if size % 2 and size not in taken]
    free = [size for size in (*inner, *near) if size not in taken]
    return (odd or free or inner)[0]


class _Merger:
    """Several traces of one program, the one of the largest sizes first."""

    def __init__(
        self, label: str, dynamic: DynamicInputs, graphs: Sequence[Graph], fit: SizeFit
    ) -> None:
        self.label = label
        self.dynamic = dynamic
        self.graphs = graphs
        self.fit = fit
        self.makers = graphs[0].makers()

    def graph(self) -> Graph:
        """The first graph with its dynamic shapes. Raises ModelError where the others differ in
        more than sizes."""
        largest = self.graphs[0]
        for graph in self.graphs[1:]:
            self.check_structure(graph)
        layouts = {value.id: layout for value in largest.values if (layout := self.layout(value))}
        storages: dict[int, Size] = {
            number: size
            for number in range(len(largest.storages))
            if isinstance(size := self.storage(number), str)
        }
        arguments = {op.id: text for op in largest.ops if (text := self.arguments(op))}
        shapes = DynamicShapes(
            list(self.dynamic.dimensions),
            [*self.sources(layouts)],
            arguments,
            layouts,
            storages,
        )
        ops = [replace(op, in_place=self.in_place(op, shapes)) for op in largest.ops]
        graph = replace(largest, ops=ops, dynamic=shapes)
        if self.dynamic.plans == 1:
            return graph
        return replace(graph, dynamic=replace(shapes, small_sizes=find_small_sizes(graph)))

    def check_structure(self, other: Graph) -> None:
        """Raises ModelError where another graph has other ops, values or guards."""
        largest = self.graphs[0]
        for one, two in zip(largest.ops, other.ops, strict=False):
            if _op_structure(one) != _op_structure(two):
                place = f" at {one.source}" if one.source else ""
                raise self.refuse(f"runs {one.target}{place} in another way")
        for mine, others in zip(largest.values, other.values, strict=False):
            if _value_structure(mine) != _value_structure(others):
                raise self.refuse(f"has another tensor{self.place_of(mine)}")
        for what, one_part, other_part in (
            ("other operators", len(largest.ops), len(other.ops)),
            ("other tensors", len(largest.values), len(other.values)),
            ("other storages", len(largest.storages), len(other.storages)),
            ("other guards", largest.guards, other.guards),
            ("another interface", _interface_parts(largest), _interface_parts(other)),
        ):
            if one_part != other_part:
                raise self.refuse(f"has {what}")

    def refuse(self, what: str) -> ModelError:
        """An error that says what differs between sizes."""
        return ModelError(
            f"{self.label}: the step {what} at some sizes than at others: leave a dimension out of "
            "dynamic_shapes, give it a smaller range, or give several samples"
        )

    def place_of(self, value: GraphValue) -> str:
        """Where a value comes from, for people."""
        op = self.makers.get(value.id)
        if op is None:
            return f" as {value.kind} {value.path}".rstrip()
        return f" of {op.target} at {op.source}" if op.source else f" of {op.target}"

    def size(self, numbers: Sequence[int | None], place: Callable[[], str]) -> Size:
        """The expression of a number in all graphs, None where it means nothing; raises ModelError
        where it has none."""
        found = self.fit.find(tuple(numbers))
        if found is None:
            raise ModelError(
                f"{self.label}: a size{place()} is no expression of {self.names()} that a plan can "
                f"follow ({', '.join(map(str, numbers))}): leave a dimension out of "
                "dynamic_shapes, or give several samples"
            )
        return found

    def names(self) -> str:
        """The names of the dimensions, for people."""
        return " and ".join(one.name for one in self.dynamic.dimensions)

    def layout(self, value: GraphValue) -> DynamicLayout | None:
        """The layout of a value, None where it is the same at all sizes."""
        together = [graph.values[value.id] for graph in self.graphs]

        def place() -> str:
            return self.place_of(value)

        shapes = [*zip(*(one.shape for one in together), strict=True)]
        shape = [self.size(numbers, place) for numbers in shapes]
        steps = zip(*(one.strides for one in together), strict=True)
        strides = [
            self.size(_known_strides(sizes, numbers), place)
            for sizes, numbers in zip(shapes, steps, strict=True)
        ]
        offset = self.size([one.offset for one in together], place)
        if not any(isinstance(size, str) for size in (*shape, *strides, offset)):
            return None
        return DynamicLayout(shape, strides, offset)

    def storage(self, number: int) -> Size:
        """The bytes of a storage."""
        largest = self.graphs[0]
        value = next(value for value in largest.values if value.storage == number)
        numbers = [graph.storages[number] for graph in self.graphs]
        return self.size(numbers, lambda: self.place_of(value))

    def arguments(self, op: Op) -> str:
        """The text of an op's arguments, "" where it is the same at all sizes."""
        calls = [decode_arguments(graph.ops[op.id].arguments) for graph in self.graphs]

        def place() -> str:
            return f" in {op.target} at {op.source}" if op.source else f" in {op.target}"

        args = self.argument([args for args, _ in calls], place)
        kwargs = self.argument([kwargs for _, kwargs in calls], place)
        text = encode_arguments(args, kwargs)
        return "" if text == op.arguments else text

    def argument(self, together: Sequence[Any], place: Callable[[], str]) -> Any:
        """An argument of all graphs as one, with sizes in the places of numbers that differ."""
        first = together[0]
        if all(json.dumps(one) == json.dumps(first) for one in together):
            return first
        if all(type(one) is int for one in together):
            return {"size": self.size(together, place)}
        if number := self.fit.find_number(together):
            return {"number": number}
        if isinstance(first, list) and all(
            isinstance(one, list) and len(one) == len(first) for one in together
        ):
            return [self.argument(parts, place) for parts in zip(*together, strict=True)]
        if isinstance(first, dict) and all(
            isinstance(one, dict) and one.keys() == first.keys() for one in together
        ):
            return {key: self.argument([one[key] for one in together], place) for key in first}
        raise ModelError(
            f"{self.label}: an argument{place()} depends on {self.names()} in a way that a plan "
            f"cannot follow ({together[0]!r} and {together[1]!r}): leave a dimension out of "
            "dynamic_shapes, or give several samples"
        )

    def in_place(self, op: Op, shapes: DynamicShapes) -> list[int]:
        """The inputs that an op may overwrite at all sizes."""
        largest = self.graphs[0]

        def memory(value: int) -> Any:
            return shapes.layouts.get(value), shapes.storages.get(largest.values[value].storage)

        return [
            value
            for value in op.in_place
            if all(value in graph.ops[op.id].in_place for graph in self.graphs)
            and memory(value) == memory(op.outputs[0])
        ]

    def sources(self, layouts: Mapping[int, DynamicLayout]) -> Iterator[SizeSource]:
        """Where a call has its sizes: in the first input that has each of them."""
        known: set[str] = set()
        inputs = self.graphs[0].inputs
        for leaf, axes in sorted(self.dynamic.axes.items()):
            for axis, size in axes.items():
                value = inputs[leaf]
                name, factor, offset = linear_size(size) or (size, 1, 0)
                if name not in known and value != NO_VALUE:
                    known.add(name)
                    yield SizeSource(name, value, axis, factor, offset)


def _known_strides(sizes: Sequence[int], strides: Sequence[int]) -> list[int | None]:
    """Strides but for those of dimensions of one element, which mean nothing; that at the largest
    sizes, which is the graph's own, is kept."""
    first, *others = strides
    return [
        first,
        *(step if n > 1 else None for n, step in zip(sizes[1:], others, strict=True)),
    ]


def _op_structure(op: Op) -> Op:
    """What an op has at all sizes."""
    return replace(op, arguments="", in_place=[])


def _value_structure(value: GraphValue) -> tuple[Any, ...]:
    """What a value has at all sizes."""
    free = replace(value, shape=[], strides=[], offset=0)
    return free, len(value.shape), (value.shape if value.kind == "constant" else None)


def _interface_parts(graph: Graph) -> tuple[Any, ...]:
    """What a caller of a step sees of it at all sizes."""
    own = (graph.inputs, graph.input_constants, graph.outputs, graph.gradients)
    return *own, graph.input_tree, graph.output_tree, graph.has_loss
