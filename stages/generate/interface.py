"""The text of `interface.py`: what a plan was specialized to, as literals."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import torch

from tightfit.schemas.graph.fused_groups import is_fused_group
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, GraphOutput, Op
from tightfit.stages.generate.dynamic_sizes import dynamic_sizes_imports, dynamic_sizes_lines
from tightfit.stages.generate.graph_guards import (
    all_ones_inputs,
    assigned_buffers,
    eval_and_autocast_guards,
    has_checkpoints,
    multi_view_outputs,
    not_all_ones_inputs,
    requires_all_output_gradients,
    same_object_inputs,
    saved_writes,
    tensor_queries,
    unread_arguments,
)
from tightfit.stages.generate.layouts import (
    copyable_inputs,
    eager_gradient_strides,
    stride_flexible_inputs,
)
from tightfit.stages.generate.operator_calls import format_literal
from tightfit.stages.generate.repeated_backward import (
    is_repeatable_forward,
    output_components,
    written_values,
)
from tightfit.stages.generate.step_program import SourceProgram, differentiable_values
from tightfit.stages.torch_utils.operators import decode_argument
from tightfit.util.errors import ArtifactError

_AUTOCAST_DTYPES = ("bfloat16", "float16", "float32")
"""The dtypes that autocast can be on with."""
_AUTOCAST_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
_CAST_TARGET = "aten._to_copy.default"
_FLOAT_DTYPES = ("float16", "bfloat16", "float32")
_LOWER_PRECISION_OPS = frozenset(
    "_addmm_activation _convolution _native_multi_head_attention "
    "_scaled_dot_product_flash_attention _thnn_fused_gru_cell _thnn_fused_lstm_cell addbmm addmm "
    "addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_tbc conv_transpose1d "
    "conv_transpose2d conv_transpose3d convolution cudnn_convolution cudnn_convolution_transpose "
    "einsum gru_cell linalg_multi_dot linalg_vecdot linear lstm_cell matmul mkldnn_rnn_layer mm mv "
    "prelu rnn_relu_cell rnn_tanh_cell scaled_dot_product_attention".split()
)
"""What autocast does in its own dtype."""
_PROMOTED_OPS = frozenset(
    "addcdiv addcmul atan2 bilinear cat cross dot index_copy index_put scatter_add stack tensordot "
    "vdot".split()
)
"""What autocast does in the widest dtype of its operands; all else is done in float32."""


def autocast_invariant_dtypes(graph: Graph) -> list[str]:
    """The dtypes of autocast under which eager's backward is the same as without autocast."""
    ops = [
        op for op in graph.ops if op.phase == "backward" and _has_autocast_kernel(graph.device, op)
    ]
    return [
        dtype
        for dtype in _AUTOCAST_DTYPES
        if all(_is_autocast_invariant(graph, op, dtype) for op in ops)
    ]


def cached_autocast_values(graph: Graph) -> list[int]:
    """The parameters and inputs of which autocast keeps what it cast them to, if it is on."""
    found = {
        value
        for op in graph.ops
        if op.phase == "forward" and op.target == _CAST_TARGET
        for value in op.inputs
    }
    return [
        value.id
        for value in graph.values
        if value.id in found and value.requires_grad and value.dtype == "float32"
    ]


def shares_autocast_casts(graph: Graph) -> bool:
    """Whether a cast that autocast may keep is used more than once in the forward: where none is,
    the step is the same whether autocast keeps its casts or not."""
    forward = [op for op in graph.ops if op.phase == "forward"]
    if any(is_fused_group(op.target) for op in forward):
        return True
    for value in cached_autocast_values(graph):
        casts = [op for op in forward if op.target == _CAST_TARGET and value in op.inputs]
        made = {graph.values[output].storage for op in casts for output in op.outputs}
        readers = [
            op
            for op in forward
            if not graph.is_view(op)
            and made & {graph.values[one].storage for one in op.inputs if one != NO_VALUE}
        ]
        if len(casts) > 1 or len(readers) > 1:
            return True
    return False


