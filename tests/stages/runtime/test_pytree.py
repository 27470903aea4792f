"""Structures come back as they went in, and a doctored text reaches nothing."""

from __future__ import annotations

import contextlib
import copy
import json
import subprocess
import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from inspect import signature
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tightfit.stages.runtime.pytree import TreeSpec, flatten, read_tree


class Pair(NamedTuple):
    first: Any
    second: Any


Old = namedtuple("Old", "one two three")


@dataclass
class Plain:
    value: Any
    rest: Any = None
    made: Any = field(init=False, default=7)


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


@dataclass
class Picky:
    value: Any

    def __post_init__(self) -> None:
        assert isinstance(self.value, torch.Tensor)


@dataclass
class Answer(OrderedDict):
    """What model outputs of the libraries are: absent fields are attributes and no items."""

    loss: Any = None
    logits: Any = None

    def __post_init__(self) -> None:
        for name in ("loss", "logits"):
            if getattr(self, name) is not None:
                self[name] = getattr(self, name)


class Sub(dict):
    pass


leaves = st.none() | st.integers() | st.booleans() | st.text() | st.just(1.5)
keys = st.text() | st.integers()


def nested(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    some = st.lists(children, max_size=3)
    return st.one_of(
        some,
        some.map(tuple),
        st.dictionaries(keys, children, max_size=3),
        st.dictionaries(keys, children, max_size=3).map(OrderedDict),
        st.builds(Pair, children, children),
        st.builds(Old, children, children, children),
        st.builds(Plain, children, children),
        st.builds(Frozen, children),
        st.builds(Answer, children, children),
        st.lists(st.integers(0, 9), max_size=3).map(torch.Size),
    )


values = st.recursive(leaves, nested, max_leaves=12)


@given(values)
def test_round_trip(value: Any) -> None:
    found, text = flatten(value)
    tree = read_tree(text)
    made = tree.unflatten(found)
    assert repr(made) == repr(value)
    assert made == value
    assert type(made) is type(value)
    assert tree.count == len(found) == len(tree.paths("x")) == len(set(tree.paths("x")))
    assert tree.flatten_as(made) == found
    assert flatten(made)[1] == text == json.dumps(tree.written(), separators=(",", ":"))


@given(values, values)
def test_only_the_same_structure_is_flattened_as_it(one: Any, other: Any) -> None:
    tree = read_tree(flatten(one)[1])
    found, text = flatten(other)
    same = text.replace('"size"', '"tuple"') == flatten(one)[1].replace('"size"', '"tuple"')
    if same:
        assert tree.flatten_as(other) == found
    elif tree.kind:
        try:
            taken = tree.flatten_as(other, "batch")
        except ValueError as error:
            assert str(error).startswith("batch")
        else:  # a leaf of the one is a structure in the other: the caller compares leaves
            assert len(taken) == tree.count


def test_state_is_kept_without_a_constructor() -> None:
    value = Plain(1)
    value.made = 3
    value.extra = 4  # type: ignore[attr-defined]
    found, text = flatten(value)
    made = read_tree(text).unflatten(found)
    assert vars(made) == vars(value)
    _, text = flatten(Picky(torch.ones(1)))
    assert read_tree(text).unflatten([5]).value == 5
    answer = Answer(logits=1)
    found, text = flatten(answer)
    made = read_tree(text).unflatten(found)
    assert (dict(made), made.logits, made.loss) == ({"logits": 1}, 1, None)


def test_what_pytorch_returns_and_what_is_registered() -> None:
    value = torch.arange(6.0).reshape(2, 3).max(dim=1)
    found, text = flatten(value)
    made = read_tree(text).unflatten(found)
    assert type(made) is type(value) and made.values is value.values
    assert read_tree(text).flatten_as(value)[1] is value.indices


def test_all_else_is_a_leaf() -> None:
    @dataclass
    class Local:
        value: int

    class Child(Pair):
        pass

    others: tuple[Any, ...] = (
        *(defaultdict(list), deque([1]), Counter("a"), Sub(a=1), {1.5: 2}, {(1,): 2}, {None: 1}),
        *(Local(1), {1, 2}, range(3), torch.ones(2), torch.nn.Linear(1, 1), Plain, 1 + 2j),
    )
    for value in others:
        assert flatten(value)[1] == "null"
    grown = Child(1, 2)
    grown.more = 3  # type: ignore[attr-defined]
    assert flatten(grown)[1] == "null"


def test_paths_are_what_a_person_writes() -> None:
    value = {"mask": [1, (2,)], 3: Plain(4), "out": Answer(logits=5), "two": Pair(6, 7)}
    assert read_tree(flatten(value)[1]).paths("x") == [
        "x['mask'][0]",
        "x['mask'][1][0]",
        "x[3].value",
        "x[3].rest",
        "x[3].made",
        "x['out'].logits",
        "x['out'].loss",
        "x['two'].first",
        "x['two'].second",
    ]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([1, 2], "batch['a'] is a list instead of a tuple"),
        ((1,), "batch['a'] has 1 parts instead of 2"),
        (Pair(1, 2), "batch['a'] is a Pair instead of a tuple"),
        (3, "batch['a'] is a int instead of a tuple"),
    ],
)
def test_differences_are_named(value: Any, words: str) -> None:
    tree = read_tree(flatten({"a": (1, 2)})[1])
    with pytest.raises(ValueError, match="^" + words.replace("[", r"\[") + "$"):
        tree.flatten_as({"a": value}, "batch")


