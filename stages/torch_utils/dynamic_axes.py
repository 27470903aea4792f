"""Which axes of a sample's inputs are dynamic, in the convention of torch.export or as text."""

from __future__ import annotations

import builtins
import inspect
import keyword
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from tightfit.schemas.graph.dynamic_inputs import SMALLEST_SIZE, DynamicDimension, DynamicInputs
from tightfit.schemas.graph.size_expressions import linear_size
from tightfit.stages.runtime.pytree import flatten, read_tree
from tightfit.stages.torch_utils.model_factory import BuiltModel
from tightfit.stages.torch_utils.sample_sizes import resize_samples
from tightfit.util.errors import ArtifactError, ConfigError, ModelError

Ranges = Mapping[str, Mapping[str, int]]
"""By the names of dimensions, `min` and `max` of those that have such."""


def with_dynamic_axes(
    built: BuiltModel,
    dynamic_shapes: Any,
    ranges: Ranges | None = None,
    key: str = "",
    plans: int = 1,
) -> BuiltModel:
    """A model with samples of one shape, enlarged to the largest sizes of their dynamic axes.

    Args:
        built: The model and its samples.
        dynamic_shapes: By the name of each argument of the forward, or in their order, the dynamic
            axes: a mapping from axes to `torch.export.Dim`, one computed from such as `32*height`,
            `Dim.AUTO`, `Dim.DYNAMIC`, names, texts such as "32*height" or None, or a list with one
            of these for each axis; for an argument that has tensors in lists or dictionaries such a
            list or dictionary.
        ranges: The ranges of dimensions that are given by name.
        key: What errors call `dynamic_shapes`.
        plans: How many plans the calls have at most.

    Raises:
        ConfigError: It is not of this form, does not fit the sample, or has a range that no plan
            can have.

    Example:
        >>> built = with_dynamic_axes(built, {"image": {0: "batch", 2: "32*height"}})
        >>> built.dynamic.dimensions
        (DynamicDimension('batch', 2, 8), DynamicDimension('height', 1, 7))
    """
    reader = _AxisReader(built, ranges or {}, key or "plan: dynamic_shapes")
    dynamic = replace(reader.read(dynamic_shapes), plans=plans)
    return resize_samples(replace(built, dynamic=dynamic), dynamic.largest)


