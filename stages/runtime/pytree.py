"""Nested structures of a call's arguments and of its result, written down as text.

Reading a text imports nothing and calls nothing, and a class that it names is only found where it
has been imported already. Objects are rebuilt from their state, so that no constructor runs, but
for classes registered with PyTorch's pytree, which rebuild themselves.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from inspect import Parameter, Signature
from typing import Any

import torch

from .pytree_classes import (
    MAX_STRUCTURE_DEPTH,
    NODE_KINDS,
    NodeParts,
    find_imported_class,
    is_attribute_name,
    is_class_name,
    is_plain_context,
    name_in_main,
    resolve_class,
)

_NODES = 1_000_000
_SEQUENCES: dict[str, type] = {"tuple": tuple, "list": list, "size": torch.Size}
_MAPPINGS: dict[str, type] = {"dict": dict, "ordered": OrderedDict}
_WORDS = {kind: word for word, kind in (_SEQUENCES | _MAPPINGS).items()}


def flatten(value: Any) -> tuple[list[Any], str]:
    """The leaves of a value, and the text of its structure, which `read_tree` takes.

    Structure are tuples, lists and dictionaries of exactly these types, ordered dictionaries,
    named tuples, dataclasses, ordered dictionaries that are dataclasses too (model outputs), user
    dictionaries, objects of classes that have attributes alone, and classes registered with pytree
    whose context is plain. Anything else is a leaf: so are objects
    of classes that nobody can find by their name, and dictionaries with other keys than strings,
    integers and booleans. Raises ValueError where the value is nested too deeply, or in itself.
    """
    leaves: list[Any] = []
    tree = _describe_node(value, leaves, 0, [0])
    return leaves, json.dumps(tree.written(), separators=(",", ":"))


def read_tree(text: str) -> TreeSpec:
    """The structure that a text describes; raises ValueError, in a sentence, where it does not."""
    try:
        written = json.loads(text, parse_constant=_refuse_constant)
        return _read(written, 0, [0])
    except (RecursionError, TypeError, json.JSONDecodeError):
        raise ValueError("the text of a structure is not JSON of the known form") from None


@dataclasses.dataclass(frozen=True)
class TreeSpec:
    """A structure: a leaf where `kind` is "", else an object of that kind with its `children`.

    `name` is the "module:qualname" of a class. `keys` name the children: keys of a mapping or
    attributes. `context` is what a registered class says of itself, and of a model output how many
    of its keys are items; the others are attributes beside them.
    """

    kind: str = ""
    children: tuple[TreeSpec, ...] = ()
    name: str = ""
    keys: tuple[Any, ...] = ()
    context: Any = None
    count: int = dataclasses.field(init=False, compare=False)
    """The number of leaves."""

    def __post_init__(self) -> None:
        count = sum(child.count for child in self.children) if self.kind else 1
        object.__setattr__(self, "count", count)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The value of this structure that has these leaves.

        Raises ValueError where they are too few or too many, or a class is not there or is
        another than the text says.
        """
        given = list(leaves)
        if len(given) != self.count:
            raise ValueError(f"{len(given)} leaves are given for a structure of {self.count}")
        return self._built(iter(given))

    def flatten_as(self, value: Any, name: str = "it") -> list[Any]:
        """The leaves of a value of this structure.

        Raises ValueError where its structure is another, with words that begin with `name`.
        """
        leaves: list[Any] = []
        self._take(value, name, leaves)
        return leaves

    def paths(self, name: str) -> list[str]:
        """What a person would write to get at each leaf of the value `name`."""
        if not self.kind:
            return [name]
        steps = zip(self._steps(), self.children, strict=True)
        return [path for step, child in steps for path in child.paths(name + step)]

    def bind(self, signature: Signature) -> dict[str, tuple[TreeSpec, list[int]]]:
        """The arguments, by the name of the parameter, of a call whose (args, kwargs) this is:
        their structures, and the positions of their leaves among all leaves.

        Builds nothing. Raises TypeError where the signature takes no such call, ValueError where
        this is no structure of a call.
        """
        if self.kind != "tuple" or [child.kind for child in self.children] != ["tuple", "dict"]:
            raise ValueError("the structure is not that of a call's arguments")
        args, kwargs = self.children
        if not _all_of_types(list(kwargs.keys), (str,)):
            raise ValueError("the structure is not that of a call's arguments")
        named = dict(zip(kwargs.keys, _with_positions(kwargs.children, args.count), strict=True))
        bound = signature.bind(*_with_positions(args.children, 0), **named)
        return {
            name: _merge_argument(signature.parameters[name].kind, given)
            for name, given in bound.arguments.items()
        }

    def written(self) -> Any:
        """The JSON of this structure, as `read_tree` takes its text."""
        if not self.kind:
            return None
        children = [child.written() for child in self.children]
        plain = self.kind in _SEQUENCES
        return [self.kind, children, *([] if plain else [self.name, [*self.keys], self.context])]

    def _steps(self) -> Iterator[str]:
        if self.kind in _SEQUENCES or self.kind == "registered":
            yield from (f"[{position}]" for position in range(len(self.children)))
        for key in self.keys:
            attribute = self.kind not in _MAPPINGS and is_attribute_name(key)
            yield f".{key}" if attribute else f"[{key!r}]"

    def _built(self, leaves: Iterator[Any]) -> Any:
        if not self.kind:
            return next(leaves)
        items = [child._built(leaves) for child in self.children]
        if self.kind == "size" and not _all_of_types(items, (int,)):
            return tuple(items)
        if self.kind in _SEQUENCES:
            return _SEQUENCES[self.kind](items)
        if self.kind in _MAPPINGS:
            return _MAPPINGS[self.kind](zip(self.keys, items, strict=True))
        kind = resolve_class(self.name, self.kind)
        try:
            return NODE_KINDS[self.kind].rebuild(kind, NodeParts(items, self.keys, self.context))
        except Exception as error:  # whatever a class makes of parts that it was not made of
            raise ValueError(f"no {self.name} can be made of these parts ({error})") from error

    def _take(self, value: Any, name: str, leaves: list[Any]) -> None:
        if not self.kind:
            leaves.append(value)
            return
        found, items = _open_node(value) or (TreeSpec(), [])
        if not self._admits(found):
            raise ValueError(f"{name} is a {found.said(value)} instead of a {self.said()}")
        if found.keys != self.keys or found.context != self.context:
            mine, own = [*found.keys, found.context], [*self.keys, self.context]
            raise ValueError(f"{name} has the parts {mine} instead of {own}")
        if len(items) != len(self.children):
            raise ValueError(f"{name} has {len(items)} parts instead of {len(self.children)}")
        for step, child, item in zip(self._steps(), self.children, items, strict=True):
            child._take(item, name + step, leaves)

    def _admits(self, found: TreeSpec) -> bool:
        if self.kind in ("tuple", "size"):
            return found.kind in ("tuple", "size")
        return found.kind == self.kind and found.name in (self.name, name_in_main(self.name))

    def said(self, value: Any = None) -> str:
        """A word for the outermost structure; a leaf's is the type of its value."""
        words = {"": type(value).__qualname__, "ordered": "OrderedDict", "size": "tuple"}
        return self.name.partition(":")[2] or words.get(self.kind, self.kind)