def test_the_order_of_keys_is_structure() -> None:
    tree = read_tree(flatten({"a": 1, "b": 2})[1])
    assert list(tree.unflatten([1, 2])) == ["a", "b"]
    with pytest.raises(ValueError, match="has the parts"):
        tree.flatten_as({"b": 2, "a": 1})


def test_a_call_is_bound_without_building_it() -> None:
    def forward(x: Any, *more: Any, mask: Any = None, **rest: Any) -> None: ...

    tree = read_tree(flatten((((1, 2), Picky(torch.ones(1)), 4), {"other": [5], "mask": 6}))[1])
    bound = tree.bind(signature(forward))
    assert {name: positions for name, (_, positions) in bound.items()} == {
        "x": [0, 1],
        "more": [2, 3],
        "mask": [5],
        "rest": [4],
    }
    assert bound["rest"][0].paths("rest") == ["rest['other'][0]"]
    assert bound["more"][0].flatten_as((Picky(torch.ones(1)), 9))[1] == 9
    with pytest.raises(TypeError):
        tree.bind(signature(lambda x: x))
    with pytest.raises(ValueError, match="not that of a call"):
        read_tree(flatten([1])[1]).bind(signature(forward))


def test_a_structure_in_itself_is_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested"):
        flatten(value)


def deep(depth: int) -> str:
    return '["list",[' * depth + "null" + "]]" * depth


