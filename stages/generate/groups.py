"""The text of a package's groups: a function of calls of ATen each, which is compiled as one
kernel."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from tightfit.schemas.arguments import decode_arguments
from tightfit.schemas.graph import NONE, Graph, Op
from tightfit.schemas.groups import Body, GroupCall, Leaf, body_of, group_name, is_group, over_name
from tightfit.stages.device.kernels import Over, build_key, build_said
from tightfit.stages.device.libraries import compile_libraries
from tightfit.stages.device.operators import decode, resolve
from tightfit.stages.generate.calls import Text, literal
from tightfit.stages.generate.naming import comment


class Library(NamedTuple):
    """The file with the compiled libraries of groups, and what they were compiled for."""

    name: str
    data: bytes
    key: str
    said: str


def library_file(graph: Graph, names: Iterable[str]) -> Library:
    """The compiled libraries of the groups of these names; raises RuntimeError, in a sentence,
    where one cannot be compiled or has other bits than its kernel."""
    device = torch.device(graph.device)
    bodies = {name: at for name, at in _bodies(graph).items() if name in set(names)}
    data = compile_libraries(bodies, device, _tell)
    return Library("libraries.pt2", data, build_key(device), build_said(device))


def _tell(done: int, total: int) -> None:
    print(f"compiled {done} of {total} libraries", flush=True)


def groups_text(graph: Graph, names: Iterable[str], library: Library | None = None) -> str:
    """The module `groups.py` of a package, with the groups of these names, and the digest of the
    file with their compiled libraries, where there is one.

    Raises ArtifactError where a group is not what its target names or calls what PyTorch has not.
    """
    found = _found(graph)
    wanted = set(names)
    forms = {name: _forms_of(ops[0], wanted) for name, ops in found}
    lines = [
        '"""The groups of the step: each function runs as one compiled kernel."""',
        "",
        "import torch",
        "",
        "from .grouped import Group",
        "from .kernels import Form",
        *(["from .libraries import Libraries"] if library else []),
        "",
        "aten = torch.ops.aten",
    ]
    for name, ops in found:
        if forms[name]:
            lines += ["", "", *_function(ops)]
            lines += [line for line in forms[name].values() if line]
    made = ", ".join(each for name, _ in found for each in forms[name])
    return "\n".join([*lines, "", "", f"GROUPS = ({made},)", *_libraries(library), ""])


def _found(graph: Graph) -> list[tuple[str, Sequence[Op]]]:
    """The groups of a graph by name, with the ops that run each."""
    found: dict[str, list[Op]] = {}
    for op in graph.all_ops:
        if is_group(op.target):
            found.setdefault(op.target, []).append(op)
    return sorted((group_name(target), ops) for target, ops in found.items())


def _bodies(graph: Graph) -> dict[str, tuple[Body, Over | None]]:
    """The bodies of groups and of their forms in place, by the names of these."""
    found: dict[str, tuple[Body, Over | None]] = {}
    for name, ops in _found(graph):
        body = body_of(ops[0])
        found[name] = body, None
        for position in range(len(body.inputs)):
            placed = body.placed(position)
            if placed is not None:
                found[over_name(name, position)] = body, Over(position, placed)
    return found


def _libraries(library: Library | None) -> list[str]:
    """The lines that name the file of compiled libraries."""
    if library is None:
        return ["LIBRARIES = None"]
    return [
        "LIBRARIES = Libraries(",
        f"    {library.name!r},",
        f'    "{hashlib.sha256(library.data).hexdigest()}",',
        f'    "{library.key}",',
        f"    {library.said!r},",
        ")",
    ]


def _forms_of(op: Op, wanted: set[str]) -> dict[str, str]:
    """The names among the wanted ones of a group and of its forms in place, with the line that
    makes these."""
    name, body = group_name(op.target), body_of(op)
    found = {name: ""}
    for position in range(len(body.inputs)):
        placed, over = body.placed(position), over_name(name, position)
        found[over] = f"{over} = {name}.over({position}, {placed})"
    return {name: line for name, line in found.items() if name in wanted}


def _function(ops: Sequence[Op]) -> list[str]:
    """The lines of one group, and of what compiles it."""
    body, name = body_of(ops[0]), group_name(ops[0].target)
    places = sorted({op.module for op in ops if op.module})
    where = f"  # {comment(', '.join(places[:3]))}" if places else ""
    given = [f"v{number}" for number in range(len(body.inputs))]
    lines = [f"def _{name}({', '.join(given)}):{where}"]
    lines += [f"    {_call(call)}" for call in body.calls]
    lines += [f"    return [{', '.join(f'v{number}' for number in body.outputs)}]", "", ""]
    return [
        *lines,
        f"{name} = Group(",
        f'    "{name}",',
        f"    _{name},",
        *_forms(body.inputs),
        *_forms(body.forms),
        f"    {body.reads()!r},",
        ")",
    ]


def _call(call: GroupCall) -> str:
    encoded, named = decode_arguments(call.arguments)
    values = _Values()
    arguments = [literal(decode(argument, values)) for argument in encoded]
    arguments += [f"{name}={literal(decode(item, values))}" for name, item in named.items()]
    returns = resolve(call.target)._schema.returns
    left = ", ".join("_" if value == NONE else f"v{value}" for value in call.outputs)
    single = len(call.outputs) == 1 and returns[0].type.kind() != "ListType"
    return f"{left}{'' if single or ',' in left else ','} = {call.target}({', '.join(arguments)})"


class _Values(dict[int, Text]):
    """The text of any value."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: int) -> Text:
        return Text(f"v{key}")


def _forms(leaves: Iterable[Leaf]) -> list[str]:
    forms = [
        f"        Form({tuple(leaf.shape)!r}, {tuple(leaf.strides)!r}, {leaf.offset}, "
        f'"{leaf.dtype}"),'
        for leaf in leaves
    ]
    return ["    (", *forms, "    ),"]
