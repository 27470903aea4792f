"""The sizes of a graph as expressions of its dynamic dimensions.

A graph has the numbers at the largest sizes. Beside them stand the sizes, strides, offsets, bytes
and arguments that differ from call to call, as expressions (`schemas.graph.size_expressions`).
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tightfit.schemas.graph.dynamic_inputs import (
    SMALLEST_SIZE,
    DimensionLimits,
    DynamicDimension,
    DynamicInputs,
    lie_within,
)
from tightfit.schemas.graph.number_expressions import evaluate_number
from tightfit.schemas.graph.op_arguments import encode_arguments, parse_arguments
from tightfit.schemas.graph.size_expressions import (
    Size,
    evaluate_size,
    is_nondecreasing,
    linear_size,
    size_names,
)
from tightfit.schemas.graph.tensor_layout import DTYPE_BYTES
from tightfit.util.errors import ArtifactError

if TYPE_CHECKING:
    from tightfit.schemas.graph.training_graph import Graph

DYNAMIC_SHAPES_KEY = "dynamic_shapes"
"""Names them in the metadata of a graph."""
_MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class SizeSource:
    """An axis of an input, by the id of its value, whose size is that of a dimension, times a
    `factor` and with an `offset`."""

    dimension: str
    value: int
    axis: int
    factor: int = 1
    offset: int = 0


@dataclass(frozen=True)
class DynamicLayout:
    """Shape, strides and offset of a value, in elements."""

    shape: list[Size]
    strides: list[Size]
    offset: Size


@dataclass(frozen=True)
class DynamicShapes(DimensionLimits):
    """What differs between the sizes of a graph.

    `sources` say where a call has the sizes of the `dimensions`. `arguments` are the texts of ops,
    by their ids, in which `{"size": text}` stands for a number and `{"number": text}` for a float
    (`schemas.graph.number_expressions`); `layouts` are those of values and
    `storages` the bytes of storages, by id. Calls of up to `small_sizes` may have a second plan;
    where these are empty, there is one.

    Example:
        >>> graph.dynamic.storages[7]
        '4*batch*tokens'
    """

    dimensions: list[DynamicDimension]
    sources: list[SizeSource]
    arguments: dict[int, str]
    layouts: dict[int, DynamicLayout]
    storages: dict[int, Size]
    small_sizes: dict[str, int] = field(default_factory=dict)


def layout_at(layout: DynamicLayout, sizes: Mapping[str, int]) -> tuple[list[int], list[int], int]:
    """Shape, strides and offset at some sizes."""
    shape = [evaluate_size(size, sizes) for size in layout.shape]
    strides = [evaluate_size(size, sizes) for size in layout.strides]
    return shape, strides, evaluate_size(layout.offset, sizes)


def graph_at(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """The graph of calls of these sizes alone, by the names of dimensions; one without dynamic
    dimensions is as it is."""
    dynamic = graph.dynamic
    if dynamic is None:
        return graph
    ops, values, storages = list(graph.ops), list(graph.values), list(graph.storages)
    for number, text in dynamic.arguments.items():
        ops[number] = replace(ops[number], arguments=arguments_at(text, sizes))
    for number, layout in dynamic.layouts.items():
        shape, strides, offset = layout_at(layout, sizes)
        values[number] = replace(values[number], shape=shape, strides=strides, offset=offset)
    for number, size in dynamic.storages.items():
        storages[number] = evaluate_size(size, sizes)
    return replace(graph, ops=ops, values=values, storages=storages, dynamic=None)


def graph_within(graph: Graph, largest: Mapping[str, int]) -> Graph:
    """The graph of calls of at most these sizes, by the names of all dimensions: it has the numbers
    at these, and dimensions that end there."""
    assert graph.dynamic is not None
    ends = [replace(one, largest=largest[one.name]) for one in graph.dynamic.dimensions]
    dynamic = replace(graph.dynamic, dimensions=ends, small_sizes={})
    return replace(graph_at(graph, largest), dynamic=dynamic)


def find_small_sizes(graph: Graph) -> dict[str, int]:
    """The largest sizes of calls for which a second plan pays: up to half of the range of one
    dimension, the one of which half of the range leaves the fewest bytes."""
    assert graph.dynamic is not None
    largest = graph.dynamic.largest
    halves = [
        largest | {one.name: (one.smallest + one.largest) // 2} for one in graph.dynamic.dimensions
    ]
    return min(halves, key=lambda sizes: sum(graph_at(graph, sizes).storages))


def graph_dynamic_inputs(graph: Graph) -> DynamicInputs:
    """The dynamic dimensions of a graph, and which axes of its inputs have them."""
    assert graph.dynamic is not None
    axes: dict[int, dict[int, str]] = {}
    for leaf, value in enumerate(graph.inputs):
        layout = graph.dynamic.layouts.get(value)
        found = {} if layout is None else dict(enumerate(layout.shape))
        if sizes := {axis: size for axis, size in found.items() if isinstance(size, str)}:
            axes[leaf] = sizes
    return DynamicInputs(tuple(graph.dynamic.dimensions), axes)


def arguments_at(text: str, sizes: Mapping[str, int]) -> str:
    """The text of an op's arguments at some sizes."""

    def number(argument: Any) -> Any:
        if isinstance(argument, list):
            return [number(item) for item in argument]
        if isinstance(argument, dict):
            if set(argument) == {"size"}:
                return evaluate_size(argument["size"], sizes)
            if set(argument) == {"number"}:
                return evaluate_number(argument["number"], sizes)
            return {key: number(item) for key, item in argument.items()}
        return argument

    call = parse_arguments(text)
    if call is None:
        raise ArtifactError(f"{text[:80]!r} is no call")
    args, kwargs = call
    return encode_arguments(number(args), number(kwargs))


