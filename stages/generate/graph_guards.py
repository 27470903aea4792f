"""Refuses graphs that are no training step of a module, before any text is made of them."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

from tightfit.schemas.graph.ownership import loss_interface_values
from tightfit.schemas.graph.training_graph import (
    BASELINE_KINDS,
    LOSS_TARGET,
    NO_VALUE,
    Graph,
    GraphValue,
)
from tightfit.stages.runtime.guards.state import check_guard_description
from tightfit.stages.runtime.guards.tensor_queries import TENSOR_QUERIES
from tightfit.stages.runtime.pytree import argument_name, read_tree
from tightfit.util.errors import ArtifactError

_DTYPE_SIZES = {
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
}


def check_interface(graph: Graph) -> None:
    """Checks what the package relies on beyond `schemas.graph.training_graph.check_graph`.

    Names of parameters and buffers, trees, constants, tangents, and gradients that autograd may
    take over as they are. Raises ArtifactError naming the fault.
    """
    if graph.device not in ("cpu", "cuda"):
        raise ArtifactError(f"{graph.model}: {graph.device!r} is no device to generate for")
    _check_paths(graph)
    for value in graph.values:
        if value.kind == "constant":
            _check_constant(graph, value)
    _check_tangents(graph)
    _check_gradients(graph)
    for tree, leaves in ((graph.input_tree, graph.inputs), (graph.output_tree, graph.outputs)):
        if count_tree_leaves(tree) != len(leaves):
            raise ArtifactError(f"{graph.model}: a tree does not have {len(leaves)} leaves")


def parse_guards(graph: Graph) -> dict[str, Any]:
    """The graph's guards; raises ArtifactError where they are no JSON of names and values."""
    try:
        guards = _parse_json(graph.guards)
    except ValueError:
        raise malformed_guards_error(graph) from None
    if not isinstance(guards, dict):
        raise malformed_guards_error(graph)
    return guards


@functools.lru_cache(1)
def _parse_json(text: str) -> Any:
    return json.loads(text)


def malformed_guards_error(graph: Graph, reason: str = "") -> ArtifactError:
    """What is raised where a graph's guards are of another form."""
    return ArtifactError(f"{graph.model}: the guards are not JSON of the known form{reason}")


def _is_path_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(path, str) for path in value)


def eval_and_autocast_guards(graph: Graph) -> tuple[list[str], dict[str, str | None], bool]:
    """The modules in evaluation mode, autocast's dtype (None: off) for the graph's device, and
    whether autocast kept its casts."""
    guards = parse_guards(graph)
    try:
        modules, autocast = guards["eval_modules"], guards["autocast"]
        enabled, dtype, cached = autocast["enabled"], autocast["dtype"], autocast["cache"]
    except (KeyError, TypeError):
        raise malformed_guards_error(graph) from None
    flags = isinstance(enabled, bool) and isinstance(cached, bool)
    if not _is_path_list(modules) or not flags or not isinstance(dtype, str):
        raise malformed_guards_error(graph)
    return modules, {graph.device: dtype if enabled else None}, cached


def assigned_buffers(graph: Graph) -> set[int]:
    """The buffers that the forward puts another tensor in the place of, which have one name."""
    paths = parse_guards(graph).get("assigned_buffers", [])
    if not _is_path_list(paths):
        raise malformed_guards_error(graph)
    return {
        value.id
        for value in graph.values
        if value.kind == "buffer" and value.path in paths and not value.aliases
    }


def saved_writes(graph: Graph) -> list[int]:
    """The buffers and frozen parameters that the forward writes and eager's backward reads."""
    paths = parse_guards(graph).get("saved_writes", [])
    if not _is_path_list(paths):
        raise malformed_guards_error(graph)
    written = {value for op in graph.ops for value in op.writes}
    return [
        value
        for value in sorted(written)
        if {graph.values[value].path, *graph.values[value].aliases} & set(paths)
    ]


def multi_view_outputs(graph: Graph) -> list[int]:
    """The leaves of the output that are one of several views that one function makes."""
    leaves = parse_guards(graph).get("multi_view_outputs", [])
    known = range(len(graph.outputs))
    if not isinstance(leaves, list) or not all(
        type(leaf) is int and leaf in known for leaf in leaves
    ):
        raise malformed_guards_error(graph)
    return leaves


