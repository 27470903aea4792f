"""Inputs whose dynamic dimensions are symbols, and what a capture finds out about these."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StrictMinMaxConstraint
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from tightfit.schemas.graph.dynamic_inputs import DynamicDimension, DynamicInputs
from tightfit.schemas.graph.size_expressions import linear_size
from tightfit.stages.torch_utils.model_factory import BuiltModel, structure_leaves
from tightfit.stages.trace.capture_patches import patch_attribute
from tightfit.stages.trace.code_inspection import caller_location, short_path
from tightfit.stages.trace.symbolic_upsampling import patch_upsampling
from tightfit.util.errors import ModelError

_MAX_TRIED_SIZES = 2**14
"""So many sizes, at most, are tried for a condition that a capture met and that limits of sizes do
not prove."""


class _RecordingShapeEnv(ShapeEnv):
    """What is known of symbols, with the names of their dimensions and, by the number of each
    condition, the line of the model that asked for it. Inputs of all runs have the same
    `dimensions`, so that runs can be compared."""

    def __init__(self, may_be_one: bool) -> None:
        super().__init__(duck_shape=False, specialize_zero_one=not may_be_one)
        self.names: dict[sympy.Symbol, str] = {}
        self.dimensions: dict[str, torch.SymInt] = {}
        self.lines: list[str] = []
        self.fixing_lines: dict[sympy.Symbol, str] = {}

    def evaluate_expr(self, *args: Any, **kwargs: Any) -> Any:
        """Answers a question about sizes, and takes note of who asked if that has a condition."""
        result = super().evaluate_expr(*args, **kwargs)
        while len(self.lines) < len(self.guards):
            self.lines.append(short_path(caller_location()))
        for symbol in self.replacements.keys() - self.fixing_lines.keys():
            self.fixing_lines[symbol] = short_path(caller_location())
        return result


def symbolic_fake_mode(dynamic: DynamicInputs) -> FakeTensorMode:
    """A mode of tensors without memory whose sizes may be symbols, one for each dimension even if
    two have the same size in the sample."""
    env = _RecordingShapeEnv(1 in dynamic.smallest.values())
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=env)
    mode.cache_enabled = False  # with symbols results take longer to keep than to make
    return mode


@contextlib.contextmanager
def symbolic_execution(mode: FakeTensorMode) -> Iterator[None]:
    """Within it operators run on tensors of a mode whose sizes are symbols, and errors call these
    by the names of their dimensions. The kernels that convolutions choose by sizes, as for fewer
    than 16 images, are no conditions: a plan calls the operator, and layouts are found later."""
    env = mode.shape_env
    assert isinstance(env, _RecordingShapeEnv)

    def without_conditions(choose: Callable[..., Any]) -> Callable[..., Any]:
        def chosen(*args: Any, **kwargs: Any) -> Any:
            with env.suppress_guards():
                return choose(*args, **kwargs)

        return chosen

    try:
        with (
            patch_upsampling(),
            patch_attribute(torch._C, "_select_conv_backend", without_conditions),
        ):
            yield
    except Exception as error:
        names = {str(symbol): name for symbol, name in env.names.items()}
        error.args = tuple(
            _with_names(said, names) if isinstance(said, str) else said for said in error.args
        )
        raise


def _with_names(said: str, names: Mapping[str, str]) -> str:
    """A message of PyTorch, some of which close a parenthesis that none has opened, with the names
    of dimensions in place of symbols."""
    if said.endswith(")") and said.count(")") > said.count("("):
        said = said[:-1]
    return re.sub(r"\bs\d+\b", lambda found: names.get(found[0], found[0]), said)


def symbolic_inputs(
    built: BuiltModel, places: Sequence[int], mode: FakeTensorMode
) -> list[torch.Tensor]:
    """The input tensors of the first sample, which are its leaves at `places`, without memory and
    with symbols for their dynamic dimensions; the sizes of the sample are the hints."""
    assert built.dynamic is not None
    env, leaves = mode.shape_env, structure_leaves(built.samples[0])
    assert isinstance(env, _RecordingShapeEnv)
    symbols = env.dimensions
    found = []
    for place in places:
        like, axes = leaves[place], built.dynamic.axes.get(place, {})
        shape = list(like.shape)
        for axis, size in axes.items():
            name, factor, offset = linear_size(size) or (size, 1, 0)
            if name not in symbols:
                hint = (like.shape[axis] - offset) // factor
                symbols[name] = _create_symbol(env, built.dynamic.dimension(name), hint)
            shape[axis] = factor * symbols[name] + offset
        order = sorted(range(like.dim()), key=like.stride, reverse=True)
        with mode:
            if axes:
                sizes = [shape[axis] for axis in order]
                blank = torch.empty(sizes, dtype=like.dtype, device=like.device)
                blank = blank.permute([order.index(axis) for axis in range(like.dim())])
            else:
                blank = torch.empty_strided(
                    like.shape, like.stride(), dtype=like.dtype, device=like.device
                )
            found.append(blank.requires_grad_(like.requires_grad))
    return found


def _create_symbol(env: _RecordingShapeEnv, dimension: DynamicDimension, hint: int) -> torch.SymInt:
    source = ConstantSource(dimension.name)
    limits = ValueRanges(dimension.smallest, dimension.largest)
    constraint = StrictMinMaxConstraint(warn_only=False, vr=limits)
    symbol = env.create_symbol(hint, source, DimDynamic.DYNAMIC, constraint)
    env.names[symbol] = dimension.name
    made = env.create_symintnode(symbol, hint=hint, source=source)
    assert isinstance(made, torch.SymInt)
    return made


def graph_expressions(graph: fx.GraphModule, label: str, dynamic: DynamicInputs) -> list[str]:
    """The texts of all sizes of a symbolic capture that depend on dynamic dimensions, those of the
    dimensions first.

    Raises ModelError where the capture holds for some of the sizes alone: where the model fixes a
    dimension, or goes another way at other sizes.
    """
    nodes: list[Any] = [node.meta.get("val") for node in graph.graph.nodes]
    env = next(value for value in nodes if isinstance(value, FakeTensor)).fake_mode.shape_env
    assert isinstance(env, _RecordingShapeEnv)
    names = env.names
    _check_specializations(env, label)
    _check_conditions(env, label, dynamic)
    found = dict.fromkeys(one.name for one in dynamic.dimensions)
    for expression in dict.fromkeys(size.node.expr for size in _symbolic_sizes(nodes)):
        text = _size_text(env.simplify(expression), names)
        if text is not None:
            found.setdefault(text)
    return list(found)


def number_texts(graph: fx.GraphModule) -> list[str]:
    """The texts of all floats that a symbolic capture computes from sizes in Python."""
    found: dict[str, None] = {}
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.SymFloat):
            text = _number_text(value.node.expr, value.node.shape_env.names)
            if text is not None:
                found.setdefault(f"{text} * 1.0" if text.isidentifier() else text)
    return list(found)


def _number_text(number: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> str | None:
    """A number in the language of `schemas.graph.number_expressions`, None where it has no words.
    Sums and products have two operands, whose order does not matter to bits."""
    kind = type(number).__name__
    if isinstance(number, sympy.Float):
        return repr(float(number))
    sign = _NUMBER_SIGNS.get(kind)
    if kind == "ToFloat":
        return _number_text(number.args[0], names)
    if sign is None or len(number.args) != 2:
        return _size_text(number, names)
    texts = [_number_text(part, names) for part in number.args]
    if None in texts:
        return None
    one, other = (text if str(text).isidentifier() else f"({text})" for text in texts)
    return f"{one} {sign} {other}"


_NUMBER_SIGNS = {
    "IntTrueDiv": "/",
    "FloatTrueDiv": "/",
    "FloatPow": "**",
    "Mul": "*",
    "Add": "+",
}


def _symbolic_sizes(values: Sequence[Any]) -> Iterator[torch.SymInt]:
    """The symbolic integers among what nodes give, and sizes and strides of their tensors."""
    for value in values:
        for leaf in torch.utils._pytree.tree_leaves(value):
            sizes = (
                (*leaf.shape, *leaf.stride(), leaf.storage_offset(), leaf.numel())
                if isinstance(leaf, torch.Tensor)
                else (leaf,)
            )
            yield from (size for size in sizes if isinstance(size, torch.SymInt))


def _check_specializations(env: _RecordingShapeEnv, label: str) -> None:
    for symbol, value in env.replacements.items():
        if symbol in env.names:
            fixed = value.xreplace(_as_symbols(env.names))
            line = _line_clause(env.fixing_lines.get(symbol))
            raise ModelError(
                f"{label}: the model fixes the dynamic dimension {env.names[symbol]!r} to be "
                f"{fixed}{line}, as where Python computes with it: leave it out of dynamic_shapes, "
                "give several samples, or let the forward take its size from tensors alone"
            )


def _check_conditions(env: _RecordingShapeEnv, label: str, dynamic: DynamicInputs) -> None:
    """Refuses a capture of which a condition is not proven to hold at all sizes: by the limits of
    these, or since it holds at each of them."""
    for number, guard in enumerate(env.guards):
        symbols = sorted(guard.expr.free_symbols & env.names.keys(), key=str)
        dimensions = [dynamic.dimension(env.names[symbol]) for symbol in symbols]
        limits = {
            symbol: ValueRanges(one.smallest, one.largest)
            for symbol, one in zip(symbols, dimensions, strict=True)
        }
        if bound_sympy(guard.expr, limits) == ValueRanges.wrap(sympy.true):
            continue
        shown = guard.expr.xreplace(_as_symbols(env.names))
        line = _line_clause(env.lines[number] if number < len(env.lines) else "")
        remedy = "give dynamic_shapes a range in which it goes one way, or several samples"
        if len(symbols) == 1 and (least := _least_size(env, symbols[0], dimensions[0])):
            least_range = f"a range from {least} on (min={least})"
            remedy = f"give {dimensions[0].name} {least_range}, or several samples"
        tried, is_complete = _tried_sizes(dimensions)
        for sizes in tried:
            if guard.expr.xreplace(dict(zip(symbols, map(sympy.Integer, sizes), strict=True))):
                continue
            at = ", ".join(f"{d.name} = {size}" for d, size in zip(dimensions, sizes, strict=True))
            raise ModelError(
                f"{label}: the forward goes another way where not {shown}{line}, as at {at}: "
                f"{remedy}"
            )
        if not is_complete:
            raise ModelError(
                f"{label}: the forward goes another way where not {shown}{line}, and there are too "
                f"many sizes to look at each: {remedy}"
            )


def _least_size(
    env: _RecordingShapeEnv, symbol: sympy.Symbol, dimension: DynamicDimension
) -> int | None:
    """The smallest size from which on all conditions of one dimension hold up to the largest, None
    where there is no such range or it has too many sizes."""
    sizes = range(dimension.smallest, dimension.largest + 1)
    conditions = [guard.expr for guard in env.guards]
    own = [one for one in conditions if one.free_symbols & env.names.keys() == {symbol}]
    least = None
    for size in reversed(sizes if len(sizes) <= _MAX_TRIED_SIZES else ()):
        if not all(condition.xreplace({symbol: sympy.Integer(size)}) for condition in own):
            break
        least = size
    return None if least == dimension.largest else least


def _tried_sizes(
    dimensions: Sequence[DynamicDimension],
) -> tuple[Iterator[tuple[int, ...]], bool]:
    """Sizes at which a condition is looked at, and whether these are all: else they are the limits
    and sizes at equal distances between."""
    each = int(_MAX_TRIED_SIZES ** (1 / max(len(dimensions), 1)))
    ranges = [range(one.smallest, one.largest + 1) for one in dimensions]
    if math.prod(map(len, ranges)) <= _MAX_TRIED_SIZES:
        return itertools.product(*ranges), True
    some = [[*own[:: max(len(own) // each, 1)], own[-1]] for own in ranges]
    return itertools.product(*some), False


def _line_clause(line: str | None) -> str:
    """Where a condition comes from, "" if nobody knows."""
    return f" at {line}" if line else ""


def _as_symbols(names: Mapping[sympy.Symbol, str]) -> dict[sympy.Symbol, sympy.Symbol]:
    return {symbol: sympy.Symbol(name) for symbol, name in names.items()}


def _size_text(size: sympy.Expr, names: Mapping[sympy.Symbol, str]) -> str | None:
    """A size in the language of `schemas.graph.size_expressions`, None where it has no words."""
    kind = type(size).__name__
    if isinstance(size, sympy.Integer):
        return str(int(size))
    if isinstance(size, sympy.Symbol):
        return names.get(size)
    if isinstance(size, sympy.Pow) and isinstance(size.exp, sympy.Integer) and int(size.exp) > 0:
        base = _size_text(size.base, names)
        return base and "*".join([f"({base})" if " " in base else base] * int(size.exp))
    parts = [_size_text(part, names) for part in size.args]
    if not parts or None in parts:
        return None
    texts = [str(part) for part in parts]
    if isinstance(size, sympy.Add):
        return " + ".join(texts).replace("+ -", "- ")
    wrapped = [f"({text})" if " " in text or text.startswith("-") else text for text in texts]
    if isinstance(size, sympy.Mul):
        return "*".join(wrapped)
    if kind in ("FloorDiv", "CleanDiv") and texts[1].isdigit():
        return f"{wrapped[0]} // {texts[1]}"
    if kind in ("Mod", "PythonMod") and texts[1].isdigit():
        return f"{wrapped[0]} % {texts[1]}"
    if kind in ("Max", "Min") and len(texts) == 2:
        return f"{kind.lower()}({texts[0]}, {texts[1]})"
    return None
