"""A random module: a list of operations on values, made from a seed."""

from __future__ import annotations

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from tests.battery.case import SEED, Case
from tests.battery.random_inputs import normal
from tests.battery.use_context import differentiable, weighted
from tests.fuzz.operations import LASTING, OPERATIONS, WRITING
from tightfit.stages.torch_utils.model_factory import Sample

SHAPES = ((4, 6), (3, 4, 6), (6,), (4, 1), (2, 3, 6))
LARGEST = 2000
LEFT_OUT = ""
"""The operation of a line that does nothing."""


@dataclass(frozen=True)
class Line:
    """An operation on two of the values so far, and the number that stands for its choices."""

    operation: str
    one: int
    two: int
    choice: int


@dataclass(frozen=True)
class Text:
    """A whole module: its inputs, which of them require gradients, its lines, and its outputs as a
    structure of positions."""

    shapes: tuple[tuple[int, ...], ...]
    gradients: tuple[bool, ...]
    lines: tuple[Line, ...]
    outputs: Any


class Program(nn.Module):
    """Runs a text. Its weights are made when a line first asks for them, and shared."""

    def __init__(self, text: Text) -> None:
        super().__init__()
        self.text = text
        self.mean: Tensor
        self.level: Tensor
        self.register_buffer("mean", torch.tensor(0.5))
        self.register_buffer("level", torch.tensor(0.25))

    def weight(self, choice: int, *shape: int) -> Tensor:
        """One of two weights of a shape."""
        name = f"weight{choice % 2}_" + "_".join(map(str, shape))
        if name not in self._parameters:
            generator = torch.Generator().manual_seed(hash(shape) % 1000 + choice % 2)
            numbers = torch.randn(shape, generator=generator) * 0.4
            self.register_parameter(name, nn.Parameter(numbers))
        return getattr(self, name)

    def statistics(self, width: int) -> tuple[Tensor, Tensor]:
        """The running statistics of a width."""
        if f"mean{width}" not in self._buffers:
            self.register_buffer(f"mean{width}", torch.zeros(width))
            self.register_buffer(f"spread{width}", torch.ones(width))
        return getattr(self, f"mean{width}"), getattr(self, f"spread{width}")

    def forward(self, *inputs: Tensor) -> Any:
        values = list(inputs)
        for line in self.text.lines:
            if line.operation == LEFT_OUT:
                values.append(values[line.one])
                continue
            operation = OPERATIONS[line.operation]
            values.append(operation(self, values[line.one], values[line.two], line.choice))
        return _filled(self.text.outputs, [*values, self.mean])


def _filled(structure: Any, values: list[Tensor]) -> Any:
    if isinstance(structure, dict):
        return {key: _filled(item, values) for key, item in structure.items()}
    if isinstance(structure, (list, tuple)):
        return type(structure)(_filled(item, values) for item in structure)
    return values[structure] if isinstance(structure, int) else structure


def contents(text: Text, number: int) -> Sample:
    """The contents of a call."""
    return tuple(
        normal(number, *shape, place=place, grad=grad)
        for place, (shape, grad) in enumerate(zip(text.shapes, text.gradients, strict=True))
    ), {}


def complete(text: Text) -> nn.Module:
    """The module with all of its weights, buffers as they were at the start."""
    torch.manual_seed(SEED)
    model = Program(text)
    with torch.no_grad():
        model(*contents(text, 0)[0])
        for name, buffer in model.named_buffers():
            buffer.fill_({"mean": 0.5, "level": 0.25}.get(name, float(name.startswith("spread"))))
    return model


@functools.lru_cache(1)
def text_of(seed: int) -> Text:
    """What the random module of a seed does."""
    chance = random.Random(seed)
    text = _written(chance)
    while not _trains(text):
        text = _written(chance)
    return text


def case_of(seed: int) -> Case:
    """The random module of a seed."""
    return _case(seed, text_of(seed))


def used_case_of(seed: int) -> Case:
    """The random module of a seed without the lines that nothing uses."""
    text = text_of(seed)
    return _case(seed, replace(text, lines=_used(text)))


def _case(seed: int, text: Text) -> Case:
    return Case(f"fuzz {seed}", lambda: complete(text), lambda number: contents(text, number))


def _used(text: Text) -> tuple[Line, ...]:
    """The lines, each that nothing uses made one that does nothing."""
    first = len(text.shapes)
    used = set(_places(text.outputs))
    lines: list[Line] = []
    for place, line in reversed(list(enumerate(text.lines, first))):
        if place in used or line.operation in LASTING:
            used |= {line.one, line.two}
            lines.append(line)
        else:
            lines.append(replace(line, operation=LEFT_OUT))
    return tuple(reversed(lines))


def _places(structure: Any) -> Iterator[int]:
    if isinstance(structure, dict):
        structure = list(structure.values())
    if isinstance(structure, list | tuple):
        for item in structure:
            yield from _places(item)
    elif isinstance(structure, int):
        yield structure


def _written(chance: random.Random) -> Text:
    """Lines that run one after the other; those that do not fit are left out."""
    count = chance.choice((1, 1, 2, 3))
    shapes = tuple(chance.choice(SHAPES[: 1 + chance.randrange(5)]) for _ in range(count))
    gradients = tuple(chance.random() < 0.25 for _ in range(count))
    start = Text(shapes, gradients, (), ())
    model = Program(start)
    values: list[Tensor] = list(contents(start, 0)[0])
    lines: list[Line] = []
    names = list(OPERATIONS)
    wanted = chance.randint(3, 18)
    for _ in range(20 * wanted):
        if len(lines) == wanted:
            break
        line = Line(
            chance.choice(names), _late(chance, values), _late(chance, values), chance.randrange(6)
        )
        if line.operation in WRITING and line.one < count:
            continue
        try:
            made = OPERATIONS[line.operation](
                model, values[line.one], values[line.two], line.choice
            )
        except Exception:  # whatever an operation makes of values that it was not made for
            continue
        if not isinstance(made, Tensor) or not 0 < made.numel() <= LARGEST or not _tame(made):
            continue
        lines.append(line)
        values.append(made)
    return Text(shapes, gradients, tuple(lines), _structure(chance, values, count))


def _late(chance: random.Random, values: list[Tensor]) -> int:
    """A value, rather one of the last."""
    return max(chance.randrange(len(values)), chance.randrange(len(values)))


def _tame(value: Tensor) -> bool:
    return bool(value.detach().float().abs().max() < 1e3)


def _structure(chance: random.Random, values: list[Tensor], inputs: int) -> Any:
    trained = [place for place, v in enumerate(values) if v.requires_grad and place >= inputs]
    if not trained:
        return ()
    picked: list[Any] = [
        trained[-1],
        *chance.sample(trained, min(len(trained), chance.randrange(3))),
    ]
    if chance.random() < 0.2:
        picked.append(chance.choice((len(values), 0, None, 3.5, "text", chance.choice(trained))))
    return chance.choice(
        (
            lambda: picked[0],
            lambda: tuple(picked),
            lambda: {"first": picked[0], "rest": list(picked[1:])},
            lambda: [picked[0], {"more": tuple(picked[1:])}],
        )
    )()


def _trains(text: Text) -> bool:
    """Whether a step of the module runs in eager mode, and again on other contents."""
    if text.outputs == ():
        return False
    try:
        for number in range(2):
            model = complete(text)
            args, _ = contents(text, number)
            outputs = differentiable(model(*args))
            if not outputs:
                return False
            weighted(outputs).backward()
    except (RuntimeError, IndexError, ValueError):
        return False
    return any(True for _ in model.parameters()) or any(text.gradients)