def unread_arguments(graph: Graph) -> list[int]:
    """The plain leaves of (args, kwargs) that the forward does not look at."""
    leaves = parse_guards(graph).get("unused_inputs", [])
    known = [place for place, value in enumerate(graph.inputs) if value == NO_VALUE]
    if not isinstance(leaves, list) or not all(
        type(leaf) is int and leaf in known for leaf in leaves
    ):
        raise malformed_guards_error(graph)
    return leaves


def has_checkpoints(graph: Graph) -> bool:
    """Whether the forward has checkpoints, whose inputs nobody may write before the backward."""
    return parse_guards(graph).get("checkpointed") is True


def checkpoint_mismatch_causes(graph: Graph) -> list[str]:
    """Why the model's own checkpoints may give another step, a clause each."""
    clauses = parse_guards(graph).get("checkpoint_mismatch_causes", [])
    if not _is_path_list(clauses):
        raise malformed_guards_error(graph)
    return list(clauses)


def checkpoints_without_gradients(graph: Graph) -> list[str]:
    """Where the forward has checkpoints that give no gradients, "file:line" each."""
    places = parse_guards(graph).get("checkpoints_without_gradients", [])
    if not _is_path_list(places):
        raise malformed_guards_error(graph)
    return list(places)


def requires_all_output_gradients(graph: Graph) -> bool:
    """Whether the backward is not that of the model where a gradient of an output is absent."""
    return parse_guards(graph).get("requires_all_output_gradients") is True


def same_object_inputs(graph: Graph) -> list[tuple[int, int]]:
    """For the leaves of the call that are tensors the first that is the same object, where the
    forward asks for that; else nothing."""
    found = parse_guards(graph).get("same_object_inputs", [])
    known = [leaf for leaf, value in enumerate(graph.inputs) if value != NO_VALUE]
    if not isinstance(found, list) or not all(
        isinstance(pair, list)
        and len(pair) == 2
        and all(type(i) is int and i in known for i in pair)
        for pair in found
    ):
        raise malformed_guards_error(graph)
    return [(graph.inputs[leaf], graph.inputs[first]) for leaf, first in found]


def tensor_queries(graph: Graph) -> list[tuple[str, bool]]:
    """What the forward asks of inputs (True) and of the model's own tensors."""
    found = parse_guards(graph).get("tensor_queries", [])
    if not isinstance(found, list) or not all(
        isinstance(one, list)
        and len(one) == 2
        and str(one[0]) in TENSOR_QUERIES
        and isinstance(one[1], bool)
        for one in found
    ):
        raise malformed_guards_error(graph)
    return [(fact, of_input) for fact, of_input in found]


def all_ones_inputs(graph: Graph) -> list[int]:
    """The input values that the forward rests on being ones."""
    return [graph.inputs[leaf] for leaf in _guard_leaves(graph, "all_ones_inputs")]


def guarded_mask_leaves(graph: Graph) -> list[int]:
    """The leaves of the call that the forward looks at as masks, and that the graph does not rest
    on being ones."""
    return _guard_leaves(graph, "other_masks")


def not_all_ones_inputs(graph: Graph) -> list[int]:
    """The input values that are masks of which the plan takes none of nothing but ones."""
    return [graph.inputs[leaf] for leaf in _guard_leaves(graph, "not_all_ones_inputs")]


def mask_guard_names(graph: Graph) -> dict[str, list[str]]:
    """The names of the inputs that the forward asks whether they are all ones, by what the plan
    makes of that: it rests on it ("all_ones_inputs"), or on the contrary ("not_all_ones_inputs"),
    or on neither, and they are ones in the samples ("all_ones_samples") or not ("other_masks").
    Each is named once."""
    paths = read_tree(graph.input_tree).paths("input")
    found: dict[str, list[str]] = {}
    named: set[int] = set()
    for name in ("all_ones_inputs", "not_all_ones_inputs", "all_ones_samples", "other_masks"):
        leaves = [leaf for leaf in _guard_leaves(graph, name) if leaf not in named]
        named.update(leaves)
        if leaves:
            found[name] = [argument_name(paths[leaf]) for leaf in leaves]
    return found


