"""The graph of a model of many equal layers, from those of the same model with two and with three.

A trace takes time by the layer, and equal layers have equal ops. Ops, parameters and gradients of
the two traces are aligned: what stands ahead of the further layer, the layer, and what stands
behind it. A value that an op reads is named by where it is made, which moves by a constant from one
layer, and from one number of layers, to the next: so all are found by straight lines. A trace of
which that does not hold is refused, and a model of equal layers is one whose modules are alike
(`stages.trace.layer_list`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from typing import TypeVar

from tightfit.schemas.graph.training_graph import (
    BASELINE_KINDS,
    NO_VALUE,
    PHASES,
    Graph,
    GraphOutput,
    GraphValue,
    Op,
    OwnedGradient,
    check_graph,
)
from tightfit.stages.simulate.simulate import pause_gc
from tightfit.util.errors import ArtifactError

FEW_LAYERS, MORE_LAYERS = 2, 3
"""The layers of the two traces."""

_VALUE = re.compile(r'(?<=\{"value":)\d+(?=\})')
_FIXED = len(PHASES)
"""The group of the values that no op makes; those of other groups are made in a phase."""

Item = TypeVar("Item")
Made = TypeVar("Made")
Reference = tuple[int, int]
"""The group of a value, and its place in the group."""
SizedValue = tuple[GraphValue, int]
"""A value, whose `storage` is the first value that lies there, with the bytes of the storage."""


class IrregularLayersError(Exception):
    """Two traces do not differ by a layer that repeats."""


@pause_gc()
def extrapolate_layers(few: Graph, more: Graph, layers: int) -> Graph:
    """The graph of a model with so many equal layers.

    Args:
        few: The trace of the model with two of its layers.
        more: That with three of them.
        layers: The layers of the graph that is wanted, at least two.

    Returns:
        The graph that a trace of the whole model gives, but for `source`, `guards` and the paths
        of aliases, which are those of three layers.

    Raises:
        IrregularLayersError: The traces do not differ by a layer that repeats.

    Example:
        `extrapolate_layers(two, three, 3)` has the ops and values of `three`.
    """
    if few.alternatives or more.alternatives or len(few.outputs) != len(more.outputs):
        raise IrregularLayersError
    found = _LayerExtrapolation(_NamedValues(few), _NamedValues(more), layers).graph()
    try:
        check_graph(found, f"{more.model} of {layers} layers")
    except ArtifactError as error:
        raise IrregularLayersError from error
    return found


@dataclass(frozen=True)
class _NamedValues:
    """A graph whose values are named by group and place."""

    graph: Graph

    @cached_property
    def groups(self) -> list[list[int]]:
        """The values by the phase that makes them, and those that none makes."""
        graph = self.graph
        found: list[list[int]] = [[] for _ in PHASES]
        for op in graph.ops:
            found[PHASES.index(op.phase)] += [v for v in op.outputs if v != NO_VALUE]
        fixed = [value.id for value in graph.values if value.kind in BASELINE_KINDS]
        return [*found, fixed]

    @cached_property
    def names(self) -> dict[int, Reference]:
        """The name of each value."""
        return {
            value: (group, place)
            for group, values in enumerate(self.groups)
            for place, value in enumerate(values)
        }

    @cached_property
    def owners(self) -> dict[int, int]:
        """The first value of each storage."""
        return {value.storage: value.id for value in reversed(self.graph.values)}

    def owner(self, value: int) -> int:
        """The first value that lies where a value does."""
        return self.owners[self.graph.values[value].storage]

    @cached_property
    def phases(self) -> list[list[Op]]:
        """The ops by phase."""
        return [[op for op in self.graph.ops if op.phase == phase] for phase in PHASES]

    @property
    def fixed(self) -> list[GraphValue]:
        """The values that no op makes."""
        return [self.graph.values[value] for value in self.groups[_FIXED]]

    def form(self, value: int) -> tuple[object, ...]:
        """All of a value that layers have alike."""
        found = self.graph.values[value]
        return (
            found.kind,
            tuple(found.shape),
            tuple(found.strides),
            found.offset,
            found.dtype,
            found.requires_grad,
            self.graph.storages[found.storage],
        )

    def op_form(self, op: Op) -> tuple[object, ...]:
        """All of an op that layers have alike."""
        read = tuple(map(self.form, op.inputs))
        made = tuple(self.form(value) for value in op.outputs if value != NO_VALUE)
        counts = len(op.writes), len(op.in_place), len(op.outputs)
        module = re.sub(r"\d+", "", op.module)
        return op.target, module, _VALUE.sub("", op.arguments), read, made, counts, op.random

    def fixed_form(self, value: GraphValue) -> tuple[object, ...]:
        """As `op_form` of a value that no op makes."""
        return *self.form(value.id), re.sub(r"\d+", "", value.path)

    def gradient_form(self, gradient: OwnedGradient) -> tuple[object, ...]:
        """As `op_form` of a gradient."""
        return self.fixed_form(self.graph.values[gradient.value])


@dataclass(frozen=True)
class _Line:
    """How an item follows from three: `last` and `before` of three layers, a layer apart, and
    `fewer`, which is `before` of two layers; `steps` layers behind `last`, `more` layers in all."""

    steps: int
    more: int

    def number(self, last: int, before: int, fewer: int) -> int:
        return last + self.steps * (last - before) + self.more * (before - fewer)

    def text(self, last: str, before: str, fewer: str) -> str:
        if last == before == fewer:
            return last
        parts = [re.split(r"(\d+)", each) for each in (last, before, fewer)]
        if len({len(each) for each in parts}) > 1:
            raise IrregularLayersError
        return "".join(
            str(self.number(*map(int, several))) if place % 2 else several[0]
            for place, several in enumerate(zip(*parts, strict=True))
        )


class _LayerExtrapolation:
    """Finds the items of a graph of many layers one after the other."""

    def __init__(self, few: _NamedValues, more: _NamedValues, layers: int) -> None:
        self.few, self.more, self.added = few, more, layers - MORE_LAYERS
        sizes = [(len(a), len(b)) for a, b in zip(few.groups, more.groups, strict=True)]
        self.periods = [b - a for a, b in sizes]
        """By group how many values a layer adds."""
        self.sizes = [b + self.added * (b - a) for a, b in sizes]
        forward, loss, _, fixed = self.sizes
        self.offsets = [fixed, fixed + forward, fixed + forward + loss, 0]

    def graph(self) -> Graph:
        """The graph of all layers; raises IrregularLayersError where there is none."""
        few, more, outer = self.few, self.more, _Line(0, self.added)
        made = self._extrapolate(few.fixed, more.fixed, _NamedValues.fixed_form, self._fixed)
        ops: list[Op] = []
        for few_ops, more_ops in zip(few.phases, more.phases, strict=True):
            for op, outputs in self._extrapolate(few_ops, more_ops, _NamedValues.op_form, self._op):
                if [v for v in op.outputs if v != NO_VALUE] != [
                    len(made) + place for place in range(len(outputs))
                ]:
                    raise IrregularLayersError
                ops.append(replace(op, id=len(ops)))
                made += outputs
        values, storages = _number_storages(made)
        gradients = (few.graph.gradients, more.graph.gradients)
        given = zip(few.graph.outputs, more.graph.outputs, strict=True)
        inputs = (more.graph.inputs, more.graph.inputs, few.graph.inputs)
        return replace(
            more.graph,
            ops=ops,
            values=values,
            storages=storages,
            inputs=self._values(outer, *inputs),
            outputs=[self._output(*pair) for pair in given],
            gradients=self._extrapolate(*gradients, _NamedValues.gradient_form, self._gradient),
        )

    def _extrapolate(
        self,
        few: Sequence[Item],
        more: Sequence[Item],
        form: Callable[[_NamedValues, Item], tuple[object, ...]],
        make: Callable[[_Line, Item, Item, Item], Made],
    ) -> list[Made]:
        """What is made of the items of all layers in order: those ahead of a further layer, those
        of each, and those behind. Where a layer begins is not known: several places are tried."""
        two = [form(self.few, item) for item in few]
        three = [form(self.more, item) for item in more]
        period = len(three) - len(two)
        pairs = zip(two, three, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        cuts = range(common, max(period, common - period) - 1, -1) if period else (common,)
        for cut in cuts:
            alike = two[cut:] == three[cut + period :]
            if not alike or three[cut - period : cut] != three[cut : cut + period]:
                continue
            with contextlib.suppress(IrregularLayersError):
                return list(self._items(few, more, cut, make))
        raise IrregularLayersError

    def _items(
        self,
        few: Sequence[Item],
        more: Sequence[Item],
        cut: int,
        make: Callable[[_Line, Item, Item, Item], Made],
    ) -> Iterator[Made]:
        period, outer = len(more) - len(few), _Line(0, self.added)
        for place in range(cut):
            yield make(outer, more[place], more[place], few[place])
        for layer in range(self.added + 1 if period else 0):
            line = _Line(layer, self.added)
            for place in range(cut, cut + period):
                yield make(line, more[place], more[place - period], few[place - period])
        for place in range(cut, len(few)):
            yield make(outer, more[place + period], more[place + period], few[place])

    def _value(self, line: _Line, last: int, before: int, fewer: int) -> int:
        """The id of a value, by those of the same value in other places; raises
        IrregularLayersError where it moves by anything but a layer."""
        if last == before == fewer == NO_VALUE:
            return NO_VALUE
        try:
            names = self.more.names[last], self.more.names[before], self.few.names[fewer]
        except KeyError as error:
            raise IrregularLayersError from error
        (group, place), (_, prior), (_, short) = names
        steps = (place - prior, prior - short)
        if len({name[0] for name in names}) > 1 or any(
            abs(step) not in (0, self.periods[group]) for step in steps
        ):
            raise IrregularLayersError
        found = line.number(place, prior, short)
        if not 0 <= found < self.sizes[group]:
            raise IrregularLayersError
        return self.offsets[group] + found

    def _values(self, line: _Line, *lists: Sequence[int]) -> list[int]:
        if len({len(each) for each in lists}) > 1:
            raise IrregularLayersError
        return [self._value(line, *several) for several in zip(*lists, strict=True)]

    def _op(self, line: _Line, last: Op, before: Op, fewer: Op) -> tuple[Op, list[SizedValue]]:
        three = (last, before, fewer)
        arguments = [list(map(int, _VALUE.findall(op.arguments))) for op in three]
        ids = iter(self._values(line, *arguments))
        outputs = self._values(line, *(op.outputs for op in three))
        op = replace(
            last,
            arguments=_VALUE.sub(lambda _: str(next(ids)), last.arguments),
            inputs=self._values(line, *(op.inputs for op in three)),
            outputs=outputs,
            writes=self._values(line, *(op.writes for op in three)),
            in_place=self._values(line, *(op.in_place for op in three)),
            module=line.text(*(op.module for op in three)),
        )
        places = [place for place, value in enumerate(outputs) if value != NO_VALUE]
        return op, [
            self._sized(line, outputs[place], *(op.outputs[place] for op in three))
            for place in places
        ]

    def _sized(self, line: _Line, number: int, last: int, before: int, fewer: int) -> SizedValue:
        """A value and its storage, by the first value that lies there."""
        found = self.more.graph.values[last]
        owners = (self.more.owner(last), self.more.owner(before), self.few.owner(fewer))
        own = owners == (last, before, fewer)
        owner = number if own else self._value(line, *owners)
        size = self.more.graph.storages[found.storage]
        return replace(found, id=number, storage=owner), size

    def _fixed(
        self, line: _Line, last: GraphValue, before: GraphValue, fewer: GraphValue
    ) -> SizedValue:
        ids = (last.id, before.id, fewer.id)
        value, size = self._sized(line, self._value(line, *ids), *ids)
        return replace(value, path=line.text(last.path, before.path, fewer.path)), size

    def _gradient(
        self, line: _Line, last: OwnedGradient, before: OwnedGradient, fewer: OwnedGradient
    ) -> OwnedGradient:
        three = (last, before, fewer)
        return OwnedGradient(
            self._value(line, *(each.value for each in three)),
            self._value(line, *(each.gradient for each in three)),
        )

    def _output(self, few: GraphOutput, more: GraphOutput) -> GraphOutput:
        line = _Line(0, self.added)
        return replace(
            more,
            value=self._value(line, more.value, more.value, few.value),
            tangent=self._value(line, more.tangent, more.tangent, few.tangent),
        )


def _number_storages(made: Sequence[SizedValue]) -> tuple[list[GraphValue], list[int]]:
    """The values with the numbers of their storages, in the order of these, and their bytes."""
    numbers: dict[int, int] = {}
    values: list[GraphValue] = []
    sizes: list[int] = []
    for value, size in made:
        if value.storage not in numbers:
            numbers[value.storage] = len(sizes)
            sizes.append(size)
        values.append(replace(value, storage=numbers[value.storage]))
    return values, sizes