def _describe_node(value: Any, leaves: list[Any], depth: int, seen: list[int]) -> TreeSpec:
    _count_node(depth, seen)
    found = _open_node(value)
    if found is None:
        leaves.append(value)
        return TreeSpec()
    tree, items = found
    children = tuple(_describe_node(item, leaves, depth + 1, seen) for item in items)
    return dataclasses.replace(tree, children=children)


def _open_node(value: Any) -> tuple[TreeSpec, list[Any]] | None:
    """The outermost structure of a value, without children, and what it holds; None for a leaf."""
    kind = type(value)
    if kind in _SEQUENCES.values():
        return TreeSpec(_WORDS[kind]), list(value)
    if kind in _MAPPINGS.values():
        known = _all_of_types(list(value), (str, int, bool))
        tree = TreeSpec(_WORDS[kind], keys=tuple(value))
        return (tree, list(value.values())) if known else None
    name = f"{kind.__module__}:{kind.__qualname__}"
    if not is_class_name(name) or find_imported_class(name) is not kind:
        return None
    word = next((word for word, known in NODE_KINDS.items() if known.has(kind)), "")
    parts = NODE_KINDS[word].open(value) if word else None
    if parts is None:
        return None
    return TreeSpec(word, name=name, keys=parts.keys, context=parts.context), parts.items