def _guard_leaves(graph: Graph, name: str) -> list[int]:
    leaves = parse_guards(graph).get(name, [])
    known = [leaf for leaf, value in enumerate(graph.inputs) if value != NO_VALUE]
    if not isinstance(leaves, list) or not all(
        type(leaf) is int and leaf in known for leaf in leaves
    ):
        raise malformed_guards_error(graph)
    return leaves


def count_tree_leaves(text: str) -> int:
    """The number of leaves of a written structure; raises ArtifactError where it is none."""
    try:
        return read_tree(text).count
    except ValueError as error:
        raise ArtifactError(f"a structure of inputs or outputs is unknown: {error}") from None


def _check_paths(graph: Graph) -> None:
    seen: set[str] = set()
    for value in graph.values:
        if value.kind not in ("parameter", "buffer"):
            continue
        for path in (value.path, *value.aliases):
            parts = path.split(".")
            if not all(parts) or not path.isprintable() or path in seen:
                raise ArtifactError(
                    f"{graph.model}: {path!r} is no name of one {value.kind} of a module"
                )
            seen.add(path)


def _check_constant(graph: Graph, value: GraphValue) -> None:
    size = math.prod(value.shape) * _DTYPE_SIZES.get(value.dtype, 1)
    if len(value.data) != size:
        raise ArtifactError(
            f"{graph.model}: the constant {value.id} has {len(value.data)} bytes instead of {size}"
        )


def _check_tangents(graph: Graph) -> None:
    loss = next(op for op in graph.ops if op.target == LOSS_TARGET)
    tangents = [output.tangent for output in graph.outputs if output.tangent != NO_VALUE]
    outputs = [output.value for output in graph.outputs if output.tangent != NO_VALUE]
    if (
        sorted(set(tangents)) != sorted(loss.outputs)
        or any(graph.values[value].kind != "tangent" for value in tangents)
        or NO_VALUE in outputs
        or len(set(zip(outputs, tangents, strict=True))) != len(set(tangents))
    ):
        raise ArtifactError(f"{graph.model}: the loss does not make one tangent for each output")
    for output, tangent in zip(outputs, tangents, strict=True):
        one, other = graph.values[output], graph.values[tangent]
        if one.shape != other.shape or one.dtype != other.dtype:
            raise ArtifactError(f"{graph.model}: the tangent {tangent} is unlike its output")


def _check_gradients(graph: Graph) -> None:
    """Autograd keeps a gradient that it is given, or adds further ones of its owner to it, so it
    must share its bytes with nothing."""
    storage = [value.storage for value in graph.values]
    taken = {storage[value] for value in loss_interface_values(graph)} | graph.baseline_storages()
    for gradient in graph.gradients:
        owner, made = graph.values[gradient.value], graph.values[gradient.gradient]
        if owner.kind not in ("parameter", "input") or not owner.requires_grad:
            raise ArtifactError(f"{graph.model}: value {owner.id} can have no gradient")
        if made.kind in BASELINE_KINDS or made.storage in taken:
            raise ArtifactError(
                f"{graph.model}: the gradient of value {owner.id} shares bytes with another value"
            )
        if made.shape != owner.shape or made.dtype != owner.dtype:
            raise ArtifactError(f"{graph.model}: the gradient of value {owner.id} is unlike it")
        taken.add(made.storage)


def guard_file_bytes(graph: Graph) -> bytes:
    """The content of the file; raises ArtifactError where the graph's guards are malformed."""
    watch = parse_guards(graph).get("guards")
    try:
        check_guard_description(watch)
    except ValueError as error:
        raise malformed_guards_error(graph, f" ({error})") from None
    if watch is not None:
        watch = {**watch, "sources": [_without_forward(holder) for holder in watch["sources"]]}
    written = {graph.values[value].path for op in graph.ops for value in op.writes}
    document = {"guards": watch, "written": sorted(written)}
    return (json.dumps(document, separators=(",", ":")) + "\n").encode()


def _without_forward(holder: dict[str, Any]) -> dict[str, Any]:
    """A holder as it is watched: what replaces the whole model's forward on the instance runs
    around the planned one, as around the original."""
    if holder["path"] != [["module", ""]] or holder["kind"] != "fields":
        return holder
    reads = {name: read for name, read in holder["values"].items() if name != "forward"}
    return {**holder, "values": reads}
