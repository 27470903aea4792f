"""The text of a package's groups: a function of calls of ATen each, which is compiled as one
kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from tightfit.schemas.graph.fused_groups import (
    GroupBody,
    GroupCall,
    GroupTensor,
    fused_group_name,
    in_place_group_name,
    is_fused_group,
    read_group_body,
)
from tightfit.schemas.graph.op_arguments import decode_arguments
from tightfit.schemas.graph.training_graph import NO_VALUE, Graph, Op
from tightfit.stages.generate.naming import comment_text
from tightfit.stages.generate.operator_calls import SourceText, format_literal
from tightfit.stages.runtime.kernels.compile import InPlaceKernel, build_description, build_key
from tightfit.stages.torch_utils.aot_inductor import compile_libraries
from tightfit.stages.torch_utils.operators import decode_argument, resolve
from tightfit.util.progress import ProgressCallback


class LibraryFile(NamedTuple):
    """The file with the compiled libraries of groups, and what they were compiled for."""

    name: str
    data: bytes
    key: str
    said: str


def compile_library_file(
    graph: Graph, names: Iterable[str], report: ProgressCallback
) -> LibraryFile:
    """The compiled libraries of the groups of these names; `report` is told how many are done.
    Raises RuntimeError, in a sentence, where one cannot be compiled or has other bits than its
    kernel."""
    device = torch.device(graph.device)
    bodies = {name: at for name, at in _group_bodies(graph).items() if name in set(names)}
    data = compile_libraries(bodies, device, report)
    return LibraryFile("libraries.pt2", data, build_key(device), build_description(device))


def groups_text(graph: Graph, names: Iterable[str], library: LibraryFile | None = None) -> str:
    """The module `groups.py` of a package, with the groups of these names, and the digest of the
    file with their compiled libraries, where there is one.

    Raises ArtifactError where a group is not what its target names or calls what PyTorch has not.
    """
    found = _groups_by_name(graph)
    wanted = set(names)
    forms = {name: _kernel_lines(ops[0], wanted) for name, ops in found}
    lines = [
        '"""The groups of the step: each function runs as one compiled kernel."""',
        "",
        "import torch",
        "",
        "from .runtime.kernels.fused_groups import CompiledGroup",
        "from .runtime.kernels.compile import TensorForm",
        *(["from .runtime.kernels.aot_libraries import CompiledLibraries"] if library else []),
        "",
        "aten = torch.ops.aten",
    ]
    for name, ops in found:
        if forms[name]:
            lines += ["", "", *_group_lines(ops)]
            lines += [line for line in forms[name].values() if line]
    made = ", ".join(each for name, _ in found for each in forms[name])
    return "\n".join([*lines, "", "", f"GROUPS = ({made},)", *_library_lines(library), ""])


def _groups_by_name(graph: Graph) -> list[tuple[str, Sequence[Op]]]:
    """The groups of a graph by name, with the ops that run each."""
    found: dict[str, list[Op]] = {}
    for op in graph.all_ops:
        if is_fused_group(op.target):
            found.setdefault(op.target, []).append(op)
    return sorted((fused_group_name(target), ops) for target, ops in found.items())


def _group_bodies(graph: Graph) -> dict[str, tuple[GroupBody, InPlaceKernel | None]]:
    """The bodies of groups and of their forms in place, by the names of these."""
    found: dict[str, tuple[GroupBody, InPlaceKernel | None]] = {}
    for name, ops in _groups_by_name(graph):
        body = read_group_body(ops[0])
        found[name] = body, None
        for position in range(len(body.inputs)):
            placed = body.placed(position)
            if placed is not None:
                found[in_place_group_name(name, position)] = body, InPlaceKernel(position, placed)
    return found


def _library_lines(library: LibraryFile | None) -> list[str]:
    """The lines that name the file of compiled libraries."""
    if library is None:
        return ["LIBRARIES = None"]
    return [
        "LIBRARIES = CompiledLibraries(",
        f"    {library.name!r},",
        f'    "{hashlib.sha256(library.data).hexdigest()}",',
        f'    "{library.key}",',
        f"    {library.said!r},",
        ")",
    ]


def _kernel_lines(op: Op, wanted: set[str]) -> dict[str, str]:
    """The names among the wanted ones of a group and of its forms in place, with the line that
    makes these."""
    name, body = fused_group_name(op.target), read_group_body(op)
    found = {name: ""}
    for position in range(len(body.inputs)):
        placed, over = body.placed(position), in_place_group_name(name, position)
        found[over] = f"{over} = {name}.over({position}, {placed})"
    return {name: line for name, line in found.items() if name in wanted}


def _group_lines(ops: Sequence[Op]) -> list[str]:
    """The lines of one group, and of what compiles it."""
    body, name = read_group_body(ops[0]), fused_group_name(ops[0].target)
    places = sorted({op.module for op in ops if op.module})
    where = f"  # {comment_text(', '.join(places[:3]))}" if places else ""
    given = [f"v{number}" for number in range(len(body.inputs))]
    lines = [f"def _{name}({', '.join(given)}):{where}"]
    lines += [f"    {_call_line(call)}" for call in body.calls]
    lines += [f"    return [{', '.join(f'v{number}' for number in body.outputs)}]", "", ""]
    return [
        *lines,
        f"{name} = CompiledGroup(",
        f'    "{name}",',
        f"    _{name},",
        *_form_lines(body.inputs),
        *_form_lines(body.forms),
        f"    {body.reads()!r},",
        ")",
    ]


def _call_line(call: GroupCall) -> str:
    encoded, named = decode_arguments(call.arguments)
    values = _PlaceholderNames()
    arguments = [format_literal(decode_argument(argument, values)) for argument in encoded]
    arguments += [
        f"{name}={format_literal(decode_argument(item, values))}" for name, item in named.items()
    ]
    returns = resolve(call.target)._schema.returns
    left = ", ".join("_" if value == NO_VALUE else f"v{value}" for value in call.outputs)
    single = len(call.outputs) == 1 and returns[0].type.kind() != "ListType"
    return f"{left}{'' if single or ',' in left else ','} = {call.target}({', '.join(arguments)})"


class _PlaceholderNames(dict[int, SourceText]):
    """The text of any value."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: int) -> SourceText:
        return SourceText(f"v{key}")


def _form_lines(leaves: Iterable[GroupTensor]) -> list[str]:
    forms = [
        f"        TensorForm({tuple(leaf.shape)!r}, {tuple(leaf.strides)!r}, {leaf.offset}, "
        f'"{leaf.dtype}"),'
        for leaf in leaves
    ]
    return ["    (", *forms, "    ),"]