def _with_positions(trees: Sequence[TreeSpec], start: int) -> Iterator[tuple[TreeSpec, list[int]]]:
    for tree in trees:
        yield tree, list(range(start, start + tree.count))
        start += tree.count


def _merge_argument(kind: Any, given: Any) -> tuple[TreeSpec, list[int]]:
    """One argument of a call; what a parameter gathers is one tuple, or one dictionary."""
    if kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        return given
    named = kind is Parameter.VAR_KEYWORD
    parts = list(given.values()) if named else list(given)
    children, keys = tuple(tree for tree, _ in parts), tuple(given) if named else ()
    positions = [position for _, places in parts for position in places]
    return TreeSpec("dict" if named else "tuple", children, keys=keys), positions


def _read(written: Any, depth: int, seen: list[int]) -> TreeSpec:
    _count_node(depth, seen)
    if written is None:
        return TreeSpec()
    if (
        not isinstance(written, list)
        or len(written) not in (2, 5)
        or not _all_of_types(written[:1], (str,))
    ):
        raise ValueError("a structure is of an unknown form")
    kind, parts, name, keys, context = (*written, "", [], None)[:5]
    if not isinstance(parts, list) or not _is_valid_node(kind, name, keys, context, len(parts)):
        raise ValueError(f"a structure is of an unknown form, {str(kind)[:40]!r}")
    children = tuple(_read(part, depth + 1, seen) for part in parts)
    return TreeSpec(kind, children, name, tuple(keys), context)


def _is_valid_node(kind: str, name: Any, keys: Any, context: Any, count: int) -> bool:
    if kind in _SEQUENCES:
        return name == "" and keys == [] and context is None
    if kind in _MAPPINGS:
        return name == "" and context is None and _are_distinct_names(keys, (str, int, bool), count)
    if kind not in NODE_KINDS or not isinstance(name, str) or not is_class_name(name):
        return False
    if kind == "registered":
        return keys == [] and is_plain_context(context)
    counted = kind in ("output", "userdict")
    fits = type(context) is int and 0 <= context <= count if counted else context is None
    return fits and _are_distinct_names(keys, (str,), count) and all(map(is_attribute_name, keys))


def _are_distinct_names(keys: Any, kinds: tuple[type, ...], count: int) -> bool:
    return _all_of_types(keys, kinds) and len(set(keys)) == len(keys) == count


def _all_of_types(items: Any, kinds: tuple[type, ...]) -> bool:
    return isinstance(items, list) and all(type(item) in kinds for item in items)


def _count_node(depth: int, seen: list[int]) -> None:
    seen[0] += 1
    if depth > MAX_STRUCTURE_DEPTH or seen[0] > _NODES:
        raise ValueError(
            f"a structure is nested more than {MAX_STRUCTURE_DEPTH} deep, or has too many parts"
        )


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"the text of a structure holds {text}, which is no JSON")


def argument_name(path: str) -> str:
    """The path of a leaf of (args, kwargs) as people say it: a named argument by its name."""
    found = re.fullmatch(r"input\[1\]\['(\w+)'\](.*)", path)
    return path if found is None else f"{found[1]}{found[2]}"