MALFORMED = [
    *("", "{}", "[]", "1", '"tuple"', "nul", "[null]", '["tuple"]', '["tuple",null]', "NaN"),
    *('["tuple",[1]]', '["set",[]]', '[["tuple"],[]]', '["tuple",[],"a:b",[],null]'),
    *('["dict",[null]]', '["dict",[null],"",["a","a"],null]', '["dict",[null],"",[1.5],null]'),
    *('["dict",[null],"",[["a"]],null]', '["dict",[null],"",[{}],null]'),
    '["dict",[null,null],"",["a"],null]',
    '["dataclass",[null],"os",["a"],null]',
    '["dataclass",[null],"os:",["a"],null]',
    '["dataclass",[null],"os:path\\u002e\\u002e",["a"],null]',
    '["dataclass",[null],"a:b",["__class__"],null]',
    '["dataclass",[null],"a:b",["\\u005f_class__"],null]',
    '["dataclass",[null],"a:b",["x y"],null]',
    '["dataclass",[null],"a:b",["x"],1]',
    '["output",[null],"a:b",["x"],2]',
    '["output",[null],"a:b",["x"],true]',
    '["output",[null],"a:b",["x"],-1]',
    '["registered",[null],"a:b",[],{"__enum__":1}]',
    '["registered",[null],"a:b",[],1.5]',
    '["registered",[null],"a:b",["x"],null]',
    '[1,{"type":"collections.defaultdict","context":"\\u0022os\\u0022","children_spec":[]}]',
    '[1,{"type":"builtins.dict","context":"{\\"\\u005f_enum__\\":true}","children_spec":[]}]',
    deep(101),
    deep(100_000),
    "[" * 1_000_000,
    '["list",[' + "null," * 1_000_001 + "null]]",
    "9" * 5000,
]


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_texts_are_refused(text: str) -> None:
    loaded = set(sys.modules)
    with pytest.raises(ValueError) as error:
        read_tree(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 200
    assert set(sys.modules) == loaded


@given(st.text() | st.recursive(leaves, lambda x: st.lists(x) | st.dictionaries(keys, x)))
def test_any_text_is_read_or_refused(written: Any) -> None:
    text = written if isinstance(written, str) else json.dumps(written)
    with contextlib.suppress(ValueError):
        assert isinstance(read_tree(text), TreeSpec)


NAMED = [
    "os:system",
    "subprocess:Popen",
    "functools:partial",
    "collections:defaultdict",
    "collections:deque",
    "collections:OrderedDict",
    "builtins:dict",
    "builtins:type",
    "torch.nn:Linear",
    "torch.nn.modules.linear:Linear",
    "enum:Enum",
    "turtle:Turtle",
    "antigravity:fly",
    "xml.dom.minidom:Document",
    "types:FunctionType",
    "no_such_module:Thing",
    "os:path.join",
    "tests.stages.runtime.test_pytree:Tree.unflatten",
]


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("kind", ["namedtuple", "dataclass", "output", "registered"])
def test_a_name_reaches_no_class_but_those_of_its_kind(kind: str, name: str) -> None:
    keys = [] if kind == "registered" else ["value"]
    text = json.dumps([kind, [None], name, keys, 1 if kind == "output" else None])
    loaded = set(sys.modules)
    tree = read_tree(text)
    with pytest.raises(ValueError, match=r"^(there is no class|\S+ is not of the kind)"):
        tree.unflatten(["true"])
    with pytest.raises(ValueError, match="instead of"):
        tree.flatten_as(Plain(1))
    assert set(sys.modules) == loaded


def test_a_class_of_another_shape_is_refused() -> None:
    _, text = flatten(Pair(1, 2))
    for changed in (text.replace("first", "other"), text.replace("[null,null]", "[null]", 1)):
        with pytest.raises(ValueError):
            read_tree(changed).unflatten([1, 2])
    slotted = flatten(Frozen(1))[1].replace('["value"]', '["other"]')
    with pytest.raises(ValueError, match=r"^no .*Frozen can be made of these parts"):
        read_tree(slotted).unflatten([1])


SCRIPT = """
import sys
sys.path[:0] = {path!r}
from dataclasses import dataclass
from tightfit.stages.runtime.pytree import flatten, read_tree
@dataclass
class Out:
    value: object
text = flatten(Out(1))[1]
assert "__main__:Out" in text
moved = read_tree(text.replace("__main__", "train"))
assert moved.flatten_as(Out(3)) == [3] and moved.unflatten([4]) == Out(4)
assert "train" not in sys.modules
"""


def test_a_script_finds_its_own_classes() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(path=sys.path)], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr


def test_tensors_are_the_same_objects() -> None:
    value = {"a": [torch.ones(1), (torch.zeros(2),)]}
    found, text = flatten(value)
    again = read_tree(text).flatten_as(copy.copy(value))
    assert all(one is other for one, other in zip(found, again, strict=True))