@dataclass(frozen=True)
class _AxisSize:
    """The size of an axis: that of a dimension, times a factor and with an offset. `least` and
    `most` are the limits of the dimension, None where they are not given."""

    name: str
    factor: int = 1
    offset: int = 0
    least: int | None = None
    most: int | None = None

    @property
    def text(self) -> str:
        """The size as an expression."""
        text = self.name if self.factor == 1 else f"{self.factor}*{self.name}"
        if not self.offset:
            return text
        return f"{text} {'+' if self.offset > 0 else '-'} {abs(self.offset)}"

    def dimension(self, size: int) -> DynamicDimension:
        """The dimension, whose range ends with this size of the axis unless it says so."""
        fewest = max(-(-(SMALLEST_SIZE - self.offset) // self.factor), 1)
        largest = (size - self.offset) // self.factor if self.most is None else self.most
        return DynamicDimension(self.name, max(self.least or 0, fewest), largest)


class _AxisReader:
    """Reads dynamic axes beside the first sample of a model; errors begin with a `key`."""

    def __init__(self, built: BuiltModel, ranges: Ranges, key: str) -> None:
        self.leaves, text = flatten(built.samples[0])
        args, kwargs = read_tree(text).unflatten(range(len(self.leaves)))
        self.arguments = _bind_arguments(built, args, kwargs)
        self.ranges = ranges
        self.key = key
        self.dimensions: dict[str, DynamicDimension] = {}
        self.first: dict[str, str] = {}
        self.numbers: dict[str, int] = {}
        self.given: dict[str, tuple[int | None, int | None]] = {}

    def read(self, dynamic_shapes: Any) -> DynamicInputs:
        """The dimensions, and the axes that have them."""
        axes: dict[int, dict[int, str]] = {}
        for name, spec in self._by_argument(dynamic_shapes).items():
            if spec is None:
                continue
            if name not in self.arguments:
                known = ", ".join(self.arguments)
                raise ConfigError(
                    f"{self.key} names {name!r}, and the sample has the arguments {known}"
                )
            for leaf, path, own in self._leaf_specs(self.arguments[name], spec, name):
                found = dict(self._axes(leaf, path, own))
                if found:
                    axes[leaf] = found
        if not axes:
            raise ConfigError(
                f"{self.key} has no dynamic dimension: give one, as "
                '{"input_ids": {1: torch.export.Dim("tokens", max=1024)}}, or leave it out'
            )
        return DynamicInputs(tuple(self.dimensions.values()), axes)

    def _by_argument(self, dynamic_shapes: Any) -> Mapping[str, Any]:
        if isinstance(dynamic_shapes, Mapping) and all(isinstance(k, str) for k in dynamic_shapes):
            return dynamic_shapes
        if isinstance(dynamic_shapes, list | tuple):
            names = list(self.arguments)
            if len(dynamic_shapes) <= len(names):
                return dict(zip(names, dynamic_shapes, strict=False))
        raise ConfigError(
            f"{self.key} is {dynamic_shapes!r}, expected the dynamic axes by the names "
            "of arguments or in their order, as "
            '{"input_ids": {1: torch.export.Dim("tokens", max=1024)}}'
        )

    def _leaf_specs(self, argument: Any, spec: Any, path: str) -> Iterator[tuple[int, str, Any]]:
        """The leaves of an argument, whose numbers stand in it, with what is said of each."""
        if spec is None:
            return
        if isinstance(argument, int):
            yield argument, path, spec
        elif isinstance(argument, Mapping) and isinstance(spec, Mapping):
            for key, own in spec.items():
                if key not in argument:
                    raise ConfigError(f"{self.key}: {path} has no {key!r}")
                yield from self._leaf_specs(argument[key], own, f"{path}[{key!r}]")
        elif (
            isinstance(argument, list | tuple)
            and isinstance(spec, list | tuple)
            and len(spec) == len(argument)
        ):
            for number, (item, own) in enumerate(zip(argument, spec, strict=True)):
                yield from self._leaf_specs(item, own, f"{path}[{number}]")
        else:
            raise ConfigError(f"{self.key} says {spec!r} of {path}, which is of another structure")

    def _axes(self, leaf: int, path: str, spec: Any) -> Iterator[tuple[int, str]]:
        """The dynamic axes of a leaf with their sizes."""
        tensor = self.leaves[leaf]
        if not isinstance(tensor, torch.Tensor):
            raise ConfigError(f"{self.key}: {path} is no tensor in the sample")
        if isinstance(spec, list | tuple):
            spec = dict(enumerate(spec))
        if not isinstance(spec, Mapping):
            raise ConfigError(
                f"{self.key} says {spec!r} of {path}, expected axes with dimensions, as "
                '{0: torch.export.Dim("batch", max=8)}'
            )
        for axis, dim in spec.items():
            if type(axis) is not int or not 0 <= axis < tensor.dim():
                raise ConfigError(
                    f"{self.key}: {path} has no axis {axis!r}: its sample has shape "
                    f"{tuple(tensor.shape)}"
                )
            text = self._size_text(dim, tensor.shape[axis], axis, f"axis {axis} of {path}")
            if text:
                yield axis, text

    def _size_text(self, dim: Any, size: int, axis: int, where: str) -> str:
        """The size of an axis, "" for one that is the same in all calls."""
        if dim is None or getattr(getattr(dim, "type", None), "name", "") == "STATIC":
            return ""
        if isinstance(dim, int) and not isinstance(dim, bool):
            if dim != size:
                raise ConfigError(f"{self.key}: {where} is {size} in the sample, not {dim}")
            return ""
        found = self._axis_size(dim, size, axis, where)
        name, limits = found.name, found.dimension(size)
        self._check_limits(found, limits, size, where)
        number = (size - found.offset) // found.factor
        known = self.dimensions.get(name, limits)
        given = (found.least, found.most)
        self.first.setdefault(name, where)
        if (
            self.given.setdefault(name, given) != given
            or known.largest != limits.largest
            or self.numbers.setdefault(name, number) != number
        ):
            raise ConfigError(
                f"{self.key}: {name!r} is {self.numbers[name]} on {self.first[name]} and "
                f"{number} on {where} in the sample, or has two ranges: give two names"
            )
        self.dimensions[name] = replace(known, smallest=max(known.smallest, limits.smallest))
        return found.text

    def _axis_size(self, dim: Any, size: int, axis: int, where: str) -> _AxisSize:
        limits = {"least": getattr(dim, "min", None), "most": getattr(dim, "max", None)}
        name = getattr(dim, "__name__", None)
        linear: tuple[int, int] = (1, 0)
        if getattr(getattr(dim, "type", None), "name", "") in ("AUTO", "DYNAMIC") or dim is ...:
            name = f"size_{axis}_of_{size}"
        elif isinstance(dim, str):
            name, linear = _parse_size_text(dim)
            own = self.ranges.get(name, {})
            limits = {"least": own.get("min"), "most": own.get("max")}
        elif hasattr(dim, "root") and hasattr(dim, "fn"):
            limits = {"least": dim.root.min, "most": dim.root.max}
            name, linear = dim.root.__name__, (dim.fn(1) - dim.fn(0), dim.fn(0))
        elif not isinstance(name, str) or not hasattr(dim, "max"):
            raise ConfigError(
                f"{self.key} says {dim!r} of {where}, expected a torch.export.Dim, a name or None"
            )
        assert isinstance(name, str)
        if not name.isidentifier() or keyword.iskeyword(name) or hasattr(builtins, name):
            raise ConfigError(
                f"{self.key}: {name!r} on {where} cannot be a name in a program: choose another one"
            )
        known = {key: int(n) for key, n in limits.items() if isinstance(n, int)}
        return _AxisSize(name, *linear, **known)

    def _check_limits(
        self, axis_size: _AxisSize, limits: DynamicDimension, size: int, where: str
    ) -> None:
        name, smallest, largest = limits.name, limits.smallest, limits.largest
        if size < SMALLEST_SIZE:
            raise ConfigError(
                f"{self.key}: {where} ({name}) has the size {size} in the sample, for which "
                f"PyTorch runs other operators: give a sample with at least {SMALLEST_SIZE} there"
            )
        number, rest = divmod(size - axis_size.offset, axis_size.factor)
        if rest:
            raise ConfigError(
                f"{self.key}: {where} is {size} in the sample, which is no {axis_size.text}: give "
                f"a sample with {size - rest} or {size - rest + axis_size.factor} there"
            )
        if not smallest <= number <= largest:
            raise ConfigError(
                f"{self.key}: {where} is {number} in the sample, and {name} is from {smallest} "
                f"to {largest}: give a larger range or a sample within it"
            )
        if smallest == largest:
            raise ConfigError(
                f"{self.key}: {name} on {where} has the one size {number}: give it a larger "
                f'one, as torch.export.Dim("{name}", max={2 * number}), or None'
            )


def _parse_size_text(text: str) -> tuple[str, tuple[int, int]]:
    """Name, factor and offset of a text, which is a name where it is no expression."""
    try:
        name, factor, offset = linear_size(text) or (text, 1, 0)
    except ArtifactError:
        return text, (1, 0)
    return name, (factor, offset)


def _bind_arguments(built: BuiltModel, args: Any, kwargs: Any) -> dict[str, Any]:
    """The arguments of a call of a model by name; raises ModelError where it takes others."""
    signature = inspect.signature(built.model.forward)
    try:
        found = dict(signature.bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise ModelError(f"{built.label}: the forward does not take the sample: {error}") from error
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(name, {})
    return found
