"""The text of a package's groups: a function of calls of ATen each, which is compiled as one
kernel."""

from __future__ import annotations

from collections.abc import Iterable

from schemas.arguments import decode_arguments
from schemas.graph import NONE, Graph, Op
from schemas.groups import GroupCall, Leaf, body_of, group_name, is_group, over_name
from stages.device.operators import decode, resolve
from stages.generate.calls import Text, literal
from stages.generate.naming import comment


def groups_text(graph: Graph, names: Iterable[str]) -> str:
    """The module `groups.py` of a package, with the groups of these names.

    Raises ArtifactError where a group is not what its target names or calls what PyTorch has not.
    """
    wanted = set(names)
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        if is_group(op.target):
            found.setdefault(op.target, []).append(op)
    forms = {target: _forms_of(ops[0], wanted) for target, ops in found.items()}
    ordered = sorted((target for target in found if forms[target]), key=group_name)
    lines = [
        '"""The groups of the step: each function runs as one compiled kernel."""',
        "",
        "import torch",
        "",
        "from .grouped import Group",
        "from .kernels import Form",
        "",
        "aten = torch.ops.aten",
    ]
    for target in ordered:
        lines += ["", "", *_function(found[target])]
        lines += [line for line in forms[target].values() if line]
    made = ", ".join(name for target in ordered for name in forms[target])
    return "\n".join([*lines, "", "", f"GROUPS = ({made},)", ""])


def _forms_of(op: Op, wanted: set[str]) -> dict[str, str]:
    """The names among the wanted ones of a group and of its forms in place, with the line that
    makes these."""
    name, body = group_name(op.target), body_of(op)
    found = {name: ""}
    for position in range(len(body.inputs)):
        placed, over = body.placed(position), over_name(name, position)
        found[over] = f"{over} = {name}.over({position}, {placed})"
    return {name: line for name, line in found.items() if name in wanted}


def _function(ops: list[Op]) -> list[str]:
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
