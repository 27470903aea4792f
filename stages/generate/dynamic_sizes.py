"""The source text of a plan whose calls differ in sizes: expressions in the places of numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tightfit.schemas.graph.dynamic_shapes import (
    DynamicLayout,
    DynamicShapes,
    corner_sizes,
    graph_at,
)
from tightfit.schemas.graph.size_expressions import Size
from tightfit.schemas.graph.training_graph import Graph
from tightfit.stages.generate.layouts import eager_gradient_strides
from tightfit.stages.generate.naming import UniqueNames
from tightfit.stages.generate.step_program import SourceProgram
from tightfit.util.errors import ArtifactError

SMALL_SIZES_PREFIX = "small_sizes_"
"""What the names of the files of a second plan for small sizes of calls begin with."""


def reserve_dimension_names(graph: Graph, names: UniqueNames) -> None:
    """Reserves the names of dynamic dimensions, by which a program calls their sizes; raises
    ArtifactError where it needs one for something else."""
    for dimension in [] if graph.dynamic is None else graph.dynamic.dimensions:
        if names.reserve(dimension.name) != dimension.name:
            raise ArtifactError(
                f"a dynamic dimension is called {dimension.name!r}, as something else of the "
                "program: choose another name"
            )


def layout_of(graph: Graph, value: int) -> DynamicLayout:
    """The layout of a value, with numbers alone where it is the same at all sizes."""
    known = None if graph.dynamic is None else graph.dynamic.layouts.get(value)
    own = graph.values[value]
    return known or DynamicLayout([*own.shape], [*own.strides], own.offset)


def tuple_text(sizes: Sequence[Size]) -> str:
    """The source text of a tuple of sizes."""
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def list_text(sizes: Sequence[Size]) -> str:
    """The source text of a list of sizes."""
    return f"[{', '.join(map(str, sizes))}]"


def size_lines(graph: Graph, names: Sequence[str]) -> Iterator[str]:
    """The lines that read the sizes of a call from its inputs, whose names are given."""
    for source in [] if graph.dynamic is None else graph.dynamic.sources:
        size = f"{names[source.value]}.shape[{source.axis}]"
        if source.offset:
            size = f"({size} - {source.offset})".replace("- -", "+ ")
        divided = f" // {source.factor}" if source.factor > 1 else ""
        yield f"{source.dimension} = {size}{divided}"


def dynamic_sizes_imports(graph: Graph, small: Graph | None) -> Iterator[str]:
    """The lines of an interface that import what `dynamic_sizes_lines` name."""
    if small is not None:
        yield f"from .{SMALL_SIZES_PREFIX}interface import INTERFACE as SMALL_SIZES_INTERFACE"
        yield f"from .{SMALL_SIZES_PREFIX}step import step as small_sizes_step"
    if graph.dynamic is not None:
        second = ", SmallSizes" if small is not None else ""
        yield f"from .runtime.dynamic_sizes import DynamicSizes, SizeRange{second}"


def dynamic_sizes_lines(
    graph: Graph, program: SourceProgram, small: Graph | None = None
) -> list[str]:
    """The lines of an interface that say what differs from call to call, none where nothing does;
    `small` is the graph of a second plan for small sizes of calls, where there is one.

    Raises ArtifactError where a gradient of a parameter or an input has strides in eager that
    depend on sizes.
    """
    dynamic = graph.dynamic
    if dynamic is None:
        return []
    _check_gradient_strides(graph, program)
    positions = {value: position for position, value in enumerate(program.arguments)}
    limits = {one.name: one for one in dynamic.dimensions}
    ranges = [
        f"SizeRange({source.dimension!r}, {limits[source.dimension].smallest}, "
        f"{limits[source.dimension].largest}, {positions[source.value]}, {source.axis}, "
        f"{source.factor}, {source.offset})"
        for source in dynamic.sources
    ]
    names = ", ".join(source.dimension for source in dynamic.sources)
    tensors = {positions[v]: v for v in program.arguments if v in dynamic.layouts}
    tangents = {n: value for n, value in enumerate(program.tangents) if value in dynamic.layouts}
    return [
        "    sizes=DynamicSizes(",
        "        dimensions=(",
        *(f"            {text}," for text in ranges),
        "        ),",
        *_layout_lines("tensors", names, graph, tensors),
        *_layout_lines("output_gradients", names, graph, tangents),
        *_small_sizes_lines(dynamic, small),
        "    ),",
    ]


def _small_sizes_lines(dynamic: DynamicShapes, small: Graph | None) -> Iterator[str]:
    if small is None or small.dynamic is None:
        return
    ends = small.dynamic.largest
    sizes = [one.factor * ends[one.dimension] + one.offset for one in dynamic.sources]
    yield f"        small=SmallSizes({tuple_text(sizes)}, SMALL_SIZES_INTERFACE, small_sizes_step),"


def _layout_lines(field: str, names: str, graph: Graph, values: Mapping[int, int]) -> Iterator[str]:
    """The lines of a function of sizes that gives the layouts of values, by other numbers."""
    yield f"        {field}=lambda {names}: {{"
    for number, value in values.items():
        layout = layout_of(graph, value)
        yield f"            {number}: ({tuple_text(layout.shape)}, {tuple_text(layout.strides)}),"
    yield "        },"


def _check_gradient_strides(graph: Graph, program: SourceProgram) -> None:
    assert graph.dynamic is not None
    own = eager_gradient_strides(graph, program.handed)
    for sizes in corner_sizes(graph.dynamic.dimensions):
        if eager_gradient_strides(graph_at(graph, sizes), program.handed) != own:
            raise ArtifactError(
                "the strides of a gradient of an input or a parameter depend on dynamic sizes in "
                "eager, which a plan does not follow: leave a dimension out of dynamic_shapes, or "
                "give the input without requires_grad"
            )