def dynamic_metadata(dynamic: DynamicShapes | None) -> dict[str, str]:
    """The metadata of dynamic shapes, empty where there are none."""
    if dynamic is None:
        return {}
    return {DYNAMIC_SHAPES_KEY: json.dumps(asdict(dynamic), sort_keys=True, separators=(",", ":"))}


def read_dynamic_shapes(metadata: Mapping[str, str], where: str) -> DynamicShapes | None:
    """The dynamic shapes in the metadata of a graph, None where there are none; raises
    ArtifactError, naming `where`, where there is something else."""
    if DYNAMIC_SHAPES_KEY not in metadata:
        return None
    try:
        found = json.loads(metadata[DYNAMIC_SHAPES_KEY])
        return DynamicShapes(
            [DynamicDimension(**one) for one in found["dimensions"]],
            [SizeSource(**one) for one in found["sources"]],
            {int(number): str(text) for number, text in found["arguments"].items()},
            {int(number): DynamicLayout(**one) for number, one in found["layouts"].items()},
            {int(number): size for number, size in found["storages"].items()},
            dict(found["small_sizes"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ArtifactError(f"{where}: the metadata does not hold dynamic shapes") from error


def corner_sizes(dimensions: list[DynamicDimension]) -> Iterator[dict[str, int]]:
    """The corners of the ranges, and the middle."""
    names = [one.name for one in dimensions]
    for corner in itertools.product(*((one.smallest, one.largest) for one in dimensions)):
        yield dict(zip(names, corner, strict=True))
    yield {one.name: (one.smallest + one.largest) // 2 for one in dimensions}


def check_dynamic_shapes(graph: Graph, where: str) -> None:
    """Raises ArtifactError unless the expressions give the graph's own numbers at the largest
    sizes, no storage is larger at other sizes, and each value lies within its storage."""
    if graph.dynamic is not None and (fault := _find_fault(graph, graph.dynamic)):
        raise ArtifactError(f"{where}: {fault}")


def _find_fault(graph: Graph, dynamic: DynamicShapes) -> str:
    """What is wrong with dynamic shapes, "" where nothing is."""
    try:
        fault = (
            _find_dimension_fault(graph, dynamic)
            or _find_source_fault(graph, dynamic)
            or _find_storage_fault(graph, dynamic)
        )
        if fault:
            return fault
        if graph_at(graph, dynamic.largest) != replace(graph, dynamic=None):
            return "the dynamic shapes are not the graph's own at the largest sizes"
        places = _distinct_places(graph, dynamic)
        for sizes in corner_sizes(dynamic.dimensions):
            for (shape, strides, offset, dtype, storage), number in places.items():
                layout = DynamicLayout([*shape], [*strides], offset)
                size = evaluate_size(storage, sizes)
                if not _lies_within(layout_at(layout, sizes), DTYPE_BYTES[dtype], size):
                    return f"value {number} does not lie within its storage at {sizes}"
    except (ArtifactError, NameError, TypeError, IndexError, ZeroDivisionError) as error:
        return f"a dynamic shape is none: {error}"
    return ""


def _find_dimension_fault(graph: Graph, dynamic: DynamicShapes) -> str:
    names = [one.name for one in dynamic.dimensions]
    if not 0 < len(names) <= _MAX_DIMENSIONS or len(set(names)) < len(names):
        return f"has the dynamic dimensions {names}"
    for one in dynamic.dimensions:
        if not one.name.isidentifier() or not 1 <= one.smallest <= one.largest:
            return f"the dynamic dimension {one.name!r} is from {one.smallest} to {one.largest}"
    if graph.alternatives:
        return "has alternatives and dynamic shapes"
    small = dynamic.small_sizes
    if small and (
        small.keys() != set(names)
        or small == dynamic.largest
        or not all(type(size) is int for size in small.values())
        or not lie_within(dynamic.smallest, small)
        or not lie_within(small, dynamic.largest)
    ):
        return f"has a second plan for calls of up to {small}, which are no sizes below the largest"
    return ""


def _find_source_fault(graph: Graph, dynamic: DynamicShapes) -> str:
    for source in dynamic.sources:
        layout = dynamic.layouts.get(source.value)
        known = graph.values[source.value].kind == "input" and layout is not None
        form = linear_size(layout.shape[source.axis]) if layout is not None and known else None
        if form is None or form != (source.dimension, source.factor, source.offset):
            return f"value {source.value} has no dimension {source.dimension!r} at {source.axis}"
        if source.factor * dynamic.smallest[source.dimension] + source.offset < SMALLEST_SIZE:
            return f"value {source.value} may have less than {SMALLEST_SIZE} at {source.axis}"
    if {source.dimension for source in dynamic.sources} != set(dynamic.largest):
        return "a dynamic dimension is that of no input"
    for number in dynamic.layouts:
        if graph.values[number].kind in ("parameter", "buffer", "constant"):
            return f"value {number} is a {graph.values[number].kind} with a dynamic shape"
    return ""


def _find_storage_fault(graph: Graph, dynamic: DynamicShapes) -> str:
    limits = {one.name: one for one in dynamic.dimensions}
    distinct = {size: number for number, size in reversed(dynamic.storages.items())}
    for size, number in distinct.items():
        if not size_names(size) <= limits.keys() or not is_nondecreasing(size, limits):
            return f"storage {number} may be larger at smaller sizes: {size}"
    for op in graph.ops:
        for value in op.in_place:
            own = dynamic.layouts.get(value), dynamic.storages.get(graph.values[value].storage)
            first = op.outputs[0]
            made = dynamic.layouts.get(first), dynamic.storages.get(graph.values[first].storage)
            if own != made:
                return f"op {op.id} ({op.target}) overwrites value {value} of another shape"
    return ""


_Place = tuple[tuple[Size, ...], tuple[Size, ...], Size, str, Size]
"""Shape, strides and offset of a value, its dtype, and the bytes of its storage."""


def _distinct_places(graph: Graph, dynamic: DynamicShapes) -> dict[_Place, int]:
    """The distinct places of values in storages that have bytes, with the first value of each."""
    found: dict[_Place, int] = {}
    for number, layout in dynamic.layouts.items():
        own = graph.values[number]
        if there := graph.storages[own.storage]:
            size = dynamic.storages.get(own.storage, there)
            place = (tuple(layout.shape), tuple(layout.strides), layout.offset, own.dtype, size)
            found.setdefault(place, number)
    return found


def _lies_within(
    layout: tuple[list[int], list[int], int], element_bytes: int, storage: int
) -> bool:
    """Whether what has a shape, strides and an offset lies within so many bytes."""
    shape, strides, offset = layout
    if 0 in shape:
        return True
    last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    return (last + 1) * element_bytes <= storage