def _has_autocast_kernel(device: str, op: Op) -> bool:
    """True where autocast has something to do with an operator."""
    namespace, _, rest = op.target.partition(".")
    name, _, overload = rest.partition(".")
    full = f"{namespace}::{name}" + ("" if overload == "default" else f".{overload}")
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(full, _AUTOCAST_KEYS[device])
    except RuntimeError:
        return False


def _is_autocast_invariant(graph: Graph, op: Op, dtype: str) -> bool:
    name = op.target.split(".")[1]
    values = [graph.values[value] for value in op.inputs if value != NO_VALUE]
    found = {value.dtype for value in values if value.dtype in _FLOAT_DTYPES}
    if name in _LOWER_PRECISION_OPS:
        return found <= {dtype}
    if name in _PROMOTED_OPS:
        return found <= {"float32"} or found <= {dtype}
    return found <= {"float32"}


_MAX_COMPARED_ELEMENTS = 2**24
"""Values of larger storages are taken to share elements where they share the storage."""


def interface_text(
    graph: Graph, program: SourceProgram, prefix: str = "", small: Graph | None = None
) -> str:
    """The module that defines INTERFACE; the names of the plan's own files begin with `prefix`.
    `small` is the graph of a second plan for small sizes of calls, where there is one."""
    positions = {value: position for position, value in enumerate(program.arguments)}
    yielded = program.differentiable + program.unused + program.plain
    # What is returned detached too is yielded twice, with a gradient first.
    places = {value: position for position, value in reversed([*enumerate(yielded)])}
    eval_modules, autocast, cached = eval_and_autocast_guards(graph)
    lines = [
        '"""What the plan was specialized to."""',
        "",
        "import torch",
        "",
        *dynamic_sizes_imports(graph, small),
        "from .runtime.interface import (",
        "    Interface, ModelOutputLeaf, OutputGradientSpec, PlainArgument, TensorSpec",
        ")",
        "",
        "INTERFACE = Interface(",
        f"    model={graph.model!r},",
        f"    device={graph.device!r},",
        *_field_lines("tensors", _tensors(graph, program)),
        *_field_lines("leaves", _leaves(graph, positions)),
        f"    input_tree={graph.input_tree!r},",
        *_field_lines(
            "outputs", [_output(graph, program, positions, leaf) for leaf in graph.outputs]
        ),
        f"    output_tree={graph.output_tree!r},",
        *_field_lines("output_gradients", _tangents(graph, program)),
        *_field_lines(
            "backward_segments", [_known_positions(part, positions) for part in program.slices]
        ),
        *_field_lines(
            "eager_gradient_strides",
            [repr(tuple(part)) for part in eager_gradient_strides(graph, program.handed)],
        ),
        *_field_lines(
            "version_checked_tensors",
            [
                _known_positions(part, positions)
                for part in _version_checked_by_segment(graph, program)
            ],
        ),
        *_field_lines(
            "version_checked_outputs", [_known_positions(part, places) for part in program.watched]
        ),
        f"    assigned_buffers={_known_positions(sorted(assigned_buffers(graph)), positions)},",
        f"    aliased={_known_positions(_aliased_outputs(graph, program), places)},",
        "    "
        f"intermediate_outputs={_known_positions(_intermediate_outputs(graph, program), places)},",
        f"    unwritable={_known_positions(_unwritable_outputs(graph, program), places)},",
        f"    stride_flexible_inputs={_known_positions(stride_flexible_inputs(graph), positions)},",
        f"    copyable_inputs={_known_positions(copyable_inputs(graph), positions)},",
        f"    backward_order={_known_positions(_backward_order(graph, program), places)},",
        f"    same_object_inputs={_same_object_positions(graph, positions)},",
        f"    tensor_queries={tuple(tensor_queries(graph))!r},",
        f"    all_ones_inputs={_known_positions(all_ones_inputs(graph), positions)},",
        f"    not_all_ones_inputs={_known_positions(not_all_ones_inputs(graph), positions)},",
        f"    requires_all_output_gradients={requires_all_output_gradients(graph)},",
        f"    eval_modules=frozenset({sorted(eval_modules)!r}),",
        f"    autocast={autocast!r},",
        f"    autocast_cache={cached if shares_autocast_casts(graph) else None},",
        "    "
        f"cached_autocast_tensors={_known_positions(cached_autocast_values(graph), positions)},",
        f"    autocast_invariant_dtypes={tuple(autocast_invariant_dtypes(graph))!r},",
        f"    constants={_digest(constants_bytes(graph, program))!r},",
        f"    file_prefix={prefix!r},",
        f"    repeatable={is_repeatable_forward(graph)},",
        f"    written_tensors={_known_positions(written_values(graph), positions)},",
        f"    output_components={output_components(graph, program)},",
        *(
            [f"    offloaded_parameters={_known_positions(program.remote, positions)},"]
            if program.remote
            else []
        ),
        *dynamic_sizes_lines(graph, program, small),
        ")",
        "",
    ]
    return "\n".join(lines)


def constants_bytes(graph: Graph, program: SourceProgram) -> bytes | None:
    """The bytes of the program's constants, in the order of its arguments, each from a multiple of
    16 on; None where it has no constants."""
    values = [graph.values[value] for value in program.arguments]
    if not any(value.kind == "constant" for value in values):
        return None
    return b"".join(_pad_to_alignment(value.data) for value in values)


def _digest(data: bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _pad_to_alignment(data: bytes) -> bytes:
    return data + bytes(-len(data) % 16)


def _field_lines(name: str, items: list[str]) -> list[str]:
    return [f"    {name}=(", *(f"        {item}," for item in items), "    ),"]


def _same_object_positions(graph: Graph, positions: dict[int, int]) -> tuple[tuple[int, int], ...]:
    return tuple((positions[value], positions[first]) for value, first in same_object_inputs(graph))


def _version_checked_by_segment(graph: Graph, program: SourceProgram) -> list[list[int]]:
    """The values that each slice of the backward needs as they were: those that it reads, and
    inputs that eager would give to checkpoints once more; the first one also what the forward has
    written and eager's backward reads."""
    found = [[*part] for part in program.watched]
    if found:
        found[0] += [value for value in saved_writes(graph) if value not in found[0]]
    if not has_checkpoints(graph):
        return found
    inputs = [value for value in graph.inputs if value != NO_VALUE]
    return [[*part, *(value for value in inputs if value not in part)] for part in found]


def _aliased_outputs(graph: Graph, program: SourceProgram) -> list[int]:
    """The differentiable outputs whose storage holds another output, or was there before."""
    storage = [value.storage for value in graph.values]
    returned = set(graph.output_values())
    shared = [storage[value] for value in returned]
    fixed = graph.baseline_storages()
    return [
        value
        for value in program.differentiable + program.unused
        if storage[value] in fixed or shared.count(storage[value]) > 1
    ]


def _intermediate_outputs(graph: Graph, program: SourceProgram) -> list[int]:
    """The differentiable outputs that others of them are made of."""
    leaving = program.differentiable + program.unused
    differentiable = differentiable_values(graph)
    found = []
    for value in leaving:
        reached = {value}
        for op in graph.ops:
            if op.phase == "forward" and reached.intersection(op.inputs):
                reached.update(differentiable.intersection(op.outputs))
        overlapping = any(
            _share_elements(graph, value, other) for other in leaving if other != value
        )
        if overlapping or len(reached.intersection(leaving)) > 1:
            found.append(value)
    return found


def _unwritable_outputs(graph: Graph, program: SourceProgram) -> list[int]:
    """The differentiable outputs that eager lets nobody write into: one of several views of one
    function, or a view of an input or a parameter with a gradient."""
    found = {graph.outputs[leaf].value for leaf in multi_view_outputs(graph)}
    leaves = {
        value.storage
        for value in graph.values
        if value.kind in ("parameter", "input") and value.requires_grad
    }
    return [
        value
        for value in program.differentiable + program.unused
        if value in found or graph.values[value].storage in leaves
    ]


def _share_elements(graph: Graph, one: int, other: int) -> bool:
    """Whether two values share elements: the later one may be made of the earlier one by a write
    in place, which a graph does not say."""
    values = [graph.values[one], graph.values[other]]
    size = graph.storages[values[0].storage] // getattr(torch, values[0].dtype).itemsize
    if values[0].storage != values[1].storage or values[0].dtype != values[1].dtype:
        return False
    if size > _MAX_COMPARED_ELEMENTS:
        return True
    places = [
        torch.arange(size).as_strided(value.shape, value.strides, value.offset).flatten()
        for value in values
    ]
    return bool(torch.isin(*places).any())


def _backward_order(graph: Graph, program: SourceProgram) -> list[int]:
    """The differentiable outputs as autograd comes to them in eager: what was made last first."""
    made = {value: op.id for op in graph.ops for value in op.outputs}
    leaving = program.differentiable + program.unused
    return sorted(leaving, key=lambda value: made.get(value, NO_VALUE), reverse=True)


def _known_positions(values: list[int], positions: dict[int, int]) -> str:
    """The positions of those values that have one."""
    return repr(tuple(positions[value] for value in values if value in positions))


def _tensors(graph: Graph, program: SourceProgram) -> list[str]:
    texts = []
    start = 0
    for position in program.arguments:
        value = graph.values[position]
        fields: list[Any] = [
            value.kind,
            value.path,
            tuple(value.shape),
            tuple(value.strides),
            value.dtype,
            value.requires_grad,
            tuple(value.aliases),
        ]
        text = ", ".join(repr(field) for field in fields)
        texts.append(f"TensorSpec({text}{f', {start}' if value.kind == 'constant' else ''})")
        start += len(_pad_to_alignment(value.data))
    return texts


def _leaves(graph: Graph, positions: dict[int, int]) -> list[str]:
    free = unread_arguments(graph)

    def plain(place: int) -> str:
        more = ", unused=True" if place in free else ""
        return f"PlainArgument({_plain_literal(graph.input_constants[place])}{more})"

    return [
        plain(place) if value == NO_VALUE else str(positions[value])
        for place, value in enumerate(graph.inputs)
    ]


def _output(
    graph: Graph, program: SourceProgram, positions: dict[int, int], output: GraphOutput
) -> str:
    if output.value == NO_VALUE:
        return f'ModelOutputLeaf("constant", value={_plain_literal(output.constant)})'
    if output.tangent != NO_VALUE:
        return f'ModelOutputLeaf("differentiable", {program.tangents.index(output.tangent)})'
    if output.value in positions:
        detached = graph.values[output.value].requires_grad and not output.requires_grad
        return (
            f'ModelOutputLeaf("{"detached" if detached else "tensor"}", {positions[output.value]})'
        )
    if output.requires_grad:
        position = (program.differentiable + program.unused).index(output.value)
        return f'ModelOutputLeaf("differentiable", {position})'
    return f'ModelOutputLeaf("plain", {program.plain.index(output.value)})'


def _tangents(graph: Graph, program: SourceProgram) -> list[str]:
    texts = []
    for tangent in program.tangents:
        value = graph.values[tangent]
        fields = (
            tuple(value.shape),
            tuple(value.strides),
            value.dtype,
            program.taken[tangent],
            tangent in program.overwritten,
        )
        texts.append(f"OutputGradientSpec({', '.join(repr(field) for field in fields)})")
    return texts + ["None" for _ in program.unused]


def _plain_literal(text: str) -> str:
    """The literal of a constant leaf."""
    try:
        constant = json.loads(text)
    except ValueError:
        raise ArtifactError(f"{text!r} is no constant that a call may have") from None
    if isinstance(constant, float) and not math.isfinite(constant):
        raise ArtifactError(f"{text!r} is no constant that a call may have")
    return format_literal(decode_argument(constant, {}))
